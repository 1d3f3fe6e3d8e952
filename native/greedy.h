// Several decode steps of the likeliest token without going back to Python in between.
//
// On a small model a step takes three milliseconds, and the little that Python does between two steps takes 6% of that:
// its own data have left the caches by then. So where the next token follows from the logits alone, a few steps are
// replayed here from the recorded programs. The bits are those of the same steps run one by one.
#pragma once
#include <cstdint>
#include <vector>

#include "program.h"

namespace fp {

struct Greedy {
  std::vector<int32_t> ids, positions, past;  // of each sequence, advanced by run()
  std::vector<int32_t> regime, lengths;       // see Step; empty = none. Lengths advance, a regime stays
  std::vector<std::vector<int32_t>> ends;     // tokens that end each sequence: run() returns after one
  Step cache;                                 // what is the same in every step: memory and block tables
  int64_t width = 0, logits_width = 0, vocabulary = 0;
  std::vector<int> buffers;  // embed out; layers in, out; project in, out

  std::vector<int32_t> tokens;  // [steps done][sequences]
  double seconds[3] = {0, 0, 0};

  // Stops early after an end token, and before a token whose logit is not a finite number.
  void run(Program& embed, Program& layers, Program& project, int64_t steps, bool timed);
};

}  // namespace fp
