// The AVX2 table: the shared code over this file's vectors, and integer products of its own.
#include "kernels.h"
#include "simd_avx2.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats.h"

namespace {
#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/elementwise.inl"
#include "generic/prepare.inl"
#include "generic/images.inl"
#include "generic/matmul_float.inl"
#include "avx2_matmul.inl"
#include "generic/attention.inl"
#include "generic/attention_bytes.inl"
}  // namespace

const fp::Kernels& fp::avx2_kernels() {
  static const Kernels table{"avx2", matmul, prepare_rows, norm_rows, lookup_row, add_row, modulate_rows, add_gated_row,
                             activate_row,
                             attention, store, attention_scratch, attention_common, exp_shifted_row, clip_row, cap_row,
                             route_row, sigmoid_of, pack_keys, pack_values, prepare_softmax, prepare_window, channel_sums,
                             scale_rows};
  return table;
}
