// What stored weights carry as an offset (q + 8, q + 128) adds offset * sum(x) to every dot product. It is known before
// the product: these terms are computed once for all panels, and the sums start from them. Included inside an anonymous
// namespace, after simd_avx512.h.

constexpr int64_t kRowChunk = 64;  // rows whose terms fit in scratch: 64 rows * k / 32 * 32 bytes = 64 k
constexpr int64_t kAhead = 6144;   // bytes that weights are fetched ahead of use

inline __m512i broadcast4(const void* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Into L2 only: L1 is quicker at taking lines from there by itself (measured: 0.93 of the read limit, not 0.88).
template <int Lines>
inline void fetch_ahead(const uint8_t* p) {
  if constexpr (!kFetchesAhead) return;
#pragma GCC unroll 16
  for (int i = 0; i < Lines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + 64 * i), _MM_HINT_T1);
}
// What fetch_ahead never reaches: the start of a thread's weights.
inline void fetch_start(const uint8_t* p) {
  if constexpr (!kFetchesAhead) return;
  for (int64_t i = 0; i < kAhead; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T1);
}

// int32 terms of a row, by format:
//   levels    for each scale (32 or 16 columns)  -zero sum_hi, -zero sum_lo; with M then sum_hi << 16, sum_lo << 16
//   Q8        for each group of 32  -(128 sum_hi + sum_lo)         (the offset of 128 hi + lo, divided by 128)
//   Q16       -128 sum_hi, -128 sum_lo of the whole row
constexpr int terms_per_scale(fp::Format f) { return fp::levels(f).minimum ? 4 : 2; }
constexpr int terms_per_group(fp::Format f) {  // of 32 columns
  if (fp::is_levels(f)) return 32 / fp::levels(f).span * terms_per_scale(f);
  return f == fp::Format::Q8 ? 1 : 0;
}
constexpr int64_t term_count(fp::Format f, int64_t groups) {
  return terms_per_group(f) ? terms_per_group(f) * groups : 2;
}

template <fp::Format F>
inline void make_terms(const fp::Activations& x, int64_t r, int32_t* terms) {
  if constexpr (!fp::needs_sums(F)) {
    for (int n = 0; n < 2; ++n) terms[n] = x.row_offsets(r)[n];
    return;
  }
  const int32_t *hi = x.row_sums(0, r), *lo = x.row_sums(1, r);  // of 16 columns
  if constexpr (fp::is_levels(F)) {
    constexpr fp::Levels L = fp::levels(F);
    constexpr int kEach = L.span / fp::kSummed;
    for (int64_t i = 0; i < x.sums_of_row(); i += kEach, terms += terms_per_scale(F)) {
      const int32_t sum_hi = kEach == 2 ? hi[i] + hi[i + 1] : hi[i], sum_lo = kEach == 2 ? lo[i] + lo[i + 1] : lo[i];
      terms[0] = -L.zero() * sum_hi;
      terms[1] = -L.zero() * sum_lo;
      if constexpr (L.minimum) {
        terms[2] = int32_t(uint32_t(sum_hi) << 16);
        terms[3] = int32_t(uint32_t(sum_lo) << 16);
      }
    }
  } else {
    for (int64_t i = 0; i < x.sums_of_row(); i += 2, ++terms)
      *terms = -(128 * (hi[i] + hi[i + 1]) + lo[i] + lo[i + 1]);
  }
}
