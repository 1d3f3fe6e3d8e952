// What stored weights carry as an offset (q + 8, q + 128) adds offset * sum(x) to every dot product. It is known before
// the product: these terms are computed once for all panels, and the sums start from them. Included inside an anonymous
// namespace, after simd_avx512.h.

constexpr int64_t kRowChunk = 64;  // rows whose terms fit in scratch: 64 rows * (k / 32 groups) * 16 bytes = 32 k
constexpr int64_t kAhead = 6144;   // bytes that weights are fetched ahead of use

inline __m512i broadcast4(const void* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Into L2 only: L1 is quicker at taking lines from there by itself (measured: 0.93 of the read limit, not 0.88).
template <int Lines>
inline void fetch_ahead(const uint8_t* p) {
#pragma GCC unroll 16
  for (int i = 0; i < Lines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + 64 * i), _MM_HINT_T1);
}
// What fetch_ahead never reaches: the start of a thread's weights.
inline void fetch_start(const uint8_t* p) {
  for (int64_t i = 0; i < kAhead; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T1);
}

// int32 terms of a row, by format:
//   Q4    for each group  -8 sum_hi, -8 sum_lo, sum_hi << 16, sum_lo << 16
//   Q8    for each group  -(128 sum_hi + sum_lo)         (the offset of 128 hi + lo, divided by 128)
//   Q8M   for each group  the same, and float(128 sum_hi + sum_lo)
//   Q8C   -128 sum_hi, -128 sum_lo of the whole row
constexpr int terms_per_group(fp::Format f) {
  return f == fp::Format::Q4 ? 4 : f == fp::Format::Q8M ? 2 : f == fp::Format::Q8 ? 1 : 0;
}
constexpr int64_t term_count(fp::Format f, int64_t groups) {
  return f == fp::Format::Q8C ? 2 : terms_per_group(f) * groups;
}

inline void make_terms(fp::Format f, const fp::Activations& x, int64_t r, int32_t* terms) {
  const int64_t groups = x.k_pad() / fp::kGroup;
  const int32_t *hi = x.group_sums(0, r), *lo = x.group_sums(1, r);
  uint32_t total_hi = 0, total_lo = 0;
  for (int64_t g = 0; g < groups; ++g) {
    int32_t sum15 = 128 * hi[g] + lo[g];
    switch (f) {
      case fp::Format::Q4:
        terms[4 * g] = -8 * hi[g];
        terms[4 * g + 1] = -8 * lo[g];
        terms[4 * g + 2] = int32_t(uint32_t(hi[g]) << 16);
        terms[4 * g + 3] = int32_t(uint32_t(lo[g]) << 16);
        break;
      case fp::Format::Q8: terms[g] = -sum15; break;
      case fp::Format::Q8M: {
        float value = float(sum15);
        terms[2 * g] = -sum15;
        std::memcpy(terms + 2 * g + 1, &value, 4);
        break;
      }
      default:
        total_hi += uint32_t(hi[g]);
        total_lo += uint32_t(lo[g]);
    }
  }
  if (f == fp::Format::Q8C) {
    terms[0] = int32_t(0u - 128u * total_hi);
    terms[1] = int32_t(0u - 128u * total_lo);
  }
}
