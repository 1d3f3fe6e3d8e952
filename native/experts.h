// A mixture of experts: a router scores every expert for a row, the best few compute an answer for it, and the answers
// are added by their scores. Rows are grouped by expert, so that a step reads each expert it needs once.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace fp {

struct LinearPart {
  Matrix w;
  const float* bias;
  int64_t column;  // where its outputs begin in the output buffer
};

struct GatedMlp {
  LinearPart gate, up, down;
};

struct Experts {
  LinearPart router;               // [count, width]
  std::vector<GatedMlp> mlps;      // the experts; after them the one that all rows share, if there is one
  int64_t count = 0;               // experts without the shared one
  int64_t chosen = 0;              // experts a row
  bool normalise = false;          // the chosen scores are divided by their sum
  bool gated = false;              // the shared answer is multiplied by sigmoid(shared_gate's product)
  LinearPart shared_gate{};        // [1, width]

  bool shared() const { return int64_t(mlps.size()) > count; }
};

// The rows of one expert. They stand side by side from slot `first` on.
struct ExpertRows {
  const GatedMlp* mlp;
  int64_t first, rows;
  Activations x, y;  // what its two products read
  float* inner;      // [rows][inner width]
};

// What a run of one mixture works with: views into memory that all threads share. A slot is one answer of one expert
// for one row; the shared expert has the last `rows` of them.
struct Mixture {
  // Places everything from `memory` on; `bytes` is then what it takes. memory may be null to learn that.
  Mixture(const Experts& e, int64_t rows, uint8_t* memory);

  int64_t rows, width;
  float* normed;         // [rows][width]
  Activations router, gate;
  float* scores;         // [rows][count]
  float* gates;          // [rows]
  int32_t* which;        // [rows][chosen], by rank
  float* share;          // [rows][chosen]
  int32_t* slot;         // [rows][chosen]: where the answer is
  int32_t* row_of;       // [slots]
  uint8_t* x_memory;     // prepared activations of all slots, one expert after the other
  uint8_t* y_memory;
  float* inner;          // [slots][inner width of its expert]
  float* answers;        // [slots][width]
  int64_t bytes;

  // After routing: sorts the slots by expert, then by row, and fills `out` with the experts that have rows.
  void group(const Experts& e, std::vector<ExpertRows>& out) const;
};

}  // namespace fp
