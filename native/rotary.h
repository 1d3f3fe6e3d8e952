// cos and sin for rotary position encodings, and which of them each sequence of a step uses.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels.h"

namespace fp {

struct Step;

// NTK scaling that follows a sequence's length L: beyond `trained` the base of the frequencies is
// base * (factor * L / trained - (factor - 1)) ^ (dim / (dim - 2)). See models/spec.py DynamicNtk.
struct DynamicNtk {
  double base, factor;
  int64_t trained;
};

// The rows of one list of frequencies, extended on demand. Angles are rounded to float32 first, as the reference
// implementations do, then evaluated in double precision.
class RotaryRows {
 public:
  RotaryRows(std::vector<float> inv_freq, float factor) : inv_freq_(std::move(inv_freq)), factor_(factor) {}
  void reserve(int64_t positions);
  Turns turns() const { return {cos_.data(), sin_.data()}; }
  size_t frequencies() const { return inv_freq_.size(); }

 private:
  std::vector<float> inv_freq_;
  float factor_;
  int64_t positions_ = 0;
  std::vector<float> cos_, sin_;
};

// The frequencies of a model's layers: plain ones, perhaps others for long texts (a sequence uses one or the other), or
// some that follow the length of each sequence. Layers with the same encoding share a table.
class RotaryTable {
 public:
  RotaryTable(std::vector<float> inv_freq, float factor, std::vector<float> long_inv_freq,
              std::unique_ptr<DynamicNtk> ntk);
  int64_t dim() const { return int64_t(plain_.frequencies()) * 2; }
  bool has_long() const { return long_.frequencies() > 0; }
  // Keys are cached unrotated: their angles change as the sequence grows.
  bool rotates_on_read() const { return ntk_ != nullptr; }

  // The rows of each sequence of a step, valid until the next call. Those of a length L take far less memory than the
  // sequence's keys, and those of lengths that are no longer wanted are dropped.
  void prepare(const Step& step);
  const Turns* turns() const { return turns_.data(); }

  std::vector<float> frequencies(int64_t length) const;  // dynamic scaling: of a sequence of this length
  RotaryRows& plain() { return plain_; }

 private:
  float factor_;
  RotaryRows plain_, long_;
  std::unique_ptr<DynamicNtk> ntk_;
  std::map<int64_t, RotaryRows> by_length_;
  std::vector<Turns> turns_;
};

}  // namespace fp
