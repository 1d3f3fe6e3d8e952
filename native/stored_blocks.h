// What the readers of single blocks share, and the readers themselves, for the table in stored_rows.cpp. Each fills the
// groups of one block.
#pragma once
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "stored_rows.h"

namespace fp {

inline uint16_t read16(const uint8_t* p) { uint16_t v; std::memcpy(&v, p, 2); return v; }
inline uint32_t read32(const uint8_t* p) { uint32_t v; std::memcpy(&v, p, 4); return v; }
inline float read_half(const uint8_t* p) { return f16_to_f32(read16(p)); }
inline float read_float(const uint8_t* p) { return bits_to_f32(read32(p)); }
inline int nibble(const uint8_t* p, int i) { return i % 2 ? p[i / 2] >> 4 : p[i / 2] & 15; }  // number i, low first

// stored_k.cpp
void read_q2_k(const uint8_t* p, Group* out);
void read_q3_k(const uint8_t* p, Group* out);
void read_q4_k(const uint8_t* p, Group* out);
void read_q5_k(const uint8_t* p, Group* out);
void read_q6_k(const uint8_t* p, Group* out);
void read_q8_k(const uint8_t* p, Group* out);
void read_tq1_0(const uint8_t* p, Group* out);
void read_tq2_0(const uint8_t* p, Group* out);

// stored_iq.cpp
void read_iq1_s(const uint8_t* p, Group* out);
void read_iq1_m(const uint8_t* p, Group* out);
void read_iq2_xxs(const uint8_t* p, Group* out);
void read_iq2_xs(const uint8_t* p, Group* out);
void read_iq2_s(const uint8_t* p, Group* out);
void read_iq3_xxs(const uint8_t* p, Group* out);
void read_iq3_s(const uint8_t* p, Group* out);
void read_iq4_nl(const uint8_t* p, Group* out);
void read_iq4_xs(const uint8_t* p, Group* out);
void read_mxfp4(const uint8_t* p, Group* out);
void read_nvfp4(const uint8_t* p, Group* out);

}  // namespace fp
