#include "top_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "kernels.h"
#include "pool.h"
#include "rows.h"

namespace fp {

namespace {

constexpr int64_t kStretch = 256;

// The greatest value of each stretch of a row.
struct Stretches {
  std::vector<float> most;
  float greatest;

  void find(const float* row, int64_t width) {
    most.clear();
    greatest = -INFINITY;
    for (int64_t i = 0; i < width; i += kStretch) {
      most.push_back(fp::greatest(row + i, std::min(kStretch, width - i)));
      greatest = std::max(greatest, most.back());
    }
  }
};

float sum_in_lanes(const float* x, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += x[i + j];
  for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i];
  for (int half = 8; half; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

// log(sum of e^(x - greatest)): each stretch by its own greatest value while it is in the nearest cache.
float log_sum(const Kernels& kernels, const float* row, int64_t width, const Stretches& s,
              std::vector<float>& scratch) {
  const size_t count = s.most.size();
  scratch.resize(2 * count);
  float powers[kStretch];
  for (size_t j = 0; j < count; ++j) {
    const int64_t begin = int64_t(j) * kStretch, n = std::min(kStretch, width - begin);
    kernels.exp_shifted(row + begin, s.most[j] == -INFINITY ? 0.0f : s.most[j], powers, n);
    scratch[j] = sum_in_lanes(powers, n);
  }
  kernels.exp_shifted(s.most.data(), s.greatest, scratch.data() + count, int64_t(count));
  double total = 0;
  for (size_t j = 0; j < count; ++j) total += double(scratch[j]) * double(scratch[count + j]);
  return float(std::log(total));
}

struct Candidate {
  float score;
  int32_t row, token;
  bool operator<(const Candidate& other) const {
    if (score != other.score) return score > other.score;
    return row != other.row ? row < other.row : token < other.token;
  }
};

void keep_best(std::vector<Candidate>& found, int64_t k) {
  if (int64_t(found.size()) > k) {
    std::nth_element(found.begin(), found.begin() + (k - 1), found.end());
    found.resize(size_t(k));
  }
}

// The k greatest of the first `vocabulary` values, without those that are -infinity, in no order. May lower s.most of
// the stretch that `vocabulary` cuts.
void best_of_row(const float* row, int64_t vocabulary, Stretches& s, int64_t k, std::vector<float>& order,
                 std::vector<Candidate>& found) {
  const int64_t count = (vocabulary + kStretch - 1) / kStretch, last = (count - 1) * kStretch;
  s.most[size_t(count - 1)] = greatest(row + last, vocabulary - last);
  // The k-th greatest of the stretches' greatest bounds the k-th greatest value from below.
  float bound = -INFINITY;
  if (count >= k) {
    order.assign(s.most.begin(), s.most.begin() + count);
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
    bound = order[size_t(k - 1)];
  }
  found.clear();
  for (int64_t j = 0; j < count; ++j) {
    if (s.most[size_t(j)] < bound) continue;
    for (int64_t i = j * kStretch; i < std::min(vocabulary, (j + 1) * kStretch); ++i)
      if (row[i] >= bound && row[i] > -INFINITY) found.push_back({row[i], 0, int32_t(i)});
  }
  keep_best(found, k);
}

// task(i) for i < count, on the pool's threads if there is one.
template <typename Task>
void for_each(Pool* pool, int64_t count, const Task& task) {
  if (!pool || count < 2) {
    DenormalGuard guard;
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<int64_t> next{0};
  pool->run([&](int) {
    for (int64_t i; (i = next.fetch_add(1)) < count;) task(i);
  });
}

}  // namespace

void log_softmax(Pool* pool, const Kernels& kernels, const RowsOf& in, float* out, float* log_sums) {
  for_each(pool, in.count, [&](int64_t i) {
    thread_local Stretches stretches;
    thread_local std::vector<float> scratch;
    const float* row = in.row(i);
    stretches.find(row, in.width);
    const float most = stretches.greatest, log = log_sum(kernels, row, in.width, stretches, scratch);
    float* target = out + i * in.width;
    for (int64_t j = 0; j < in.width; ++j) target[j] = (row[j] - most) - log;
    log_sums[i] = log;
  });
}

Continuations best_continuations(Pool* pool, const Kernels& kernels, const RowsOf& in, const float* before,
                                 const int32_t* starts, int64_t segments, int64_t vocabulary, int64_t k,
                                 bool normalise) {
  Continuations out;
  out.k = k;
  out.log_sums.resize(normalise ? size_t(in.count) : 0);
  std::vector<std::vector<Candidate>> of_rows(static_cast<size_t>(in.count));
  for_each(pool, in.count, [&](int64_t i) {
    thread_local Stretches stretches;
    thread_local std::vector<float> scratch;
    const float* row = in.row(i);
    stretches.find(row, in.width);
    std::vector<Candidate>& found = of_rows[size_t(i)];
    const float most = stretches.greatest;
    float log = 0;
    if (normalise) {
      log = out.log_sums[size_t(i)] = log_sum(kernels, row, in.width, stretches, scratch);
      if (std::isnan(log)) return;
    }
    best_of_row(row, vocabulary, stretches, std::min(k, vocabulary), scratch, found);
    for (Candidate& one : found) one.score = (normalise ? (one.score - most) - log : one.score) + before[i];
  });
  out.scores.assign(size_t(segments * k), -INFINITY);
  out.parents.assign(size_t(segments * k), -1);
  out.tokens.assign(size_t(segments * k), 0);
  std::vector<Candidate> all;
  for (int64_t s = 0; s < segments; ++s) {
    all.clear();
    for (int32_t i = starts[s]; i < starts[s + 1]; ++i)
      for (Candidate one : of_rows[size_t(i)]) all.push_back({one.score, i - starts[s], one.token});
    keep_best(all, k);
    std::sort(all.begin(), all.end());
    for (size_t j = 0; j < all.size(); ++j) {
      const size_t at = size_t(s * k) + j;
      out.scores[at] = all[j].score;
      out.parents[at] = all[j].row;
      out.tokens[at] = all[j].token;
    }
  }
  return out;
}

}  // namespace fp
