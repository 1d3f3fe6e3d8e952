// Sixteen lanes in one AVX-512 register; the same operations, bit for bit, as simd_scalar.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

using V = __m512;
using I = __m512i;

inline __mmask16 first_lanes(int n) { return n <= 0 ? 0 : n >= 16 ? 0xffff : __mmask16((1u << n) - 1); }

inline V vset(float x) { return _mm512_set1_ps(x); }
inline V vzero() { return _mm512_setzero_ps(); }
inline V vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, V a) { _mm512_storeu_ps(p, a); }
inline V vload_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void vstore_n(float* p, V a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
inline V vload_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline V vload_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline V vload_bf16_even(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline V vload_bf16_odd(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000))));
}
inline V vload_i8_even(const int8_t* p) {
  __m512i pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24));
}
inline V vload_i8_odd(const int8_t* p) {
  __m512i pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8));
}
// As formats.h f32_to_bf16, in the high half of each lane; the low half may be anything. The product makes NaN quiet and,
// as MXCSR says, subnormals zero; the compiler must not know that it is a product with one.
inline I bf16_lanes(V a) {
  V one = _mm512_set1_ps(1.0f);
  asm("" : "+v"(one));
  V x = _mm512_mul_ps(a, one);
  I u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_mask_add_epi32(u, number, u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
inline void vstore_bf16(uint16_t* p, V a) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a));
#else
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_lanes(a), 16)));
#endif
}
inline V vround_bf16(V a) {
  return _mm512_castsi512_ps(_mm512_and_si512(bf16_lanes(a), _mm512_set1_epi32(int(0xffff0000))));
}
inline I bf16_pairs(V a, V b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(bf16_lanes(a), 16), bf16_lanes(b));
}
inline void vtranspose(V* x) {
  V t[16];
  for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]), t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  for (int i = 0; i < 16; i += 4)  // quarter q of x[i + j]: rows i to i + 3 of column 4 q + j
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      x[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
    }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);      // quarters 0 and 2 of both
      t[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);  // 1 and 3
    }
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
    x[j + 4] = _mm512_shuffle_f32x4(t[j + 4], t[j + 12], 0x88);
    x[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    x[j + 12] = _mm512_shuffle_f32x4(t[j + 4], t[j + 12], 0xdd);
  }
}
inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }
inline V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V vdiv(V a, V b) { return _mm512_div_ps(a, b); }
inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
inline V vabs(V a) { return _mm512_abs_ps(a); }
inline V vselect_first(int n, V a, V b) { return _mm512_mask_blend_ps(first_lanes(n), b, a); }
inline V vselect_lt(V a, V b, V x, V y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
inline V vpick(const float* table, V a) {
  return _mm512_permutexvar_ps(_mm512_castps_si512(a), _mm512_loadu_ps(table));
}
inline V vfraction(V a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline V vscale2(V a, V b) { return _mm512_scalef_ps(a, b); }  // flushes as MXCSR says
inline I vround_i32(V a) { return _mm512_cvtps_epi32(a); }
inline V vfrom_i32(I a) { return _mm512_cvtepi32_ps(a); }
inline V vbits(I a) { return _mm512_castsi512_ps(a); }
inline I ibits(V a) { return _mm512_castps_si512(a); }
inline I iset(int32_t x) { return _mm512_set1_epi32(x); }
inline I iload(const int32_t* p) { return _mm512_loadu_si512(p); }
inline void istore(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
inline I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
inline I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
template <int S> inline I ishl(I a) { return _mm512_slli_epi32(a, S); }
template <int S> inline I isar(I a) { return _mm512_srai_epi32(a, S); }
inline void istore_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
inline I iload_i8(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline void isum_i8(const int8_t* p, int32_t* out) {  // sums of each sixteen of 64 bytes
  I s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(p));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_BADC));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_CDAB));
  _mm_storeu_si128((__m128i*)out, _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, s)));
}
inline void istore_planes(int8_t* hi, int8_t* lo, const I* v) {
  // Packing goes by 128 bits: lane L of v[j] becomes the four bytes 4 L + j.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i first = _mm512_packs_epi32(v[0], v[1]), second = _mm512_packs_epi32(v[2], v[3]);
  const __m512i half = _mm512_set1_epi16(64);
  const __m512i first_hi = _mm512_srai_epi16(_mm512_add_epi16(first, half), 7);
  const __m512i second_hi = _mm512_srai_epi16(_mm512_add_epi16(second, half), 7);
  const __m512i first_lo = _mm512_sub_epi16(first, _mm512_slli_epi16(first_hi, 7));
  const __m512i second_lo = _mm512_sub_epi16(second, _mm512_slli_epi16(second_hi, 7));
  _mm512_storeu_si512(hi, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first_hi, second_hi)));
  _mm512_storeu_si512(lo, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first_lo, second_lo)));
}
inline void istore_bytes(int8_t* p, const I* v) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i words = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, words));
}
inline I isum_bytes(I a, const int8_t* p) {
  return _mm512_dpbusd_epi32(a, _mm512_set1_epi8(1), _mm512_loadu_si512(p));
}
inline int32_t ireduce_add(I a) { return _mm512_reduce_add_epi32(a); }
inline float reduce_add(V a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float reduce_max(V a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

}  // namespace
