// Half precision and bfloat16 conversions, exact and the same everywhere.
#pragma once
#include <cstdint>
#include <cstring>

namespace fp {

inline float bits_to_f32(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
inline uint32_t f32_to_bits(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }

inline float bf16_to_f32(uint16_t h) { return bits_to_f32(uint32_t(h) << 16); }
// Round to nearest even; NaN becomes a quiet NaN; subnormal float32 input counts as zero (AVX512-BF16's rule).
inline uint16_t f32_to_bf16(float f) {
  uint32_t u = f32_to_bits(f);
  uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  if (magnitude < 0x00800000u) return uint16_t((u >> 16) & 0x8000u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
  if (exponent) return bits_to_f32(sign | ((exponent + 112) << 23) | (fraction << 13));
  if (!fraction) return bits_to_f32(sign);
  int shift = 0;
  while (!(fraction & 0x400u)) { fraction <<= 1; ++shift; }  // a subnormal half is a normal float
  return bits_to_f32(sign | (uint32_t(113 - shift) << 23) | ((fraction & 0x3ffu) << 13));
}
inline uint16_t f32_to_f16(float f) {
  uint32_t u = f32_to_bits(f), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x33000001u) return uint16_t(sign);
  if (magnitude < 0x38800000u) {  // becomes a subnormal half
    uint32_t shift = 126 - (magnitude >> 23), fraction = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t half = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return uint16_t(sign | (half + (rest > middle || (rest == middle && (half & 1)))));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace fp
