// What all integer products share: how exact sums become the float result. Included inside an anonymous namespace.

// Q4, Q8C: x = scale * (128 hi + lo), so y = (128 acc_h + acc_l) * (scale * row_scale).
inline V integer_result(I acc_h, I acc_l, float scale, V row_scale) {
  return vmul(vfma(vfrom_i32(acc_h), vset(128.0f), vfrom_i32(acc_l)), vmul(vset(scale), row_scale));
}
// Q8M: y1 sums the products with the scales, y2 the sums of activations with the minimums. Q8 has no y2.
inline V grouped_result(V y1, V y2, bool minimums, float scale) {
  return vmul(minimums ? vadd(y1, y2) : y1, vset(scale));
}
