// Matrix products on AMX tiles. Included inside an anonymous namespace, after avx512_matmul.inl. Where the
// vector units are quicker (few rows), the AVX-512 table does the work: the bits are the same.
//
// The tile unit should never wait for the vector units. So the sums of one block of outputs are stored as they are, and
// converted to floats a line or two at a time between the tile products of the next block (Converter); and the
// weights of the next panel are unpacked between the products of this one.

#include "amx_tiles.inl"
#include "amx_wide.inl"
#include "amx_grouped.inl"

// Q8C, Q8A: a line of stored bytes q + 128 is a line of a B tile as it is; the offset is taken back at the end.
template <int Planes>
struct ByteEnd {
  static constexpr int kPlanes = Planes;
  const fp::Activations& x;
  const float* row_scale;
  V outputs(int64_t o) const { return vload(row_scale + o); }
  V row(const int32_t* c, int64_t r, V outputs) const {
    const int32_t* offsets = x.row_offsets(r);
    auto sum = [&](int plane) { return iadd(iload(c + 256 * plane), iset(offsets[plane])); };
    if constexpr (Planes == 2) return integer_result(sum(0), sum(1), x.scale[r], outputs);
    else return byte_result(sum(0), x.scale[r], outputs);
  }
};

// Q8C: both planes of one tile of rows, one or two panels.
template <int Panels, class C>
inline void bytes_block(const fp::Matrix& w, const fp::Activations& x, int64_t tile, int64_t p, C& converter) {
  const int64_t blocks = w.k_pad() / 64, height = x.height();
  const int8_t* a = x.block(tile, 0, 0);
  const uint8_t *b = w.panel(p), *b2 = w.panel(p + Panels - 1);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < blocks; ++i, a += 128 * height, b += 1024, b2 += 1024) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(5, a + 64 * height, 64);
    _tile_dpbsud(1, 5, 6);
    if constexpr (Panels == 2) {
      _tile_loadd(7, b2, 64);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbsud(3, 5, 7);
      if (tile == 0) fetch_ahead<16>(b2);
    }
    if (tile == 0) fetch_ahead<16>(b);
    converter.some();
  }
  converter.all();
  int32_t* c = converter.add(tile * 16, p * fp::kPanel, x.rows);
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  if constexpr (Panels == 2) {
    c = converter.add(tile * 16, (p + 1) * fp::kPanel, x.rows);
    _tile_stored(2, c, 64);
    _tile_stored(3, c + 256, 64);
  }
}

inline void matmul_bytes(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                         uint8_t* scratch) {
  const ByteEnd<2> end{x, w.row_scale()};
  Converter<ByteEnd<2>> converter(end, e, reinterpret_cast<int32_t*>(scratch), w.n, w.k_pad() / 64, 2 * x.height());
  configure_tiles(int(x.height()), 64);
  int64_t p = p0;
  for (; p + 2 <= p1; p += 2)
    for (int64_t tile = 0; tile < x.tiles(); ++tile) bytes_block<2>(w, x, tile, p, converter);
  if (p < p1)
    for (int64_t tile = 0; tile < x.tiles(); ++tile) bytes_block<1>(w, x, tile, p, converter);
  converter.all();
  _tile_release();
}

// One plane of activations, Q8A and BF16: the packed lines are B tiles.
struct FloatEnd {
  static constexpr int kPlanes = 1;
  V outputs(int64_t) const { return vzero(); }
  V row(const int32_t* c, int64_t, V) const { return vload(reinterpret_cast<const float*>(c)); }
};

// One or two tiles of rows, one or two panels.
template <bool Bytes, int Tiles, int Panels, class C>
inline void plane_tiles(const fp::Matrix& w, const fp::Activations& x, int64_t tile, int64_t p, C& converter) {
  const int64_t blocks = w.panel_bytes() / 1024, height = x.height();
  const uint8_t *a = x.planes + tile * x.tile_bytes(), *a2 = a + (Tiles - 1) * x.tile_bytes();
  const uint8_t *b = w.panel(p), *b2 = w.panel(p + Panels - 1);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < blocks; ++i, a += 64 * height, a2 += 64 * height, b += 1024, b2 += 1024) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    if constexpr (Bytes) _tile_dpbsud(0, 4, 6);
    else _tile_dpbf16ps(0, 4, 6);
    if constexpr (Panels == 2) {
      _tile_loadd(7, b2, 64);
      if constexpr (Bytes) _tile_dpbsud(1, 4, 7);
      else _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Tiles == 2) {
      _tile_loadd(5, a2, 64);
      if constexpr (Bytes) _tile_dpbsud(2, 5, 6);
      else _tile_dpbf16ps(2, 5, 6);
      if constexpr (Panels == 2 && Bytes) _tile_dpbsud(3, 5, 7);
      else if constexpr (Panels == 2) _tile_dpbf16ps(3, 5, 7);
    }
    if (tile == 0) {
      fetch_ahead<16>(b);
      if constexpr (Panels == 2) fetch_ahead<16>(b2);
    }
    converter.some();
  }
  converter.all();
  _tile_stored(0, converter.add(tile * 16, p * fp::kPanel, x.rows), 64);
  if constexpr (Panels == 2) _tile_stored(1, converter.add(tile * 16, (p + 1) * fp::kPanel, x.rows), 64);
  if constexpr (Tiles == 2) {
    _tile_stored(2, converter.add((tile + 1) * 16, p * fp::kPanel, x.rows), 64);
    if constexpr (Panels == 2) _tile_stored(3, converter.add((tile + 1) * 16, (p + 1) * fp::kPanel, x.rows), 64);
  }
}

template <bool Bytes, int Panels, class C>
inline void plane_panels(const fp::Matrix& w, const fp::Activations& x, int64_t p, C& converter) {
  int64_t tile = 0;
  for (; tile + 2 <= x.tiles(); tile += 2) plane_tiles<Bytes, 2, Panels>(w, x, tile, p, converter);
  if (tile < x.tiles()) plane_tiles<Bytes, 1, Panels>(w, x, tile, p, converter);
}

template <bool Bytes, class End>
inline void matmul_plane(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                         const End& end, uint8_t* scratch) {
  Converter<End> converter(end, e, reinterpret_cast<int32_t*>(scratch), w.n, w.panel_bytes() / 1024, 4 * x.height());
  configure_tiles(int(x.height()), 64);
  int64_t p = p0;
  for (; p + 2 <= p1; p += 2) plane_panels<Bytes, 2>(w, x, p, converter);
  if (p < p1) plane_panels<Bytes, 1>(w, x, p, converter);
  converter.all();
  _tile_release();
}

// From how many rows on tiles are quicker than the vector units: measured. Q8C, Q8A and BF16 gain from one row on.
constexpr int64_t kWideFrom = 5, kGroupedFrom = 4;

inline void matmul_amx(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                       uint8_t* scratch) {
  using fp::Format;
  if (p0 >= p1) return;
  if (w.format == Format::Q8C) return matmul_bytes(w, x, p0, p1, e, scratch);
  if (w.format == Format::Q8A) return matmul_plane<true>(w, x, p0, p1, e, ByteEnd<1>{x, w.row_scale()}, scratch);
  if (w.format == Format::BF16) return matmul_plane<false>(w, x, p0, p1, e, FloatEnd{}, scratch);
  if (x.rows >= kGroupedFrom && w.format == Format::Q8) return matmul_grouped(w, x, p0, p1, e, scratch);
  if (x.rows >= kWideFrom) {
    switch (w.format) {
      case Format::Q4: return matmul_wide<Format::Q4>(w, x, p0, p1, e, scratch);
      case Format::Q4H: return matmul_wide<Format::Q4H>(w, x, p0, p1, e, scratch);
      case Format::Q5: return matmul_wide<Format::Q5>(w, x, p0, p1, e, scratch);
      case Format::Q5M: return matmul_wide<Format::Q5M>(w, x, p0, p1, e, scratch);
      case Format::Q6: return matmul_wide<Format::Q6>(w, x, p0, p1, e, scratch);
      case Format::Q16: return matmul_wide<Format::Q16>(w, x, p0, p1, e, scratch);
      default: break;
    }
  }
  matmul(w, x, p0, p1, e, scratch);
}
