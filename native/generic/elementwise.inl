// Norms, the preparation of activations for matrix products, embedding look-up, addition, limits. One row at a time.

inline float row_sum_of_squares(const float* x, int64_t k, float mean) {
  V sum = vzero(), m = vset(mean);
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    V d = vsub(vload(x + i), m);
    sum = vfma(d, d, sum);
  }
  if (i < k) {
    int left = int(k - i);
    V d = vselect_first(left, vsub(vload_n(x + i, left), m), vzero());
    sum = vfma(d, d, sum);
  }
  return reduce_add(sum);
}

inline float row_sum(const float* x, int64_t k) {
  V sum = vzero();
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) sum = vadd(sum, vload(x + i));
  if (i < k) sum = vadd(sum, vload_n(x + i, int(k - i)));
  return reduce_add(sum);
}

// out may be in.
inline void norm_row(const fp::Norm& norm, const float* in, float* out, int64_t k) {
  float mean = norm.kind == fp::NormKind::Layer ? row_sum(in, k) / float(k) : 0.0f;
  float variance = row_sum_of_squares(in, k, mean) / float(k);
  V factor = vdiv(vset(1.0f), vset(std::sqrt(variance + norm.eps))), m = vset(mean);
  for (int64_t i = 0; i < k; i += 16) {
    int left = int(k - i < 16 ? k - i : 16);
    V y = vmul(vmul(vsub(vload_n(in + i, left), m), factor), vload_n(norm.weight + i, left));
    if (norm.bias) y = vadd(y, vload_n(norm.bias + i, left));
    vstore_n(out + i, y, left);
  }
}

// Fifteen-bit integers with one scale a row: x = scale * v, v = 128 * hi + lo, |v| <= 127 * 128.
inline void quantise_row(const float* x, fp::Activations& a, int64_t r) {
  constexpr float kMost = 16256.0f;
  const int64_t k = a.k, k_pad = a.k_pad(), tile = r / 16, line = r % 16;
  V most = vzero();
  for (int64_t i = 0; i < k; i += 16) most = vmax(most, vabs(vload_n(x + i, int(k - i < 16 ? k - i : 16))));
  float amax = reduce_max(most);
  // A row that is all zero, or holds no number to scale by, counts as zero.
  bool usable = amax > 0.0f && amax < 3.0e38f;
  a.scale[r] = usable ? amax / kMost : 0.0f;
  V inverse = vset(usable ? kMost / amax : 0.0f), limit = vset(kMost), lower = vset(-kMost);
  for (int64_t block = 0; block < k_pad / 64; ++block) {
    int8_t *plane_hi = a.block(tile, block, 0) + line * 64, *plane_lo = a.block(tile, block, 1) + line * 64;
    for (int64_t i = block * 64, at = 0; at < 64; i += 16, at += 16) {
      int left = int(k - i < 16 ? (k > i ? k - i : 0) : 16);
      V scaled = left ? vmul(vload_n(x + i, left), inverse) : vzero();
      // NaN (only in a broken model) falls to the limit by the rule of vmin.
      I v = vround_i32(vmin(vmax(scaled, lower), limit));
      I hi = isar<7>(iadd(v, iset(64)));
      I lo = isub(v, ishl<7>(hi));
      istore_i8(plane_hi + at, hi);
      istore_i8(plane_lo + at, lo);
    }
    isum_i8(plane_hi, a.row_sums(0, r) + 4 * block);
    isum_i8(plane_lo, a.row_sums(1, r) + 4 * block);
  }
}

inline void prepare_row(const fp::Norm& norm, const float* in, fp::Activations& a, int64_t r, uint8_t* scratch) {
  const float* x = in;
  if (norm.kind != fp::NormKind::None) {
    float* normed = reinterpret_cast<float*>(scratch);
    norm_row(norm, in, normed, a.k);
    x = normed;
  }
  if (a.kind == fp::ActKind::Int15) return quantise_row(x, a, r);
  const int64_t k = a.k;
  for (int64_t i = 0; i < a.k_pad(); i += 16) {
    int left = int(k - i < 16 ? (k > i ? k - i : 0) : 16);
    V v = left ? vload_n(x + i, left) : vzero();
    if (a.kind == fp::ActKind::Bf16)
      vstore_bf16(a.block16(r / 16, i / 32) + (r % 16) * 32 + i % 32, v);
    else
      vstore(a.row(r) + i, v);
  }
}

// The integer of output o and column k in a panel: with row scales what they multiply, else the stored byte.
template <fp::Format F>
inline int integer_weight(const uint8_t* panel, int64_t o, int64_t k) {
  const uint8_t* block = panel + k / 64 * fp::block_bytes(F);
  const int column = int(k % 64);
  if constexpr (fp::is_levels(F)) {
    constexpr fp::Levels L = fp::levels(F);
    const uint8_t* lines = block + L.lines_at(column / 32);
    const int c = column % 32, v = c / 4, byte = int(o * 4 + c % 4);
    int q = lines[c / 8 * 64 + byte] >> (v % 2 * 4) & 15;
    if constexpr (L.high_bits() > 0) {
      const int high = lines[256 + L.high_bits() * v / 8 * 64 + byte] >> (L.high_bits() * v + 4) % 8;
      q |= (high & ((1 << L.high_bits()) - 1)) << 4;
    }
    const int16_t* scales = reinterpret_cast<const int16_t*>(block + L.scales_at(column / 32));
    if constexpr (L.minimum) {
      scales += c / L.span * 32 + o * 2;
      return scales[0] * (q - L.zero()) + scales[1];
    } else {
      return scales[c / L.span * 16 + o] * (q - L.zero());
    }
  } else {
    const int line = column / 4, byte = int(o * 4 + column % 4);
    if constexpr (F == fp::Format::Q16) return int8_t(block[line * 128 + byte]) * 256 + block[line * 128 + 64 + byte];
    else return int(block[line * 64 + byte]) - 128;
  }
}

template <fp::Format F>
inline float stored_weight(const uint8_t* panel, int64_t o, int64_t k) {
  using fp::Format;
  if constexpr (F == Format::F32) {
    return reinterpret_cast<const float*>(panel)[k * 16 + o];
  } else if constexpr (F == Format::F16) {
    return fp::f16_to_f32(reinterpret_cast<const uint16_t*>(panel)[k * 16 + o]);
  } else if constexpr (F == Format::BF16) {
    return fp::bf16_to_f32(reinterpret_cast<const uint16_t*>(panel)[(k / 2) * 32 + o * 2 + k % 2]);
  } else if constexpr (fp::has_row_scale(F)) {
    return float(integer_weight<F>(panel, o, k));
  } else {
    const uint8_t* block = panel + k / 64 * fp::block_bytes(F);
    int column = int(k % 64);
    float q = float(int(block[column / 4 * 64 + o * 4 + column % 4]) - 128);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(block + 1024) + column / 32 * 16 + o;
    float d = fp::f16_to_f32(halves[0]);
    if constexpr (F == Format::Q8M) return std::fma(q, d, fp::f16_to_f32(halves[32]));
    return q * d;
  }
}

template <fp::Format F>
inline void lookup_as(const fp::Matrix& w, int64_t row, float* out) {
  const uint8_t* panel = w.panel(row / 16);
  const float scale = fp::has_row_scale(F) ? w.row_scale()[row] : 1.0f;
  for (int64_t k = 0; k < w.k; ++k) out[k] = stored_weight<F>(panel, row % 16, k) * scale;
}

inline void lookup_row(const fp::Matrix& w, int64_t row, float* out) {
  switch (w.format) {
    case fp::Format::F32: return lookup_as<fp::Format::F32>(w, row, out);
    case fp::Format::F16: return lookup_as<fp::Format::F16>(w, row, out);
    case fp::Format::BF16: return lookup_as<fp::Format::BF16>(w, row, out);
    case fp::Format::Q4: return lookup_as<fp::Format::Q4>(w, row, out);
    case fp::Format::Q4H: return lookup_as<fp::Format::Q4H>(w, row, out);
    case fp::Format::Q5: return lookup_as<fp::Format::Q5>(w, row, out);
    case fp::Format::Q5M: return lookup_as<fp::Format::Q5M>(w, row, out);
    case fp::Format::Q6: return lookup_as<fp::Format::Q6>(w, row, out);
    case fp::Format::Q8: return lookup_as<fp::Format::Q8>(w, row, out);
    case fp::Format::Q8M: return lookup_as<fp::Format::Q8M>(w, row, out);
    case fp::Format::Q8C: return lookup_as<fp::Format::Q8C>(w, row, out);
    case fp::Format::Q16: return lookup_as<fp::Format::Q16>(w, row, out);
  }
}

inline void add_row(float* out, const float* x, float scale, int64_t k) {
  const V by = vset(scale);
  for (int64_t i = 0; i < k; i += 16) {
    int left = int(k - i < 16 ? k - i : 16);
    vstore_n(out + i, vadd(vload_n(out + i, left), vmul(vload_n(x + i, left), by)), left);
  }
}

inline void clip_row(float* x, float limit, int64_t k) {
  const V most = vset(limit), least = vset(-limit);
  for (int64_t i = 0; i < k; i += 16) {
    int left = int(k - i < 16 ? k - i : 16);
    vstore_n(x + i, vmin(most, vmax(least, vload_n(x + i, left))), left);  // a NaN is the second operand of both
  }
}

inline void cap_row(float* x, float scale, float softcap, int64_t k) {
  const V by = vset(scale), most = vset(softcap), inverse = vset(softcap > 0.0f ? 1.0f / softcap : 0.0f);
  for (int64_t i = 0; i < k; i += 16) {
    int left = int(k - i < 16 ? k - i : 16);
    V y = vmul(vload_n(x + i, left), by);
    if (softcap > 0.0f) y = vmul(most, vtanh(vmul(y, inverse)));
    vstore_n(x + i, y, left);
  }
}

inline void exp_shifted_row(const float* in, float shift, float* out, int64_t n) {
  const V by = vset(shift);
  for (int64_t i = 0; i < n; i += 16) {
    int left = int(n - i < 16 ? n - i : 16);
    vstore_n(out + i, vexp(vsub(vload_n(in + i, left), by)), left);
  }
}

inline void route_row(float* scores, int64_t n, int64_t chosen, bool normalise, int32_t* which, float* share) {
  int64_t held = 0;
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = held;
    while (at > 0 && scores[i] > scores[which[at - 1]]) --at;
    if (at >= chosen) continue;
    held = held < chosen ? held + 1 : held;
    for (int64_t j = held - 1; j > at; --j) which[j] = which[j - 1];
    which[at] = int32_t(i);
  }
  exp_shifted_row(scores, scores[which[0]], scores, n);
  float total = row_sum(scores, n), sum = 0.0f;
  for (int64_t j = 0; j < chosen; ++j) sum += share[j] = scores[which[j]] / total;
  if (normalise)
    for (int64_t j = 0; j < chosen; ++j) share[j] = share[j] / sum;
}

inline float sigmoid_of(float x) {
  float y;
  vstore_n(&y, vsigmoid(vset(x)), 1);
  return y;
}
