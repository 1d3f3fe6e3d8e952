// The tensor types a checkpoint stores: one row of any of them as small integers with scales, or as floats.
// src/forwardpass/weights/dequantize.py is the definition; the formats are described there.
#pragma once
#include <cstdint>
#include <string>

namespace fp {

struct Group { int8_t q[16]; float d, m; };  // sixteen consecutive weights of a row: q * d + m

constexpr int kWholeRow = 1 << 30;

struct StoredType {
  const char* name;
  int64_t values, bytes;  // of a block; rows are whole blocks
  bool grouped;           // false: plain floats
  int least, greatest;    // of q
  bool with_min;          // m may differ from 0
  int span;               // columns that share d and m: 16, 32 or more, kWholeRow
};

const StoredType& stored_type(int index);
int find_stored_type(const std::string& name);  // throws std::invalid_argument for a name it does not know
int64_t stored_row_bytes(const StoredType& type, int64_t k);  // k must be a multiple of type.values

void read_groups(int type, const uint8_t* row, int64_t k, Group* out);  // k / 16 groups; grouped types only
void read_floats(int type, const uint8_t* row, int64_t k, float* out);

}  // namespace fp
