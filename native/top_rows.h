// Beam search over rows of logits: log-softmax, and the best continuations of several beams together.
//
// A row's numbers depend on that row alone, and are computed in one order: the same bits in any batch, on any number of
// threads. log-softmax is (x - greatest) - log(sum of e^(x - greatest)), each step rounded to float32.
#pragma once
#include <cstdint>
#include <vector>

namespace fp {

struct Kernels;
class Pool;

// Rows of a float32 matrix [*, width], in the order of `rows`.
struct RowsOf {
  const float* values;
  int64_t width;
  const int32_t* rows;
  int64_t count;
  const float* row(int64_t i) const { return values + rows[i] * width; }
};

// log-softmax of each row into out [count, width]. log_sums [count]: NaN where a row is no distribution, because it
// holds NaN or +infinity, or nothing but -infinity.
void log_softmax(Pool* pool, const Kernels& kernels, const RowsOf& in, float* out, float* log_sums);

// The best sums of a segment's beams. Rows [starts[s], starts[s + 1]) are segment s, one for each of its beams.
struct Continuations {
  int64_t k = 0;
  std::vector<float> scores;     // [segments][k], greatest first; -infinity where there are fewer
  std::vector<int32_t> parents;  // [segments][k], row within the segment; -1 where there are fewer
  std::vector<int32_t> tokens;   // [segments][k]
  std::vector<float> log_sums;   // [count], see log_softmax; only if normalised
};

// before [count]: what is added to every value of a row. vocabulary: tokens below it can be chosen. normalise: take
// the log-softmax of the rows first. Among equals the earlier row comes first, then the lower token. -infinity is never
// chosen, nor is a row that is no distribution.
Continuations best_continuations(Pool* pool, const Kernels& kernels, const RowsOf& in, const float* before,
                                 const int32_t* starts, int64_t segments, int64_t vocabulary, int64_t k,
                                 bool normalise);

}  // namespace fp
