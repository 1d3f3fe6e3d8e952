#include "rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace fp {

namespace {
// The greatest value of each stretch first: vectorised by the compiler, and nothing to branch on.
constexpr int64_t kStretch = 256;

}  // namespace

float greatest(const float* row, int64_t n) {
  float lanes[16];
  std::fill(lanes, lanes + 16, -INFINITY);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
  float most = *std::max_element(lanes, lanes + 16);
  for (; i < n; ++i) most = row[i] > most ? row[i] : most;
  return most;
}
bool has_nan(const float* row, int64_t n) {
  bool found = false;
  for (int64_t i = 0; i < n; ++i) found |= row[i] != row[i];
  return found;
}

int64_t argmax(const float* row, int64_t n) {
  float most = -INFINITY;
  int64_t stretch = 0;
  for (int64_t i = 0; i < n; i += kStretch) {
    float here = greatest(row + i, std::min(kStretch, n - i));
    if (here > most) { most = here; stretch = i; }
  }
  for (int64_t i = stretch; i < std::min(n, stretch + kStretch); ++i)
    if (row[i] == most) return i;
  return 0;
}

void top_k(const float* row, int64_t n, int64_t k, int32_t* out) {
  auto value = [row](int32_t i) { return row[i] == row[i] ? row[i] : -INFINITY; };  // NaN has no order: last
  auto before = [value](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; };
  std::vector<int32_t> kept;
  if (k * 4 < n) {
    // The k-th greatest of the stretches' maxima bounds the k-th greatest value from below.
    int64_t stretch = std::max<int64_t>(16, std::min(kStretch, n / (4 * k)));
    std::vector<float> most;
    for (int64_t i = 0; i < n; i += stretch) most.push_back(greatest(row + i, std::min(stretch, n - i)));
    float bound = -INFINITY;
    if (int64_t(most.size()) >= k) {
      std::vector<float> order = most;
      std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
      bound = order[size_t(k - 1)];
    }
    for (size_t s = 0; s < most.size(); ++s) {
      if (most[s] < bound) continue;
      for (int64_t i = int64_t(s) * stretch; i < std::min(n, int64_t(s + 1) * stretch); ++i)
        if (row[i] >= bound) kept.push_back(int32_t(i));
    }
  }
  if (int64_t(kept.size()) < k) {
    kept.resize(size_t(n));
    for (int64_t i = 0; i < n; ++i) kept[size_t(i)] = int32_t(i);
  }
  std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), before);
  std::sort(kept.begin(), kept.begin() + k, before);
  std::copy_n(kept.begin(), k, out);
}

double log_sum_exp(const float* row, int64_t n) {
  double most = greatest(row, n), sum = 0;
  if (!std::isfinite(most)) return most;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(double(row[i]) - most);
  return most + std::log(sum);
}

}  // namespace fp
