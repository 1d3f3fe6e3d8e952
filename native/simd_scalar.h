// Sixteen float lanes and sixteen int32 lanes in plain C++: the definition that simd_avx2.h and simd_avx512.h match.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats.h"

namespace {

struct V {
  float v[16];
};
struct I {
  int32_t v[16];
};

#define FP_LANES for (int i = 0; i < 16; ++i)
inline V vset(float x) { V r; FP_LANES r.v[i] = x; return r; }
inline V vzero() { return vset(0.0f); }
inline V vload(const float* p) { V r; std::memcpy(r.v, p, 64); return r; }
inline void vstore(float* p, const V& a) { std::memcpy(p, a.v, 64); }
// The first n lanes (0..16); the rest are zero on load and untouched on store.
inline V vload_n(const float* p, int n) { V r = vzero(); std::memcpy(r.v, p, size_t(n) * 4); return r; }
inline void vstore_n(float* p, const V& a, int n) { std::memcpy(p, a.v, size_t(n) * 4); }
inline V vload_bf16(const uint16_t* p) { V r; FP_LANES r.v[i] = fp::bf16_to_f32(p[i]); return r; }
inline V vload_f16(const uint16_t* p) { V r; FP_LANES r.v[i] = fp::f16_to_f32(p[i]); return r; }
// Pairs [16][2] of bfloat16: the even elements of each pair, and the odd ones.
inline V vload_bf16_even(const uint16_t* p) { V r; FP_LANES r.v[i] = fp::bf16_to_f32(p[2 * i]); return r; }
inline V vload_bf16_odd(const uint16_t* p) { V r; FP_LANES r.v[i] = fp::bf16_to_f32(p[2 * i + 1]); return r; }
// Pairs [16][2] of int8: the even elements of each pair, and the odd ones.
inline V vload_i8_even(const int8_t* p) { V r; FP_LANES r.v[i] = float(p[2 * i]); return r; }
inline V vload_i8_odd(const int8_t* p) { V r; FP_LANES r.v[i] = float(p[2 * i + 1]); return r; }
// Round to bfloat16 (nearest even) and store sixteen of them; NaN stays NaN.
inline void vstore_bf16(uint16_t* p, const V& a) { FP_LANES p[i] = fp::f32_to_bf16(a.v[i]); }
// The value rounded to bfloat16, as float.
inline V vround_bf16(const V& a) { V r; FP_LANES r.v[i] = fp::bf16_to_f32(fp::f32_to_bf16(a.v[i])); return r; }
// Lane i of a and of b, rounded to bfloat16, as the lower and the upper half of lane i.
inline I bf16_pairs(const V& a, const V& b) {
  I r; FP_LANES r.v[i] = int32_t(fp::f32_to_bf16(a.v[i]) | uint32_t(fp::f32_to_bf16(b.v[i])) << 16); return r;
}
// Lane j of x[i] becomes lane i of x[j].
inline void vtranspose(V* x) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < i; ++j) {
      const float kept = x[i].v[j];
      x[i].v[j] = x[j].v[i], x[j].v[i] = kept;
    }
}
inline V vadd(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] + b.v[i]; return r; }
inline V vsub(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] - b.v[i]; return r; }
inline V vmul(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] * b.v[i]; return r; }
inline V vdiv(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] / b.v[i]; return r; }
inline V vfma(const V& a, const V& b, const V& c) { V r; FP_LANES r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return r; }
// x86's rule: if either is NaN, or both are zero, the second operand.
inline V vmax(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return r; }
inline V vmin(const V& a, const V& b) { V r; FP_LANES r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return r; }
inline V vabs(const V& a) { V r; FP_LANES r.v[i] = std::fabs(a.v[i]); return r; }
// Lanes of a where i < n, of b elsewhere (n may be negative or above 16).
inline V vselect_first(int n, const V& a, const V& b) { V r; FP_LANES r.v[i] = i < n ? a.v[i] : b.v[i]; return r; }
// a < b ? x : y by lane (false for NaN).
inline V vselect_lt(const V& a, const V& b, const V& x, const V& y) {
  V r; FP_LANES r.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i]; return r;
}
// table[low four bits of each lane of a].
inline V vpick(const float* table, const V& a) { V r; FP_LANES r.v[i] = table[fp::f32_to_bits(a.v[i]) & 15]; return r; }
// a - floor(a) rounded towards zero (as vreduceps does; a < -127 may give any fraction), and a * 2^floor(b) for
// 1 <= a <= 2, b <= 126: 0 below 2^-126.
inline V vfraction(const V& a) {
  V r;
  FP_LANES {
    float whole = std::floor(a.v[i]), f = a.v[i] < -127.0f ? 0.0f : a.v[i] - whole;
    r.v[i] = f + whole > a.v[i] ? fp::bits_to_f32(fp::f32_to_bits(f) - 1) : f;
  }
  return r;
}
inline V vscale2(const V& a, const V& b) {
  V r;
  FP_LANES {
    int32_t u = int32_t(fp::f32_to_bits(a.v[i])) + int32_t(std::fmax(std::floor(b.v[i]), -127.0f)) * (1 << 23);
    r.v[i] = b.v[i] != b.v[i] ? a.v[i] : u < (1 << 23) ? 0.0f : fp::bits_to_f32(uint32_t(u));
  }
  return r;
}
inline I vround_i32(const V& a) { I r; FP_LANES r.v[i] = int32_t(std::nearbyint(a.v[i])); return r; }  // |a| < 2^31
inline V vfrom_i32(const I& a) { V r; FP_LANES r.v[i] = float(a.v[i]); return r; }
inline V vbits(const I& a) { V r; std::memcpy(r.v, a.v, 64); return r; }
inline I ibits(const V& a) { I r; std::memcpy(r.v, a.v, 64); return r; }
inline I iset(int32_t x) { I r; FP_LANES r.v[i] = x; return r; }
inline I iload(const int32_t* p) { I r; std::memcpy(r.v, p, 64); return r; }
inline void istore(int32_t* p, const I& a) { std::memcpy(p, a.v, 64); }
inline I iadd(const I& a, const I& b) { I r; FP_LANES r.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); return r; }
inline I isub(const I& a, const I& b) { I r; FP_LANES r.v[i] = int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); return r; }
template <int S> inline I ishl(const I& a) { I r; FP_LANES r.v[i] = int32_t(uint32_t(a.v[i]) << S); return r; }
template <int S> inline I isar(const I& a) { I r; FP_LANES r.v[i] = a.v[i] >> S; return r; }
// Low bytes of sixteen int32 (values in [-128, 127]).
inline void istore_i8(int8_t* p, const I& a) { FP_LANES p[i] = int8_t(a.v[i]); }
inline I iload_i8(const int8_t* p) { I r; FP_LANES r.v[i] = p[i]; return r; }
// Sums of each sixteen of 64 bytes.
inline void isum_i8(const int8_t* p, int32_t* out) {
  for (int i = 0; i < 4; ++i) {
    out[i] = 0;
    for (int j = 0; j < 16; ++j) out[i] += p[16 * i + j];
  }
}
// 64 values to bytes in order: v = 128 * hi + lo with lo in [-64, 63]; and v itself, which fits a byte.
inline void istore_planes(int8_t* hi, int8_t* lo, const I* v) {
  for (int i = 0; i < 64; ++i) {
    const int32_t x = v[i / 16].v[i % 16], high = (x + 64) >> 7;
    hi[i] = int8_t(high);
    lo[i] = int8_t(x - high * 128);
  }
}
inline void istore_bytes(int8_t* p, const I* v) {
  for (int i = 0; i < 64; ++i) p[i] = int8_t(v[i / 16].v[i % 16]);
}
// a with the sum of four of 64 bytes added to each lane.
inline I isum_bytes(const I& a, const int8_t* p) {
  I r;
  FP_LANES r.v[i] = a.v[i] + p[4 * i] + p[4 * i + 1] + p[4 * i + 2] + p[4 * i + 3];
  return r;
}
inline int32_t ireduce_add(const I& a) { int32_t sum = 0; FP_LANES sum += a.v[i]; return sum; }
// The tree: lanes 8 apart, then 4, 2, 1.
inline float reduce_add(const V& a) {
  float b[16];
  std::memcpy(b, a.v, 64);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) b[i] = b[i] + b[i + step];
  return b[0];
}
inline float reduce_max(const V& a) {
  float b[16];
  std::memcpy(b, a.v, 64);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) b[i] = b[i] > b[i + step] ? b[i] : b[i + step];
  return b[0];
}
#undef FP_LANES

}  // namespace
