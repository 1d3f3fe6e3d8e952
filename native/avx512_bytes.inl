// Products of stored bytes with one scale a row, Q8C (two planes of activations) and Q8A (one), with AVX-512 VNNI. Included
// inside an anonymous namespace, after avx512_terms.inl.
//
// A block is R rows times P panels. The weights of a panel, 16 outputs, are loaded once for all its rows, and each four
// columns of x once for all panels: vpdpbusd, one a cycle on a Zen 4 core, leaves time for two loads. So eight sums a
// panel, rows times planes, and two panels keep it busy (0.95 to 0.98 of its limit where the weights are in L1 or L2).

constexpr int kByteSums = 8;                // of one panel: rows times planes
constexpr int64_t kChunkBytes = 320 << 10;  // activations of the rows that go by in one pass: they stay in L2

// f(0), f(1), ... f(N - 1) with constants: an array that is indexed by nothing else stays in registers.
template <int N, typename F>
[[gnu::always_inline]] inline void each(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// A block of outputs, and where its sums begin and end.
template <int Planes, int R, int P>
void byte_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const fp::Epilogue& e) {
  constexpr int kRows = R * Planes, kSums = P * kRows;  // sum (i * R + j) * Planes + n: panel i, row j, plane n
  constexpr int kChains = kSums >= 6 ? 1 : 8 / kSums;   // enough of them side by side to hide the latency of vpdpbusd
  constexpr int kLines = kSums > 4 ? 4 : 16;            // unrolled
  const int64_t panel_bytes = w.panel_bytes(), plane = x.height() * 64;
  const int8_t* in = x.block(r / 16, 0, 0) + r % 16 * 64;
  const uint8_t* panel = w.panel(p);
  __m512i sum[kSums * kChains];
  each<kRows>([&](auto v) {
    const __m512i start = _mm512_set1_epi32(x.offsets[r * Planes + v]);
    each<P * kChains>([&](auto i) { sum[i * kRows + v] = i < P ? start : _mm512_setzero_si512(); });
  });
  for (int64_t b = w.k_pad() / 64; b > 0; --b, in += Planes * plane, panel += 1024) {
    if constexpr (kSums < kByteSums) each<P>([&](auto i) { fetch_ahead<16>(panel + i * panel_bytes); });
    for (int first = 0; first < 16; first += kLines) {
      const uint8_t* lines = panel + 64 * first;
      const int8_t* columns = in + 4 * first;
      each<kLines>([&](auto line) {
        __m512i q[P];
        each<P>([&](auto i) { q[i] = _mm512_loadu_si512(lines + i * panel_bytes + 64 * line); });
        each<kRows>([&](auto v) {
          const __m512i four = broadcast4(columns + v % Planes * plane + 64 * (v / Planes) + 4 * line);
          each<P>([&](auto i) {
            constexpr int at = (line % kChains * P + i) * kRows + v;
            sum[at] = _mm512_dpbusd_epi32(sum[at], q[i], four);
          });
        });
      });
    }
  }
  each<P>([&](auto i) {
    const V row_scale = vload(w.row_scale() + (p + i) * fp::kPanel);
    V y[R];
    each<R>([&](auto j) {
      __m512i acc[Planes];
      each<Planes>([&](auto n) {
        constexpr int at = (i * R + j) * Planes + n;
        acc[n] = sum[at];
        each<kChains - 1>([&](auto c) { acc[n] = _mm512_add_epi32(acc[n], sum[(c + 1) * kSums + at]); });
      });
      if constexpr (Planes == 2) y[j] = integer_result(acc[0], acc[1], x.scale[r + j], row_scale);
      else y[j] = byte_result(acc[0], x.scale[r + j], row_scale);
    });
    finish_rows<R>(e, y, r, (p + i) * fp::kPanel, w.n);
  });
}

// Rows [r, end) in blocks of R, what is left in a smaller one. Blocks never straddle a tile: 16 is a multiple of R.
template <int Planes, int R, int P>
void byte_rows(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, int64_t end,
               const fp::Epilogue& e) {
  for (; r + R <= end; r += R) byte_block<Planes, R, P>(w, x, p, r, e);
  if constexpr (R > 1)
    if (r < end) byte_rows<Planes, R - 1, P>(w, x, p, r, end, e);
}

template <int Planes>
void matmul_bytes_vnni(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e) {
  constexpr int R = kByteSums / Planes;
  fetch_start(w.panel(p0));
  if (x.rows <= 2) {  // one stream of weights
    for (int64_t p = p0; p < p1; ++p) byte_rows<Planes, 2, 1>(w, x, p, 0, x.rows, e);
    return;
  }
  const int64_t chunk = kChunkBytes / x.tile_bytes() > 0 ? kChunkBytes / x.tile_bytes() * 16 : 16;
  for (int64_t first = 0; first < x.rows; first += chunk) {
    const int64_t end = first + chunk < x.rows ? first + chunk : x.rows;
    int64_t p = p0;
    for (; p + 2 <= p1; p += 2) byte_rows<Planes, R, 2>(w, x, p, first, end, e);
    if (p < p1) byte_rows<Planes, R, 1>(w, x, p, first, end, e);
  }
}
