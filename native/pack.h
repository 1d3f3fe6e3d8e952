// From the rows a checkpoint stores to the panels the kernels read.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "stored_rows.h"

namespace fp {

// Whether a format holds the levels and scales of a stored type as they are (scales as whole numbers of the row's unit,
// where it has row scales). Other formats take the type's values as floats.
bool keeps_groups(Format format, const StoredType& type);

// Throws std::invalid_argument if an [n, k] matrix of this format can't be packed from rows of the type.
void check_packing(const Matrix& shape, const StoredType& type);

// Packs panels [p0, p1) of a matrix into dst (the whole matrix's memory; Matrix::bytes()).
// rows: stored rows of type number `type`, row-major; order[i] = stored row of output i, or null.
// Panels are independent, so that threads may take some each. scratch: pack_scratch(k) bytes.
// False if a weight is NaN or infinite: what was written is then useless.
bool pack_panels(const Matrix& shape, uint8_t* dst, int type, const uint8_t* rows, const int32_t* order, int64_t p0,
                 int64_t p1, uint8_t* scratch);
int64_t pack_scratch(int64_t k);

}  // namespace fp
