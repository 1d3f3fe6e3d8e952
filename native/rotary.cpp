#include "rotary.h"

#include <algorithm>
#include <cmath>

#include "program.h"

namespace fp {

namespace {

// sin and cos of x >= 0 in double precision: reduction by multiples of pi/2 in three parts, Taylor polynomials.
void sin_cos(double x, double& sine, double& cosine) {
  double n = std::nearbyint(x * 0.63661977236758134308);
  double r = x - n * 1.5707963267341256;
  r -= n * 6.0771005063039660e-11;
  r -= n * 2.0222662487959506e-21;
  double z = r * r;
  double s = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 +
             z * (-1.0 / 39916800 + z * (1.0 / 6227020800.0))))));
  double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 +
             z * (1.0 / 479001600.0 + z * (-1.0 / 87178291200.0)))))));
  switch (int64_t(n) & 3) {
    case 0: sine = s; cosine = c; break;
    case 1: sine = c; cosine = -s; break;
    case 2: sine = -s; cosine = -c; break;
    default: sine = -c; cosine = s;
  }
}
}  // namespace

void RotaryRows::reserve(int64_t positions) {
  if (positions <= positions_) return;
  positions = round_up(positions, 256);
  const int64_t half = int64_t(inv_freq_.size());
  cos_.resize(size_t(positions * half));
  sin_.resize(size_t(positions * half));
  for (int64_t p = positions_; p < positions; ++p)
    for (int64_t j = 0; j < half; ++j) {
      double s, c;
      sin_cos(double(float(p) * inv_freq_[size_t(j)]), s, c);
      cos_[size_t(p * half + j)] = float(c) * factor_;
      sin_[size_t(p * half + j)] = float(s) * factor_;
    }
  positions_ = positions;
}

RotaryTable::RotaryTable(std::vector<float> inv_freq, float factor, std::vector<float> long_inv_freq,
                         std::unique_ptr<DynamicNtk> ntk)
    : factor_(factor), plain_(std::move(inv_freq), factor), long_(std::move(long_inv_freq), factor),
      ntk_(std::move(ntk)) {}

// The steps of models/rotary.py: float32 exponents, powers rounded once from double, float32 reciprocals.
std::vector<float> RotaryTable::frequencies(int64_t length) const {
  const double d = double(dim()), growth = ntk_->factor * double(length) / double(ntk_->trained) - (ntk_->factor - 1);
  const double base = length <= ntk_->trained ? ntk_->base : ntk_->base * std::pow(growth, d / (d - 2));
  std::vector<float> out(plain_.frequencies());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = 1.0f / float(std::pow(base, double(float(2 * i) / float(dim()))));
  return out;
}

void RotaryTable::prepare(const Step& step) {
  auto context = [&](int64_t s) {
    return int64_t(step.past ? step.past[s] : 0) + step.starts[s + 1] - step.starts[s];
  };
  const int64_t positions = std::max(step.last_position + 1, rotates_on_read() ? step.longest_context : 0);
  plain_.reserve(positions);
  turns_.assign(size_t(step.sequences), plain_.turns());
  if (has_long() && step.regime) {
    const bool any = std::any_of(step.regime, step.regime + step.sequences, [](int32_t r) { return r != 0; });
    if (any) long_.reserve(positions);
    for (int64_t s = 0; s < step.sequences; ++s)
      if (step.regime[s]) turns_[size_t(s)] = long_.turns();
  }
  if (!ntk_ || !step.lengths) return;
  std::map<int64_t, RotaryRows> kept;
  for (int64_t s = 0; s < step.sequences; ++s) {
    const int64_t length = step.lengths[s];
    if (length <= ntk_->trained) continue;
    auto old = by_length_.extract(length);
    if (old) kept.insert(std::move(old));
    auto rows = kept.try_emplace(length, RotaryRows({}, 0)).first;
    if (rows->second.frequencies() == 0) rows->second = RotaryRows(frequencies(length), factor_);
    rows->second.reserve(context(s));
  }
  by_length_ = std::move(kept);
  for (int64_t s = 0; s < step.sequences; ++s) {
    auto rows = by_length_.find(step.lengths[s]);
    if (rows != by_length_.end()) turns_[size_t(s)] = rows->second.turns();
  }
}

}  // namespace fp
