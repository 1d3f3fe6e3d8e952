// What is done to complete scores before invisible ones are hidden and the largest is found (fp::ScoreChanges), in this
// order, each where a model has it. Scores of invisible positions may be anything.
//   soft cap   s = cap * tanh(s * (1 / cap))
//   ALiBi      s = fma(the head's slope, key position - query position, s)
//   bias       s = s + the head's bias for (key position - query position)
alignas(64) constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Sixteen scores of row r from position `first` on. Not inlined: models without changes should keep their registers.
[[gnu::noinline]] V changed(const fp::Attention& a, const Span& x, int r, int64_t first, V s) {
  const fp::ScoreChanges& c = a.changes;
  const int64_t ahead = first - x.slot[r];
  if (c.softcap > 0) s = vmul(vset(c.softcap), vtanh(vmul(s, vset(1.0f / c.softcap))));
  if (c.slopes) s = vfma(vset(c.slopes[x.head[r]]), vadd(vset(float(ahead)), vload(kLanes)), s);
  if (c.bias) {
    const float* bias = c.bias + x.head[r] * c.stride() + c.reach + fp::ScoreChanges::kBeyond;
    s = vadd(s, vload(bias + larger(-c.reach - fp::ScoreChanges::kBeyond, smaller(ahead, c.reach))));
  }
  return s;
}
