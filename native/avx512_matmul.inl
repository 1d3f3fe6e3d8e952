// Integer products with AVX-512 VNNI. Included inside an anonymous namespace, after simd_avx512.h, epilogue.inl and
// matmul_float.inl.
//
// vpdpbusd multiplies unsigned bytes (the stored weights, q + zero or q + 128) by signed ones (a plane of x, four
// columns broadcast from memory) exactly. What the offset adds is where each sum starts (avx512_terms.inl).

#include "generic/matmul_end.inl"
#include "avx512_terms.inl"
#include "avx512_bytes.inl"

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

// The sixteen-bit halves of what a format's D and M of 16 outputs are, ready for the sums of 32-bit lanes.
template <fp::Format F>
struct Scales {
  static constexpr fp::Levels L = fp::levels(F);
  // A sum of `span` products (q - zero) x fits int16 with four bits: then (sum, sum of x) and (D, M) are multiplied as
  // pairs. With more bits D is widened.
  static constexpr bool kPairs = L.bits == 4 && L.minimum;
  __m512i dm, d;

  explicit Scales(const uint8_t* p) {
    if constexpr (L.minimum) {
      dm = _mm512_loadu_si512(p);
      if constexpr (!kPairs) d = _mm512_srai_epi32(_mm512_slli_epi32(dm, 16), 16);
    } else {
      d = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
  }
  // acc + D dot + M sum; shifted: the term sum << 16, where there is an M.
  __m512i add(__m512i acc, __m512i dot, const int32_t* shifted) const {
    if constexpr (kPairs) {  // 0xea: (a & b) | c
      __m512i pair = _mm512_ternarylogic_epi32(dot, _mm512_set1_epi32(0xffff), broadcast4(shifted), 0xea);
      return _mm512_dpwssd_epi32(acc, pair, dm);
    } else {
      acc = _mm512_add_epi32(acc, _mm512_mullo_epi32(dot, d));
      return L.minimum ? _mm512_dpwssd_epi32(acc, dm, broadcast4(shifted)) : acc;
    }
  }
};

// Goes through 32 columns of levels, eight columns (a line of nibbles) at a time.
template <fp::Format F>
struct LevelLines {
  static constexpr int kHigh = fp::levels(F).high_bits();
  const uint8_t* lines;
  __m512i high;  // its bits 4, or 4 and 5, are those of the columns that come next

  explicit LevelLines(const uint8_t* lines) : lines(lines) {}
  __m512i with_high(__m512i nibbles) {
    if constexpr (kHigh == 0) return nibbles;
    const __m512i mask = _mm512_set1_epi8(((1 << kHigh) - 1) << 4);
    const __m512i q = _mm512_ternarylogic_epi32(high, mask, nibbles, 0xea);
    high = _mm512_srli_epi16(high, kHigh);
    return q;
  }
  // Line i = 0, 1, 2, 3 in order: columns 8 i to 8 i + 3, and the four after them, as bytes q.
  void next(int i, __m512i& first, __m512i& second) {
    if constexpr (kHigh > 0) {  // bits 4 to 7, then 0 to 3 of a line of high bits
      constexpr int kHalf = 2 / kHigh;
      if (i % (2 * kHalf) == 0) high = _mm512_loadu_si512(lines + 256 + i / (2 * kHalf) * 64);
      else if (i % kHalf == 0) high = _mm512_slli_epi16(_mm512_loadu_si512(lines + 256 + i / (2 * kHalf) * 64), 4);
    }
    const __m512i line = _mm512_loadu_si512(lines + 64 * i);
    first = with_high(_mm512_and_si512(line, _mm512_set1_epi8(15)));
    second = with_high(high_nibbles(line));
  }
};

template <int R, fp::Format F>
void level_sums(const uint8_t* panel, int64_t groups, const Rows& rows, __m512i* acc_h, __m512i* acc_l) {
  constexpr fp::Levels L = fp::levels(F);
  constexpr int kParts = 32 / L.span, kLines = 4 / kParts, kBlockLines = int(fp::block_bytes(F) / 64);
  constexpr int C = kParts == 1 ? chains(R) : 1;
  const int8_t* x = rows.planes;
  const int32_t* terms = rows.terms;
  for (int j = 0; j < R; ++j) acc_h[j] = acc_l[j] = _mm512_setzero_si512();
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride, panel += fp::block_bytes(F)) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      if (half == 0) fetch_ahead<kBlockLines - kBlockLines / 2>(panel);
      else fetch_ahead<kBlockLines / 2>(panel + (kBlockLines - kBlockLines / 2) * 64);
      LevelLines<F> levels(panel + L.lines_at(half));
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part, terms += terms_per_scale(F)) {
        __m512i dot_h[R][C], dot_l[R][C];
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j)
#pragma GCC unroll 2
          for (int c = 0; c < C; ++c) {
            dot_h[j][c] = c ? _mm512_setzero_si512() : broadcast4(terms + j * rows.term_stride);
            dot_l[j][c] = c ? _mm512_setzero_si512() : broadcast4(terms + j * rows.term_stride + 1);
          }
#pragma GCC unroll 4
        for (int i = part * kLines; i < (part + 1) * kLines; ++i) {
          __m512i first, second;
          levels.next(i, first, second);
#pragma GCC unroll 4
          for (int j = 0; j < R; ++j) {
            const int8_t* hi = x + 64 * j + 32 * half + 8 * i;
            const int8_t* lo = hi + rows.plane_stride;
            dot_h[j][0] = _mm512_dpbusd_epi32(dot_h[j][0], first, broadcast4(hi));
            dot_l[j][0] = _mm512_dpbusd_epi32(dot_l[j][0], first, broadcast4(lo));
            dot_h[j][C - 1] = _mm512_dpbusd_epi32(dot_h[j][C - 1], second, broadcast4(hi + 4));
            dot_l[j][C - 1] = _mm512_dpbusd_epi32(dot_l[j][C - 1], second, broadcast4(lo + 4));
          }
        }
        const Scales<F> scales(panel + L.scales_at(half) + part * (L.minimum ? 64 : 32));
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j) {
          const int32_t* term = terms + j * rows.term_stride;
          if constexpr (C == 2) {
            dot_h[j][0] = _mm512_add_epi32(dot_h[j][0], dot_h[j][1]);
            dot_l[j][0] = _mm512_add_epi32(dot_l[j][0], dot_l[j][1]);
          }
          acc_h[j] = scales.add(acc_h[j], dot_h[j][0], term + 2);
          acc_l[j] = scales.add(acc_l[j], dot_l[j][0], term + 3);
        }
      }
    }
  }
}

// Q16: high and low bytes are multiplied apart. The high ones become unsigned: + 128, which the terms take back.
template <int R>
void q16_sums(const uint8_t* panel, int64_t groups, const Rows& rows, __m512i* acc_h, __m512i* acc_l) {
  const __m512i flip = _mm512_set1_epi8(-128);
  const int8_t* x = rows.planes;
  __m512i high_h[R], high_l[R], low_h[R], low_l[R];
  for (int j = 0; j < R; ++j) {
    high_h[j] = broadcast4(rows.terms + j * rows.term_stride);
    high_l[j] = broadcast4(rows.terms + j * rows.term_stride + 1);
    low_h[j] = low_l[j] = _mm512_setzero_si512();
  }
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride, panel += 2048) {
    fetch_ahead<16>(panel);
    fetch_ahead<16>(panel + 1024);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m512i high = _mm512_xor_si512(_mm512_loadu_si512(panel + 128 * i), flip);
      const __m512i low = _mm512_loadu_si512(panel + 128 * i + 64);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        const __m512i hi = broadcast4(x + 64 * j + 4 * i), lo = broadcast4(x + 64 * j + 4 * i + rows.plane_stride);
        high_h[j] = _mm512_dpbusd_epi32(high_h[j], high, hi);
        high_l[j] = _mm512_dpbusd_epi32(high_l[j], high, lo);
        low_h[j] = _mm512_dpbusd_epi32(low_h[j], low, hi);
        low_l[j] = _mm512_dpbusd_epi32(low_l[j], low, lo);
      }
    }
  }
  for (int j = 0; j < R; ++j) {
    acc_h[j] = _mm512_add_epi32(_mm512_slli_epi32(high_h[j], 8), low_h[j]);
    acc_l[j] = _mm512_add_epi32(_mm512_slli_epi32(high_l[j], 8), low_l[j]);
  }
}

template <int R>
void q8_sums(const uint8_t* panel, int64_t groups, const Rows& rows, V* y) {
  constexpr int C = chains(R);
  const int8_t* x = rows.planes;
  const int32_t* terms = rows.terms;
  for (int j = 0; j < R; ++j) y[j] = vzero();
  for (int64_t g = 0; g < groups; g += 2, x += 2 * rows.plane_stride, panel += fp::block_bytes(fp::Format::Q8)) {
    fetch_ahead<fp::block_bytes(fp::Format::Q8) / 64>(panel);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, ++terms) {
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
      const V d = vload_f16(reinterpret_cast<const uint16_t*>(panel + 1024 + 32 * half));
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        if constexpr (C == 2) {
          dot_h[j][0] = _mm512_add_epi32(dot_h[j][0], dot_h[j][1]);
          dot_l[j][0] = _mm512_add_epi32(dot_l[j][0], dot_l[j][1]);
        }
        y[j] = vfma(vfrom_i32(_mm512_add_epi32(_mm512_slli_epi32(dot_h[j][0], 7), dot_l[j][0])), d, y[j]);
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
    if constexpr (fp::is_levels(F)) level_sums<R, F>(w.panel(p), groups, rows, acc_h, acc_l);
    else q16_sums<R>(w.panel(p), groups, rows, acc_h, acc_l);
    V row_scale = vload(w.row_scale() + p * fp::kPanel);
    for (int j = 0; j < R; ++j) y[j] = integer_result(acc_h[j], acc_l[j], x.scale[r + j], row_scale);
  } else {
    q8_sums<R>(w.panel(p), groups, rows, y);
    for (int j = 0; j < R; ++j) y[j] = vmul(y[j], vset(x.scale[r + j]));
  }
  finish_rows<R>(e, y, r, p * fp::kPanel, w.n);
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
    for (int64_t r = first; r < end; ++r) make_terms<F>(x, r, terms + (r - first) * stride);
    for (int64_t p = p0; p < p1; ++p) int_rows<kRowBlock, F>(w, x, p, first, end, terms, e);
  }
}

inline void matmul(const fp::Matrix& w, const fp::Activations& x, int64_t p0, int64_t p1, const fp::Epilogue& e,
                   uint8_t* scratch) {
  switch (w.format) {
    case fp::Format::Q4: return int_panels<fp::Format::Q4>(w, x, p0, p1, e, scratch);
    case fp::Format::Q4H: return int_panels<fp::Format::Q4H>(w, x, p0, p1, e, scratch);
    case fp::Format::Q5: return int_panels<fp::Format::Q5>(w, x, p0, p1, e, scratch);
    case fp::Format::Q5M: return int_panels<fp::Format::Q5M>(w, x, p0, p1, e, scratch);
    case fp::Format::Q6: return int_panels<fp::Format::Q6>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8: return int_panels<fp::Format::Q8>(w, x, p0, p1, e, scratch);
    case fp::Format::Q8A: return matmul_bytes_vnni<1>(w, x, p0, p1, e);
    case fp::Format::Q8C: return matmul_bytes_vnni<2>(w, x, p0, p1, e);
    case fp::Format::Q16: return int_panels<fp::Format::Q16>(w, x, p0, p1, e, scratch);
    default: return matmul_float(w, x, p0, p1, e, scratch);
  }
}
