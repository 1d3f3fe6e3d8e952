// AMX products with an end for every group of 32 columns: Q8 and Q8M at any number of rows, Q4 at few rows (where
// unpacking to sixteen bits would cost more than it saves). Included inside an anonymous namespace.
//
// A tile product of a group gives the dot products of both planes with the stored bytes; they go through memory
// to the vector units, which work on group g while the tiles multiply group g + 1. Up to eight rows both
// planes, which lie one after the other, are loaded as one tile of activations.

// Dot products of one group: planes of R rows, [2 R][16] for R <= 8, else [2][16][16].
template <int R>
inline const int32_t* low_plane(const int32_t* c, int64_t height) { return c + (R <= 8 ? height : 16) * 16; }

// Nibbles of 32 columns as a B tile of eight lines.
inline void unpack_nibbles(const uint8_t* block, uint8_t* out) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512i line = _mm512_loadu_si512(block + 64 * i);
    _mm512_storeu_si512(out + 128 * i, _mm512_and_si512(line, nibble));
    _mm512_storeu_si512(out + 128 * i + 64, _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble));
  }
}

// One tile of rows (at most R) and one panel.
template <fp::Format F, int R>
inline void grouped_block(const fp::Matrix& w, const fp::Activations& x, int64_t tile, int64_t p, const int32_t* terms,
                          const fp::Epilogue& e, uint8_t* scratch) {
  constexpr int kTerms = terms_per_group(F);
  const int64_t groups = w.k_pad() / fp::kGroup, height = x.height(), stride = term_count(F, groups);
  const uint8_t* panel = w.panel(p);
  int32_t* sums = reinterpret_cast<int32_t*>(scratch);  // [2][512]
  uint8_t* nibbles = scratch + 4096;                    // [2][512]

  // Products of group g into sums[g % 2]. Even and odd groups have tiles of their own.
  auto multiply = [&](int64_t g) {
    const int8_t* a = x.block(tile, g / 2, 0) + 32 * (g % 2);
    const uint8_t* b = panel + g / 2 * fp::block_bytes(F) + g % 2 * 512;
    if constexpr (F == fp::Format::Q4) {
      b = nibbles + g % 2 * 512;
    }
    int32_t* c = sums + g % 2 * 512;
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, 64);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 6);
    if constexpr (R > 8) {
      _tile_loadd(5, a + 64 * height, 64);
      _tile_zero(1);
      _tile_dpbsud(1, 5, 6);
    }
    _tile_stored(0, c, 64);
    if constexpr (R > 8) _tile_stored(1, c + 256, 64);
  };
  auto prepare = [&](int64_t g) {
    if constexpr (F == fp::Format::Q4) unpack_nibbles(panel + g * 320, nibbles + g % 2 * 512);
    tiles_see_stores();
  };

  V y[R];
  if constexpr (F == fp::Format::Q4) {
    __m512i acc_h[R], acc_l[R];
    const __m512i low_half = _mm512_set1_epi32(0xffff);
    for (int j = 0; j < R; ++j) acc_h[j] = acc_l[j] = _mm512_setzero_si512();
    prepare(0);
    multiply(0);
    if (groups > 1) prepare(1);
    for (int64_t g = 0; g < groups; ++g) {
      fetch_ahead<5>(panel + g * 320);
      if (g + 1 < groups) multiply(g + 1);
      if (g + 2 < groups) prepare(g + 2);
      const __m512i dm = _mm512_loadu_si512(panel + g * 320 + 256);
      const int32_t *hi = sums + g % 2 * 512, *lo = low_plane<R>(hi, height), *term = terms + g * kTerms;
#pragma GCC unroll 16
      for (int j = 0; j < R; ++j, term += stride) {
        __m512i dot_h = _mm512_add_epi32(_mm512_loadu_si512(hi + 16 * j), broadcast4(term));
        __m512i dot_l = _mm512_add_epi32(_mm512_loadu_si512(lo + 16 * j), broadcast4(term + 1));
        dot_h = _mm512_ternarylogic_epi32(dot_h, low_half, broadcast4(term + 2), 0xea);  // (a & b) | c
        dot_l = _mm512_ternarylogic_epi32(dot_l, low_half, broadcast4(term + 3), 0xea);
        acc_h[j] = _mm512_dpwssd_epi32(acc_h[j], dot_h, dm);
        acc_l[j] = _mm512_dpwssd_epi32(acc_l[j], dot_l, dm);
      }
    }
    V row_scale = vload(w.row_scale() + p * fp::kPanel);
    for (int j = 0; j < R; ++j) y[j] = integer_result(acc_h[j], acc_l[j], x.scale[tile * 16 + (j < height ? j : 0)], row_scale);
  } else {
    for (int j = 0; j < R; ++j) y[j] = vzero();
    multiply(0);
    for (int64_t g = 0; g < groups; ++g) {
      if (tile == 0) fetch_ahead<8>(panel + g / 2 * fp::block_bytes(F) + g % 2 * 512);
      if (g + 1 < groups) multiply(g + 1);
      const V d = vload_f16(reinterpret_cast<const uint16_t*>(panel + g / 2 * fp::block_bytes(F) + 1024) + g % 2 * 16);
      const int32_t *hi = sums + g % 2 * 512, *lo = low_plane<R>(hi, height), *term = terms + g * kTerms;
#pragma GCC unroll 16
      for (int j = 0; j < R; ++j, term += stride) {
        __m512i dot_h = _mm512_add_epi32(_mm512_loadu_si512(hi + 16 * j), broadcast4(term));
        y[j] = vfma(vfrom_i32(iadd(ishl<7>(dot_h), iload(lo + 16 * j))), d, y[j]);
      }
    }
    V y2[R];
    for (int j = 0; j < R; ++j) y2[j] = vzero();
    if constexpr (F == fp::Format::Q8M) {  // a pass of its own: y and y2 together would not fit in the registers
      for (int64_t g = 0; g < groups; ++g) {
        const V m = vload_f16(reinterpret_cast<const uint16_t*>(panel + g / 2 * fp::block_bytes(F) + 1088) + g % 2 * 16);
        const int32_t* term = terms + g * kTerms + 1;
#pragma GCC unroll 16
        for (int j = 0; j < R; ++j, term += stride) y2[j] = vfma(m, _mm512_castsi512_ps(broadcast4(term)), y2[j]);
      }
    }
    for (int j = 0; j < R; ++j)
      y[j] = grouped_result(y[j], y2[j], F == fp::Format::Q8M, x.scale[tile * 16 + (j < height ? j : 0)]);
  }
  const int64_t rows = x.rows - tile * 16;
#pragma GCC unroll 16
  for (int j = 0; j < R; ++j)
    if (j < rows) finish_outputs(e, y[j], tile * 16 + j, p * fp::kPanel, w.n);
}

template <fp::Format F>
inline void matmul_grouped(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                           uint8_t* scratch) {
  const int64_t stride = term_count(F, w.k_pad() / fp::kGroup), height = x.height();
  int32_t* terms = reinterpret_cast<int32_t*>(scratch + 8192);
  configure_tiles(int(height <= 8 ? 2 * height : height), 32);
  for (int64_t first = 0; first < x.rows; first += kRowChunk) {
    const int64_t end = first + kRowChunk < x.rows ? first + kRowChunk : x.rows;
    for (int64_t r = first; r < end; ++r) make_terms(F, x, r, terms + (r - first) * stride);
    for (int64_t p = p0; p < p1; ++p)
      for (int64_t r = first; r < end; r += 16) {
        const int32_t* t = terms + (r - first) * stride;
        if (height <= 4) grouped_block<F, 4>(w, x, r / 16, p, t, e, scratch);
        else if (height <= 8) grouped_block<F, 8>(w, x, r / 16, p, t, e, scratch);
        else if (height <= 12) grouped_block<F, 12>(w, x, r / 16, p, t, e, scratch);
        else grouped_block<F, 16>(w, x, r / 16, p, t, e, scratch);
      }
  }
  _tile_release();
}
