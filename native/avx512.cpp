// The AVX512 table: the shared code over this file's vectors, and integer products of its own.
#include "kernels.h"
#include "simd_avx512.h"

#include <cmath>

#include "formats.h"

namespace {
#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/elementwise.inl"
#include "generic/matmul_float.inl"
#include "avx512_matmul.inl"
#include "generic/attention.inl"
}  // namespace

const fp::Kernels& fp::avx512_kernels() {
  static const Kernels table{"avx512", matmul, prepare_row, norm_row, lookup_row, add_row,
                             attention, attention_scratch, attention_common, exp_shifted_row, clip_row, cap_row,
                             route_row, sigmoid_of};
  return table;
}
