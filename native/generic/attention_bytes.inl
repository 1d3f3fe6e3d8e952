// Attention as products of bytes (byte_attention.cpp): the keys of a head and its values as matrices, and scores as the
// activations of a product.

// x * inverse as a whole number of at most 127.
inline I bytes_of(V x, V inverse) {
  return vround_i32(vmin(vmax(vmul(x, inverse), vset(-127.0f)), vset(127.0f)));
}
constexpr float kLeastScaled = 1e-30f;  // smaller magnitudes count as zero: 127 / x would overflow

// Keys [w.n][w.k], ld apart, as a Q8A matrix: less their mean, which changes all scores of a query alike, so no softmax sees
// it. The scale of each key is multiplied by `factor`.
void pack_keys(const float* in, int64_t ld, float factor, const fp::Matrix& w) {
  const int64_t keys = w.n, d = w.k, d_pad = w.k_pad();
  uint8_t* data = const_cast<uint8_t*>(w.data);
  float* scales = const_cast<float*>(w.row_scale());
  alignas(64) float mean[kMaxHeadDim], x[kMaxHeadDim];
  each_vector(d, [&](int64_t i, auto lanes) {
    V sum = vzero();
    for (int64_t o = 0; o < keys; ++o) sum = vadd(sum, lanes.load(in + o * ld + i));
    lanes.store(mean + i, vdiv(sum, vset(float(keys))));
  });
  for (int64_t i = 0; i < d_pad; i += 16) vstore(x + i, vzero());
  for (int64_t o = 0; o < w.panels() * fp::kPanel; ++o) {
    float amax = 0.0f;
    if (o < keys) {
      V most = vzero();
      each_vector(d, [&](int64_t i, auto lanes) {
        const V y = vsub(lanes.load(in + o * ld + i), lanes.load(mean + i));
        lanes.store(x + i, y);
        most = vmax(most, vabs(y));
      });
      amax = reduce_max(most);
    }
    const bool usable = amax >= kLeastScaled && amax < 3.0e38f;
    scales[o] = usable ? amax / 127.0f * factor : 0.0f;
    const V inverse = vset(usable ? 127.0f / amax : 0.0f);
    uint8_t* to = data + o / fp::kPanel * w.panel_bytes() + o % fp::kPanel * 4;
    for (int64_t block = 0; block < d_pad; block += 64, to += 1024) {
      alignas(64) int8_t q[64];
      I v[4];
      for (int j = 0; j < 4; ++j) v[j] = bytes_of(vload(x + block + 16 * j), inverse);
      istore_bytes(q, v);
      for (int j = 0; j < 16; ++j) {
        uint32_t four;
        std::memcpy(&four, q + 4 * j, 4);
        four ^= 0x80808080u;
        std::memcpy(to + 64 * j, &four, 4);
      }
    }
  }
}

// Values [w.k][w.n], ld apart, as a Q8C matrix of their dimensions.
void pack_values(const float* in, int64_t ld, const fp::Matrix& w) {
  const int64_t keys = w.k, d = w.n;
  uint8_t* data = const_cast<uint8_t*>(w.data);
  float* scales = const_cast<float*>(w.row_scale());
  for (int64_t i = 0; i < d; i += fp::kPanel, data += w.panel_bytes(), scales += fp::kPanel) {
    const int n = int(d - i < 16 ? d - i : 16);
    V most = vzero();
    for (int64_t o = 0; o < keys; ++o) most = vmax(most, vabs(vload_n(in + o * ld + i, n)));
    const V least = vset(kLeastScaled);
    vstore(scales, vselect_lt(most, least, vzero(), vmul(most, vset(1.0f / 127.0f))));
    const V inverse = vselect_lt(most, least, vzero(), vdiv(vset(127.0f), most));
    for (int64_t o = 0; o < w.k_pad(); o += 4) {  // a line: four keys
      auto stored = [&](int64_t at) {
        const V x = at < keys ? vload_n(in + at * ld + i, n) : vzero();
        return iadd(bytes_of(x, inverse), iset(128));
      };
      const I low = iadd(stored(o), ishl<8>(stored(o + 1)));
      const I high = iadd(stored(o + 2), ishl<8>(stored(o + 3)));
      istore(reinterpret_cast<int32_t*>(data + o * 16), iadd(low, ishl<16>(high)));
    }
  }
}

// Row r of x: 2^(score - the greatest), as whole numbers that the scale makes sum to one. x.k scores.
void prepare_softmax(const float* scores, fp::Activations& x, int64_t r) {
  const int64_t n = x.k;
  const V limit = vset(16256.0f), most = vset(reduce_max([&] {
    V most[4];
    for (V& one : most) one = vset(-__builtin_inff());
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) most[j] = vmax(most[j], vload(scores + i + 16 * j));
    for (; i < n; i += 16) {
      const int left = int(n - i < 16 ? n - i : 16);
      most[0] = vmax(most[0], vselect_first(left, vload_n(scores + i, left), most[0]));
    }
    return vmax(vmax(most[0], most[1]), vmax(most[2], most[3]));
  }()));
  auto whole = [&](V s) {  // NaN counts as zero by the rule of vmax
    return vmin(vmax(vmul(vexp2_short(vsub(s, most)), limit), vzero()), limit);
  };
  Quantiser<fp::ActKind::Int15> row(x, r, 1.0f);
  int64_t at = 0;
  for (; at + 64 <= n; at += 64) {
    I v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[j] = vround_i32(whole(vload(scores + at + 16 * j)));
    row.put(v);
  }
  if (at < n) {
    I v[4];
    for (int j = 0; j < 4; ++j) {
      const int left = int(n - at - 16 * j < 0 ? 0 : n - at - 16 * j < 16 ? n - at - 16 * j : 16);
      v[j] = vround_i32(vselect_first(left, whole(vload_n(scores + at + 16 * j, left)), vzero()));
    }
    row.put(v);
  }
  row.end();
  const int32_t* offsets = x.row_offsets(r);  // -128 times the sums of both planes
  x.scale[r] = 1.0f / float(-offsets[0] - offsets[1] / 128);
}
