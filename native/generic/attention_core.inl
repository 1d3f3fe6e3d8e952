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

template <fp::KvType Type>
struct VectorCore {
  using Element = typename Stored<Type>::type;
  static constexpr bool kFloat = Type == fp::KvType::F32, kScaled = Type == fp::KvType::INT8;
  static constexpr int kRows = 16;       // most rows of a span
  static constexpr int kTogether = 4;    // rows that share the loads of a line of the cache
  static constexpr int kLine = kFloat ? 16 : 32;  // elements of a line

  const fp::Attention& a;
  const int64_t d_pad = a.layout.d_pad(), page_bytes = a.layout.page_bytes();

  void begin(const Span&) {}

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

  // Scores of R rows for sixteen positions.
  template <int R>
  void score_block(const Element* k, const float* q, V* s) {
    for (int r = 0; r < R; ++r) s[r] = vzero();
    if constexpr (kFloat) {
      for (int64_t i = 0; i < d_pad; ++i, k += 16) {
        V key = vload(k);
        for (int r = 0; r < R; ++r) s[r] = vfma(vset(q[r * d_pad + i]), key, s[r]);
      }
    } else {
      for (int64_t chunk = 0; chunk < d_pad; chunk += 32) {
        V even[R], odd[R];
        for (int r = 0; r < R; ++r) even[r] = odd[r] = vzero();
        for (int64_t i = chunk; i < chunk + 32; i += 2, k += 32) {
          V key_even = load_even(k), key_odd = load_odd(k);
          for (int r = 0; r < R; ++r) {
            even[r] = vfma(vset(q[r * d_pad + i]), key_even, even[r]);
            odd[r] = vfma(vset(q[r * d_pad + i + 1]), key_odd, odd[r]);
          }
        }
        for (int r = 0; r < R; ++r) s[r] = vadd(s[r], vadd(even[r], odd[r]));
      }
    }
  }

  template <int R>
  void score_rows(const Span& x, const uint8_t* data, const uint8_t* next, const float* q, int64_t page, int r0,
                  float* buffer, float* most) {
    const Element* keys = reinterpret_cast<const Element*>(data);
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes);
    const bool full = all_visible(x, page), changes = a.changes_scores();
    const int64_t block_lines = page_bytes / 4 / 64;
    const Seen seen = seen_of(x, page);
    for (int b = seen.first_block(); b < seen.end_block(); ++b) {
      if (next)
        for (int64_t i = 0; i < block_lines; ++i) __builtin_prefetch(next + (b * block_lines + i) * 64);
      V s[R];
      score_block<R>(keys + b * 16 * d_pad, q + r0 * d_pad, s);
      for (int r = 0; r < R; ++r) {
        if (kScaled) s[r] = vmul(s[r], vload(scales + b * 16));
        if (changes)
          s[r] = changed(a, x, r0 + r, page * fp::kPage + b * 16,
                         placed<Type>(a, x, r0 + r, page, b, data, q + (r0 + r) * d_pad, s[r]));
        if (!full) s[r] = hide(x, r0 + r, page * fp::kPage + b * 16, s[r]);
        vstore(buffer + (b * x.rows + r0 + r) * 16, s[r]);
        vstore(most + (r0 + r) * 16, vmax(vload(most + (r0 + r) * 16), s[r]));
      }
    }
  }

  // Scores of one page into its buffer; most [rows][16] takes the largest ones. `next` is fetched meanwhile.
  void scores(const Span& x, int64_t page, const uint8_t* data, const uint8_t* next, const uint8_t* queries,
              float* buffer, float* most) {
    const float* q = reinterpret_cast<const float*>(queries);
    int r = 0;
    for (; r + 4 <= x.rows; r += 4, next = nullptr) score_rows<4>(x, data, next, q, page, r, buffer, most);
    if (x.rows - r == 3) score_rows<3>(x, data, next, q, page, r, buffer, most);
    if (x.rows - r == 2) score_rows<2>(x, data, next, q, page, r, buffer, most);
    if (x.rows - r == 1) score_rows<1>(x, data, next, q, page, r, buffer, most);
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

  // acc[dims / 16][rows][16] += p * V of one page, for R rows and sixteen dimensions.
  template <int R>
  void value_block(const Element* v, const float* p, int rows, Seen seen, float* acc) {
    V sum[R];
    for (int r = 0; r < R; ++r) sum[r] = vload(acc + r * 16);
    if constexpr (kFloat) {
      for (int b = seen.first_block(); b * 16 < seen.end; ++b)
        for (int i = b * 16; i < smaller(seen.end, b * 16 + 16); ++i) {
          V value = vload(v + i * 16);
          for (int r = 0; r < R; ++r) sum[r] = vfma(vset(p[(b * rows + r) * 16 + i % 16]), value, sum[r]);
        }
    } else {
      for (int half = 0; half < 2; ++half) {
        const int begin = int(larger(seen.begin, half * 32)), end = int(smaller(seen.end, half * 32 + 32));
        V even[R], odd[R];
        for (int r = 0; r < R; ++r) even[r] = odd[r] = vzero();
        for (int b = begin / 16; b * 16 < end; ++b) {
          const Element* line = v + b * 8 * 32;
          const float* block = p + b * rows * 16;
          const int n = int(smaller(16, end - b * 16));
          for (int i = 0; i < n; i += 2, line += 32) {
            V value_even = load_even(line), value_odd = load_odd(line);
            for (int r = 0; r < R; ++r) {
              const float* at = block + r * 16 + i;
              even[r] = vfma(vset(at[0]), value_even, even[r]);
              odd[r] = vfma(vset(at[1]), value_odd, odd[r]);
            }
          }
        }
        for (int r = 0; r < R; ++r) sum[r] = vadd(sum[r], vadd(even[r], odd[r]));
      }
    }
    for (int r = 0; r < R; ++r) vstore(acc + r * 16, sum[r]);
  }

  // acc [block1 - block0][rows][16] = p * V for blocks [block0, block1) of sixteen dimensions, over all pages of x.
  // page_buffer(page) has the p of a page.
  template <class Buffer>
  void values(const Span& x, int block0, int block1, const Pages& pages, Buffer page_buffer, float* acc) {
    for (int i = 0; i < (block1 - block0) * x.rows; ++i) vstore(acc + i * 16, vzero());
    const int64_t block_bytes = page_bytes / (d_pad / 16);
    const uint8_t* next = pages(x.page0);
    for (int64_t page = x.page0; page < x.page1; ++page) {
      const uint8_t* data = next + page_bytes;
      const float* p = page_buffer(page);
      const Seen seen = seen_of(x, page);
      next = page + 1 < x.page1 ? pages(page + 1) : nullptr;
      for (int block = block0; block < block1; ++block) {
        if (next)
          for (int64_t i = 0; i < block_bytes; i += 64) __builtin_prefetch(next + page_bytes + block * block_bytes + i);
        const Element* v = reinterpret_cast<const Element*>(data + block * block_bytes);
        float* to = acc + (block - block0) * x.rows * 16;
        int r = 0;
        for (; r + 4 <= x.rows; r += 4) value_block<4>(v, p + r * 16, x.rows, seen, to + r * 16);
        if (x.rows - r == 3) value_block<3>(v, p + r * 16, x.rows, seen, to + r * 16);
        if (x.rows - r == 2) value_block<2>(v, p + r * 16, x.rows, seen, to + r * 16);
        if (x.rows - r == 1) value_block<1>(v, p + r * 16, x.rows, seen, to + r * 16);
      }
    }
  }
};
