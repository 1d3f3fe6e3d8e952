// Integer products with AVX2. Included inside an anonymous namespace, after simd_avx2.h, epilogue.inl and
// matmul_float.inl.
//
// vpmaddubsw adds two products into sixteen bits and saturates, so every use here is bounded: for Q4 all sixteen
// products that meet in one lane stay within 16 * 15 * 127 = 30480; for the others |q| <= 128 and |x| <= 127, and
// 2 * 128 * 127 = 32512.

#include "generic/matmul_end.inl"

constexpr int kIntRows = 2;  // rows that share one unpacking of the weights: what sixteen registers allow

inline __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i four_columns(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm256_set1_epi32(v);
}

// One block of R rows: where the planes and sums of a row are.
struct RowBlock {
  const int8_t* planes;    // hi plane of the first 64 columns of the first row
  int64_t plane_stride;    // from hi to lo; twice that from block to block
  const int32_t* sums[2];  // of the first row
  int64_t sum_stride;      // from row to row
};
inline RowBlock row_block(const fp::Activations& x, int64_t r) {
  return {x.block(r / 16, 0, 0) + r % 16 * 64, x.height() * 64, {x.group_sums(0, r), x.group_sums(1, r)},
          x.k_pad() / fp::kGroup};
}

// Outputs 8 * half .. 8 * half + 7 of a panel for R rows: acc[row][plane].
template <int R>
void q4_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256i acc[][2]) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i first = _mm256_set1_epi32(0x01000100);  // bytes 0, 1, 0, 1 of a lane: D, D
  const __m256i pick = _mm256_add_epi8(first, _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                                                0, 0x04040404, 0x08080808, 0x0c0c0c0c));
  for (int j = 0; j < R; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* block = panel + g * 320 + half * 32;
    __m256i q[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m256i line = load32(block + i * 64);
      q[2 * i] = _mm256_and_si256(line, low);
      q[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(line, 4), low);
    }
    __m256i dm = load32(block + 256), dd = _mm256_shuffle_epi8(dm, pick);
#pragma GCC unroll 2
    for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
      for (int plane = 0; plane < 2; ++plane) {
        const int8_t* x = rows.planes + (g / 2 * 2 + plane) * rows.plane_stride + j * 64 + g % 2 * 32;
        __m256i dot = _mm256_maddubs_epi16(q[0], four_columns(x));
#pragma GCC unroll 8
        for (int i = 1; i < 8; ++i) dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(q[i], four_columns(x + 4 * i)));
        // D (dot - 8 sum) + M sum; eight sums fit sixteen bits.
        uint32_t sum = uint32_t(rows.sums[plane][j * rows.sum_stride + g]);
        __m256i offset = _mm256_set1_epi32(int32_t((-8 * sum & 0xffff) | sum << 16));
        __m256i total = _mm256_add_epi32(_mm256_madd_epi16(dot, dd), _mm256_madd_epi16(offset, dm));
        acc[j][plane] = _mm256_add_epi32(acc[j][plane], total);
      }
  }
}

// 32 columns of stored bytes times R rows: dot[row][plane].
template <int R>
void byte_group(const uint8_t* lines, const RowBlock& rows, int64_t g, __m256i dot[][2]) {
  const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
  for (int j = 0; j < R; ++j) dot[j][0] = dot[j][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m256i q = _mm256_xor_si256(load32(lines + i * 64), flip), size = _mm256_abs_epi8(q);
#pragma GCC unroll 2
    for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
      for (int plane = 0; plane < 2; ++plane) {
        const int8_t* x = rows.planes + (g / 2 * 2 + plane) * rows.plane_stride + j * 64 + g % 2 * 32;
        __m256i signed_x = _mm256_sign_epi8(four_columns(x + 4 * i), q);
        dot[j][plane] = _mm256_add_epi32(dot[j][plane], _mm256_madd_epi16(_mm256_maddubs_epi16(size, signed_x), ones));
      }
  }
}

template <int R>
void q8c_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256i acc[][2]) {
  for (int j = 0; j < R; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g) {
    __m256i dot[R][2];
    byte_group<R>(panel + g * 512 + half * 32, rows, g, dot);
    for (int j = 0; j < R; ++j)
      for (int plane = 0; plane < 2; ++plane) acc[j][plane] = _mm256_add_epi32(acc[j][plane], dot[j][plane]);
  }
}

// Q8, Q8M: y[row][0] products with d, y[row][1] sums with m.
template <int R, fp::Format F>
void q8_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256 y[][2]) {
  for (int j = 0; j < R; ++j) y[j][0] = y[j][1] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* block = panel + g / 2 * fp::block_bytes(F);
    const uint8_t* scales = block + 1024 + g % 2 * 32 + half * 16;
    __m256i dot[R][2];
    byte_group<R>(block + g % 2 * 512 + half * 32, rows, g, dot);
    __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    for (int j = 0; j < R; ++j) {
      __m256i dot15 = _mm256_add_epi32(_mm256_slli_epi32(dot[j][0], 7), dot[j][1]);
      y[j][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot15), d, y[j][0]);
      if constexpr (F == fp::Format::Q8M) {
        __m256 m = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 64)));
        int64_t at = j * rows.sum_stride + g;
        y[j][1] = _mm256_fmadd_ps(m, _mm256_set1_ps(float(128 * rows.sums[0][at] + rows.sums[1][at])), y[j][1]);
      }
    }
  }
}

// R rows from r and panel p.
template <int R, fp::Format F>
void int_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const fp::Epilogue& e) {
  const RowBlock rows = row_block(x, r);
  const int64_t groups = w.k_pad() / fp::kGroup;
  if constexpr (fp::has_row_scale(F)) {
    __m256i half[2][R][2];
    for (int i = 0; i < 2; ++i) {
      if constexpr (F == fp::Format::Q4) q4_half<R>(w.panel(p), groups, i, rows, half[i]);
      else q8c_half<R>(w.panel(p), groups, i, rows, half[i]);
    }
    V row_scale = vload(w.row_scale() + p * fp::kPanel);
    for (int j = 0; j < R; ++j) {
      I hi{half[0][j][0], half[1][j][0]}, lo{half[0][j][1], half[1][j][1]};
      finish_outputs(e, integer_result(hi, lo, x.scale[r + j], row_scale), r + j, p * fp::kPanel, w.n);
    }
  } else {
    __m256 half[2][R][2];
    for (int i = 0; i < 2; ++i) q8_half<R, F>(w.panel(p), groups, i, rows, half[i]);
    for (int j = 0; j < R; ++j) {
      V y1{half[0][j][0], half[1][j][0]}, y2{half[0][j][1], half[1][j][1]};
      finish_outputs(e, grouped_result(y1, y2, F == fp::Format::Q8M, x.scale[r + j]), r + j, p * fp::kPanel, w.n);
    }
  }
}

template <fp::Format F>
void int_panels(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e) {
  for (int64_t p = p0; p < p1; ++p) {
    int64_t r = 0;
    for (; r + kIntRows <= x.rows; r += kIntRows) int_block<kIntRows, F>(w, x, p, r, e);
    for (; r < x.rows; ++r) int_block<1, F>(w, x, p, r, e);
  }
}

inline void matmul(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                   uint8_t* scratch) {
  switch (w.format) {
    case fp::Format::Q4: return int_panels<fp::Format::Q4>(w, x, p0, p1, e);
    case fp::Format::Q8: return int_panels<fp::Format::Q8>(w, x, p0, p1, e);
    case fp::Format::Q8M: return int_panels<fp::Format::Q8M>(w, x, p0, p1, e);
    case fp::Format::Q8C: return int_panels<fp::Format::Q8C>(w, x, p0, p1, e);
    default: return matmul_float(w, x, p0, p1, e, scratch);
  }
}
