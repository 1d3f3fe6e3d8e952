// What images need besides products: the pixels under a window as a row of activations, and group norms. Included inside an
// anonymous namespace, after prepare.inl.

template <fp::ActKind Kind>
inline void quantise_window(const float* const* pixels, int64_t count, int64_t width, fp::Activations& a, int64_t r) {
  float most = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float here = pixels[i] ? reduce_max(greatest_magnitudes(pixels[i], width)) : 0.0f;
    most = here > most ? here : most;
  }
  Quantiser<Kind> row(a, r, most);
  const I zeros[4] = {iset(0), iset(0), iset(0), iset(0)};
  for (int64_t i = 0; i < count; ++i)
    for (int64_t at = 0; at < width; at += 64) {
      if (pixels[i]) row.whole(pixels[i] + at);
      else row.put(zeros);
    }
  row.end();
}

// `count` pixels of `width` channels, null = zeros, side by side as row r of a.
inline void prepare_window(const float* const* pixels, int64_t count, int64_t width, fp::Activations& a, int64_t r,
                           uint8_t* scratch) {
  if (a.integer() && width % fp::kBlockK == 0) {  // without a copy of the row
    if (a.kind == fp::ActKind::Int15) quantise_window<fp::ActKind::Int15>(pixels, count, width, a, r);
    else quantise_window<fp::ActKind::Int8>(pixels, count, width, a, r);
    return;
  }
  float* row = reinterpret_cast<float*>(scratch);
  for (int64_t i = 0; i < count; ++i) {
    if (pixels[i]) std::memcpy(row + i * width, pixels[i], size_t(width) * 4);
    else std::memset(row + i * width, 0, size_t(width) * 4);
  }
  prepare_some<1>({}, row, a.k, a, r, nullptr);
}

// Sums over `rows` pixels of k channels, each pixel after the other: sums[c] of x - pivot, squares[c] of its square.
inline void channel_sums(const float* in, int64_t rows, int64_t k, const float* pivot, float* sums, float* squares) {
  constexpr int kVectors = 4;  // side by side: a sum waits for the one before
  auto columns = [&](auto count, int64_t c, auto lanes) {
    constexpr int N = decltype(count)::value;
    V p[N], sum[N], square[N];
    for (int j = 0; j < N; ++j) {
      p[j] = lanes.load(pivot + c + 16 * j);
      sum[j] = square[j] = vzero();
    }
    const float* x = in + c;
    for (int64_t r = 0; r < rows; ++r, x += k)
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const V d = vsub(lanes.load(x + 16 * j), p[j]);
        sum[j] = vadd(sum[j], d);
        square[j] = vfma(d, d, square[j]);
      }
    for (int j = 0; j < N; ++j) {
      lanes.store(sums + c + 16 * j, sum[j]);
      lanes.store(squares + c + 16 * j, square[j]);
    }
  };
  int64_t c = 0;
  for (; c + 16 * kVectors <= k; c += 16 * kVectors)
    columns(std::integral_constant<int, kVectors>{}, c, WholeVector{});
  for (; c + 16 <= k; c += 16) columns(std::integral_constant<int, 1>{}, c, WholeVector{});
  if (c < k) columns(std::integral_constant<int, 1>{}, c, PartVector{int(k - c)});
}

// Rows of k floats: out = act(x * scale + shift), the sum of the product rounded once; out may be in.
inline void scale_rows(const float* in, float* out, const float* scale, const float* shift, fp::Act act, int64_t k,
                       int64_t rows) {
  with_activation(act, [&](auto activation) {
    for (int64_t r = 0; r < rows; ++r, in += k, out += k)
      each_vector(k, [&](int64_t i, auto lanes) {
        lanes.store(out + i, activation(vfma(lanes.load(in + i), lanes.load(scale + i), lanes.load(shift + i))));
      });
  });
}
