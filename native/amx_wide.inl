// Integer weights of sixteen bits on AMX tiles, for many rows. Included inside an anonymous namespace.
//
// A weight D (q - zero) + M of a format with levels is sixteen bits wide: 256 high (signed) + low (unsigned). With the two planes of x that makes
// four products, hh, hl, lh, ll (plane of x first), and acc_h = 256 hh + hl, acc_l = 256 lh + ll, summed over k.
// The weights of the next panel are unpacked between the products of the first tile of rows. With one tile of rows
// they are used only once: then a slice of a few blocks at a time is unpacked, so that slices stay in L1.
// Q16 is stored as these planes, line by line, and read where it lies.

constexpr int64_t kSlice = 4;             // blocks of 64 columns, 2 KiB of unpacked weights each
constexpr int64_t kRowBytes = 640 << 10;  // activations that go by in one pass: they stay in L2 from panel to panel

struct WideEnd {
  static constexpr int kPlanes = 4;
  const float *scale, *row_scale;
  V outputs(int64_t o) const { return vload(row_scale + o); }
  V row(const int32_t* c, int64_t r, V outputs) const {
    I acc_h = iadd(ishl<8>(iload(c)), iload(c + 256)), acc_l = iadd(ishl<8>(iload(c + 512)), iload(c + 768));
    return integer_result(acc_h, acc_l, scale[r], outputs);
  }
};

// Unpacks 64 columns of a panel into two B tiles, high then low, in four parts that are called in order.
template <fp::Format F>
struct WideUnpacker {
  static constexpr fp::Levels L = fp::levels(F);
  __m512i d, m;  // twice a lane; m of the level 0: may wrap, the sums with d * q do not
  void load_scales(const uint8_t* p) {
    if constexpr (L.minimum) {
      const __m512i dm = _mm512_loadu_si512(p);
      d = _mm512_mask_blend_epi16(0xaaaaaaaa, dm, _mm512_slli_epi32(dm, 16));
      m = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(dm, 16), dm);
    } else {
      d = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
      d = _mm512_or_si512(d, _mm512_slli_epi32(d, 16));
      m = _mm512_setzero_si512();
    }
    m = _mm512_sub_epi16(m, _mm512_slli_epi16(d, L.bits - 1));
  }
  // Levels of four columns: bytes 0 and 2 of each lane, and 1 and 3, widened to sixteen bits.
  void store_planes(__m512i q, uint8_t* out) const {
    const __m512i low_byte = _mm512_set1_epi16(255);
    const __m512i even = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_and_si512(q, low_byte), d), m);
    const __m512i odd = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_srli_epi16(q, 8), d), m);
    // low_byte ? b : c, bit by bit
    const __m512i high = _mm512_ternarylogic_epi32(low_byte, _mm512_srli_epi16(even, 8), odd, 0xca);
    const __m512i low = _mm512_ternarylogic_epi32(low_byte, even, _mm512_slli_epi16(odd, 8), 0xca);
    _mm512_storeu_si512(out, high);
    _mm512_storeu_si512(out + 1024, low);
  }
  template <int Part>
  void part(const uint8_t* block, uint8_t* out) {
    constexpr int kHalf = Part / 2, kLines = int(fp::block_bytes(F) / 64), kFetched = kHalf * (kLines - kLines / 2);
    if constexpr (Part % 2 == 0) fetch_ahead<kHalf ? kLines / 2 : kLines - kLines / 2>(block + 64 * kFetched);
    if constexpr (Part % 2 == 0 || L.span == 16)
      load_scales(block + L.scales_at(kHalf) + Part % 2 * (L.minimum ? 64 : 32));
    LevelLines<F> levels(block + L.lines_at(kHalf));
    out += kHalf * 512;
#pragma GCC unroll 2
    for (int i = Part % 2 * 2; i < Part % 2 * 2 + 2; ++i) {
      __m512i first, second;
      levels.next(i, first, second);
      store_planes(first, out + 128 * i);
      store_planes(second, out + 128 * i + 64);
    }
  }
};

// Products of `count` blocks of one tile of rows, added to tiles 0-3, with conversions of sums of earlier products
// between them. First: the first tile of rows also unpacks the next slice, if there is one (or asks for what comes).
template <fp::Format F, bool First>
inline void wide_steps(const int8_t* a, const uint8_t* b, int64_t count, int64_t height, const uint8_t* next,
                       int64_t next_count, uint8_t* next_planes, Converter<WideEnd>& converter) {
  constexpr bool kUnpack = First && fp::is_levels(F);
  constexpr int kStride = fp::is_levels(F) ? 64 : 128, kLow = fp::is_levels(F) ? 1024 : 64;  // lines, the low plane
  WideUnpacker<kUnpack ? F : fp::Format::Q4> unpacker;
  for (int64_t i = 0; i < count; ++i, a += 128 * height, b += 2048, next += fp::block_bytes(F), next_planes += 2048) {
    const bool unpack = kUnpack && i < next_count;
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, kStride);
    _tile_dpbssd(0, 4, 6);
    if (unpack) unpacker.template part<0>(next, next_planes);
    _tile_loadd(7, b + kLow, kStride);
    _tile_dpbsud(1, 4, 7);
    if (unpack) unpacker.template part<1>(next, next_planes);
    _tile_loadd(5, a + 64 * height, 64);
    _tile_dpbssd(2, 5, 6);
    if (unpack) unpacker.template part<2>(next, next_planes);
    _tile_dpbsud(3, 5, 7);
    if (unpack) unpacker.template part<3>(next, next_planes);
    if constexpr (First && !kUnpack) {
      fetch_ahead<16>(b);
      fetch_ahead<16>(b + 1024);
    }
    converter.some();
  }
  for (int64_t i = count; kUnpack && i < next_count; ++i, next += fp::block_bytes(F), next_planes += 2048) {
    unpacker.template part<0>(next, next_planes);  // a longer slice
    unpacker.template part<1>(next, next_planes);
    unpacker.template part<2>(next, next_planes);
    unpacker.template part<3>(next, next_planes);
  }
  tiles_see_stores();
}

// Tiles of rows [t0, t1).
template <fp::Format F>
inline void wide_rows(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, int64_t t0, int64_t t1,
                      const fp::Epilogue& e, uint8_t* scratch) {
  const int64_t blocks = w.k_pad() / 64, height = x.height();
  const int64_t slice = fp::is_levels(F) && t1 - t0 == 1 && blocks > kSlice ? kSlice : blocks;
  uint8_t* planes = scratch + Converter<WideEnd>::kBytes;
  uint8_t* next_planes = planes + slice * 2048;
  const WideEnd end{x.scale, w.row_scale()};
  Converter<WideEnd> converter(end, e, reinterpret_cast<int32_t*>(scratch), w.n, blocks, height);
  fetch_start(w.panel(p0));
  wide_steps<F, true>(nullptr, nullptr, 0, height, w.panel(p0), slice, planes, converter);
  for (int64_t p = p0; p < p1; ++p)
    for (int64_t at = 0; at < blocks; at += slice) {
      const int64_t count = blocks - at < slice ? blocks - at : slice;
      const bool ends = at + count == blocks;
      const int64_t left = !ends ? blocks - at - count : p + 1 < p1 ? blocks : 0;  // from where the next slice starts
      const uint8_t* next = w.panel(p) + (at + count) * fp::block_bytes(F);
      const uint8_t* b = fp::is_levels(F) ? planes : w.panel(p);
      for (int64_t tile = t0; tile < t1; ++tile) {
        if (at == 0) {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        }
        const int8_t* a = x.block(tile, at, 0);
        if (tile == t0)
          wide_steps<F, true>(a, b, count, height, next, left < slice ? left : slice, next_planes, converter);
        else
          wide_steps<F, false>(a, b, count, height, nullptr, 0, nullptr, converter);
        if (!ends) continue;
        converter.all();
        int32_t* c = converter.add(tile * 16, p * fp::kPanel, x.rows);
        _tile_stored(0, c, 64);
        _tile_stored(1, c + 256, 64);
        _tile_stored(2, c + 512, 64);
        _tile_stored(3, c + 768, 64);
      }
      uint8_t* swap = planes;
      planes = next_planes;
      next_planes = swap;
    }
  converter.all();
}

template <fp::Format F>
inline void matmul_wide(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                        uint8_t* scratch) {
  const int64_t tiles = x.tiles(), most = kRowBytes / x.tile_bytes() + 1;
  const int64_t passes = (tiles + most - 1) / most, pass = (tiles + passes - 1) / passes;
  configure_tiles(int(x.height()), 64);
  for (int64_t t = 0; t < tiles; t += pass)
    wide_rows<F>(w, x, p0, p1, t, t + pass < tiles ? t + pass : tiles, e, scratch);
  _tile_release();
}
