// Queries, keys and values on their way in: rotary, rounding, and the place of each element in the cache.

constexpr int kSpanRows = 32;     // most query rows that are computed together
constexpr int kMaxHeadDim = 1024;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The query rows of one KV head in one sequence that are computed together. Row r is flattened query row first + r:
// query (first + r) / group of the sequence, head (first + r) % group of the KV head's group.
struct Span {
  int64_t sequence, kv_head;
  int rows;
  int64_t page0, page1;               // pages that any row sees
  int64_t all_low, all_high;          // positions in [all_low, all_high) are visible to every row
  int64_t low[kSpanRows], high[kSpanRows];
  int64_t slot[kSpanRows];            // the query's place among its sequence's keys; of Source: among the queries
  int64_t row[kSpanRows];             // its place in the batch
  int64_t head[kSpanRows];            // the query head
};

inline int64_t group_of(const fp::Attention& a) { return a.heads / a.layout.kv_heads; }
inline int64_t query_rows(const fp::Attention& a, int64_t s) { return (a.starts[s + 1] - a.starts[s]) * group_of(a); }

// Cache slots of the sequence before its rows, and how many keys there are for them in all.
inline int64_t past_of(const fp::Attention& a, int64_t s) { return a.keys == fp::Keys::Cached ? a.past[s] : 0; }
inline int64_t keys_of(const fp::Attention& a, int64_t s) {
  return a.keys == fp::Keys::Source ? a.sources[s] : past_of(a, s) + a.key_starts[s + 1] - a.key_starts[s];
}

inline Span make_span(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t first, int rows) {
  Span x;
  x.sequence = s, x.kv_head = kv_head, x.rows = rows;
  const int64_t group = group_of(a), past = past_of(a, s), keys = keys_of(a, s);
  int64_t query = first / group, member = first % group;
  for (int r = 0; r < rows; ++r) {
    x.slot[r] = past + query;
    x.row[r] = a.starts[s] + query;
    x.low[r] = a.window > 0 ? larger(0, x.slot[r] + 1 - a.window) : 0;
    x.high[r] = a.causal ? x.slot[r] + 1 : a.window > 0 ? smaller(keys, x.slot[r] + a.window) : keys;
    x.head[r] = kv_head * group + member;
    if (++member == group) member = 0, ++query;
  }
  x.page0 = x.low[0] / fp::kPage;
  x.page1 = (x.high[rows - 1] + fp::kPage - 1) / fp::kPage;
  x.all_low = x.low[rows - 1];
  x.all_high = x.high[0];
  return x;
}

inline bool all_visible(const Span& x, int64_t page) {
  return page * fp::kPage >= x.all_low && (page + 1) * fp::kPage <= x.all_high;
}

// The positions of a page, counted from its beginning, outside of which no row sees any: from the beginning of a block of
// 16 to an even number. Nothing else of a page needs to be computed.
struct Seen {
  int begin, end;
  int first_block() const { return begin / 16; }
  int end_block() const { return (end + 15) / 16; }
};
inline Seen seen_of(const Span& x, int64_t page) {
  const int64_t low = x.low[0] - page * fp::kPage, high = x.high[x.rows - 1] - page * fp::kPage;
  return {int(larger(0, low)) / 16 * 16, int(smaller(fp::kPage, (high + 1) / 2 * 2))};
}

// Where the pages of a KV head of a sequence lie: its K page; its V page and (INT8) scales follow.
struct Pages {
  uint8_t* base;
  int64_t bytes;         // from one to the next
  const int32_t* table;  // their numbers, null = in order
  uint8_t* operator()(int64_t page) const { return base + (table ? table[page] : page) * bytes; }
};
inline Pages cached_pages(const fp::Attention& a, int64_t s, int64_t kv_head) {
  return {a.pool + (a.layer * a.layout.kv_heads + kv_head) * a.layout.head_bytes(), a.block_bytes,
          a.tables + s * a.table_stride};
}

// head_dim floats with zeros up to d_pad.
inline void load_head(const fp::Attention& a, const float* in, float* out) {
  const int64_t d = a.layout.head_dim, d_pad = a.layout.d_pad();
  int64_t i = 0;
  for (; i + 16 <= d; i += 16) vstore(out + i, vload(in + i));
  for (; i < d_pad; i += 16) vstore(out + i, vload_n(in + i, int(larger(0, d - i))));
}

// Rotates the first rotary_dim floats of a head as a sequence's position.
inline void rotate(const fp::Attention& a, int64_t s, int64_t position, float* head) {
  const int64_t half = a.rotary_dim / 2;
  if (half == 0) return;
  const float *cos = a.turns[s].cos + position * half, *sin = a.turns[s].sin + position * half;
  for (int64_t j = 0; j < half; j += 16) {
    const int n = int(smaller(16, half - j));
    V x = vload_n(head + j, n), y = vload_n(head + half + j, n), c = vload_n(cos + j, n), d = vload_n(sin + j, n);
    vstore_n(head + j, vfma(y, vsub(vzero(), d), vmul(x, c)), n);
    vstore_n(head + half + j, vfma(x, d, vmul(y, c)), n);
  }
}

// Row r of the span, rotated: d_pad floats, still to be multiplied by `scale`.
inline void load_query(const fp::Attention& a, const Span& x, int r, float* out) {
  load_head(a, a.qkv + x.row[r] * a.ld + x.head[r] * a.layout.head_dim, out);
  if (a.rotary_dim > 0) rotate(a, x.sequence, a.positions[x.row[r]], out);
}

// The key of a batch row as it is cached.
inline void load_key_row(const fp::Attention& a, int64_t s, int64_t row, const float* in, float* out) {
  load_head(a, in, out);
  if (a.rotary_dim > 0 && !a.rotate_on_read) rotate(a, s, a.positions[row], out);
}

// One position of a page: pairs of K dimensions lie 16 pairs apart, V dimensions at every second place.
template <class Pair, class Element>
inline void store_key(Pair* page, const Element* k, int64_t o, int64_t d_pad) {
  Pair* to = page + o / 16 * (d_pad / 2) * 16 + o % 16;
  for (int64_t i = 0; i < d_pad / 2; ++i) std::memcpy(to + i * 16, k + 2 * i, sizeof(Pair));
}
template <class Element>
inline void store_value(Element* page, const Element* v, int64_t o, int64_t d_pad) {
  for (int64_t b = 0; b < d_pad / 16; ++b) {
    Element* to = page + (b * 32 + o / 2) * 32 + o % 2;
    for (int i = 0; i < 16; ++i) to[2 * i] = v[b * 16 + i];
  }
}
// Positions o (even) and o + 1 at once: whole lines.
template <class Element>
inline void store_value_pair(Element* page, const Element* v, const Element* w, int64_t o, int64_t d_pad) {
  for (int64_t b = 0; b < d_pad / 16; ++b) {
    Element* to = page + (b * 32 + o / 2) * 32;
    for (int i = 0; i < 16; ++i) to[2 * i] = v[b * 16 + i], to[2 * i + 1] = w[b * 16 + i];
  }
}

// x as int8 and the scale it was divided by: the largest magnitude becomes 127.
inline float quantise_head(const float* x, int64_t d_pad, int8_t* out) {
  V most = vzero();
  for (int64_t i = 0; i < d_pad; i += 16) most = vmax(most, vabs(vload(x + i)));
  const float amax = reduce_max(most);
  const bool tiny = amax < 1e-30f;  // 127 / amax would overflow
  const V inverse = vset(tiny ? 0.0f : 127.0f / amax);
  for (int64_t i = 0; i < d_pad; i += 16) istore_i8(out + i, vround_i32(vmul(vload(x + i), inverse)));
  return tiny ? 0.0f : amax / 127.0f;
}

inline float narrow_head(const float* x, int64_t d_pad, int8_t* out) { return quantise_head(x, d_pad, out); }
inline float narrow_head(const float* x, int64_t d_pad, uint16_t* out) {
  for (int64_t i = 0; i < d_pad; i += 16) vstore_bf16(out + i, vload(x + i));
  return 1.0f;
}

// Rows [begin, end) of sequence s into the pages of one KV head, BF16 (Element uint16_t) or INT8 (int8_t).
template <class Element, class Pair>
inline void append_narrow(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t begin, int64_t end,
                          const Pages& pages) {
  const int64_t d = a.layout.head_dim, d_pad = a.layout.d_pad(), page_bytes = a.layout.page_bytes();
  alignas(64) float x[kMaxHeadDim];
  alignas(64) Element k[kMaxHeadDim], v[2][kMaxHeadDim];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = a.key_starts[s] + i, slot = past_of(a, s) + i, o = slot % fp::kPage;
    const float* in = a.kv + row * a.kv_ld + kv_head * d;
    uint8_t* page = pages(slot / fp::kPage);
    Element* values = reinterpret_cast<Element*>(page + page_bytes);
    float* scales = reinterpret_cast<float*>(page + 2 * page_bytes);
    load_key_row(a, s, row, in, x);
    const float k_scale = narrow_head(x, d_pad, k);
    store_key(reinterpret_cast<Pair*>(page), k, o, d_pad);
    load_head(a, in + a.layout.kv_heads * d, x);
    const float v_scale = narrow_head(x, d_pad, v[o % 2]);
    if (a.layout.type == fp::KvType::INT8) scales[o] = k_scale, scales[fp::kPage + o] = v_scale;
    if (o % 2 == 1 && i > begin) store_value_pair(values, v[0], v[1], o - 1, d_pad);
    else if (o % 2 == 1 || i + 1 == end) store_value(values, v[o % 2], o, d_pad);
  }
}

inline void append_float(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t begin, int64_t end,
                         const Pages& pages) {
  const int64_t d = a.layout.head_dim, d_pad = a.layout.d_pad();
  alignas(64) float x[kMaxHeadDim];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = a.key_starts[s] + i, slot = past_of(a, s) + i, o = slot % fp::kPage;
    const float* in = a.kv + row * a.kv_ld + kv_head * d;
    float* keys = reinterpret_cast<float*>(pages(slot / fp::kPage));
    float* values = keys + fp::kPage * d_pad + o * 16;
    keys += o / 16 * d_pad * 16 + o % 16;
    load_key_row(a, s, row, in, x);
    for (int64_t j = 0; j < d_pad; ++j) keys[j * 16] = x[j];
    load_head(a, in + a.layout.kv_heads * d, x);
    for (int64_t j = 0; j < d_pad; j += 16) vstore(values + j * fp::kPage, vload(x + j));
  }
}

// Sixteen positions of a page at once, F32 or BF16, from position o on: rows [first, first + n) of sequence s, and zeros.
template <bool Float>
inline void append_block(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t first, int n, int64_t o,
                         uint8_t* page) {
  const int64_t d = a.layout.head_dim, d_pad = a.layout.d_pad(), row = a.key_starts[s] + first;
  const float* in = a.kv + row * a.kv_ld + kv_head * d;
  alignas(64) float x[16 * kMaxHeadDim];
  for (int r = 0; r < n; ++r) load_key_row(a, s, row + r, in + r * a.kv_ld, x + r * d_pad);
  // A line of keys is one dimension (BF16: a pair of them) of sixteen positions.
  constexpr int kDims = Float ? 16 : 32;
  float* keys = reinterpret_cast<float*>(page) + o * d_pad / (kDims / 16);
  for (int64_t i = 0; i < d_pad; i += kDims, keys += 256) {
    V lines[16];
    for (int r = 0; r < 16; ++r) lines[r] = r < n && Float ? vload(x + r * d_pad + i) : vzero();
    if constexpr (!Float) {
      alignas(64) uint16_t pairs[16][32];
      for (int r = 0; r < n; ++r) {
        vstore_bf16(pairs[r], vload(x + r * d_pad + i));
        vstore_bf16(pairs[r] + 16, vload(x + r * d_pad + i + 16));
      }
      for (int r = 0; r < n; ++r) lines[r] = vload(reinterpret_cast<const float*>(pairs[r]));
    }
    vtranspose(lines);
    for (int j = 0; j < 16; ++j) vstore(keys + j * 16, lines[j]);
  }
  // A line of values is sixteen dimensions of one position (BF16: of a pair of them).
  in += a.layout.kv_heads * d;
  float* values = reinterpret_cast<float*>(page + a.layout.page_bytes());
  for (int64_t i = 0; i < d_pad; i += 16) {
    const int left = int(larger(0, smaller(16, d - i)));
    auto value = [&](int r) { return r < n ? vload_n(in + r * a.kv_ld + i, left) : vzero(); };
    if constexpr (Float) {
      for (int r = 0; r < 16; ++r) vstore(values + (i / 16 * fp::kPage + o + r) * 16, value(r));
    } else {
      int32_t* to = reinterpret_cast<int32_t*>(values) + (i / 16 * 32 + o / 2) * 16;
      for (int r = 0; r < 16; r += 2) istore(to + r * 8, bf16_pairs(value(r), value(r + 1)));
    }
  }
}

// Rows [begin, end) of sequence s into the pages of one KV head. Blocks of sixteen positions are written as wholes where
// the rows fill them, or nobody else has a place in them.
inline void append(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t begin, int64_t end,
                   const Pages& pages) {
  for (int64_t i = begin, n; i < end; i += n) {
    const int64_t slot = past_of(a, s) + i, o = slot % fp::kPage;
    n = smaller(end - i, 16 - o % 16);
    const bool whole = n == 16 || !a.keeps();
    switch (a.layout.type) {
      case fp::KvType::F32:
        if (whole) append_block<true>(a, s, kv_head, i, int(n), o, pages(slot / fp::kPage));
        else append_float(a, s, kv_head, i, i + n, pages);
        break;
      case fp::KvType::BF16:
        if (whole) append_block<false>(a, s, kv_head, i, int(n), o, pages(slot / fp::kPage));
        else append_narrow<uint16_t, uint32_t>(a, s, kv_head, i, i + n, pages);
        break;
      case fp::KvType::INT8: append_narrow<int8_t, uint16_t>(a, s, kv_head, i, i + n, pages);
    }
  }
}

inline float widen(uint16_t stored) { return fp::bf16_to_f32(stored); }
inline float widen(int8_t stored) { return float(stored); }

// Copies the keys of a page, rotated as their slots' positions, into `to`: what a cache of rotated keys would hold,
// rounded once more. Only the first `count` positions; the others may be anything, nobody sees them.
template <class Element, class Pair>
inline void rotate_narrow_keys(const fp::Attention& a, int64_t s, int64_t page, int64_t count, const uint8_t* from,
                               uint8_t* to) {
  const int64_t d_pad = a.layout.d_pad(), page_bytes = a.layout.page_bytes();
  const bool scaled = a.layout.type == fp::KvType::INT8;
  const float* scales = reinterpret_cast<const float*>(from + 2 * page_bytes);
  float* new_scales = reinterpret_cast<float*>(to + 2 * page_bytes);
  alignas(64) float x[kMaxHeadDim];
  alignas(64) Element k[kMaxHeadDim];
  for (int64_t o = 0; o < count; ++o) {
    const Element* keys = reinterpret_cast<const Element*>(from) + o / 16 * d_pad * 16 + o % 16 * 2;
    for (int64_t j = 0; j < d_pad; ++j) x[j] = widen(keys[j / 2 * 32 + j % 2]) * (scaled ? scales[o] : 1.0f);
    rotate(a, s, page * fp::kPage + o, x);
    const float scale = narrow_head(x, d_pad, k);
    store_key(reinterpret_cast<Pair*>(to), k, o, d_pad);
    if (scaled) new_scales[o] = scale;
  }
}

inline void rotate_float_keys(const fp::Attention& a, int64_t s, int64_t page, int64_t count, const uint8_t* from,
                              uint8_t* to) {
  const int64_t d_pad = a.layout.d_pad();
  alignas(64) float x[kMaxHeadDim];
  for (int64_t o = 0; o < count; ++o) {
    const int64_t at = o / 16 * d_pad * 16 + o % 16;
    const float* keys = reinterpret_cast<const float*>(from) + at;
    float* rotated = reinterpret_cast<float*>(to) + at;
    for (int64_t j = 0; j < d_pad; ++j) x[j] = keys[j * 16];
    rotate(a, s, page * fp::kPage + o, x);
    for (int64_t j = 0; j < d_pad; ++j) rotated[j * 16] = x[j];
  }
}

inline void rotate_keys(const fp::Attention& a, int64_t s, int64_t page, const uint8_t* from, uint8_t* to) {
  const int64_t context = a.past[s] + a.starts[s + 1] - a.starts[s];
  const int64_t count = smaller(fp::kPage, context - page * fp::kPage);
  switch (a.layout.type) {
    case fp::KvType::F32: rotate_float_keys(a, s, page, count, from, to); break;
    case fp::KvType::BF16: rotate_narrow_keys<uint16_t, uint32_t>(a, s, page, count, from, to); break;
    case fp::KvType::INT8: rotate_narrow_keys<int8_t, uint16_t>(a, s, page, count, from, to); break;
  }
  asm volatile("" ::: "memory");  // tile loads do not say that they read memory
}
