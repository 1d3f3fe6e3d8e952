// Queries, keys and values on their way in: rotary, rounding, and the place of each element in the cache.

constexpr int kSpanRows = 32;     // most query rows that are computed together
constexpr int kMaxHeadDim = 1024;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The query rows of one KV head in one sequence that are computed together. Row r is flattened query row first + r:
// query (first + r) / group of the sequence, head (first + r) % group of the KV head's group.
struct Span {
  int64_t sequence, kv_head, first;
  int rows;
  int64_t page0, page1;               // pages that any row sees
  int64_t all_low, all_high;          // positions in [all_low, all_high) are visible to every row
  int64_t low[kSpanRows], high[kSpanRows];
};

inline int64_t group_of(const fp::Attention& a) { return a.heads / a.layout.kv_heads; }
inline int64_t query_rows(const fp::Attention& a, int64_t s) { return (a.starts[s + 1] - a.starts[s]) * group_of(a); }

inline Span make_span(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t first, int rows) {
  Span x;
  x.sequence = s, x.kv_head = kv_head, x.first = first, x.rows = rows;
  const int64_t group = group_of(a);
  int64_t query = first / group, member = first % group;
  for (int r = 0; r < rows; ++r) {
    x.high[r] = a.past[s] + query + 1;
    x.low[r] = a.window > 0 ? larger(0, x.high[r] - a.window) : 0;
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

// The K page of a head; its V page and (INT8) scales follow.
inline uint8_t* head_data(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t page) {
  return a.pool + a.tables[s * a.table_stride + page] * a.block_bytes +
         (a.layer * a.layout.kv_heads + kv_head) * a.layout.head_bytes();
}

// head_dim floats with zeros up to d_pad, the first rotary_dim of them rotated as row `row` of the batch.
inline void load_head(const fp::Attention& a, const float* in, bool rotate, int64_t row, float* out) {
  const int64_t d = a.layout.head_dim, d_pad = a.layout.d_pad(), half = a.rotary_dim / 2;
  for (int64_t i = 0; i < d_pad; i += 16) vstore(out + i, vload_n(in + i, int(larger(0, smaller(16, d - i)))));
  if (!rotate || half == 0) return;
  const float* cos = a.cos + a.positions[row] * half;
  const float* sin = a.sin + a.positions[row] * half;
  for (int64_t j = 0; j < half; j += 16) {
    const int n = int(smaller(16, half - j));
    V x = vload_n(in + j, n), y = vload_n(in + half + j, n), c = vload_n(cos + j, n), s = vload_n(sin + j, n);
    vstore_n(out + j, vfma(y, vsub(vzero(), s), vmul(x, c)), n);
    vstore_n(out + half + j, vfma(x, s, vmul(y, c)), n);
  }
}

// Row r of the span: rotated and multiplied by the score scale, d_pad floats.
inline void load_query(const fp::Attention& a, const Span& x, int r, float* out) {
  const int64_t group = group_of(a), row = a.starts[x.sequence] + (x.first + r) / group;
  const int64_t head = x.kv_head * group + (x.first + r) % group;
  load_head(a, a.qkv + row * a.ld + head * a.layout.head_dim, true, row, out);
  for (int64_t i = 0; i < a.layout.d_pad(); i += 16) vstore(out + i, vmul(vload(out + i), vset(a.scale)));
}

// Sixteen-bit elements of one position: K pairs go to 32-bit lanes 16 apart; V elements to every second place.
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

// Rows [begin, end) of sequence s into the cache of one KV head.
inline void append(const fp::Attention& a, int64_t s, int64_t kv_head, int64_t begin, int64_t end) {
  const fp::KvLayout& layout = a.layout;
  const int64_t d = layout.head_dim, d_pad = layout.d_pad(), page_bytes = layout.page_bytes();
  alignas(64) float k[kMaxHeadDim], v[kMaxHeadDim];
  alignas(64) uint16_t narrow[kMaxHeadDim];
  int8_t* bytes = reinterpret_cast<int8_t*>(narrow);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = a.starts[s] + i, slot = a.past[s] + i, o = slot % fp::kPage;
    const float* in = a.qkv + row * a.ld + (a.heads + kv_head) * d;
    load_head(a, in, true, row, k);
    load_head(a, in + layout.kv_heads * d, false, row, v);
    uint8_t* page = head_data(a, s, kv_head, slot / fp::kPage);
    if (layout.type == fp::KvType::F32) {
      float* keys = reinterpret_cast<float*>(page) + o / 16 * d_pad * 16 + o % 16;
      float* values = reinterpret_cast<float*>(page + page_bytes) + o * 16;
      for (int64_t j = 0; j < d_pad; ++j) keys[j * 16] = k[j];
      for (int64_t j = 0; j < d_pad; j += 16) vstore(values + j * fp::kPage, vload(v + j));
    } else if (layout.type == fp::KvType::BF16) {
      for (int64_t j = 0; j < d_pad; j += 16) vstore_bf16(narrow + j, vload(k + j));
      store_key(reinterpret_cast<uint32_t*>(page), narrow, o, d_pad);
      for (int64_t j = 0; j < d_pad; j += 16) vstore_bf16(narrow + j, vload(v + j));
      store_value(reinterpret_cast<uint16_t*>(page + page_bytes), narrow, o, d_pad);
    } else {
      float* scales = reinterpret_cast<float*>(page + 2 * page_bytes);
      scales[o] = quantise_head(k, d_pad, bytes);
      store_key(reinterpret_cast<uint16_t*>(page), bytes, o, d_pad);
      scales[fp::kPage + o] = quantise_head(v, d_pad, bytes);
      store_value(reinterpret_cast<int8_t*>(page + page_bytes), bytes, o, d_pad);
    }
  }
}
