// Sixteen lanes in two AVX2 registers; the same operations, bit for bit, as simd_scalar.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct V {
  __m256 a, b;  // lanes 0-7, lanes 8-15
};
struct I {
  __m256i a, b;
};

// All ones in lanes below n, of eight (n may be negative or above 8).
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline V vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V vzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, const V& x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline V vload_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
inline void vstore_n(float* p, const V& x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}

inline __m256 widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline V vload_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline V vload_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline I iload(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
inline void istore(int32_t* p, const I& x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
inline V vbits(const I& x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I ibits(const V& x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline I iset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I iadd(const I& x, const I& y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I isub(const I& x, const I& y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
template <int S> inline I ishl(const I& x) { return {_mm256_slli_epi32(x.a, S), _mm256_slli_epi32(x.b, S)}; }
template <int S> inline I isar(const I& x) { return {_mm256_srai_epi32(x.a, S), _mm256_srai_epi32(x.b, S)}; }

inline V vload_bf16_even(const uint16_t* p) { return vbits(ishl<16>(iload((const int32_t*)p))); }
inline V vload_bf16_odd(const uint16_t* p) {
  I x = iload((const int32_t*)p);
  __m256i mask = _mm256_set1_epi32(int(0xffff0000));
  return vbits(I{_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)});
}
inline V vload_i8_even(const int8_t* p) {
  __m256i x = _mm256_loadu_si256((const __m256i*)p);
  __m256i a = _mm256_slli_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)), 24);
  __m256i b = _mm256_slli_epi32(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1)), 24);
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(a, 24)), _mm256_cvtepi32_ps(_mm256_srai_epi32(b, 24))};
}
inline V vload_i8_odd(const int8_t* p) {
  __m256i x = _mm256_loadu_si256((const __m256i*)p);
  __m256i a = _mm256_srai_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)), 8);
  __m256i b = _mm256_srai_epi32(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1)), 8);
  return {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)};
}
// As formats.h f32_to_bf16, in the low half of each lane.
inline __m256i bf16_lanes(__m256 x) {
  __m256i u = _mm256_castps_si256(x);
  __m256i high = _mm256_srli_epi32(u, 16);
  __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
  __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
  return _mm256_blendv_epi8(rounded, _mm256_and_si256(high, _mm256_set1_epi32(0x8000)), tiny);
}
inline void vstore_bf16(uint16_t* p, const V& x) {
  __m256i packed = _mm256_packus_epi32(bf16_lanes(x.a), bf16_lanes(x.b));  // lane order 0-3, 8-11, 4-7, 12-15
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
inline V vround_bf16(const V& x) { return vbits(ishl<16>(I{bf16_lanes(x.a), bf16_lanes(x.b)})); }

inline I bf16_pairs(const V& x, const V& y) {
  return {_mm256_or_si256(bf16_lanes(x.a), _mm256_slli_epi32(bf16_lanes(y.a), 16)),
          _mm256_or_si256(bf16_lanes(x.b), _mm256_slli_epi32(bf16_lanes(y.b), 16))};
}
// Eight rows of eight, in place.
inline void transpose_8(__m256* x) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]), t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
inline void vtranspose(V* x) {
  __m256 part[4][8];  // rows 0-7 of lanes 0-7, of lanes 8-15, rows 8-15 of each
  for (int i = 0; i < 8; ++i) part[0][i] = x[i].a, part[1][i] = x[i].b, part[2][i] = x[i + 8].a, part[3][i] = x[i + 8].b;
  for (auto& one : part) transpose_8(one);
  for (int i = 0; i < 8; ++i) x[i] = {part[0][i], part[2][i]}, x[i + 8] = {part[1][i], part[3][i]};
}
inline V vadd(const V& x, const V& y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V vsub(const V& x, const V& y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V vmul(const V& x, const V& y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V vdiv(const V& x, const V& y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V vfma(const V& x, const V& y, const V& z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline V vmax(const V& x, const V& y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V vmin(const V& x, const V& y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline V vabs(const V& x) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline V vselect_first(int n, const V& x, const V& y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(first_lanes(n))),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(first_lanes(n - 8)))};
}
inline V vselect_lt(const V& a, const V& b, const V& x, const V& y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
inline V vpick(const float* table, const V& x) {
  const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
  auto pick = [&](__m256 a) {  // eight by the low three bits, of which half by the fourth, moved to the sign
    const __m256i index = _mm256_castps_si256(a);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  };
  return {pick(x.a), pick(x.b)};
}
inline __m256 fraction8(__m256 a) {
  a = _mm256_max_ps(_mm256_set1_ps(-127.0f), a);
  __m256 whole = _mm256_floor_ps(a), f = _mm256_sub_ps(a, whole);
  __m256 above = _mm256_cmp_ps(_mm256_add_ps(f, whole), a, _CMP_GT_OQ);  // rounded up: one step back
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(f), _mm256_castps_si256(above)));
}
inline V vfraction(const V& x) { return {fraction8(x.a), fraction8(x.b)}; }
inline __m256 scale8(__m256 a, __m256 b) {
  // NaN becomes INT_MIN, which shifts out
  __m256i n = _mm256_cvttps_epi32(_mm256_floor_ps(_mm256_max_ps(_mm256_set1_ps(-127.0f), b)));
  __m256i u = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23));
  return _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_cmpgt_epi32(u, _mm256_set1_epi32((1 << 23) - 1))));
}
inline V vscale2(const V& x, const V& y) { return {scale8(x.a, y.a), scale8(x.b, y.b)}; }
inline I vround_i32(const V& x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline V vfrom_i32(const I& x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline void istore_i8(int8_t* p, const I& x) {
  // Low bytes by shuffle, so that any value is cut as the other files cut it.
  __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                  0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  __m256i join = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
  __m256i a = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x.a, pick), join);
  __m256i b = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x.b, pick), join);
  _mm_storeu_si128((__m128i*)p, _mm_unpacklo_epi64(_mm256_castsi256_si128(a), _mm256_castsi256_si128(b)));
}
inline I iload_i8(const int8_t* p) {
  __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
inline void isum_i8(const int8_t* p, int32_t* out) {  // sums of each sixteen of 64 bytes
  const __m256i bytes = _mm256_set1_epi8(1), words = _mm256_set1_epi16(1);
  const __m256i* in = (const __m256i*)p;
  __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_loadu_si256(in)), words);
  __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_loadu_si256(in + 1)), words);
  a = _mm256_hadd_epi32(a, b);  // halves of sums 0, 2 | 1, 3
  a = _mm256_hadd_epi32(a, a);
  _mm_storeu_si128((__m128i*)out, _mm_unpacklo_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
// Packing goes by 128 bits: lane L of the vectors a, b, c, d becomes the four bytes 4 L, 4 L + 1, ...
inline __m256i bytes_in_order(__m256i words, __m256i more) {
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, more), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline void istore_planes(int8_t* hi, int8_t* lo, const I* v) {
  const __m256i half = _mm256_set1_epi16(64);
  for (int i = 0; i < 2; ++i) {
    const __m256i first = _mm256_packs_epi32(v[2 * i].a, v[2 * i].b);
    const __m256i second = _mm256_packs_epi32(v[2 * i + 1].a, v[2 * i + 1].b);
    const __m256i first_hi = _mm256_srai_epi16(_mm256_add_epi16(first, half), 7);
    const __m256i second_hi = _mm256_srai_epi16(_mm256_add_epi16(second, half), 7);
    const __m256i first_lo = _mm256_sub_epi16(first, _mm256_slli_epi16(first_hi, 7));
    const __m256i second_lo = _mm256_sub_epi16(second, _mm256_slli_epi16(second_hi, 7));
    _mm256_storeu_si256((__m256i*)(hi + 32 * i), bytes_in_order(first_hi, second_hi));
    _mm256_storeu_si256((__m256i*)(lo + 32 * i), bytes_in_order(first_lo, second_lo));
  }
}
inline void istore_bytes(int8_t* p, const I* v) {
  for (int i = 0; i < 2; ++i)
    _mm256_storeu_si256((__m256i*)(p + 32 * i), bytes_in_order(_mm256_packs_epi32(v[2 * i].a, v[2 * i].b),
                                                               _mm256_packs_epi32(v[2 * i + 1].a, v[2 * i + 1].b)));
}
inline I isum_bytes(const I& x, const int8_t* p) {
  const __m256i bytes = _mm256_set1_epi8(1), words = _mm256_set1_epi16(1);
  const __m256i* in = (const __m256i*)p;
  return {_mm256_add_epi32(x.a, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_loadu_si256(in)), words)),
          _mm256_add_epi32(x.b, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_loadu_si256(in + 1)), words))};
}
inline int32_t ireduce_add(const I& x) {
  __m256i a = _mm256_add_epi32(x.a, x.b);
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
inline float reduce_add(const V& x) {
  __m256 b = _mm256_add_ps(x.a, x.b);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float reduce_max(const V& x) {
  __m256 b = _mm256_max_ps(x.a, x.b);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

}  // namespace
