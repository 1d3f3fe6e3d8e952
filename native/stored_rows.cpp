#include "stored_rows.h"

#include <cstring>
#include <iterator>
#include <stdexcept>

#include "stored_blocks.h"

namespace fp {

namespace {

// Blocks of 32 values in nibbles, with a fifth bit each if `high` points to 32 bits.
void read_nibbles(const uint8_t* nibbles, const uint8_t* high, int centre, float d, float m, Group* out) {
  uint32_t fifth = high ? read32(high) : 0;
  for (int j = 0; j < 16; ++j) {
    out[0].q[j] = int8_t((nibbles[j] & 15) + (((fifth >> j) & 1) << 4) - centre);
    out[1].q[j] = int8_t((nibbles[j] >> 4) + (((fifth >> (j + 16)) & 1) << 4) - centre);
  }
  out[0].d = out[1].d = d;
  out[0].m = out[1].m = m;
}

void read_q4_0(const uint8_t* p, Group* out) { read_nibbles(p + 2, nullptr, 8, read_half(p), 0, out); }
void read_q4_1(const uint8_t* p, Group* out) { read_nibbles(p + 4, nullptr, 0, read_half(p), read_half(p + 2), out); }
void read_q5_0(const uint8_t* p, Group* out) { read_nibbles(p + 6, p + 2, 16, read_half(p), 0, out); }
void read_q5_1(const uint8_t* p, Group* out) { read_nibbles(p + 8, p + 4, 0, read_half(p), read_half(p + 2), out); }
void read_q8_0(const uint8_t* p, Group* out) {
  for (int g = 0; g < 2; ++g) {
    std::memcpy(out[g].q, p + 2 + g * 16, 16);
    out[g].d = read_half(p);
    out[g].m = 0;
  }
}

// Quantised linears of Hugging Face checkpoints, brought into rows by src/forwardpass/weights/repack.py.
void read_g4(const uint8_t* p, Group* out) { read_nibbles(p + 8, nullptr, 0, read_float(p), read_float(p + 4), out); }
void read_g8(const uint8_t* p, Group* out) {
  for (int g = 0; g < 2; ++g) {
    std::memcpy(out[g].q, p + 4 + g * 16, 16);
    out[g].d = read_float(p);
    out[g].m = 0;
  }
}

struct Entry {
  StoredType type;
  void (*read)(const uint8_t* block, Group* out);
};
constexpr Entry kTypes[] = {
    {{"F32", 1, 4, false, 0, 0, false, 0}, nullptr},
    {{"F16", 1, 2, false, 0, 0, false, 0}, nullptr},
    {{"BF16", 1, 2, false, 0, 0, false, 0}, nullptr},
    {{"Q4_0", 32, 18, true, -8, 7, false, 32}, read_q4_0},
    {{"Q4_1", 32, 20, true, 0, 15, true, 32}, read_q4_1},
    {{"Q5_0", 32, 22, true, -16, 15, false, 32}, read_q5_0},
    {{"Q5_1", 32, 24, true, 0, 31, true, 32}, read_q5_1},
    {{"Q8_0", 32, 34, true, -128, 127, false, 32}, read_q8_0},
    {{"Q2_K", 256, 84, true, 0, 3, true, 16}, read_q2_k},
    {{"Q3_K", 256, 110, true, -4, 3, false, 16}, read_q3_k},
    {{"Q4_K", 256, 144, true, 0, 15, true, 32}, read_q4_k},
    {{"Q5_K", 256, 176, true, 0, 31, true, 32}, read_q5_k},
    {{"Q6_K", 256, 210, true, -32, 31, false, 16}, read_q6_k},
    {{"Q8_K", 256, 292, true, -128, 127, false, 256}, read_q8_k},
    {{"IQ1_S", 256, 50, true, -9, 9, false, 32}, read_iq1_s},
    {{"IQ1_M", 256, 56, true, -9, 9, false, 16}, read_iq1_m},
    {{"IQ2_XXS", 256, 66, true, -43, 43, false, 32}, read_iq2_xxs},
    {{"IQ2_XS", 256, 74, true, -43, 43, false, 16}, read_iq2_xs},
    {{"IQ2_S", 256, 82, true, -43, 43, false, 16}, read_iq2_s},
    {{"IQ3_XXS", 256, 98, true, -31, 31, false, 32}, read_iq3_xxs},
    {{"IQ3_S", 256, 110, true, -15, 15, false, 32}, read_iq3_s},
    {{"IQ4_NL", 32, 18, true, -127, 113, false, 32}, read_iq4_nl},
    {{"IQ4_XS", 256, 136, true, -127, 113, false, 32}, read_iq4_xs},
    {{"TQ1_0", 256, 54, true, -1, 1, false, 256}, read_tq1_0},
    {{"TQ2_0", 256, 66, true, -1, 2, false, 256}, read_tq2_0},
    {{"MXFP4", 32, 17, true, -12, 12, false, 32}, read_mxfp4},
    {{"NVFP4", 64, 36, true, -12, 12, false, 16}, read_nvfp4},
    {{"G4", 32, 24, true, 0, 15, true, 32}, read_g4},
    {{"G8", 32, 36, true, -128, 127, false, 32}, read_g8},
    {{"C8", 32, 36, true, -128, 127, false, kWholeRow}, read_g8},
    {{"W16", 1, 4, false, 0, 0, false, 0}, nullptr},
};

}  // namespace

const StoredType& stored_type(int index) { return kTypes[index].type; }

int find_stored_type(const std::string& name) {
  for (int i = 0; i < int(std::size(kTypes)); ++i)
    if (name == kTypes[i].type.name) return i;
  throw std::invalid_argument("no packing from tensors of type " + name);
}

int64_t stored_row_bytes(const StoredType& type, int64_t k) { return k / type.values * type.bytes; }

void read_groups(int type, const uint8_t* row, int64_t k, Group* out) {
  const Entry& entry = kTypes[type];
  for (int64_t i = 0; i < k; i += entry.type.values, row += entry.type.bytes, out += entry.type.values / 16)
    entry.read(row, out);
}

void read_floats(int type, const uint8_t* row, int64_t k, float* out) {
  const Entry& entry = kTypes[type];
  if (!entry.type.grouped) {
    switch (type) {
      case 1: for (int64_t i = 0; i < k; ++i) out[i] = f16_to_f32(read16(row + 2 * i)); return;
      case 2: for (int64_t i = 0; i < k; ++i) out[i] = bf16_to_f32(read16(row + 2 * i)); return;
      default: std::memcpy(out, row, size_t(k) * 4); return;  // F32, W16
    }
  }
  Group groups[16];
  for (int64_t i = 0; i < k; i += entry.type.values, row += entry.type.bytes) {
    entry.read(row, groups);
    for (int64_t j = 0; j < entry.type.values; ++j) {
      const Group& g = groups[j / 16];
      float scaled = float(g.q[j % 16]) * g.d;
      out[i + j] = entry.type.with_min ? scaled + g.m : scaled;  // adding 0 would turn -0 into 0
    }
  }
}

}  // namespace fp
