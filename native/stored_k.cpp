// The K-quants and the ternary types: blocks of 256 values, sixteen groups. See weights/dequantize_k.py.
#include "stored_blocks.h"

namespace fp {

namespace {

// Scale and minimum i of 8: six bits each, in 12 bytes.
int scale6(const uint8_t* s, int i) { return i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6 << 4); }
int minimum6(const uint8_t* s, int i) { return i < 4 ? s[i + 4] & 63 : (s[i + 4] >> 4) | (s[i] >> 6 << 4); }

}  // namespace

void read_q2_k(const uint8_t* p, Group* out) {
  float d = read_half(p + 80), dmin = read_half(p + 82);
  for (int g = 0; g < 16; ++g) {
    const uint8_t* twos = p + 16 + g / 8 * 32 + g % 2 * 16;
    int shift = g % 8 / 2 * 2;
    for (int j = 0; j < 16; ++j) out[g].q[j] = int8_t((twos[j] >> shift) & 3);
    out[g].d = d * float(p[g] & 15);
    out[g].m = -(dmin * float(p[g] >> 4));
  }
}

void read_q3_k(const uint8_t* p, Group* out) {
  const uint8_t* scales = p + 96;
  float d = read_half(p + 108);
  for (int g = 0; g < 16; ++g) {
    const uint8_t *thirds = p + g % 2 * 16, *twos = p + 32 + g / 8 * 32 + g % 2 * 16;
    int shift = g % 8 / 2 * 2;
    for (int j = 0; j < 16; ++j)
      out[g].q[j] = int8_t(((twos[j] >> shift) & 3) + (((thirds[j] >> (g / 2)) & 1) << 2) - 4);
    int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, high = (scales[8 + g % 4] >> (g / 4 * 2)) & 3;
    out[g].d = d * float((low | high << 4) - 32);
    out[g].m = 0;
  }
}

void read_q4_k(const uint8_t* p, Group* out) {
  float d = read_half(p), dmin = read_half(p + 2);
  for (int g = 0; g < 16; ++g) {
    const uint8_t* nibbles = p + 16 + g / 4 * 32 + g % 2 * 16;
    int shift = g / 2 % 2 * 4;
    for (int j = 0; j < 16; ++j) out[g].q[j] = int8_t((nibbles[j] >> shift) & 15);
    out[g].d = d * float(scale6(p + 4, g / 2));
    out[g].m = -(dmin * float(minimum6(p + 4, g / 2)));
  }
}

void read_q5_k(const uint8_t* p, Group* out) {
  float d = read_half(p), dmin = read_half(p + 2);
  for (int g = 0; g < 16; ++g) {
    const uint8_t *fifths = p + 16 + g % 2 * 16, *nibbles = p + 48 + g / 4 * 32 + g % 2 * 16;
    int shift = g / 2 % 2 * 4;
    for (int j = 0; j < 16; ++j)
      out[g].q[j] = int8_t(((nibbles[j] >> shift) & 15) | (((fifths[j] >> (g / 2)) & 1) << 4));
    out[g].d = d * float(scale6(p + 4, g / 2));
    out[g].m = -(dmin * float(minimum6(p + 4, g / 2)));
  }
}

void read_q6_k(const uint8_t* p, Group* out) {
  float d = read_half(p + 208);
  for (int g = 0; g < 16; ++g) {
    const uint8_t *nibbles = p + g / 8 * 64 + g % 4 * 16, *twos = p + 128 + g / 8 * 32 + g % 2 * 16;
    int low = g % 8 / 4 * 4, high = g % 8 / 2 * 2;
    for (int j = 0; j < 16; ++j)
      out[g].q[j] = int8_t((((nibbles[j] >> low) & 15) | (((twos[j] >> high) & 3) << 4)) - 32);
    out[g].d = d * float(int8_t(p[192 + g]));
    out[g].m = 0;
  }
}

void read_q8_k(const uint8_t* p, Group* out) {
  for (int g = 0; g < 16; ++g) {
    std::memcpy(out[g].q, p + 4 + g * 16, 16);
    out[g].d = bits_to_f32(read32(p));
    out[g].m = 0;
  }
}

void read_tq1_0(const uint8_t* p, Group* out) {
  constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
  for (int i = 0; i < 256; ++i) {
    // Bytes 0-31 hold values 0-159, bytes 32-47 values 160-239, bytes 48-51 the last sixteen.
    int byte = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
    int power = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    out[i / 16].q[i % 16] = int8_t((uint8_t(p[byte] * powers[power]) * 3 >> 8) - 1);
  }
  for (int g = 0; g < 16; ++g) {
    out[g].d = read_half(p + 52);
    out[g].m = 0;
  }
}

void read_tq2_0(const uint8_t* p, Group* out) {
  for (int g = 0; g < 16; ++g) {
    const uint8_t* twos = p + g / 8 * 32 + g % 2 * 16;
    int shift = g % 8 / 2 * 2;
    for (int j = 0; j < 16; ++j) out[g].q[j] = int8_t(((twos[j] >> shift) & 3) - 1);
    out[g].d = read_half(p + 64);
    out[g].m = 0;
  }
}

}  // namespace fp
