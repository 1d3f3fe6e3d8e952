// The end of every matrix product: bias, activation, and how the result joins what is there.

// Sixteen outputs starting at `o` of row `r`; n = outputs of the whole matrix.
inline void finish_outputs(const fp::Epilogue& e, V y, int64_t r, int64_t o, int64_t n) {
  int left = int(n - o < 16 ? n - o : 16);
  float* out = e.out + r * e.ld + o;
  if (e.bias) y = vadd(y, vload_n(e.bias + o, left));
  if (e.act != fp::Act::None) y = activate(e.act, y);
  if (e.mode == fp::Mode::Add) y = vadd(vload_n(out, left), y);
  if (e.mode == fp::Mode::Gate) y = vmul(y, vload_n(out, left));
  vstore_n(out, y, left);
}

// `rows` rows from r; y is used up.
inline void finish_rows(const fp::Epilogue& e, V* y, int rows, int64_t r, int64_t o, int64_t n) {
  if (o + 16 > n) {
    for (int j = 0; j < rows; ++j) finish_outputs(e, y[j], r + j, o, n);
    return;
  }
  float* out = e.out + r * e.ld + o;
  if (e.bias) {
    const V bias = vload(e.bias + o);
#pragma GCC unroll 8
    for (int j = 0; j < rows; ++j) y[j] = vadd(y[j], bias);
  }
  if (e.act != fp::Act::None) activate_some(e.act, y, rows);
#pragma GCC unroll 8
  for (int j = 0; j < rows; ++j, out += e.ld) {
    if (e.mode == fp::Mode::Add) y[j] = vadd(vload(out), y[j]);
    if (e.mode == fp::Mode::Gate) y[j] = vmul(y[j], vload(out));
    vstore(out, y[j]);
  }
}
