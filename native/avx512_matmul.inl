// Integer products with AVX-512 VNNI. Included inside an anonymous namespace, after simd_avx512.h, epilogue.inl and
// matmul_float.inl.
//
// vpdpbusd multiplies unsigned bytes (the stored weights, q + 8 or q + 128) by signed ones (a plane of x, four
// columns broadcast from memory) exactly. What the offset adds is where each sum starts (avx512_terms.inl).

#include "generic/matmul_end.inl"
#include "avx512_terms.inl"

constexpr int kRowBlock = 4;  // rows that share one unpacking of the weights

// Terms of R rows, and where their planes are.
struct Rows {
  const int8_t* planes;    // hi plane of the first 64 columns of the first row; rows are 64 bytes apart
  int64_t plane_stride;    // from hi to lo; twice that from block to block
  const int32_t* terms;
  int64_t term_stride;     // from row to row
};

// The high nibble of every byte.
inline __m512i high_nibbles(__m512i line) {
#ifdef __GFNI__
  // One instruction for two: a bit matrix whose row i picks bit i + 4 for i < 4, and nothing above.
  return _mm512_gf2p8affine_epi64_epi8(line, _mm512_set1_epi64(0x1020408000000000), 0);
#else
  return _mm512_and_si512(_mm512_srli_epi16(line, 4), _mm512_set1_epi8(15));
#endif
}

// Sums side by side for each dot product: with one row a single chain of eight vpdpbusd would wait for its own latency.
constexpr int chains(int rows) { return rows == 1 ? 2 : 1; }

template <int R>
void q4_sums(const uint8_t* panel, int64_t groups, const Rows& rows, __m512i* acc_h, __m512i* acc_l) {
  constexpr int C = chains(R);
  const __m512i nibble = _mm512_set1_epi8(15), low_half = _mm512_set1_epi32(0xffff);
  const int8_t* x = rows.planes;
  const int32_t* terms = rows.terms;
  for (int j = 0; j < R; ++j) acc_h[j] = acc_l[j] = _mm512_setzero_si512();
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, panel += 320, terms += 4) {
      fetch_ahead<5>(panel);
      __m512i dot_h[R][C], dot_l[R][C];
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
          dot_h[j][c] = c ? _mm512_setzero_si512() : broadcast4(terms + j * rows.term_stride);
          dot_l[j][c] = c ? _mm512_setzero_si512() : broadcast4(terms + j * rows.term_stride + 1);
        }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m512i line = _mm512_loadu_si512(panel + 64 * i);
        __m512i low = _mm512_and_si512(line, nibble), high = high_nibbles(line);
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j) {
          const int8_t* hi = x + 64 * j + 32 * half + 8 * i;
          const int8_t* lo = hi + rows.plane_stride;
          dot_h[j][0] = _mm512_dpbusd_epi32(dot_h[j][0], low, broadcast4(hi));
          dot_l[j][0] = _mm512_dpbusd_epi32(dot_l[j][0], low, broadcast4(lo));
          dot_h[j][C - 1] = _mm512_dpbusd_epi32(dot_h[j][C - 1], high, broadcast4(hi + 4));
          dot_l[j][C - 1] = _mm512_dpbusd_epi32(dot_l[j][C - 1], high, broadcast4(lo + 4));
        }
      }
      __m512i dm = _mm512_loadu_si512(panel + 256);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        const int32_t* term = terms + j * rows.term_stride;
        if constexpr (C == 2) {
          dot_h[j][0] = _mm512_add_epi32(dot_h[j][0], dot_h[j][1]);
          dot_l[j][0] = _mm512_add_epi32(dot_l[j][0], dot_l[j][1]);
        }
        // (dot, sum) as pairs of int16, times (D, M);  0xea: (a & b) | c
        __m512i pair_h = _mm512_ternarylogic_epi32(dot_h[j][0], low_half, broadcast4(term + 2), 0xea);
        __m512i pair_l = _mm512_ternarylogic_epi32(dot_l[j][0], low_half, broadcast4(term + 3), 0xea);
        acc_h[j] = _mm512_dpwssd_epi32(acc_h[j], pair_h, dm);
        acc_l[j] = _mm512_dpwssd_epi32(acc_l[j], pair_l, dm);
      }
    }
  }
}

template <int R>
void q8c_sums(const uint8_t* panel, int64_t groups, const Rows& rows, __m512i* acc_h, __m512i* acc_l) {
  constexpr int kChains = R == 1 ? 4 : R == 2 ? 2 : 1;  // enough sums side by side to hide the latency of vpdpbusd
  const int8_t* x = rows.planes;
  __m512i h[R][kChains], l[R][kChains];
  for (int j = 0; j < R; ++j)
    for (int c = 0; c < kChains; ++c) {
      h[j][c] = c ? _mm512_setzero_si512() : broadcast4(rows.terms + j * rows.term_stride);
      l[j][c] = c ? _mm512_setzero_si512() : broadcast4(rows.terms + j * rows.term_stride + 1);
    }
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride, panel += 1024) {
    fetch_ahead<16>(panel);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m512i q = _mm512_loadu_si512(panel + 64 * i);
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) {
        const int8_t* hi = x + 64 * j + 4 * i;
        h[j][i % kChains] = _mm512_dpbusd_epi32(h[j][i % kChains], q, broadcast4(hi));
        l[j][i % kChains] = _mm512_dpbusd_epi32(l[j][i % kChains], q, broadcast4(hi + rows.plane_stride));
      }
    }
  }
  for (int j = 0; j < R; ++j) {
    acc_h[j] = h[j][0];
    acc_l[j] = l[j][0];
    for (int c = 1; c < kChains; ++c) {
      acc_h[j] = _mm512_add_epi32(acc_h[j], h[j][c]);
      acc_l[j] = _mm512_add_epi32(acc_l[j], l[j][c]);
    }
  }
}

template <int R, fp::Format F>
void q8_sums(const uint8_t* panel, int64_t groups, const Rows& rows, V* y1, V* y2) {
  constexpr int kTerms = terms_per_group(F), C = chains(R);
  const int8_t* x = rows.planes;
  const int32_t* terms = rows.terms;
  for (int j = 0; j < R; ++j) y1[j] = y2[j] = vzero();
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride, panel += fp::block_bytes(F)) {
    fetch_ahead<fp::block_bytes(F) / 64>(panel);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, terms += kTerms) {
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel + 1024 + 32 * half);
      __m512i dot_h[R][C], dot_l[R][C];
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
          dot_h[j][c] = c ? _mm512_setzero_si512() : broadcast4(terms + j * rows.term_stride);
          dot_l[j][c] = _mm512_setzero_si512();
        }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        __m512i q = _mm512_loadu_si512(panel + 512 * half + 64 * i);
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j) {
          const int8_t* hi = x + 64 * j + 32 * half + 4 * i;
          dot_h[j][i % C] = _mm512_dpbusd_epi32(dot_h[j][i % C], q, broadcast4(hi));
          dot_l[j][i % C] = _mm512_dpbusd_epi32(dot_l[j][i % C], q, broadcast4(hi + rows.plane_stride));
        }
      }
      V d = vload_f16(scales);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        if constexpr (C == 2) {
          dot_h[j][0] = _mm512_add_epi32(dot_h[j][0], dot_h[j][1]);
          dot_l[j][0] = _mm512_add_epi32(dot_l[j][0], dot_l[j][1]);
        }
        y1[j] = vfma(vfrom_i32(_mm512_add_epi32(_mm512_slli_epi32(dot_h[j][0], 7), dot_l[j][0])), d, y1[j]);
        if constexpr (F == fp::Format::Q8M) {
          V sum = _mm512_castsi512_ps(broadcast4(terms + j * rows.term_stride + 1));
          y2[j] = vfma(vload_f16(scales + 32), sum, y2[j]);
        }
      }
    }
  }
}

// R rows from r and panel p.
template <int R, fp::Format F>
void int_block(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, const int32_t* terms,
               const fp::Epilogue& e) {
  const int64_t groups = w.k_pad() / fp::kGroup;
  const Rows rows{x.block(r / 16, 0, 0) + r % 16 * 64, x.height() * 64, terms, term_count(F, groups)};
  V y[R];
  if constexpr (fp::has_row_scale(F)) {
    __m512i acc_h[R], acc_l[R];
    if constexpr (F == fp::Format::Q4) q4_sums<R>(w.panel(p), groups, rows, acc_h, acc_l);
    else q8c_sums<R>(w.panel(p), groups, rows, acc_h, acc_l);
    V row_scale = vload(w.row_scale() + p * fp::kPanel);
    for (int j = 0; j < R; ++j) y[j] = integer_result(acc_h[j], acc_l[j], x.scale[r + j], row_scale);
  } else {
    V y1[R], y2[R];
    q8_sums<R, F>(w.panel(p), groups, rows, y1, y2);
    for (int j = 0; j < R; ++j) y[j] = grouped_result(y1[j], y2[j], F == fp::Format::Q8M, x.scale[r + j]);
  }
  for (int j = 0; j < R; ++j) finish_outputs(e, y[j], r + j, p * fp::kPanel, w.n);
}

// Rows [r, end) in blocks of R, what is left in smaller ones. Blocks never straddle a tile: 16 is a multiple of R.
template <int R, fp::Format F>
void int_rows(const fp::Matrix& w, const fp::Activations& x, int64_t p, int64_t r, int64_t end, const int32_t* terms,
              const fp::Epilogue& e) {
  const int64_t stride = term_count(F, w.k_pad() / fp::kGroup);
  for (; r + R <= end; r += R, terms += R * stride) int_block<R, F>(w, x, p, r, terms, e);
  if constexpr (R > 1)
    if (r < end) int_rows<R - 1, F>(w, x, p, r, end, terms, e);
}

template <fp::Format F>
void int_panels(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                uint8_t* scratch) {
  fetch_start(w.panel(p0));
  int32_t* terms = reinterpret_cast<int32_t*>(scratch);
  const int64_t stride = term_count(F, w.k_pad() / fp::kGroup);
  for (int64_t first = 0; first < x.rows; first += kRowChunk) {
    const int64_t end = first + kRowChunk < x.rows ? first + kRowChunk : x.rows;
    for (int64_t r = first; r < end; ++r) make_terms(F, x, r, terms + (r - first) * stride);
    for (int64_t p = p0; p < p1; ++p) int_rows<kRowBlock, F>(w, x, p, first, end, terms, e);
  }
}

inline void matmul(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                   uint8_t* scratch) {
  switch (w.format) {
    case fp::Format::Q4: return int_panels<fp::Format::Q4>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8: return int_panels<fp::Format::Q8>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8M: return int_panels<fp::Format::Q8M>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8C: return int_panels<fp::Format::Q8C>(w, x, p0, p1, e, scratch);
    default: return matmul_float(w, x, p0, p1, e, scratch);
  }
}
