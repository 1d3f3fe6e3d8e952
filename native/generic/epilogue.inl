// The end of every matrix product: bias, activation, and how the result joins what is there.

// Sixteen outputs from `o` of `rows` rows from r, in one pass. n = outputs of the whole matrix: the last of the sixteen
// may be missing. Not inline: one copy of the activations' code serves all products.
[[gnu::noinline]] void finish_some(const fp::Epilogue& e, const V* y, int rows, int64_t r, int64_t o, int64_t n) {
  with_activation(e.act, [&](auto act) {
    auto finish = [&](auto lanes) {
      float* out = e.out + r * e.ld + o;
      const V bias = e.bias ? lanes.load(e.bias + o) : vzero();
      for (int j = 0; j < rows; ++j, out += e.ld) {
        V result = act(e.bias ? vadd(y[j], bias) : y[j]);
        if (e.mode == fp::Mode::Add) result = vadd(lanes.load(out), result);
        if (e.mode == fp::Mode::Gate) result = vmul(result, lanes.load(out));
        lanes.store(out, result);
      }
    };
    if (o + 16 <= n) finish(WholeVector{});
    else finish(PartVector{int(n - o)});
  });
}

template <int R>
inline void finish_rows(const fp::Epilogue& e, const V (&y)[R], int64_t r, int64_t o, int64_t n) {
  if (e.act != fp::Act::None || o + 16 > n) {
    V copy[R];  // y itself may then stay in registers
    for (int j = 0; j < R; ++j) copy[j] = y[j];
    return finish_some(e, copy, R, r, o, n);
  }
  float* out = e.out + r * e.ld + o;
  const V bias = e.bias ? vload(e.bias + o) : vzero();
#pragma GCC unroll 16
  for (int j = 0; j < R; ++j, out += e.ld) {
    V result = e.bias ? vadd(y[j], bias) : y[j];
    if (e.mode == fp::Mode::Add) result = vadd(vload(out), result);
    if (e.mode == fp::Mode::Gate) result = vmul(result, vload(out));
    vstore(out, result);
  }
}
inline void finish_outputs(const fp::Epilogue& e, V y, int64_t r, int64_t o, int64_t n) {
  finish_some(e, &y, 1, r, o, n);
}
