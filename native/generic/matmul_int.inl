// The definition of the integer products, in plain C++. Included inside an anonymous namespace, after a simd header,
// epilogue.inl and elementwise.inl.
//
// Integer sums are exact (they wrap, and the packer sees to it that the end result does not overflow), so
// other instruction sets may sum in any order. Q8 rounds once in each group of 32, in order of groups.

#include "matmul_end.inl"

// The weights of a panel as integers, [k_pad][16]: with row scales what they multiply, else q.
template <fp::Format F>
inline void unpack_panel(const fp::Matrix& w, int64_t p, int16_t* out) {
  for (int64_t k = 0; k < w.k_pad(); ++k)
    for (int64_t lane = 0; lane < 16; ++lane) out[k * 16 + lane] = int16_t(integer_weight<F>(w.panel(p), lane, k));
}

// One plane of one row times the 32 columns of a group.
inline void group_dot(const int16_t* w, const int8_t* x, int32_t* dot) {
  for (int lane = 0; lane < 16; ++lane) dot[lane] = 0;
  for (int column = 0; column < 32; ++column)
    for (int lane = 0; lane < 16; ++lane) dot[lane] += w[column * 16 + lane] * x[column];
}

template <fp::Format F>
inline V int_output(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const int16_t* weights) {
  constexpr int kPlanes = fp::act_kind(F) == fp::ActKind::Int8 ? 1 : 2;
  uint32_t acc[2][16] = {};
  V y = vzero();
  for (int64_t g = 0; g < w.k_pad() / 32; ++g) {
    int32_t dot[2][16];
    for (int plane = 0; plane < kPlanes; ++plane)
      group_dot(weights + g * 32 * 16, x.block(r / 16, g / 2, plane) + r % 16 * 64 + g % 2 * 32, dot[plane]);
    if constexpr (fp::has_row_scale(F)) {
      for (int plane = 0; plane < kPlanes; ++plane)
        for (int lane = 0; lane < 16; ++lane) acc[plane][lane] += uint32_t(dot[plane][lane]);
    } else {
      const uint8_t* block = w.panel(p) + g / 2 * fp::block_bytes(F);
      const uint16_t* d = reinterpret_cast<const uint16_t*>(block + 1024) + g % 2 * 16;
      y = vfma(vfrom_i32(iadd(ishl<7>(iload(dot[0])), iload(dot[1]))), vload_f16(d), y);
    }
  }
  if constexpr (!fp::has_row_scale(F)) return vmul(y, vset(x.scale[r]));
  const V row_scale = vload(w.row_scale() + p * fp::kPanel);
  I acc_h = iload(reinterpret_cast<int32_t*>(acc[0])), acc_l = iload(reinterpret_cast<int32_t*>(acc[1]));
  return kPlanes == 1 ? byte_result(acc_h, x.scale[r], row_scale)
                      : integer_result(acc_h, acc_l, x.scale[r], row_scale);
}

template <fp::Format F>
inline void int_panels(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                       uint8_t* scratch) {
  int16_t* weights = reinterpret_cast<int16_t*>(scratch);
  for (int64_t p = p0; p < p1; ++p) {
    unpack_panel<F>(w, p, weights);
    for (int64_t r = 0; r < x.rows; ++r) finish_outputs(e, int_output<F>(w, x, p, r, weights), r, p * fp::kPanel, w.n);
  }
}

inline void matmul_int(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                       uint8_t* scratch) {
  switch (w.format) {
    case fp::Format::Q4: return int_panels<fp::Format::Q4>(w, x, p0, p1, e, scratch);
    case fp::Format::Q4H: return int_panels<fp::Format::Q4H>(w, x, p0, p1, e, scratch);
    case fp::Format::Q5: return int_panels<fp::Format::Q5>(w, x, p0, p1, e, scratch);
    case fp::Format::Q5M: return int_panels<fp::Format::Q5M>(w, x, p0, p1, e, scratch);
    case fp::Format::Q6: return int_panels<fp::Format::Q6>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8: return int_panels<fp::Format::Q8>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8A: return int_panels<fp::Format::Q8A>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8C: return int_panels<fp::Format::Q8C>(w, x, p0, p1, e, scratch);
    case fp::Format::Q16: return int_panels<fp::Format::Q16>(w, x, p0, p1, e, scratch);
    default: return;
  }
}
