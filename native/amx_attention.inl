// Attention with AMX tiles for BF16 and INT8 caches: the sums of generic/attention.inl, up to 32 query rows at once.
//
// A tiles hold queries [rows][32 dimensions] or p [rows][32 positions], B tiles are read from the cache as they lie
// (INT8: made bfloat16 on the way). Tiles 0-3 are sums, 4 and 5 are A, 6 and 7 are B. Up to 16 rows the four sums are
// four blocks of 16 positions or dimensions; above, two blocks for rows 0-15 (0, 1) and for the others (2, 3).
#include "generic/attention_cache.inl"
#include "generic/attention_scores.inl"
#include "generic/attention_positions.inl"
#include "generic/attention_core.inl"
#include "generic/attention_schedule.inl"
#include "generic/attention_own.inl"

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

inline void configure_tiles(int rows) {
  TileConfig config{};
  const int low = rows > 16 ? 16 : rows, high = rows > 16 ? rows - 16 : rows;
  const int heights[8] = {low, low, high, high, low, high, 16, 16};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) config.bytes[i] = 64, config.rows[i] = uint8_t(heights[i]);
  asm volatile("" ::"m"(config) : "memory");  // GCC 12 drops the stores above otherwise
  _tile_loadconfig(&config);
}

inline const void* b_tile(const uint16_t* lines, uint16_t*) { return lines; }
// Sixteen lines of int8 pairs as bfloat16, which holds them exactly.
inline const void* b_tile(const int8_t* lines, uint16_t* space) {
  const __m512i high = _mm512_set1_epi32(int(0xffff0000));
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(lines + 32 * i)));
    __m512i even = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 16), 16)));
    __m512i odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(x, 16)));
    // bits of odd where `high` is set, of even >> 16 elsewhere
    _mm512_store_si512(space + 32 * i, _mm512_ternarylogic_epi32(high, odd, _mm512_srli_epi32(even, 16), 0xca));
  }
  return space;
}

inline void prefetch_tile(const void* p) {
  for (int i = 0; i < 16; ++i) _mm_prefetch((const char*)p + 64 * i, _MM_HINT_T0);
}

template <fp::KvType Type>
struct TileCore {
  using Element = typename Stored<Type>::type;
  static constexpr bool kScaled = Type == fp::KvType::INT8;
  static constexpr int kRows = kSpanRows;
  static constexpr int64_t kTile = 512;  // elements of a B tile

  const fp::Attention& a;
  const int64_t d_pad = a.layout.d_pad(), page_bytes = a.layout.page_bytes();
  // Scores are completed where they stand: others than that are only multiplied by the keys' scales, whenever they are
  // read. (Rotated keys have scales that are known no longer when p is computed.)
  const bool in_place = a.changes_scores() || (kScaled && a.rotate_on_read);
  int configured = 0;

  void begin(const Span& x) {
    if (configured != x.rows) configure_tiles(x.rows);
    configured = x.rows;
  }

  // [d_pad / 32][rows][32] bfloat16, and [rows][d_pad] floats behind the greatest of these
  void load_queries(const Span& x, uint8_t* to) {
    alignas(64) float q[kMaxHeadDim];
    for (int r = 0; r < x.rows; ++r) {
      load_query(a, x, r, q);
      for (int64_t i = 0; i < d_pad; i += 32) {
        V low = vmul(vload(q + i), vset(a.scale)), high = vmul(vload(q + i + 16), vset(a.scale));
        _mm512_store_si512(to + (i / 32 * x.rows + r) * 64, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        if (!a.positioned.any()) continue;
        float* rounded = reinterpret_cast<float*>(to) + kSpanRows * d_pad + r * d_pad + i;  // for what tiles don't do
        vstore(rounded, vround_bf16(low)), vstore(rounded + 16, vround_bf16(high));
      }
    }
  }

  void scores(const Span& x, int64_t page, const uint8_t* data, const uint8_t* next, const uint8_t* queries,
              float* buffer, float* most) {
    const Element* keys = reinterpret_cast<const Element*>(data);
    const int64_t chunks = d_pad / 32, block = 16 * x.rows;
    alignas(64) uint16_t space[4][kTile];
    const bool half = half_seen(x, page);
    if (x.rows <= 16 && half) {
      _tile_zero(0); _tile_zero(1);
      for (int64_t c = 0; c < chunks; ++c) {
        const Element* k = keys + c * kTile;
        _tile_loadd(4, queries + c * x.rows * 64, 64);
        _tile_loadd(6, b_tile(k, space[0]), 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b_tile(k + chunks * kTile, space[1]), 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_stored(0, buffer, 64);
      _tile_stored(1, buffer + block, 64);
    } else if (x.rows <= 16) {
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
      for (int64_t c = 0; c < chunks; ++c) {
        const Element* k = keys + c * kTile;
        _tile_loadd(4, queries + c * x.rows * 64, 64);
        fetch(next, c);
        _tile_loadd(6, b_tile(k, space[0]), 64);
        _tile_dpbf16ps(0, 4, 6);
        fetch(next, chunks + c);
        _tile_loadd(7, b_tile(k + chunks * kTile, space[1]), 64);
        _tile_dpbf16ps(1, 4, 7);
        fetch(next, 2 * chunks + c);
        _tile_loadd(6, b_tile(k + 2 * chunks * kTile, space[2]), 64);
        _tile_dpbf16ps(2, 4, 6);
        fetch(next, 3 * chunks + c);
        _tile_loadd(7, b_tile(k + 3 * chunks * kTile, space[3]), 64);
        _tile_dpbf16ps(3, 4, 7);
      }
      _tile_stored(0, buffer, 64);
      _tile_stored(1, buffer + block, 64);
      _tile_stored(2, buffer + 2 * block, 64);
      _tile_stored(3, buffer + 3 * block, 64);
    } else {
      for (int b = 0; b < (half ? 2 : 4); b += 2) {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (int64_t c = 0; c < chunks; ++c) {
          const Element* k = keys + (b * chunks + c) * kTile;
          _tile_loadd(4, queries + c * x.rows * 64, 64);
          _tile_loadd(6, b_tile(k, space[0]), 64);
          _tile_loadd(7, b_tile(k + chunks * kTile, space[1]), 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, queries + (c * x.rows + 16) * 64, 64);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        float* to = buffer + b * block;
        _tile_stored(0, to, 64);
        _tile_stored(1, to + block, 64);
        _tile_stored(2, to + 256, 64);
        _tile_stored(3, to + block + 256, 64);
      }
    }
    if (in_place) complete(x, page, data, reinterpret_cast<const float*>(queries) + kSpanRows * d_pad, buffer);
    by_case(x, page, [&](auto blocks, auto full, auto scaled) {
      largest<blocks, full, scaled>(x, page, data, buffer, most);
    });
  }

  void complete(const Span& x, int64_t page, const uint8_t* data, const float* rounded, float* buffer) {
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes);
    for (int b = 0; b < (half_seen(x, page) ? 2 : 4); ++b)
      for (int r = 0; r < x.rows; ++r) {
        float* at = buffer + (b * x.rows + r) * 16;
        V s = vload(at);
        if (kScaled) s = vmul(s, vload(scales + b * 16));
        if (a.changes_scores()) {
          s = placed<Type>(a, x, r, page, b, data, rounded + r * d_pad, s);
          s = changed(a, x, r, page * fp::kPage + b * 16, s);
        }
        vstore(at, s);
      }
  }

  // Whether no row sees the second half of the page: it is not computed then.
  static bool half_seen(const Span& x, int64_t page) { return seen_of(x, page).end <= 32; }

  // f(blocks to compute, whether all rows see the whole page, whether the scores are still to be multiplied by the keys'
  // scales).
  template <class F>
  void by_case(const Span& x, int64_t page, F f) {
    using Two = std::integral_constant<int, 2>;
    using Four = std::integral_constant<int, 4>;
    using Yes = std::true_type;
    using No = std::false_type;
    using Scaled = std::bool_constant<kScaled>;
    auto choose = [&](auto scaled) {
      all_visible(x, page) ? f(Four(), Yes(), scaled) : half_seen(x, page) ? f(Two(), No(), scaled)
                                                                           : f(Four(), No(), scaled);
    };
    if (kScaled && !in_place) choose(Scaled());
    else choose(No());
  }

  template <int Blocks, bool Full, bool Scaled>
  void largest(const Span& x, int64_t page, const uint8_t* data, const float* buffer, float* most) {
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes);
    for (int r = 0; r < x.rows; ++r) {
      const uint64_t visible = Full ? 0 : visible_bits(x, r, page);
      V s[Blocks];
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b) s[b] = visible_score<Full, Scaled>(x, visible, r, b, scales, buffer);
      V all = vmax(vload(most + r * 16), vmax(s[0], s[1]));
      if constexpr (Blocks == 4) all = vmax(all, vmax(s[2], s[3]));
      vstore(most + r * 16, all);
    }
  }

  // Asks for the lines of B tile i of the next page.
  void fetch(const uint8_t* next, int64_t i) {
    if (next) prefetch_tile(next + i * kTile * sizeof(Element));
  }

  // Bit i: row r sees position 64 * page + i.
  static uint64_t visible_bits(const Span& x, int r, int64_t page) {
    auto below = [&](int64_t end) {
      const int64_t n = end - page * fp::kPage;
      return n <= 0 ? 0 : n >= 64 ? ~0ull : (1ull << n) - 1;
    };
    return below(x.high[r]) & ~below(x.low[r]);
  }

  template <bool Full, bool Scaled>
  static V visible_score(const Span& x, uint64_t visible, int r, int b, const float* scales, const float* buffer) {
    V s = vload(buffer + (b * x.rows + r) * 16);
    if (Scaled) s = vmul(s, vload(scales + b * 16));
    if (Full) return s;
    return _mm512_mask_blend_ps(__mmask16(visible >> (16 * b)), vset(-__builtin_inff()), s);
  }

  // Scores become p as A tiles, [2 (32 positions)][rows][32] bfloat16, in the first half of the buffer. A row's
  // lines are written where its own scores were.
  void weights(const Span& x, int64_t page, const uint8_t* data, const float* most, float* buffer, float* sums) {
    by_case(x, page, [&](auto blocks, auto full, auto scaled) {
      exponentials<blocks, full, scaled>(x, page, data, most, buffer, sums);
    });
  }

  template <int Blocks, bool Full, bool Scaled>
  void exponentials(const Span& x, int64_t page, const uint8_t* data, const float* most, float* buffer, float* sums) {
    const float* scales = reinterpret_cast<const float*>(data + 2 * page_bytes);
    for (int r = 0; r < x.rows; ++r) {
      const uint64_t visible = Full ? 0 : visible_bits(x, r, page);
      const V shift = vset(-(most[r] * kLog2E));
      V p[Blocks];
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b)
        p[b] = vexp2_short(vfma(visible_score<Full, Scaled>(x, visible, r, b, scales, buffer), vset(kLog2E), shift));
      V sum = vadd(p[0], p[1]);
      if constexpr (Blocks == 4) sum = vadd(vadd(sum, p[2]), p[3]);
      vstore(sums + r * 16, sum);
      if (kScaled) {
#pragma GCC unroll 4
        for (int b = 0; b < Blocks; ++b) p[b] = vmul(p[b], vload(scales + fp::kPage + b * 16));
      }
      uint16_t* line = reinterpret_cast<uint16_t*>(buffer) + r * 32;
      _mm512_store_si512(line, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
      if constexpr (Blocks == 4) _mm512_store_si512(line + x.rows * 32, (__m512i)_mm512_cvtne2ps_pbh(p[3], p[2]));
    }
  }

  template <class Buffer>
  void values(const Span& x, int block0, int block1, const Pages& pages, Buffer page_buffer, float* acc) {
    const int step = x.rows <= 16 ? 4 : 2;
    for (int b = block0; b < block1; b += step, acc += step * x.rows * 16) {
      const int n = int(smaller(step, block1 - b));
      if (x.rows > 16) values_tall(x, b, n, pages, page_buffer, acc);
      else if (n == 4) values_low<4>(x, b, pages, page_buffer, acc);
      else if (n == 3) values_low<3>(x, b, pages, page_buffer, acc);
      else if (n == 2) values_low<2>(x, b, pages, page_buffer, acc);
      else values_low<1>(x, b, pages, page_buffer, acc);
    }
  }

  template <class Buffer>
  void weigh(const Span& x, const Pages& pages, const float* most, Buffer page_buffer, float* sums, float* total,
             float* acc) {
    for (int64_t page = x.page0; page < x.page1; ++page) {
      weights(x, page, pages(page), most, page_buffer(page), sums);
      accumulate(total, sums, x.rows);
    }
    values(x, 0, int((a.layout.head_dim + 15) / 16), pages, page_buffer, acc);
  }

  // N blocks of sixteen dimensions from b on, up to 16 rows.
  template <int N, class Buffer>
  void values_low(const Span& x, int b, const Pages& pages, Buffer page_buffer, float* acc) {
    alignas(64) uint16_t space[4][kTile];
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    const uint8_t* data = pages(x.page0) + page_bytes;
    for (int64_t page = x.page0; page < x.page1; ++page) {
      const uint8_t* next = page + 1 < x.page1 ? pages(page + 1) + page_bytes : nullptr;
      const uint8_t* p = reinterpret_cast<const uint8_t*>(page_buffer(page));
      for (int half = 0; half < (half_seen(x, page) ? 1 : 2); ++half) {
        const Element* v = reinterpret_cast<const Element*>(data) + (2 * b + half) * kTile;
        _tile_loadd(4, p + half * x.rows * 64, 64);
        fetch(next, 2 * b + half);
        _tile_loadd(6, b_tile(v, space[0]), 64);
        _tile_dpbf16ps(0, 4, 6);
        if (N > 1) {
          fetch(next, 2 * b + 2 + half);
          _tile_loadd(7, b_tile(v + 2 * kTile, space[1]), 64);
          _tile_dpbf16ps(1, 4, 7);
        }
        if (N > 2) {
          fetch(next, 2 * b + 4 + half);
          _tile_loadd(6, b_tile(v + 4 * kTile, space[2]), 64);
          _tile_dpbf16ps(2, 4, 6);
        }
        if (N > 3) {
          fetch(next, 2 * b + 6 + half);
          _tile_loadd(7, b_tile(v + 6 * kTile, space[3]), 64);
          _tile_dpbf16ps(3, 4, 7);
        }
      }
      data = next;
    }
    _tile_stored(0, acc, 64);
    if (N > 1) _tile_stored(1, acc + 16 * x.rows, 64);
    if (N > 2) _tile_stored(2, acc + 32 * x.rows, 64);
    if (N > 3) _tile_stored(3, acc + 48 * x.rows, 64);
  }

  // One or two blocks of sixteen dimensions from b on, 17 to 32 rows.
  template <class Buffer>
  void values_tall(const Span& x, int b, int n, const Pages& pages, Buffer page_buffer, float* acc) {
    alignas(64) uint16_t space[2][kTile];
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t page = x.page0; page < x.page1; ++page) {
      const Element* v = reinterpret_cast<const Element*>(pages(page) + page_bytes) + 2 * b * kTile;
      const uint8_t* p = reinterpret_cast<const uint8_t*>(page_buffer(page));
      for (int half = 0; half < (half_seen(x, page) ? 1 : 2); ++half, v += kTile, p += x.rows * 64) {
        _tile_loadd(4, p, 64);
        _tile_loadd(6, b_tile(v, space[0]), 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, p + 16 * 64, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (n > 1) {
          _tile_loadd(7, b_tile(v + 2 * kTile, space[1]), 64);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    _tile_stored(0, acc, 64);
    _tile_stored(2, acc + 256, 64);
    if (n > 1) {
      _tile_stored(1, acc + 16 * x.rows, 64);
      _tile_stored(3, acc + 16 * x.rows + 256, 64);
    }
  }
};

void attention_amx(const fp::Attention& a, const fp::Team& team) {
  switch (a.layout.type) {
    case fp::KvType::F32: return attend<VectorCore<fp::KvType::F32>>(a, team);
    case fp::KvType::BF16: return attend<TileCore<fp::KvType::BF16>>(a, team);
    case fp::KvType::INT8: return attend<TileCore<fp::KvType::INT8>>(a, team);
  }
}
