// Large zeroed memory in huge pages where the kernel allows: weights, and the blocks of the KV cache.
#pragma once
#include <cstdint>

namespace fp {

// Address space that becomes memory when it is touched. 2 MiB aligned.
class Region {
 public:
  explicit Region(int64_t bytes, bool huge);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_;
  int64_t bytes_;
  uint8_t* mapping_;
  int64_t mapped_;
};

// Drops the pages of a mapping that lie inside [data, data + bytes). Touched again, those of a file are read anew and
// others are zero.
void release_pages(const uint8_t* data, int64_t bytes);

}  // namespace fp
