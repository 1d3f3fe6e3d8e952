// The arithmetic of attention over sixteen-lane vectors, for every type of cache.
//
// A core computes for a span of rows, page by page, on a buffer that holds for each page [4][rows][16] floats
// (four blocks of 16 positions): scores, which `weights` turns into p in place, which `values` then reads.

// 2^t for t <= about 0, relative error 4e-6: finer by far than the bfloat16 that p is rounded to. Below 2^-126 zero.
// The polynomial is 1 at 0 and 2 at 1, so that the largest score has p = 1.
inline V vexp2_short(V t) {
  V f = vfraction(t);
  V p = vfma(vset(0.013555747456848621f), f, vset(0.05203237012028694f));
  p = vfma(p, f, vset(0.2413797676563263f));
  p = vfma(p, f, vset(0.6930321455001831f));
  return vscale2(vfma(p, f, vset(1.0f)), t);
}
constexpr float kLog2E = 1.44269504f;

// Sixteen scores of row r from position `first` on: invisible ones become -inf.
inline V hide(const Span& x, int r, int64_t first, V s) {
  const V least = vset(-__builtin_inff());
  return vselect_first(int(x.low[r] - first), least, vselect_first(int(x.high[r] - first), s, least));
}

inline void accumulate(float* total, const float* sums, int rows) {
  for (int r = 0; r < rows; ++r) vstore(total + r * 16, vadd(vload(total + r * 16), vload(sums + r * 16)));
}

#if defined(__AVX512F__)
constexpr int kVectorRows = 8, kVectorChains = 16;
#else
constexpr int kVectorRows = 4, kVectorChains = 4;
#endif

template <fp::KvType Type>
struct VectorCore {
  using Element = typename Stored<Type>::type;
  static constexpr bool kFloat = Type == fp::KvType::F32, kScaled = Type == fp::KvType::INT8;
  static constexpr int kRows = kSpanRows;  // most rows of a span
  static constexpr int kTogether = kVectorRows;  // rows that share the loads of a line of the cache

  const fp::Attention& a;
  const int64_t d_pad = a.layout.d_pad(), page_bytes = a.layout.page_bytes();
  const int64_t d_used = kFloat ? a.layout.head_dim : fp::round_up(a.layout.head_dim, 2);  // the rest is zero
  const int v_blocks = int((a.layout.head_dim + 15) / 16);

  void begin(const Span&) {}

  // Blocks of sixteen positions or dimensions that R rows do together, so that no chain of fma waits for another. Narrow
  // elements have two chains a row, and widening those of more blocks costs more than it gains (measured: cached int8).
  static constexpr int together(int rows) {
    const int blocks = kFloat ? kVectorChains / rows : 1;
    return blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
  }

  void load_queries(const Span& x, uint8_t* to) {
    for (int r = 0; r < x.rows; ++r) {
      float* q = reinterpret_cast<float*>(to) + r * d_pad;
      load_query(a, x, r, q);
      for (int64_t i = 0; i < d_pad; i += 16) {
        V scaled = vmul(vload(q + i), vset(a.scale));
        vstore(q + i, kFloat ? scaled : vround_bf16(scaled));
      }
    }
  }

  // Scores of R rows for B times sixteen positions. What padding dimensions would add is left out: zero.
  template <int R, int B>
  void score_blocks(const Element* k, const float* q, V (*s)[R]) {
    const int64_t block = 16 * d_pad;  // elements
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < R; ++r) s[b][r] = vzero();
    if constexpr (kFloat) {
      for (int64_t i = 0; i < d_used; ++i, k += 16) {
        V key[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) key[b] = vload(k + b * block);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const V query = vset(q[r * d_pad + i]);
#pragma GCC unroll 4
          for (int b = 0; b < B; ++b) s[b][r] = vfma(query, key[b], s[b][r]);
        }
      }
    } else {
      for (int64_t chunk = 0; chunk < d_used; chunk += 32) {
        V even[B][R], odd[B][R];
        for (int b = 0; b < B; ++b)
          for (int r = 0; r < R; ++r) even[b][r] = odd[b][r] = vzero();
        const int64_t end = smaller(chunk + 32, d_used);
        for (int64_t i = chunk; i < end; i += 2, k += 32) {
#pragma GCC unroll 4
          for (int b = 0; b < B; ++b) {
            const V key_even = load_even(k + b * block), key_odd = load_odd(k + b * block);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
              even[b][r] = vfma(vset(q[r * d_pad + i]), key_even, even[b][r]);
              odd[b][r] = vfma(vset(q[r * d_pad + i + 1]), key_odd, odd[b][r]);
            }
          }
        }
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b)
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[b][r] = vadd(s[b][r], vadd(even[b][r], odd[b][r]));
      }
    }
  }

  // Rows [r0, r0 + R) of a span whose q these are, and B blocks of a page from b on.
  template <int R, int B>
  void score_part(const Span& x, const uint8_t* data, const float* q, int64_t page, int r0, int b0, bool full,
                  float* buffer, float* most) {
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes);
    const bool changes = a.changes_scores();
    V s[B][R];
    score_blocks<R, B>(reinterpret_cast<const Element*>(data) + b0 * 16 * d_pad, q + r0 * d_pad, s);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      V all = vload(most + (r0 + r) * 16);
#pragma GCC unroll 4
      for (int i = 0; i < B; ++i) {
        const int b = b0 + i;
        V one = s[i][r];
        if (kScaled) one = vmul(one, vload(scales + b * 16));
        if (changes)
          one = changed(a, x, r0 + r, page * fp::kPage + b * 16,
                        placed<Type>(a, x, r0 + r, page, b, data, q + (r0 + r) * d_pad, one));
        if (!full) one = hide(x, r0 + r, page * fp::kPage + b * 16, one);
        vstore(buffer + (b * x.rows + r0 + r) * 16, one);
        all = vmax(all, one);
      }
      vstore(most + (r0 + r) * 16, all);
    }
  }

  template <int R>
  void score_rows(const Span& x, const uint8_t* data, const uint8_t* next, const float* q, int64_t page, int r0,
                  float* buffer, float* most) {
    constexpr int B = together(R);
    const bool full = all_visible(x, page);
    const int64_t block_lines = page_bytes / 4 / 64;
    const Seen seen = seen_of(x, page);
    int b = seen.first_block();
    auto fetch = [&](int blocks) {
      if (next)
        for (int64_t i = b * block_lines; i < (b + blocks) * block_lines; ++i) __builtin_prefetch(next + i * 64);
    };
    for (; b + B <= seen.end_block(); b += B) {
      fetch(B);
      score_part<R, B>(x, data, q, page, r0, b, full, buffer, most);
    }
    for (; b < seen.end_block(); ++b) {
      fetch(1);
      score_part<R, 1>(x, data, q, page, r0, b, full, buffer, most);
    }
  }

  // Scores of one page into its buffer; most [rows][16] takes the largest ones. `next` is fetched meanwhile.
  void scores(const Span& x, int64_t page, const uint8_t* data, const uint8_t* next, const uint8_t* queries,
              float* buffer, float* most) {
    const float* q = reinterpret_cast<const float*>(queries);
    by_rows(x.rows, [&](auto rows, int r) {
      score_rows<rows>(x, data, r ? nullptr : next, q, page, r, buffer, most);
    });
  }

  // f(rows that are done together, the first of them) for all rows of a span.
  template <class F>
  static void by_rows(int rows, F f) {
    int r = 0;
    for (; r + kTogether <= rows; r += kTogether) f(std::integral_constant<int, kTogether>(), r);
    if constexpr (kTogether > 4)
      for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>(), r);
    if (rows - r == 3) f(std::integral_constant<int, 3>(), r);
    if (rows - r == 2) f(std::integral_constant<int, 2>(), r);
    if (rows - r == 1) f(std::integral_constant<int, 1>(), r);
  }

  // Scores become p; sums [rows][16] gets the page's sum for every lane.
  void weights(const Span& x, int64_t page, const uint8_t* data, const float* most, float* buffer, float* sums) {
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes) + fp::kPage;
    const Seen seen = seen_of(x, page);
    for (int r = 0; r < x.rows; ++r) {
      const V shift = vset(kFloat ? most[r] : -(most[r] * kLog2E));
      V sum = vzero();
      for (int b = seen.first_block(); b < seen.end_block(); ++b) {
        float* at = buffer + (b * x.rows + r) * 16;
        V s = vload(at);
        V p = kFloat ? vexp(vsub(s, shift)) : vexp2_short(vfma(s, vset(kLog2E), shift));  // -inf gives exactly 0
        sum = vadd(sum, p);
        if (kScaled) p = vmul(p, vload(scales + b * 16));
        if (!kFloat) p = vround_bf16(p);
        vstore(at, p);
      }
      vstore(sums + r * 16, sum);
    }
  }

  // acc[dims / 16][rows][16] += p * V of one page, for R rows and B times sixteen dimensions.
  template <int R, int B>
  void value_blocks(const uint8_t* data, const float* p, int rows, Seen seen, float* acc) {
    const int64_t block = fp::kPage * 16;  // elements of V
    const Element* v = reinterpret_cast<const Element*>(data);
    V sum[B][R];
#pragma GCC unroll 4
    for (int c = 0; c < B; ++c)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[c][r] = vload(acc + (c * rows + r) * 16);
    if constexpr (kFloat) {
      for (int b = seen.first_block(); b * 16 < seen.end; ++b) {
        const float* at = p + b * rows * 16;
        const int end = int(smaller(seen.end, b * 16 + 16));
        for (int i = b * 16; i < end; ++i, ++at) {
          V value[B];
#pragma GCC unroll 4
          for (int c = 0; c < B; ++c) value[c] = vload(v + c * block + i * 16);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const V weight = vset(at[r * 16]);
#pragma GCC unroll 4
            for (int c = 0; c < B; ++c) sum[c][r] = vfma(weight, value[c], sum[c][r]);
          }
        }
      }
    } else {
      for (int half = 0; half < 2; ++half) {
        const int begin = int(larger(seen.begin, half * 32)), end = int(smaller(seen.end, half * 32 + 32));
        V even[B][R], odd[B][R];
        for (int c = 0; c < B; ++c)
          for (int r = 0; r < R; ++r) even[c][r] = odd[c][r] = vzero();
        for (int b = begin / 16; b * 16 < end; ++b) {
          const Element* line = v + b * 8 * 32;
          const float* at = p + b * rows * 16;
          const int n = int(smaller(16, end - b * 16));
          for (int i = 0; i < n; i += 2, line += 32, at += 2) {
#pragma GCC unroll 4
            for (int c = 0; c < B; ++c) {
              const V value_even = load_even(line + c * block), value_odd = load_odd(line + c * block);
#pragma GCC unroll 8
              for (int r = 0; r < R; ++r) {
                even[c][r] = vfma(vset(at[r * 16]), value_even, even[c][r]);
                odd[c][r] = vfma(vset(at[r * 16 + 1]), value_odd, odd[c][r]);
              }
            }
          }
        }
#pragma GCC unroll 4
        for (int c = 0; c < B; ++c)
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[c][r] = vadd(sum[c][r], vadd(even[c][r], odd[c][r]));
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < B; ++c)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) vstore(acc + (c * rows + r) * 16, sum[c][r]);
  }

  // acc [block1 - block0][rows][16] += p * V of a page for blocks [block0, block1) of sixteen dimensions. The page that
  // comes next, if there is one, is fetched meanwhile.
  void add_values(const Span& x, int block0, int block1, const uint8_t* data, const uint8_t* next, Seen seen,
                  const float* p, float* acc) {
    const int64_t block_bytes = page_bytes / (d_pad / 16);
    data += page_bytes;
    by_rows(x.rows, [&](auto rows, int r) {
      constexpr int R = rows, B = together(R);
      float* to = acc + r * 16;
      auto fetch = [&](int64_t from, int64_t end) {
        if (next && r == 0)
          for (int64_t i = from * block_bytes; i < end * block_bytes; i += 64) __builtin_prefetch(next + page_bytes + i);
      };
      int block = block0;
      for (; block + B <= block1; block += B, to += B * x.rows * 16) {
        fetch(block, block + B);
        value_blocks<R, B>(data + block * block_bytes, p + r * 16, x.rows, seen, to);
      }
      for (; block < block1; ++block, to += x.rows * 16) {
        fetch(block, block + 1);
        value_blocks<R, 1>(data + block * block_bytes, p + r * 16, x.rows, seen, to);
      }
    });
  }

  // acc [block1 - block0][rows][16] = p * V for blocks [block0, block1) of sixteen dimensions, over all pages of x.
  // page_buffer(page) has the p of a page.
  template <class Buffer>
  void values(const Span& x, int block0, int block1, const Pages& pages, Buffer page_buffer, float* acc) {
    for (int i = 0; i < (block1 - block0) * x.rows; ++i) vstore(acc + i * 16, vzero());
    const uint8_t* next = pages(x.page0);
    for (int64_t page = x.page0; page < x.page1; ++page) {
      const uint8_t* data = next;
      next = page + 1 < x.page1 ? pages(page + 1) : nullptr;
      add_values(x, block0, block1, data, next, seen_of(x, page), page_buffer(page), acc);
    }
  }

  // From scores to the sums of p and of p * V, one page after the other: p is used while it is at hand.
  template <class Buffer>
  void weigh(const Span& x, const Pages& pages, const float* most, Buffer page_buffer, float* sums, float* total,
             float* acc) {
    for (int i = 0; i < v_blocks * x.rows; ++i) vstore(acc + i * 16, vzero());
    const uint8_t* next = pages(x.page0);
    for (int64_t page = x.page0; page < x.page1; ++page) {
      const uint8_t* data = next;
      next = page + 1 < x.page1 ? pages(page + 1) : nullptr;
      weights(x, page, data, most, page_buffer(page), sums);
      accumulate(total, sums, x.rows);
      add_values(x, 0, v_blocks, data, next, seen_of(x, page), page_buffer(page), acc);
    }
  }
};
