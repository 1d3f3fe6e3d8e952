// Integer products with AVX2. Included inside an anonymous namespace, after simd_avx2.h, epilogue.inl and
// matmul_float.inl.
//
// vpmaddubsw adds two products into sixteen bits and saturates, so every use here is bounded: with levels as many
// products may meet in one lane as stay within int16 (sixteen of four bits, 16 * 15 * 127 = 30480; eight of five, 31496;
// four of six, 32004); for stored bytes |q| <= 128 and |x| <= 127, and 2 * 128 * 127 = 32512.

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
  int64_t plane_stride;    // from hi to lo
  int64_t block_stride;    // from 64 columns to the next
  const int32_t* sums[2];  // of the first row, of each 16 columns, if there are any
  int64_t sum_stride;      // from row to row
  const int8_t* group(int64_t g, int plane, int row) const {  // of 32 columns
    return planes + g / 2 * block_stride + plane * plane_stride + row * 64 + g % 2 * 32;
  }
  const int32_t* group_sums(int64_t g, int plane, int row) const { return sums[plane] + row * sum_stride + 2 * g; }
};
inline RowBlock row_block(const fp::Activations& x, int64_t r) {
  RowBlock rows{x.block(r / 16, 0, 0) + r % 16 * 64, x.height() * 64, x.height() * 64 * x.int_planes(), {}, 0};
  if (x.summed) {
    for (int plane = 0; plane < 2; ++plane) rows.sums[plane] = x.row_sums(plane, r);
    rows.sum_stride = x.sums_of_row();
  }
  return rows;
}

// The levels q of 32 columns and eight outputs, four columns a vector.
template <fp::Format F>
inline void unpack_levels(const uint8_t* lines, __m256i* q) {
  constexpr int kHigh = fp::levels(F).high_bits();
  const __m256i nibble = _mm256_set1_epi8(15), mask = _mm256_set1_epi8(((1 << kHigh) - 1) << 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i line = load32(lines + i * 64);
    q[2 * i] = _mm256_and_si256(line, nibble);
    q[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(line, 4), nibble);
  }
  if constexpr (kHigh > 0) {
    __m256i high;
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {  // bits 4 to 7, then 0 to 3 of a line of high bits
      constexpr int kHalf = 4 / kHigh;
      if (v % kHalf == 0) {
        high = load32(lines + 256 + v / (2 * kHalf) * 64);
        if (v / kHalf % 2) high = _mm256_slli_epi16(high, 4);
      }
      q[v] = _mm256_or_si256(q[v], _mm256_and_si256(high, mask));
      high = _mm256_srli_epi16(high, kHigh);
    }
  }
}

// (D, D) and, where there is an M, (D, M) of eight outputs.
template <fp::Format F>
inline void load_scales(const uint8_t* p, int half, __m256i& dd, __m256i& dm) {
  if constexpr (fp::levels(F).minimum) {
    const __m256i first = _mm256_set1_epi32(0x01000100);  // bytes 0, 1, 0, 1 of a lane: D, D
    const __m256i pick = _mm256_add_epi8(first, _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                                                  0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    dm = load32(p + half * 32);
    dd = _mm256_shuffle_epi8(dm, pick);
  } else {
    dm = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + half * 16)));
    dd = _mm256_or_si256(dm, _mm256_slli_epi32(dm, 16));
  }
}

inline __m256i pair(int32_t low, int32_t high) {
  return _mm256_set1_epi32(int32_t((uint32_t(low) & 0xffff) | uint32_t(high) << 16));
}

// Outputs 8 * half .. 8 * half + 7 of a panel for R rows: acc[row][plane].
template <int R, fp::Format F>
void level_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256i acc[][2]) {
  constexpr fp::Levels L = fp::levels(F);
  constexpr int kVectors = L.span / 4;                          // of one scale
  constexpr int kSafe = L.bits == 4 ? 8 : L.bits == 5 ? 4 : 2;  // whose products fit int16
  constexpr int kAtOnce = kSafe < kVectors ? kSafe : kVectors;
  for (int j = 0; j < R; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* block = panel + g / 2 * fp::block_bytes(F);
    __m256i q[8];
    unpack_levels<F>(block + L.lines_at(int(g % 2)) + half * 32, q);
#pragma GCC unroll 2
    for (int part = 0; part < 32 / L.span; ++part) {
      __m256i dd, dm;
      load_scales<F>(block + L.scales_at(int(g % 2)) + part * (L.minimum ? 64 : 32), half, dd, dm);
#pragma GCC unroll 2
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
        for (int plane = 0; plane < 2; ++plane) {
          const int8_t* x = rows.group(g, plane, j);
          __m256i total = acc[j][plane];
#pragma GCC unroll 4
          for (int v = part * kVectors; v < (part + 1) * kVectors; v += kAtOnce) {
            __m256i dot = _mm256_maddubs_epi16(q[v], four_columns(x + 4 * v));
#pragma GCC unroll 8
            for (int i = v + 1; i < v + kAtOnce; ++i)
              dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(q[i], four_columns(x + 4 * i)));
            total = _mm256_add_epi32(total, _mm256_madd_epi16(dot, dd));
          }
          // D (dot - zero sum) + M sum, as pairs that fit int16.
          const int32_t* sums = rows.group_sums(g, plane, j);
          const int32_t sum = L.span == 32 ? sums[0] + sums[1] : sums[part];
          if constexpr (L.bits == 4 && L.minimum) {
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pair(-L.zero() * sum, sum), dm));
          } else {
            const __m256i offset = L.span == 32 ? pair(-L.zero() * sums[0], -L.zero() * sums[1])
                                                : pair(-L.zero() / 2 * sum, -L.zero() / 2 * sum);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(offset, dd));
            if constexpr (L.minimum) total = _mm256_add_epi32(total, _mm256_madd_epi16(pair(0, sum), dm));
          }
          acc[j][plane] = total;
        }
    }
  }
}

// Q16: high and low bytes side by side are the int16 weights of two outputs.
template <int R>
void q16_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256i acc[][2]) {
  __m256i sum[R][2][2];  // outputs 0, 1, 4, 5, and 2, 3, 6, 7; two lanes each
  for (int j = 0; j < R; ++j)
    for (int plane = 0; plane < 2; ++plane) sum[j][plane][0] = sum[j][plane][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* lines = panel + g * 1024 + half * 32;
    for (int i = 0; i < 8; ++i) {
      const __m256i high = load32(lines + i * 128), low = load32(lines + i * 128 + 64);
      const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
#pragma GCC unroll 2
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
        for (int plane = 0; plane < 2; ++plane) {
          const __m256i x = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(four_columns(rows.group(g, plane, j) + 4 * i)));
          sum[j][plane][0] = _mm256_add_epi32(sum[j][plane][0], _mm256_madd_epi16(a, x));
          sum[j][plane][1] = _mm256_add_epi32(sum[j][plane][1], _mm256_madd_epi16(b, x));
        }
    }
  }
  for (int j = 0; j < R; ++j)
    for (int plane = 0; plane < 2; ++plane) acc[j][plane] = _mm256_hadd_epi32(sum[j][plane][0], sum[j][plane][1]);
}

// 32 columns of stored bytes times R rows: added to dot[row][plane].
template <int R, int Planes>
void byte_group(const uint8_t* lines, const RowBlock& rows, int64_t g, __m256i dot[][2]) {
  const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m256i q = _mm256_xor_si256(load32(lines + i * 64), flip), size = _mm256_abs_epi8(q);
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
      for (int plane = 0; plane < Planes; ++plane) {
        __m256i signed_x = _mm256_sign_epi8(four_columns(rows.group(g, plane, j) + 4 * i), q);
        dot[j][plane] = _mm256_add_epi32(dot[j][plane], _mm256_madd_epi16(_mm256_maddubs_epi16(size, signed_x), ones));
      }
  }
}

// Q8C with two planes of activations, Q8A with one.
template <int R, int Planes>
void byte_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256i acc[][2]) {
  for (int j = 0; j < R; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g) byte_group<R, Planes>(panel + g * 512 + half * 32, rows, g, acc);
}

template <int R>
void q8_half(const uint8_t* panel, int64_t groups, int half, const RowBlock& rows, __m256 y[]) {
  for (int j = 0; j < R; ++j) y[j] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* block = panel + g / 2 * fp::block_bytes(fp::Format::Q8);
    const uint8_t* scales = block + 1024 + g % 2 * 32 + half * 16;
    __m256i dot[R][2];
    for (int j = 0; j < R; ++j) dot[j][0] = dot[j][1] = _mm256_setzero_si256();
    byte_group<R, 2>(block + g % 2 * 512 + half * 32, rows, g, dot);
    __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    for (int j = 0; j < R; ++j) {
      __m256i dot15 = _mm256_add_epi32(_mm256_slli_epi32(dot[j][0], 7), dot[j][1]);
      y[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot15), d, y[j]);
    }
  }
}

// R rows from r and panel p.
template <int R, fp::Format F>
void int_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const fp::Epilogue& e) {
  const RowBlock rows = row_block(x, r);
  const int64_t groups = w.k_pad() / fp::kGroup;
  V y[R];
  if constexpr (fp::has_row_scale(F)) {
    __m256i half[2][R][2];
    for (int i = 0; i < 2; ++i) {
      if constexpr (fp::is_levels(F)) level_half<R, F>(w.panel(p), groups, i, rows, half[i]);
      else if constexpr (F == fp::Format::Q16) q16_half<R>(w.panel(p), groups, i, rows, half[i]);
      else byte_half<R, F == fp::Format::Q8A ? 1 : 2>(w.panel(p), groups, i, rows, half[i]);
    }
    V row_scale = vload(w.row_scale() + p * fp::kPanel);
    for (int j = 0; j < R; ++j) {
      I hi{half[0][j][0], half[1][j][0]}, lo{half[0][j][1], half[1][j][1]};
      y[j] = F == fp::Format::Q8A ? byte_result(hi, x.scale[r + j], row_scale)
                                  : integer_result(hi, lo, x.scale[r + j], row_scale);
    }
  } else {
    __m256 half[2][R];
    for (int i = 0; i < 2; ++i) q8_half<R>(w.panel(p), groups, i, rows, half[i]);
    for (int j = 0; j < R; ++j) y[j] = vmul(V{half[0][j], half[1][j]}, vset(x.scale[r + j]));
  }
  finish_rows<R>(e, y, r, p * fp::kPanel, w.n);
}

template <fp::Format F>
void int_panels(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e) {
  constexpr int R = F == fp::Format::Q8A ? 2 * kIntRows : kIntRows;
  for (int64_t p = p0; p < p1; ++p) {
    int64_t r = 0;
    for (; r + R <= x.rows; r += R) int_block<R, F>(w, x, p, r, e);
    for (; r < x.rows; ++r) int_block<1, F>(w, x, p, r, e);
  }
}

inline void matmul(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                   uint8_t* scratch) {
  switch (w.format) {
    case fp::Format::Q4: return int_panels<fp::Format::Q4>(w, x, p0, p1, e);
    case fp::Format::Q4H: return int_panels<fp::Format::Q4H>(w, x, p0, p1, e);
    case fp::Format::Q5: return int_panels<fp::Format::Q5>(w, x, p0, p1, e);
    case fp::Format::Q5M: return int_panels<fp::Format::Q5M>(w, x, p0, p1, e);
    case fp::Format::Q6: return int_panels<fp::Format::Q6>(w, x, p0, p1, e);
    case fp::Format::Q8: return int_panels<fp::Format::Q8>(w, x, p0, p1, e);
    case fp::Format::Q8A: return int_panels<fp::Format::Q8A>(w, x, p0, p1, e);
    case fp::Format::Q8C: return int_panels<fp::Format::Q8C>(w, x, p0, p1, e);
    case fp::Format::Q16: return int_panels<fp::Format::Q16>(w, x, p0, p1, e);
    default: return matmul_float(w, x, p0, p1, e, scratch);
  }
}
