// The AVX512 table: the shared code over this file's vectors, and integer products of its own.
#include "kernels.h"
#include "simd_avx512.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats.h"

namespace {
// Whether to ask for weights before they are needed. The processors that have these instructions but no tiles read a
// stream ahead by themselves: a Zen 4 core reads Q8 at 0.98 of its limit, and at 0.70 when asked as well.
constexpr bool kFetchesAhead = false;

#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/elementwise.inl"
#include "generic/prepare.inl"
#include "generic/images.inl"
#include "generic/matmul_float.inl"
#include "avx512_matmul.inl"
#include "generic/attention.inl"
#include "generic/attention_bytes.inl"
}  // namespace

const fp::Kernels& fp::avx512_kernels() {
  static const Kernels table{"avx512", matmul, prepare_rows, norm_rows, lookup_row, add_row, modulate_rows, add_gated_row,
                             activate_row,
                             attention, store, attention_scratch, attention_common, exp_shifted_row, clip_row, cap_row,
                             route_row, sigmoid_of, pack_keys, pack_values, prepare_softmax, prepare_window, channel_sums,
                             scale_rows};
  return table;
}
