// AMX products of Q8, whose sums end with every group of 32 columns. Included inside an anonymous namespace.
//
// A tile product of a group gives the dot products of both planes with the stored bytes, which need no unpacking. They
// go through memory to the vector units, which work on one group while the tiles multiply the groups after it. Up to
// eight rows both planes, which lie one after the other, are loaded as one tile of activations.

constexpr int64_t kRing = 8;  // groups under way at a time; a power of two

// Dot products of one group: planes of R rows, [2 R][16] for R <= 8, else [2][16][16].
template <int R>
inline const int32_t* low_plane(const int32_t* c, int64_t height) { return c + (R <= 8 ? height : 16) * 16; }

// One tile of rows (at most R) and one panel.
template <int R>
inline void grouped_block(const fp::Matrix& w, const fp::Activations& x, int64_t tile, int64_t p, const int32_t* terms,
                          const fp::Epilogue& e, uint8_t* scratch) {
  constexpr fp::Format F = fp::Format::Q8;
  const int64_t groups = w.k_pad() / fp::kGroup, height = x.height(), stride = term_count(F, groups);
  const uint8_t* panel = w.panel(p);
  int32_t* sums = reinterpret_cast<int32_t*>(scratch);  // [kRing][512]

  // Products of group g into sums[g % kRing].
  auto multiply = [&](int64_t g) {
    const int8_t* a = x.block(tile, g / 2, 0) + 32 * (g % 2);
    const uint8_t* b = panel + g / 2 * fp::block_bytes(F) + g % 2 * 512;
    int32_t* c = sums + g % kRing * 512;
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
  V y[R];
  for (int j = 0; j < R; ++j) y[j] = vzero();
  for (int64_t g = 0; g + 1 < kRing && g < groups; ++g) multiply(g);
  for (int64_t g = 0; g < groups; ++g) {
    if (tile == 0) fetch_ahead<8>(panel + g / 2 * fp::block_bytes(F) + g % 2 * 512);
    if (g + kRing - 1 < groups) multiply(g + kRing - 1);
    const V d = vload_f16(reinterpret_cast<const uint16_t*>(panel + g / 2 * fp::block_bytes(F) + 1024) + g % 2 * 16);
    const int32_t *hi = sums + g % kRing * 512, *lo = low_plane<R>(hi, height), *term = terms + g;
#pragma GCC unroll 16
    for (int j = 0; j < R; ++j, term += stride) {
      __m512i dot_h = _mm512_add_epi32(_mm512_loadu_si512(hi + 16 * j), broadcast4(term));
      y[j] = vfma(vfrom_i32(iadd(ishl<7>(dot_h), iload(lo + 16 * j))), d, y[j]);
    }
  }
  for (int j = 0; j < R; ++j) y[j] = vmul(y[j], vset(x.scale[tile * 16 + (j < height ? j : 0)]));
  const int64_t rows = x.rows - tile * 16;
  finish_some(e, y, int(rows < R ? rows : R), tile * 16, p * fp::kPanel, w.n);
}

inline void matmul_grouped(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                           uint8_t* scratch) {
  const int64_t stride = term_count(fp::Format::Q8, w.k_pad() / fp::kGroup), height = x.height();
  int32_t* terms = reinterpret_cast<int32_t*>(scratch + kRing * 2048);
  fetch_start(w.panel(p0));
  configure_tiles(int(height <= 8 ? 2 * height : height), 32);
  for (int64_t first = 0; first < x.rows; first += kRowChunk) {
    const int64_t end = first + kRowChunk < x.rows ? first + kRowChunk : x.rows;
    for (int64_t r = first; r < end; ++r) make_terms<fp::Format::Q8>(x, r, terms + (r - first) * stride);
    for (int64_t p = p0; p < p1; ++p)
      for (int64_t r = first; r < end; r += 16) {
        const int32_t* t = terms + (r - first) * stride;
        if (height <= 4) grouped_block<4>(w, x, r / 16, p, t, e, scratch);
        else if (height <= 8) grouped_block<8>(w, x, r / 16, p, t, e, scratch);
        else if (height <= 12) grouped_block<12>(w, x, r / 16, p, t, e, scratch);
        else grouped_block<16>(w, x, r / 16, p, t, e, scratch);
      }
  }
  _tile_release();
}
