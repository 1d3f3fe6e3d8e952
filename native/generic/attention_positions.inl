// Terms of scores between contents and relative positions (fp::PositionTerms), sixteen keys at a time: the vectors of
// their distances stand side by side. Each product sums over dimensions in the order of attention.inl's scores:
//   s = s + query * the position's key        the query multiplied by `scale` and rounded, as for the score
//   s = s + key * the position's query        the key as the page holds it; INT8: the product times k_scale

// Elements of the cache as floats: pairs of (even, odd), [16][2].
inline V load_even(const uint16_t* p) { return vload_bf16_even(p); }
inline V load_odd(const uint16_t* p) { return vload_bf16_odd(p); }
inline V load_even(const int8_t* p) { return vload_i8_even(p); }
inline V load_odd(const int8_t* p) { return vload_i8_odd(p); }

template <fp::KvType Type> struct Stored { using type = uint16_t; };
template <> struct Stored<fp::KvType::F32> { using type = float; };
template <> struct Stored<fp::KvType::INT8> { using type = int8_t; };

// The query q [d_pad] times the vectors `with`, from sixteen distances on.
template <fp::KvType Type>
inline V query_product(const float* q, const uint8_t* with, int64_t stride, int64_t d_pad) {
  V sum = vzero();
  if constexpr (Type == fp::KvType::F32) {
    const float* line = reinterpret_cast<const float*>(with);
    for (int64_t i = 0; i < d_pad; ++i, line += stride) sum = vfma(vset(q[i]), vload(line), sum);
  } else {
    const uint16_t* line = reinterpret_cast<const uint16_t*>(with);
    for (int64_t chunk = 0; chunk < d_pad; chunk += 32) {
      V even = vzero(), odd = vzero();
      for (int64_t i = chunk; i < chunk + 32; i += 2, line += 2 * stride) {
        even = vfma(vset(q[i]), load_even(line), even);
        odd = vfma(vset(q[i + 1]), load_odd(line), odd);
      }
      sum = vadd(sum, vadd(even, odd));
    }
  }
  return sum;
}

// Sixteen keys, a block of a K page, each times its own vector.
template <fp::KvType Type>
inline V key_product(const typename Stored<Type>::type* k, const uint8_t* with, int64_t stride, int64_t d_pad) {
  V sum = vzero();
  if constexpr (Type == fp::KvType::F32) {
    const float* line = reinterpret_cast<const float*>(with);
    for (int64_t i = 0; i < d_pad; ++i, k += 16, line += stride) sum = vfma(vload(k), vload(line), sum);
  } else {
    const uint16_t* line = reinterpret_cast<const uint16_t*>(with);
    for (int64_t chunk = 0; chunk < d_pad; chunk += 32) {
      V even = vzero(), odd = vzero();
      for (int64_t i = chunk; i < chunk + 32; i += 2, k += 32, line += 2 * stride) {
        even = vfma(load_even(k), load_even(line), even);
        odd = vfma(load_odd(k), load_odd(line), odd);
      }
      sum = vadd(sum, vadd(even, odd));
    }
  }
  return sum;
}

// The scores of row r, whose query is q [d_pad], for block b of a page, with their terms.
template <fp::KvType Type>
[[gnu::noinline]] V placed(const fp::Attention& a, const Span& x, int r, int64_t page, int b, const uint8_t* data,
                           const float* q, V s) {
  const fp::PositionTerms& p = a.positioned;
  if (!p.any()) return s;
  const int64_t d_pad = a.layout.d_pad(), stride = p.stride(), furthest = p.reach + fp::ScoreChanges::kBeyond;
  const int64_t ahead = larger(-furthest, smaller(page * fp::kPage + b * 16 - x.slot[r], p.reach));
  const int64_t at = (x.head[r] * d_pad * stride + (ahead + furthest) * (Type == fp::KvType::F32 ? 1 : 2)) *
                     (Type == fp::KvType::F32 ? 4 : 2);
  if (p.keys) s = vadd(s, query_product<Type>(q, p.keys + at, stride, d_pad));
  if (p.queries) {
    const auto* k = reinterpret_cast<const typename Stored<Type>::type*>(data) + b * 16 * d_pad;
    V product = key_product<Type>(k, p.queries + at, stride, d_pad);
    if (Type == fp::KvType::INT8)
      product = vmul(product, vload(reinterpret_cast<const float*>(data + 2 * a.layout.page_bytes()) + b * 16));
    s = vadd(s, product);
  }
  return s;
}
