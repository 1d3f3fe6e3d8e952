// Helpers over one row of logits.
#pragma once
#include <cstdint>

namespace fp {

// The greatest value; -infinity if there is none. NaN is passed over.
float greatest(const float* row, int64_t n);
// Whether any value is NaN.
bool has_nan(const float* row, int64_t n);
// Index of the greatest value, the first of equals; NaN never wins.
int64_t argmax(const float* row, int64_t n);
// Indices of the k greatest, greatest first, lower index first among equals.
void top_k(const float* row, int64_t n, int64_t k, int32_t* out);
// log(sum(exp(row))), in double precision.
double log_sum_exp(const float* row, int64_t n);

}  // namespace fp
