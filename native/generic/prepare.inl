// Norms, and the preparation of activations for matrix products. Included inside an anonymous namespace, after
// elementwise.inl.
//
// A sum over one row is one chain of vectors (its order is part of the result): several rows go side by side, so that
// they wait for their chains together.

constexpr int kNormRows = 4;

// 1 / sqrt(variance + eps), or of the mean square, and the mean (else 0) of R rows; 1 and 0 without statistics.
template <int R>
inline void norm_factors(const fp::Norm& norm, const float* in, int64_t ld, int64_t k, float* mean, float* factor) {
  V sum[R];
  for (int j = 0; j < R; ++j) mean[j] = 0.0f, factor[j] = 1.0f;
  if (norm.kind == fp::NormKind::Scale) return;
  if (norm.kind == fp::NormKind::Layer) {
    for (int j = 0; j < R; ++j) sum[j] = vzero();
    each_vector(k, [&](int64_t i, auto lanes) {
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) sum[j] = vadd(sum[j], lanes.load(in + j * ld + i));
    });
    for (int j = 0; j < R; ++j) mean[j] = reduce_add(sum[j]) / float(k);
  }
  V m[R];
  for (int j = 0; j < R; ++j) {
    m[j] = vset(mean[j]);
    sum[j] = vzero();
  }
  each_vector(k, [&](int64_t i, auto lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j) {
      const V d = lanes.select(vsub(lanes.load(in + j * ld + i), m[j]), vzero());
      sum[j] = vfma(d, d, sum[j]);
    }
  });
  for (int j = 0; j < R; ++j) factor[j] = 1.0f / std::sqrt(reduce_add(sum[j]) / float(k) + norm.eps);
}

// One row normalised, out may be in. Returns the greatest magnitudes, by lane.
inline V norm_apply(const fp::Norm& norm, const float* in, float* out, int64_t k, float mean, float factor) {
  const V m = vset(mean), f = vset(factor);
  V most = vzero();
  each_vector(k, [&](int64_t i, auto lanes) {
    V y = vmul(vsub(lanes.load(in + i), m), f);
    if (norm.weight) y = vmul(y, lanes.load(norm.weight + i));
    if (norm.bias) y = vadd(y, lanes.load(norm.bias + i));
    lanes.store(out + i, y);
    most = vmax(most, vabs(y));
  });
  return most;
}

// Rows of k floats, in_ld and out_ld apart; out may be in.
template <int R>
inline void norm_some(const fp::Norm& norm, const float* in, int64_t in_ld, float* out, int64_t out_ld, int64_t k,
                      V* most) {
  float mean[R], factor[R];
  norm_factors<R>(norm, in, in_ld, k, mean, factor);
  for (int j = 0; j < R; ++j) most[j] = norm_apply(norm, in + j * in_ld, out + j * out_ld, k, mean[j], factor[j]);
}

inline void norm_rows(const fp::Norm& norm, const float* in, int64_t in_ld, float* out, int64_t out_ld, int64_t k,
                      int64_t rows) {
  V most[kNormRows];
  for (; rows >= kNormRows; rows -= kNormRows, in += kNormRows * in_ld, out += kNormRows * out_ld)
    norm_some<kNormRows>(norm, in, in_ld, out, out_ld, k, most);
  for (; rows > 0; --rows, in += in_ld, out += out_ld) norm_some<1>(norm, in, in_ld, out, out_ld, k, most);
}

inline V greatest_magnitudes(const float* x, int64_t k) {
  V most[4] = {vzero(), vzero(), vzero(), vzero()};
  int64_t i = 0;
  for (; i + 64 <= k; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) most[j] = vmax(most[j], vabs(vload(x + i + 16 * j)));
  for (; i < k; i += 16) most[0] = vmax(most[0], vabs(vload_n(x + i, int(k - i < 16 ? k - i : 16))));
  return vmax(vmax(most[0], most[1]), vmax(most[2], most[3]));
}

// x = scale * v with whole numbers |v| <= Most. NaN (only in a broken model) falls to the limit by the rule of vmin.
template <typename Lanes>
inline I whole_numbers(const float* x, Lanes lanes, V inverse, V limit, V lower) {
  return vround_i32(vmin(vmax(vmul(lanes.load(x), inverse), lower), limit));
}

// Integers with one scale a row: fifteen bits, v = 128 * hi + lo, or eight. 64 columns after the other, then end().
template <fp::ActKind Kind>
struct Quantiser {
  static constexpr bool kTwo = Kind == fp::ActKind::Int15;
  static constexpr float kMost = kTwo ? 16256.0f : 127.0f;
  fp::Activations& a;
  const int64_t r, step;
  const bool usable;
  const V inverse, limit = vset(kMost), lower = vset(-kMost);
  int8_t *hi, *lo;
  int64_t sums = 0;
  I total_hi = iset(0), total_lo = iset(0);

  // most: the greatest magnitude in the row. A row that is all zero, or holds no number to scale by, counts as zero.
  Quantiser(fp::Activations& a, int64_t r, float most)
      : a(a), r(r), step(a.int_planes() * a.height() * 64), usable(most > 0.0f && most < 3.0e38f),
        inverse(vset(usable ? kMost / most : 0.0f)), hi(a.block(r / 16, 0, 0) + r % 16 * 64), lo(hi + a.height() * 64) {
    a.scale[r] = usable ? most / kMost : 0.0f;
  }
  void put(const I* v) {
    if constexpr (kTwo) {
      istore_planes(hi, lo, v);
      total_hi = isum_bytes(total_hi, hi);
      total_lo = isum_bytes(total_lo, lo);
      if (a.summed) {
        isum_i8(hi, a.row_sums(0, r) + sums);
        isum_i8(lo, a.row_sums(1, r) + sums);
        sums += 4;
      }
    } else {
      istore_bytes(hi, v);
      total_hi = isum_bytes(total_hi, hi);
    }
    hi += step;
    lo += step;
  }
  void whole(const float* x) {
    I v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[j] = whole_numbers(x + 16 * j, WholeVector{}, inverse, limit, lower);
    put(v);
  }
  // The first `left` of 64 columns; zeros after them.
  void part(const float* x, int64_t left) {
    I v[4];
    for (int j = 0; j < 4; ++j, left -= 16)
      v[j] = left <= 0 ? iset(0)
                       : whole_numbers(x + 16 * j, PartVector{int(left < 16 ? left : 16)}, inverse, limit, lower);
    put(v);
  }
  void end() {
    a.row_offsets(r)[0] = -128 * ireduce_add(total_hi);
    if constexpr (kTwo) a.row_offsets(r)[1] = -128 * ireduce_add(total_lo);
  }
};

// most: the row's greatest magnitudes.
template <fp::ActKind Kind>
inline void quantise_row(const float* x, fp::Activations& a, int64_t r, V most) {
  Quantiser<Kind> row(a, r, reduce_max(most));
  int64_t at = 0;
  for (; at + 64 <= a.k; at += 64) row.whole(x + at);
  if (at < a.k) row.part(x + at, a.k - at);
  row.end();
}

inline void float_row(const float* x, fp::Activations& a, int64_t r) {
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

template <int R>
inline void prepare_some(const fp::Norm& norm, const float* in, int64_t ld, fp::Activations& a, int64_t r,
                         float* normed) {
  V most[R];
  if (norm.kind != fp::NormKind::None) {
    norm_some<R>(norm, in, ld, normed, a.k_pad(), a.k, most);
    in = normed;
    ld = a.k_pad();
  } else if (a.integer()) {
    for (int j = 0; j < R; ++j) most[j] = greatest_magnitudes(in + j * ld, a.k);
  }
  for (int j = 0; j < R; ++j) {
    if (a.kind == fp::ActKind::Int15) quantise_row<fp::ActKind::Int15>(in + j * ld, a, r + j, most[j]);
    else if (a.kind == fp::ActKind::Int8) quantise_row<fp::ActKind::Int8>(in + j * ld, a, r + j, most[j]);
    else float_row(in + j * ld, a, r + j);
  }
}

inline void prepare_rows(const fp::Norm& norm, const float* in, int64_t ld, fp::Activations& a, int64_t r, int64_t rows,
                         uint8_t* scratch) {
  float* normed = reinterpret_cast<float*>(scratch);
  for (; rows >= kNormRows; rows -= kNormRows, in += kNormRows * ld, r += kNormRows)
    prepare_some<kNormRows>(norm, in, ld, a, r, normed);
  for (; rows > 0; --rows, in += ld, ++r) prepare_some<1>(norm, in, ld, a, r, normed);
}
