// Products of F32, F16 and BF16 matrices, for every instruction set. Included inside an anonymous namespace, after
// a simd header and epilogue.inl.
//
// F32, F16: acc = fma(w[k], x[k], acc) along k, one chain for each output and row.
// BF16, as the AMX unit does it: for 32 columns two chains of 16 fma from zero, one over the even columns and one
// over the odd; then acc = acc + (even + odd).
// A chain cannot be split, so the latency of fma is hidden by R rows and P panels that run side by side.

#if defined(__AVX512F__)
constexpr int kFloatRows = 8, kFloatPanels = 2, kBf16Rows = 4;
#else
constexpr int kFloatRows = 4, kFloatPanels = 1, kBf16Rows = 2;
#endif

template <fp::Format F>
inline V weight_line(const uint8_t* panel, int64_t k) {
  if constexpr (F == fp::Format::F32) return vload(reinterpret_cast<const float*>(panel) + k * 16);
  return vload_f16(reinterpret_cast<const uint16_t*>(panel) + k * 16);
}

// R rows from r and P panels from p.
template <fp::Format F, int R, int P>
void float_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const fp::Epilogue& e) {
  const uint8_t* panel = w.panel(p);
  const float* in = x.row(r);
  const int64_t panel_bytes = w.panel_bytes(), stride = x.k_pad(), columns = w.k;
  V acc[P][R];
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < R; ++j) acc[i][j] = vzero();
  for (int64_t k = 0; k < columns; ++k) {
    V line[P];
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i) line[i] = weight_line<F>(panel + i * panel_bytes, k);
#pragma GCC unroll 8
    for (int j = 0; j < R; ++j) {
      V xk = vset(in[j * stride + k]);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) acc[i][j] = vfma(line[i], xk, acc[i][j]);
    }
  }
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < R; ++j) finish_outputs(e, acc[i][j], r + j, (p + i) * fp::kPanel, w.n);
}

// Rows [r, end) in blocks of R, what is left in blocks of half as many.
template <fp::Format F, int R, int P>
void float_rows(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, int64_t end,
                const fp::Epilogue& e) {
  for (; r + R <= end; r += R) float_block<F, R, P>(w, x, p, r, e);
  if constexpr (R > 1) float_rows<F, R / 2, P>(w, x, p, r, end, e);
}

template <fp::Format F>
void matmul_columns(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e) {
  int64_t p = p0;
  if (x.rows == 1) {
    for (; p + 4 <= p1; p += 4) float_block<F, 1, 4>(w, x, p, 0, e);
  } else {
    for (; p + kFloatPanels <= p1; p += kFloatPanels) float_rows<F, kFloatRows, kFloatPanels>(w, x, p, 0, x.rows, e);
  }
  for (; p < p1; ++p) float_rows<F, kFloatRows, 1>(w, x, p, 0, x.rows, e);
}

// R rows of a tile and one panel; `in` is the tile widened to float, [rows][k_pad].
template <int R>
void bf16_block(const fp::Matrix& w, const float* in, int64_t p, int64_t r, int64_t row_in_tile,
                const fp::Epilogue& e) {
  const int64_t k_pad = w.k_pad();
  const uint16_t* panel = reinterpret_cast<const uint16_t*>(w.panel(p));
  in += row_in_tile * k_pad;
  V acc[R];
  for (int j = 0; j < R; ++j) acc[j] = vzero();
  for (int64_t k = 0; k < k_pad; k += 32) {
    V even[R], odd[R];
    for (int j = 0; j < R; ++j) even[j] = odd[j] = vzero();
#pragma GCC unroll 4
    for (int64_t i = k; i < k + 32; i += 2) {
      V line_even = vload_bf16_even(panel + i * 16), line_odd = vload_bf16_odd(panel + i * 16);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        even[j] = vfma(line_even, vset(in[j * k_pad + i]), even[j]);
        odd[j] = vfma(line_odd, vset(in[j * k_pad + i + 1]), odd[j]);
      }
    }
    for (int j = 0; j < R; ++j) acc[j] = vadd(acc[j], vadd(even[j], odd[j]));
  }
  for (int j = 0; j < R; ++j) finish_outputs(e, acc[j], r + j, p * fp::kPanel, w.n);
}

template <int R>
void bf16_rows(const fp::Matrix& w, const float* in, int64_t p, int64_t r, int64_t end, const fp::Epilogue& e) {
  for (; r + R <= end; r += R) bf16_block<R>(w, in, p, r, r % 16, e);
  if constexpr (R > 1) bf16_rows<R / 2>(w, in, p, r, end, e);
}

// A tile of activations at a time is widened into scratch (16 rows x k_pad floats), since a broadcast from memory is
// cheaper than widening inside the loop.
inline void matmul_bf16(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                        uint8_t* scratch) {
  float* in = reinterpret_cast<float*>(scratch);
  const int64_t height = x.height(), k_pad = x.k_pad();
  for (int64_t tile = 0; tile < x.tiles(); ++tile) {
    for (int64_t row = 0; row < height; ++row)
      for (int64_t k = 0; k < k_pad; k += 16)
        vstore(in + row * k_pad + k, vload_bf16(x.block16(tile, k / 32) + row * 32 + k % 32));
    int64_t first = tile * 16, end = first + 16 < x.rows ? first + 16 : x.rows;
    for (int64_t p = p0; p < p1; ++p) bf16_rows<kBf16Rows>(w, in, p, first, end, e);
  }
}

inline void matmul_float(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                         uint8_t* scratch) {
  if (w.format == fp::Format::BF16) matmul_bf16(w, x, p0, p1, e, scratch);
  else if (w.format == fp::Format::F16) matmul_columns<fp::Format::F16>(w, x, p0, p1, e);
  else matmul_columns<fp::Format::F32>(w, x, p0, p1, e);
}
