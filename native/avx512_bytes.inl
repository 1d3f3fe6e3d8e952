// Products of stored bytes with one scale a row, Q8C (two planes of activations) and Q8A (one), with AVX-512 VNNI. Included
// inside an anonymous namespace, after avx512_terms.inl.
//
// A block is R rows times P panels. The weights of a panel, 16 outputs, are loaded once for all its rows, and each four
// columns of x once for all panels: vpdpbusd, one a cycle on a Zen 4 core, leaves time for two loads. So eight sums a
// panel, rows times planes, and two panels keep it busy (0.95 to 0.98 of its limit where the weights are in L1 or L2).

constexpr int kByteSums = 8;                  // of one panel: rows times planes
constexpr int64_t kChunkBytes = 320 << 10;    // activations of the rows that go by in one pass: they stay in L2

template <int Planes, int R, int P>
inline void byte_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const fp::Epilogue& e) {
  // Enough sums side by side to hide the latency of vpdpbusd.
  constexpr int kChains = Planes * R * P >= 4 ? 1 : 4 / (Planes * R * P);
  const int64_t blocks = w.k_pad() / 64, panel_bytes = w.panel_bytes(), plane = x.height() * 64;
  const int8_t* in = x.block(r / 16, 0, 0) + r % 16 * 64;
  const uint8_t* panel = w.panel(p);
  __m512i acc[P][R][Planes][kChains];
  for (int j = 0; j < R; ++j)
    for (int n = 0; n < Planes; ++n) {
      const __m512i start = _mm512_set1_epi32(int32_t(0u - 128u * uint32_t(x.row_totals(r + j)[n])));
      for (int i = 0; i < P; ++i)
        for (int c = 0; c < kChains; ++c) acc[i][j][n][c] = c ? _mm512_setzero_si512() : start;
    }
  for (int64_t b = 0; b < blocks; ++b, in += Planes * plane, panel += 1024) {
    if constexpr (P * R * Planes < kByteSums)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) fetch_ahead<16>(panel + i * panel_bytes);
#pragma GCC unroll 16
    for (int line = 0; line < 16; ++line) {
      __m512i q[P];
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) q[i] = _mm512_loadu_si512(panel + i * panel_bytes + 64 * line);
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
        for (int n = 0; n < Planes; ++n) {
          const __m512i columns = broadcast4(in + n * plane + 64 * j + 4 * line);
#pragma GCC unroll 4
          for (int i = 0; i < P; ++i) {
            __m512i& sum = acc[i][j][n][line % kChains];
            sum = _mm512_dpbusd_epi32(sum, q[i], columns);
          }
        }
    }
  }
  for (int i = 0; i < P; ++i) {
    const V row_scale = vload(w.row_scale() + (p + i) * fp::kPanel);
    V y[R];
    for (int j = 0; j < R; ++j) {
      for (int n = 0; n < Planes; ++n)
        for (int c = 1; c < kChains; ++c) acc[i][j][n][0] = _mm512_add_epi32(acc[i][j][n][0], acc[i][j][n][c]);
      if constexpr (Planes == 2) y[j] = integer_result(acc[i][j][0][0], acc[i][j][1][0], x.scale[r + j], row_scale);
      else y[j] = byte_result(acc[i][j][0][0], x.scale[r + j], row_scale);
    }
    finish_rows(e, y, R, r, (p + i) * fp::kPanel, w.n);
  }
}

// Rows [r, end) in blocks of R, what is left in a smaller one. Blocks never straddle a tile: 16 is a multiple of R.
template <int Planes, int R, int P>
inline void byte_rows(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, int64_t end,
                      const fp::Epilogue& e) {
  for (; r + R <= end; r += R) byte_block<Planes, R, P>(w, x, p, r, e);
  if constexpr (R > 1)
    if (r < end) byte_rows<Planes, R - 1, P>(w, x, p, r, end, e);
}

template <int Planes>
inline void matmul_bytes_vnni(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1,
                              const fp::Epilogue& e) {
  constexpr int R = kByteSums / Planes;
  fetch_start(w.panel(p0));
  if (x.rows <= 2) {  // one stream of weights
    for (int64_t p = p0; p < p1; ++p) byte_rows<Planes, 2, 1>(w, x, p, 0, x.rows, e);
    return;
  }
  const int64_t chunk = kChunkBytes / x.tile_bytes() > 0 ? kChunkBytes / x.tile_bytes() * 16 : 16;
  for (int64_t first = 0; first < x.rows; first += chunk) {
    const int64_t end = first + chunk < x.rows ? first + chunk : x.rows;
    int64_t p = p0;
    for (; p + 2 <= p1; p += 2) byte_rows<Planes, R, 2>(w, x, p, first, end, e);
    if (p < p1) byte_rows<Planes, R, 1>(w, x, p, first, end, e);
  }
}
