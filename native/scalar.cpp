// The definition: every kernel in plain C++. Complete on every machine; slow where there is no hardware fma.
#include "kernels.h"
#include "simd_scalar.h"

#include <type_traits>

namespace {
#include "generic/math.inl"
#include "generic/epilogue.inl"
#include "generic/elementwise.inl"
#include "generic/prepare.inl"
#include "generic/images.inl"
#include "generic/matmul_float.inl"
#include "generic/matmul_int.inl"
#include "generic/attention.inl"
#include "generic/attention_bytes.inl"

void matmul(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
            uint8_t* scratch) {
  if (fp::is_integer(w.format)) matmul_int(w, x, p0, p1, e, scratch);
  else matmul_float(w, x, p0, p1, e, scratch);
}
}  // namespace

const fp::Kernels& fp::scalar_kernels() {
  static const Kernels table{"scalar", matmul, prepare_rows, norm_rows, lookup_row, add_row, modulate_rows, add_gated_row,
                             activate_row,
                             attention, store, attention_scratch, attention_common, exp_shifted_row, clip_row, cap_row,
                             route_row, sigmoid_of, pack_keys, pack_values, prepare_softmax, prepare_window, channel_sums,
                             scale_rows};
  return table;
}
