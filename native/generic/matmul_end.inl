// What all integer products share: how exact sums become the float result. Included inside an anonymous namespace.

// Fifteen bits: x = scale * (128 hi + lo), so y = (128 acc_h + acc_l) * (scale * row_scale).
inline V integer_result(I acc_h, I acc_l, float scale, V row_scale) {
  return vmul(vfma(vfrom_i32(acc_h), vset(128.0f), vfrom_i32(acc_l)), vmul(vset(scale), row_scale));
}
// Eight bits, Q8A: x = scale * q.
inline V byte_result(I acc, float scale, V row_scale) { return vmul(vfrom_i32(acc), vmul(vset(scale), row_scale)); }
