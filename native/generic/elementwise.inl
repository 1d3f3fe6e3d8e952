// What rows of floats go through one vector at a time: look-up, addition, limits, the router's choice. One row each.

inline float row_sum(const float* x, int64_t k) {
  V sum = vzero();
  each_vector(k, [&](int64_t i, auto lanes) { sum = vadd(sum, lanes.load(x + i)); });
  return reduce_add(sum);
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
    return q * fp::f16_to_f32(halves[0]);
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
    case fp::Format::Q8A:
    case fp::Format::Q8C: return lookup_as<fp::Format::Q8C>(w, row, out);
    case fp::Format::Q16: return lookup_as<fp::Format::Q16>(w, row, out);
  }
}

inline void add_row(float* out, const float* x, float scale, int64_t k) {
  const V by = vset(scale);
  each_vector(k, [&](int64_t i, auto lanes) {
    lanes.store(out + i, vadd(lanes.load(out + i), vmul(lanes.load(x + i), by)));
  });
}

inline void modulate_rows(const float* in, int64_t in_ld, float* out, int64_t out_ld, const float* shift,
                          const float* scale, int64_t k, int64_t rows) {
  each_vector(k, [&](int64_t i, auto lanes) {
    const V by = vadd(vset(1.0f), lanes.load(scale + i)), more = lanes.load(shift + i);
    for (int64_t r = 0; r < rows; ++r) lanes.store(out + r * out_ld + i, vfma(lanes.load(in + r * in_ld + i), by, more));
  });
}

inline void add_gated_row(float* out, const float* x, const float* gate, int64_t k) {
  each_vector(k, [&](int64_t i, auto lanes) {
    lanes.store(out + i, vfma(lanes.load(gate + i), lanes.load(x + i), lanes.load(out + i)));
  });
}

inline void activate_row(fp::Act act, const float* in, float* out, int64_t n) {
  with_activation(act, [&](auto f) {
    each_vector(n, [&](int64_t i, auto lanes) { lanes.store(out + i, f(lanes.load(in + i))); });
  });
}

inline void clip_row(float* x, float limit, int64_t k) {
  const V most = vset(limit), least = vset(-limit);
  each_vector(k, [&](int64_t i, auto lanes) {
    lanes.store(x + i, vmin(most, vmax(least, lanes.load(x + i))));  // a NaN is the second operand of both
  });
}

inline void cap_row(float* x, float scale, float softcap, int64_t k) {
  const V by = vset(scale), most = vset(softcap), inverse = vset(softcap > 0.0f ? 1.0f / softcap : 0.0f);
  each_vector(k, [&](int64_t i, auto lanes) {
    V y = vmul(lanes.load(x + i), by);
    if (softcap > 0.0f) y = vmul(most, vtanh(vmul(y, inverse)));
    lanes.store(x + i, y);
  });
}

inline void exp_shifted_row(const float* in, float shift, float* out, int64_t n) {
  const V by = vset(shift);
  each_vector(n, [&](int64_t i, auto lanes) { lanes.store(out + i, vexp(vsub(lanes.load(in + i), by))); });
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
