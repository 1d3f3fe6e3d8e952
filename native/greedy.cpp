#include "greedy.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "rows.h"

namespace fp {

void Greedy::run(Program& embed, Program& layers, Program& project, int64_t steps, bool timed) {
  const int64_t count = int64_t(ids.size());
  std::vector<int32_t> rows(static_cast<size_t>(count) + 1);
  std::iota(rows.begin(), rows.end(), 0);  // one row a sequence: the rows' numbers are also where each begins
  std::vector<float> hidden(size_t(count * width)), out(size_t(count * width)), logits(size_t(count * logits_width));
  auto stage = [&](int number, Program& program, const Step& step,
                   std::initializer_list<std::pair<int, float*>> bound) {
    auto start = std::chrono::steady_clock::now();
    program.start();
    for (auto [buffer, data] : bound) program.bind(buffer, data);
    program.run(step, timed);
    seconds[number] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int64_t done = 0; done < steps; ++done) {
    Step step = cache;
    step.rows = step.sequences = count;
    step.ids = ids.data();
    step.positions = positions.data();
    step.wanted = step.starts = rows.data();
    step.past = past.data();
    step.regime = regime.empty() ? nullptr : regime.data();
    step.lengths = lengths.empty() ? nullptr : lengths.data();
    step.longest_context = *std::max_element(past.begin(), past.end()) + 1;
    step.last_position = *std::max_element(positions.begin(), positions.end());
    stage(0, embed, step, {{buffers[0], hidden.data()}});
    stage(1, layers, step, {{buffers[1], hidden.data()}, {buffers[2], out.data()}});
    stage(2, project, step, {{buffers[3], out.data()}, {buffers[4], logits.data()}});

    bool ended = false;
    for (int64_t s = 0; s < count; ++s) {
      const float* row = logits.data() + s * logits_width;
      int32_t token = int32_t(argmax(row, vocabulary));
      if (!std::isfinite(row[token]) || has_nan(row, vocabulary)) return;
      ids[size_t(s)] = token;
      ended = ended || std::find(ends[size_t(s)].begin(), ends[size_t(s)].end(), token) != ends[size_t(s)].end();
    }
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    for (int64_t s = 0; s < count; ++s) {
      ++positions[size_t(s)];
      ++past[size_t(s)];
    }
    for (int32_t& length : lengths) length += length > 0;
    if (ended) return;
  }
}

}  // namespace fp
