// Attention to int8 keys and values that nobody keeps, as two products of bytes a head:
//   q       eight bits, one scale a row
//   k       less the mean of the sequence's keys, eight bits, one scale a key
//   score   their exact product times both scales and the attention's
//   p       2^((score - the greatest) / ln 2) in fifteen bits
//   v       eight bits, one scale a dimension over the keys of the sequence
//   out     the exact product of p and v times v's scale / the sum of p as rounded
// So a row's bits depend on its own sequence alone. A cycle has time for four times as many products as of bfloat16.
#include "byte_attention.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fp {

namespace {

constexpr int64_t kScoreBytes = 256 << 10;  // scores of the rows at hand: they stay in L2
constexpr int64_t kLeastRows = 16, kMostRows = 128;
constexpr int64_t kPartRows = 256;  // query rows below which no second thread packs the same keys
constexpr float kLog2E = 1.44269504f;

// The memory of a thread, for sequences of at most so many keys.
struct Layout {
  Layout(const Attention& a, int64_t keys, uint8_t* memory)
      : k{Format::Q8A, keys, a.layout.head_dim, nullptr}, v{Format::Q8C, a.layout.head_dim, keys, nullptr},
        rows(std::clamp(kScoreBytes / (keys * 4) / kLeastRows * kLeastRows, kLeastRows, kMostRows)),
        queries(activations_for(k, rows)), weights(activations_for(v, rows)), ld(round_up(keys, kPanel)) {
    int64_t at = 0;
    auto take = [&](int64_t bytes) {
      at += round_up(bytes, 64);
      return memory ? memory + at - round_up(bytes, 64) : nullptr;
    };
    k.data = take(k.bytes());
    v.data = take(v.bytes());
    queries.place(take(queries.bytes()));
    weights.place(take(weights.bytes()));
    scores = reinterpret_cast<float*>(take(rows * ld * 4));
    scratch = take(std::max({matmul_scratch(k.k), matmul_scratch(v.k), prepare_scratch(k.k)}));
    bytes = at;
  }

  Matrix k, v;
  int64_t rows;  // of queries at a time
  Activations queries, weights;
  int64_t ld;
  float* scores;  // [rows][ld]
  uint8_t* scratch;
  int64_t bytes;
};

}  // namespace

bool multiplies_bytes(const Attention& a) {
  return !a.keeps() && a.layout.type == KvType::INT8 && !a.causal && a.window == 0 && a.rotary_dim == 0 &&
         !a.changes_scores();
}

int64_t byte_attention_scratch(const Attention& a, const int32_t* key_starts, int64_t sequences) {
  int64_t most = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t keys = int64_t(key_starts[s + 1]) - key_starts[s];
    if (keys > kMostColumns) throw std::invalid_argument("attention of int8 keys adds up at most 131072 of them");
    if (keys > 0) most = std::max(most, Layout(a, keys, nullptr).bytes);
  }
  return most;
}

void byte_attention(const Kernels& kernels, const Attention& a, const Team& team) {
  const int64_t d = a.layout.head_dim, kv_heads = a.layout.kv_heads, group = a.heads / kv_heads;
  int64_t s = 0, first = 0, parts = 1;  // the sequence at hand, its first item, and the parts of each of its heads
  for (int64_t item; item = a.taken->fetch_add(1, std::memory_order_relaxed), true;) {
    int64_t rows = 0;
    for (; s < a.sequences; first += parts * kv_heads, ++s) {
      rows = int64_t(a.starts[s + 1]) - a.starts[s];
      parts = std::clamp<int64_t>(rows / kPartRows, 1, team.size);
      if (item < first + parts * kv_heads) break;
    }
    if (s == a.sequences) return;
    const int64_t kv_head = (item - first) / parts, part = (item - first) % parts;
    const int64_t key_rows = int64_t(a.key_starts[s + 1]) - a.key_starts[s];
    const int64_t first_head = kv_head * group, last_head = first_head + group;
    if (key_rows == 0) {  // rows that see nothing are zero
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r)
        std::memset(a.out + ((a.starts[s] + r) * a.heads + first_head) * d, 0, size_t(group * d * 4));
      continue;
    }
    Layout at(a, key_rows, team.scratch);
    const float* keys = a.kv + a.key_starts[s] * a.kv_ld + kv_head * d;
    kernels.pack_keys(keys, a.kv_ld, a.scale * kLog2E, at.k);
    kernels.pack_values(keys + kv_heads * d, a.kv_ld, at.v);
    for (int64_t head = first_head; head < last_head; ++head)
      for (int64_t r = rows * part / parts, end = rows * (part + 1) / parts; r < end; r += at.rows) {
        Activations queries = activations_for(at.k, std::min(at.rows, end - r));
        Activations weights = activations_for(at.v, queries.rows);
        queries.place(at.queries.planes);
        weights.place(at.weights.planes);
        const int64_t row = a.starts[s] + r;
        kernels.prepare({}, a.qkv + row * a.ld + head * d, a.ld, queries, 0, queries.rows, at.scratch);
        kernels.matmul(at.k, queries, 0, at.k.panels(), {Mode::Store, Act::None, nullptr, at.scores, at.ld}, at.scratch);
        for (int64_t i = 0; i < queries.rows; ++i) kernels.prepare_softmax(at.scores + i * at.ld, weights, i);
        float* out = a.out + (row * a.heads + head) * d;
        kernels.matmul(at.v, weights, 0, at.v.panels(), {Mode::Store, Act::None, nullptr, out, a.heads * d}, at.scratch);
      }
  }
}

}  // namespace fp
