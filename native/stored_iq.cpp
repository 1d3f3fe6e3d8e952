// The types whose values come from tables. See weights/dequantize_iq.py.
#include <bit>
#include <cmath>

#include "stored_blocks.h"

namespace fp {

namespace {

#include "iq_tables.inl"  // made from weights/iq_tables.py when the module is built

// Eight values from a grid of eight levels a vector, or two of four; bit j of `signs` set: value j is negative.
void put8(int8_t* q, const int8_t* levels, unsigned signs) {
  for (int j = 0; j < 8; ++j) q[j] = int8_t((signs >> j) & 1 ? -levels[j] : levels[j]);
}
void put4(int8_t* q, const int8_t* levels, unsigned signs) {
  for (int j = 0; j < 4; ++j) q[j] = int8_t((signs >> j) & 1 ? -levels[j] : levels[j]);
}
// Seven signs; the eighth makes their number even.
unsigned even_signs(unsigned seven) { return seven | unsigned(std::popcount(seven) & 1) << 7; }

void set_scale(Group& g, float d) {
  g.d = d;
  g.m = 0;
}

}  // namespace

void read_iq2_xxs(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int i = 0; i < 8; ++i) {  // 32 values
    const uint8_t* index = p + 2 + i * 8;
    uint32_t word = read32(index + 4);
    for (int v = 0; v < 4; ++v)
      put8(out[i * 2 + v / 2].q + v % 2 * 8, kGrid_IQ2_XXS + index[v] * 8, even_signs((word >> (7 * v)) & 127));
    for (int h = 0; h < 2; ++h) set_scale(out[i * 2 + h], d * (0.5f + float(word >> 28)) * 0.25f);
  }
}

void read_iq2_xs(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int g = 0; g < 16; ++g) {
    for (int v = 0; v < 2; ++v) {
      unsigned code = read16(p + 2 + (g * 2 + v) * 2);
      put8(out[g].q + v * 8, kGrid_IQ2_XS + (code & 511) * 8, even_signs(code >> 9));
    }
    set_scale(out[g], d * (0.5f + float(nibble(p + 66, g))) * 0.25f);
  }
}

void read_iq2_s(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int g = 0; g < 16; ++g) {
    for (int v = 0; v < 2; ++v) {
      int i = g * 2 + v, index = p[2 + i] | ((p[66 + i / 4] >> (i % 4 * 2)) & 3) << 8;
      put8(out[g].q + v * 8, kGrid_IQ2_S + index * 8, p[34 + i]);
    }
    set_scale(out[g], d * (0.5f + float(nibble(p + 74, g))) * 0.25f);
  }
}

// The levels of this grid are even: q is half of them, the scale double.
void read_iq3_xxs(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int i = 0; i < 8; ++i) {  // 32 values
    uint32_t word = read32(p + 66 + i * 4);
    for (int v = 0; v < 8; ++v) {
      unsigned signs = even_signs((word >> (7 * (v / 2))) & 127) >> (v % 2 * 4);
      put4(out[i * 2 + v / 4].q + v % 4 * 4, kGrid_IQ3_XXS + p[2 + i * 8 + v] * 4, signs);
    }
    for (int h = 0; h < 2; ++h) {
      for (int8_t& q : out[i * 2 + h].q) q = int8_t(q / 2);
      set_scale(out[i * 2 + h], d * (0.5f + float(word >> 28)));
    }
  }
}

void read_iq3_s(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int g = 0; g < 16; ++g) {
    for (int v = 0; v < 4; ++v) {
      int i = g * 4 + v, index = p[2 + i] | ((p[66 + i / 8] >> (i % 8)) & 1) << 8;
      put4(out[g].q + v * 4, kGrid_IQ3_S + index * 4, unsigned(p[74 + i / 2] >> (i % 2 * 4)));
    }
    set_scale(out[g], d * float(1 + 2 * nibble(p + 106, g / 2)));
  }
}

// Values are level + 1/8 or level - 1/8: q is eight times that, the scale an eighth.
void read_iq1_s(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int g = 0; g < 16; ++g) {
    unsigned high = read16(p + 34 + g / 2 * 2);
    int delta = high & 0x8000 ? -1 : 1;
    for (int v = 0; v < 2; ++v) {
      int i = g * 2 + v;
      const int8_t* levels = kGrid_IQ1_S + (p[2 + i] | ((high >> (i % 4 * 3)) & 7) << 8) * 8;
      for (int j = 0; j < 8; ++j) out[g].q[v * 8 + j] = int8_t(levels[j] * 8 + delta);
    }
    set_scale(out[g], d * float(2 * ((high >> 12) & 7) + 1) * 0.125f);
  }
}

void read_iq1_m(const uint8_t* p, Group* out) {
  const uint8_t* scales = p + 48;
  unsigned bits = 0;
  for (int w = 0; w < 4; ++w) bits |= unsigned(read16(scales + w * 2) >> 12) << (4 * w);
  float d = f16_to_f32(uint16_t(bits));
  for (int g = 0; g < 16; ++g) {
    for (int v = 0; v < 2; ++v) {
      int i = g * 2 + v, high = nibble(p + 32, i), delta = high & 8 ? -1 : 1;
      const int8_t* levels = kGrid_IQ1_S + (p[i] | (high & 7) << 8) * 8;
      for (int j = 0; j < 8; ++j) out[g].q[v * 8 + j] = int8_t(levels[j] * 8 + delta);
    }
    int scale = (read16(scales + g / 4 * 2) >> (g % 4 * 3)) & 7;
    set_scale(out[g], d * float(2 * scale + 1) * 0.125f);
  }
}

void read_iq4_nl(const uint8_t* p, Group* out) {
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 16; ++j) out[h].q[j] = kIQ4Levels[(p[2 + j] >> (h * 4)) & 15];
    set_scale(out[h], read_half(p));
  }
}

void read_iq4_xs(const uint8_t* p, Group* out) {
  float d = read_half(p);
  for (int g = 0; g < 16; ++g) {
    const uint8_t* nibbles = p + 8 + g / 2 * 16;
    for (int j = 0; j < 16; ++j) out[g].q[j] = kIQ4Levels[(nibbles[j] >> (g % 2 * 4)) & 15];
    int scale = nibble(p + 4, g / 2) | ((read16(p + 2) >> (g / 2 * 2)) & 3) << 4;
    set_scale(out[g], d * float(scale - 32));
  }
}

void read_mxfp4(const uint8_t* p, Group* out) {
  float d = bits_to_f32(p[0] < 2 ? 0x00200000u << p[0] : uint32_t(p[0] - 1) << 23);
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 16; ++j) out[h].q[j] = kFp4Levels[(p[1 + j] >> (h * 4)) & 15];
    set_scale(out[h], d);
  }
}

void read_nvfp4(const uint8_t* p, Group* out) {
  for (int g = 0; g < 4; ++g) {
    for (int j = 0; j < 16; ++j) out[g].q[j] = kFp4Levels[(p[4 + g * 8 + j % 8] >> (j / 8 * 4)) & 15];
    int exponent = (p[g] >> 3) & 15, fraction = p[g] & 7;
    float d = exponent ? std::ldexp(float(8 + fraction), exponent - 11) : std::ldexp(float(fraction), -10);
    set_scale(out[g], p[g] == 0x7f ? 0.0f : d);
  }
}

}  // namespace fp
