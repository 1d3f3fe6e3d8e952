// From the rows a checkpoint stores to the panels the kernels read.
#pragma once
#include <cstdint>
#include <string>

#include "kernels.h"

namespace fp {

enum class Source : int { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 };

// Throws std::invalid_argument for a name it does not know.
Source source_type(const std::string& name);
int64_t source_row_bytes(Source type, int64_t k);  // k must be a multiple of 32 for the quantised types

// Packs panels [p0, p1) of an [n, k] matrix into dst (the whole matrix's memory; Matrix::bytes()).
// rows: source rows, row-major; order[i] = source row of output i, or null.
// Panels are independent, so that threads may take some each. scratch: pack_scratch(k) bytes.
// False if a weight is NaN or infinite: what was written is then useless.
bool pack_panels(const Matrix& shape, uint8_t* dst, Source type, const uint8_t* rows, const int32_t* order,
                 int64_t p0, int64_t p1, uint8_t* scratch);
int64_t pack_scratch(int64_t k);

}  // namespace fp
