// The definition of the integer products, in plain C++. Included inside an anonymous namespace, after a simd header,
// epilogue.inl.
//
// Integer sums are exact (they wrap, and the packer sees to it that the end result does not overflow), so
// other instruction sets may sum in any order. Q8 and Q8M round once in each group of 32, in order of groups.

#include "matmul_end.inl"

// The weights of a panel without their scales, [k_pad][16] int8: q - 8 for Q4, q for the others.
inline void unpack_panel(const fp::Matrix& w, int64_t p, int8_t* q) {
  const uint8_t* block = w.panel(p);
  for (int64_t k = 0; k < w.k_pad(); k += 64, block += fp::block_bytes(w.format), q += 64 * 16) {
    for (int column = 0; column < 64; ++column)
      for (int lane = 0; lane < 16; ++lane) {
        if (w.format == fp::Format::Q4) {
          int c = column % 32;
          uint8_t byte = block[column / 32 * 320 + c / 8 * 64 + lane * 4 + c % 4];
          q[column * 16 + lane] = int8_t((c % 8 < 4 ? byte & 15 : byte >> 4) - 8);
        } else {
          q[column * 16 + lane] = int8_t(block[column / 4 * 64 + lane * 4 + column % 4] - 128);
        }
      }
  }
}

// One plane of one row times the 32 columns of group g.
inline void group_dot(const int8_t* q, const int8_t* x, int32_t* dot) {
  for (int lane = 0; lane < 16; ++lane) dot[lane] = 0;
  for (int column = 0; column < 32; ++column)
    for (int lane = 0; lane < 16; ++lane) dot[lane] += q[column * 16 + lane] * x[column];
}

inline V int_output(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const int8_t* q) {
  uint32_t acc[2][16] = {};
  V y1 = vzero(), y2 = vzero();
  for (int64_t g = 0; g < w.k_pad() / 32; ++g) {
    int32_t dot[2][16], sum[2];
    for (int plane = 0; plane < 2; ++plane) {
      const int8_t* in = x.block(r / 16, g / 2, plane) + r % 16 * 64 + g % 2 * 32;
      group_dot(q + g * 32 * 16, in, dot[plane]);
      sum[plane] = x.group_sums(plane, r)[g];
    }
    const uint8_t* block = w.panel(p) + g / 2 * fp::block_bytes(w.format);
    if (w.format == fp::Format::Q4) {
      int16_t scale[16][2];  // D, M
      std::memcpy(scale, block + g % 2 * 320 + 256, 64);
      for (int plane = 0; plane < 2; ++plane)
        for (int lane = 0; lane < 16; ++lane)
          acc[plane][lane] += uint32_t(scale[lane][0] * dot[plane][lane]) + uint32_t(scale[lane][1] * sum[plane]);
    } else if (w.format == fp::Format::Q8C) {
      for (int plane = 0; plane < 2; ++plane)
        for (int lane = 0; lane < 16; ++lane) acc[plane][lane] += uint32_t(dot[plane][lane]);
    } else {
      const uint16_t* scale = reinterpret_cast<const uint16_t*>(block + 1024) + g % 2 * 16;  // d; m 32 further on
      I dot15 = iadd(ishl<7>(iload(dot[0])), iload(dot[1]));
      y1 = vfma(vfrom_i32(dot15), vload_f16(scale), y1);
      if (w.format == fp::Format::Q8M) {
        V sum15 = vset(float(128 * sum[0] + sum[1]));
        y2 = vfma(vload_f16(scale + 32), sum15, y2);
      }
    }
  }
  if (!fp::has_row_scale(w.format)) return grouped_result(y1, y2, w.format == fp::Format::Q8M, x.scale[r]);
  I acc_h = iload(reinterpret_cast<int32_t*>(acc[0])), acc_l = iload(reinterpret_cast<int32_t*>(acc[1]));
  return integer_result(acc_h, acc_l, x.scale[r], vload(w.row_scale() + p * fp::kPanel));
}

inline void matmul_int(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                       uint8_t* scratch) {
  int8_t* q = reinterpret_cast<int8_t*>(scratch);
  for (int64_t p = p0; p < p1; ++p) {
    unpack_panel(w, p, q);
    for (int64_t r = 0; r < x.rows; ++r) finish_outputs(e, int_output(w, x, p, r, q), r, p * fp::kPanel, w.n);
  }
}
