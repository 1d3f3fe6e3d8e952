// The vocabulary of the native layer: matrix formats, activations, and the table of kernels that each
// instruction set fills. native/scalar.cpp is complete and is the definition; the other files override entries.
//
// Exactness: every entry gives the same bits on every instruction set, for any number of rows and threads.
//  - integer dot products are exact, so their order is free;
//  - float sums have one order, fixed by layout: matrix products run along k for each output, reductions over
//    one row use 16 lanes (element i goes to lane i % 16) and then the tree in simd `reduce_add`;
//  - every multiply-add that may be fused is an explicit fma; files are compiled with -ffp-contract=off;
//  - subnormals are flushed while a program runs (DenormalGuard), as the AMX unit does.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fp {

constexpr int kPanel = 16;   // outputs in one panel of a matrix: one per 32-bit vector lane
constexpr int kGroup = 32;   // columns that share a scale (some formats: half of them)
constexpr int kSummed = 16;  // columns whose activations have a sum of their own
constexpr int kBlockK = 64;  // every matrix is padded to a multiple of this many columns
constexpr int kPage = 64;    // positions in one block of the KV cache

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// ---------------------------------------------------------------- weights
// A matrix [n, k] is cut into panels of 16 outputs (rows of the matrix, one a lane), each panel one contiguous
// stream along k. Padding rows and columns are zero. After the panels come float row_scale[n_pad], where the format
// has one.
//   F32   [k][16] float
//   F16   [k][16] half                      computed as float32
//   BF16  [k/2][16][2] bfloat16             activations rounded to bfloat16; AMX B tile
//   Q8C   per 64 columns 16 lines; line j, lane o, byte b: column 4j+b, stored q + 128.
//         weight = q * row_scale
//   Q8A   the bytes of Q8C, multiplied with activations of eight bits
//   Q8    per 64 columns 16 lines as Q8C, then half d[2][16] (a scale per 32 columns).   weight = q * d
//   Q16   per 64 columns 16 pairs of lines: pair j has the high bytes (signed), then the low ones (unsigned) of int16
//         weights; lane o, byte b: column 4j+b as in Q8C.  weight = w * row_scale
// and the levels, q of four to six bits with integer scales (Levels says which format has what):
//   Q4, Q4H, Q5, Q5M, Q6   per 32 columns 4 lines of nibbles, lines of high bits, scales.
//         Nibbles: line j, lane o, byte b: low nibble is column 8j+b, high nibble is column 8j+4+b.
//         High bits: column 4v+b has its h = 1 or 2 bits in line h v / 8, lane o, byte b, from bit (h v + 4) % 8 on:
//         where a kernel wants them, after shifts by h from each v to the next.
//         Scales: for each `span` columns {int16 D, int16 M}[16], or int16 D[16] where there is no M.
//         weight = (D * (q - zero) + M) * row_scale, and D * (q - zero) + M fits int16
//         Q5 gathers the scales of 64 columns behind the lines of both halves, so that all lines are whole.
enum class Format : int {
  F32 = 0, F16 = 1, BF16 = 2, Q4 = 3, Q8 = 4, Q8A = 5, Q8C = 6, Q4H = 7, Q5 = 8, Q5M = 9, Q6 = 10, Q16 = 11
};
constexpr int kFormats = 12;
constexpr const char* kFormatNames[kFormats] = {"F32", "F16", "BF16", "Q4", "Q8", "Q8A", "Q8C",
                                                "Q4H", "Q5", "Q5M", "Q6", "Q16"};

constexpr bool is_integer(Format f) { return f >= Format::Q4; }
constexpr bool has_row_scale(Format f) { return is_integer(f) && f != Format::Q8; }
// Whether a product takes the sums of runs of columns; the other integer formats take those of whole rows at most.
constexpr bool needs_sums(Format f) {
  return is_integer(f) && f != Format::Q8A && f != Format::Q8C && f != Format::Q16;
}
// The most columns of a format with exact sums: k products of at most 128 * 127 (Q8C), or k roundings of the scales
// (pack.cpp), must leave room below 2^31.
constexpr int64_t kMostColumns = 131072;

struct Levels {
  int bits = 0;   // of q; 0: the format is none of these
  int span = 0;   // columns that share D and M: 32 or 16
  bool minimum = false;  // has M
  constexpr int zero() const { return 1 << (bits - 1); }
  constexpr int high_bits() const { return bits - 4; }
  constexpr int lines() const { return 4 + high_bits(); }  // of 32 columns
  constexpr int scales_bytes() const { return 32 / span * (minimum ? 64 : 32); }
  constexpr int bytes() const { return lines() * 64 + scales_bytes(); }
  constexpr bool gathered() const { return scales_bytes() % 64 != 0; }
  // Where the lines and the scales of a half (0, 1) of 64 columns begin.
  constexpr int lines_at(int half) const { return half * (gathered() ? lines() * 64 : bytes()); }
  constexpr int scales_at(int half) const {
    return gathered() ? lines() * 128 + half * scales_bytes() : half * bytes() + lines() * 64;
  }
};
constexpr Levels levels(Format f) {
  switch (f) {
    case Format::Q4: return {4, 32, true};
    case Format::Q4H: return {4, 16, true};
    case Format::Q5: return {5, 32, false};
    case Format::Q5M: return {5, 32, true};
    case Format::Q6: return {6, 16, false};
    default: return {};
  }
}
constexpr bool is_levels(Format f) { return levels(f).bits > 0; }

// Bytes that 64 columns of one panel take.
constexpr int64_t block_bytes(Format f) {
  switch (f) {
    case Format::F32: return 64 * 16 * 4;
    case Format::F16:
    case Format::BF16:
    case Format::Q16: return 64 * 16 * 2;
    case Format::Q8: return 1024 + 64;
    case Format::Q8A:
    case Format::Q8C: return 1024;
    default: return 2 * levels(f).bytes();
  }
}

struct Matrix {
  Format format;
  int64_t n, k;          // outputs, inputs
  const uint8_t* data;   // 64-byte aligned

  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t k_pad() const { return round_up(k, kBlockK); }
  int64_t panel_bytes() const { return k_pad() / kBlockK * block_bytes(format); }
  const uint8_t* panel(int64_t p) const { return data + p * panel_bytes(); }
  const float* row_scale() const { return reinterpret_cast<const float*>(data + panels() * panel_bytes()); }
  int64_t bytes() const { return panels() * panel_bytes() + (has_row_scale(format) ? panels() * kPanel * 4 : 0); }
};

// ---------------------------------------------------------------- activations
// What a matrix product reads: rows of k values in the form its format wants.
//   Int15, most integer formats: one scale a row, x = scale * (128 * hi + lo), hi in [-127, 127], lo in [-64, 63].
//   Int8, Q8A: one scale a row, x = scale * q, q in [-127, 127].
//   BF16: rounded to nearest even.   F32, F16: as they are.
// Rows stand in tiles of `height` rows: height = min(16, rows); what stands in the padding rows of the last is nobody's.
//   Int15    planes: int8  [tile][k_pad/64][2 (hi, lo)][height][64]
//            sums:   int32 [2 (hi, lo)][rows_pad][k_pad/16]     sums of each 16 columns, if `summed`
//            offsets: int32 [rows_pad][2 (hi, lo)]              -128 times the sum of a whole row: takes back what
//                     stored bytes q + 128 add to a product
//            scale:  float [rows_pad]
//   Int8     planes: int8  [tile][k_pad/64][height][64];  offsets: int32 [rows_pad];  scale as above
//   BF16     planes: uint16 [tile][k_pad/32][height][32]
//   float    planes: float [rows_pad][k_pad]
enum class ActKind : int { Float = 0, Bf16 = 1, Int15 = 2, Int8 = 3 };
constexpr ActKind act_kind(Format f) {
  return f == Format::Q8A ? ActKind::Int8 : is_integer(f) ? ActKind::Int15
         : f == Format::BF16 ? ActKind::Bf16 : ActKind::Float;
}

struct Activations {
  ActKind kind = ActKind::Float;
  bool summed = false;
  int64_t rows = 0, k = 0;
  uint8_t* planes = nullptr;
  int32_t* sums = nullptr;
  int32_t* offsets = nullptr;
  float* scale = nullptr;

  int64_t height() const { return rows < 16 ? rows : 16; }
  int64_t tiles() const { return (rows + 15) / 16; }
  int64_t rows_pad() const { return tiles() * height(); }
  int64_t k_pad() const { return round_up(k, kBlockK); }
  bool integer() const { return kind >= ActKind::Int15; }
  int64_t int_planes() const { return kind == ActKind::Int15 ? 2 : 1; }  // of an integer kind
  int64_t tile_bytes() const {
    return height() * k_pad() * (kind == ActKind::Float ? 4 : kind == ActKind::Int8 ? 1 : 2);
  }
  int8_t* block(int64_t tile, int64_t kb, int plane) const {  // integer kinds: [height][64]
    return reinterpret_cast<int8_t*>(planes) + tile * tile_bytes() + (kb * int_planes() + plane) * height() * 64;
  }
  uint16_t* block16(int64_t tile, int64_t kb32) const {  // Bf16: [height][32]
    return reinterpret_cast<uint16_t*>(planes + tile * tile_bytes()) + kb32 * height() * 32;
  }
  float* row(int64_t r) const { return reinterpret_cast<float*>(planes) + r * k_pad(); }  // Float
  int64_t sums_of_row() const { return k_pad() / kSummed; }
  int32_t* row_sums(int plane, int64_t r) const { return sums + (plane * rows_pad() + r) * sums_of_row(); }
  int32_t* row_offsets(int64_t r) const { return offsets + r * int_planes(); }

  int64_t planes_bytes() const { return tiles() * tile_bytes(); }
  int64_t sums_bytes() const { return summed ? 2 * rows_pad() * sums_of_row() * 4 : 0; }
  int64_t offsets_bytes() const { return integer() ? int_planes() * rows_pad() * 4 : 0; }
  int64_t scale_bytes() const { return integer() ? rows_pad() * 4 : 0; }
  // All of it in one memory, 64-byte aligned pieces.
  int64_t bytes() const {
    return round_up(planes_bytes(), 64) + round_up(sums_bytes(), 64) + round_up(offsets_bytes(), 64) +
           round_up(scale_bytes(), 64);
  }
  void place(uint8_t* memory) {
    auto take = [&memory](int64_t size) {
      uint8_t* piece = memory;
      if (memory) memory += round_up(size, 64);
      return piece;
    };
    planes = take(planes_bytes());
    sums = reinterpret_cast<int32_t*>(take(sums_bytes()));
    offsets = reinterpret_cast<int32_t*>(take(offsets_bytes()));
    scale = reinterpret_cast<float*>(take(scale_bytes()));
  }
};

// What products with `w` read, not placed yet. Products that share it must want the same kind.
inline Activations activations_for(const Matrix& w, int64_t rows) {
  Activations a;
  a.kind = act_kind(w.format);
  a.summed = needs_sums(w.format);
  a.rows = rows;
  a.k = w.k;
  return a;
}
inline Activations activations_for(const Matrix& w, const Matrix& other, int64_t rows) {
  Activations a = activations_for(w, rows);
  a.summed = a.summed || needs_sums(other.format);
  return a;
}

// ---------------------------------------------------------------- elementwise
enum class Act : int { None = 0, Silu = 1, GeluTanh = 2, GeluErf = 3, Relu = 4, QuickGelu = 5, Tanh = 6 };
constexpr int kActs = 7;
enum class NormKind : int { None = 0, Rms = 1, Layer = 2, Scale = 3 };  // Scale: no statistics
constexpr int kNorms = 4;

struct Norm {
  NormKind kind = NormKind::None;
  float eps = 0;
  const float* weight = nullptr;  // null: 1
  const float* bias = nullptr;    // null: 0
};

// What happens to y = W x for each output, in this order: y += bias, then
//   Store: out = act(y)    Add: out = out + y    Gate: out = act(y) * out
enum class Mode : int { Store = 0, Add = 1, Gate = 2 };
struct Epilogue {
  Mode mode = Mode::Store;
  Act act = Act::None;
  const float* bias = nullptr;  // float [n] or null
  float* out = nullptr;         // out[r * ld + o], o < n
  int64_t ld = 0;
};

// ---------------------------------------------------------------- attention
enum class KvType : int { F32 = 0, BF16 = 1, INT8 = 2 };

// One KV block holds 64 positions of every head, in all layers that share the pool. Head h of their layer l lies at
//   pool + block * block_bytes + (l * kv_heads + h) * head_bytes, and holds a K page, then a V page.
// d_pad = head_dim rounded up to 32; padding dimensions are zero.
//   BF16  K: [4 (16 positions)][d_pad/2][16 positions][2 dims]   an AMX B tile per 16 positions x 32 dims
//         V: [d_pad/16][32 (pairs of positions)][16 dims][2 positions]   a B tile per 16 dims x 32 positions
//   F32   K: [4][d_pad][16 positions] float        V: [d_pad/16][64 positions][16 dims] float
//   INT8  K, V as BF16 with int8 elements (32 bytes a line), then float k_scale[64], v_scale[64].
struct KvLayout {
  KvType type;
  int64_t kv_heads, head_dim;
  int64_t d_pad() const { return round_up(head_dim, 32); }
  int64_t element() const { return type == KvType::F32 ? 4 : type == KvType::BF16 ? 2 : 1; }
  int64_t page_bytes() const { return kPage * d_pad() * element(); }
  int64_t head_bytes() const { return 2 * page_bytes() + (type == KvType::INT8 ? 2 * kPage * 4 : 0); }
};

// Where the cos and sin of a sequence's positions stand, [positions][rotary_dim / 2] each.
struct Turns {
  const float *cos, *sin;
};

// What is done to the scores of a model that has it (generic/attention_scores.inl): soft-capping, ALiBi, a bias by
// relative position. The arrays are null where it has not.
struct ScoreChanges {
  static constexpr int64_t kBeyond = 15;  // so that any sixteen keys find their biases side by side
  float softcap = 0;
  const float* slopes = nullptr;  // [heads]
  const float* bias = nullptr;    // [heads][stride], by key - query from -reach - kBeyond to reach + kBeyond; beyond
  int64_t reach = 0;              // reach all are the same
  int64_t stride() const { return 2 * (reach + kBeyond) + 1; }
  bool any() const { return softcap > 0 || slopes || bias; }
};

// Terms between contents and relative positions (disentangled attention, generic/attention_positions.inl). Vectors stand by
// distance, key - query from -reach - kBeyond to reach + kBeyond; beyond reach all are the same.
//   BF16, INT8  [heads][d_pad/2][stride][2 dims] bfloat16        F32  [heads][d_pad][stride] float
struct PositionTerms {
  int64_t reach = 0;
  const uint8_t* keys = nullptr;     // that queries meet, null = none
  const uint8_t* queries = nullptr;  // that keys meet, multiplied by the attention's scale, null = none
  int64_t stride() const { return 2 * (reach + ScoreChanges::kBeyond) + 1; }
  bool any() const { return keys || queries; }
};

// Whose keys and values the rows of a sequence see.
//   Cached   those of its own rows, which take the cache's slots past[s] + i
//   Own      those of its own rows, which nobody keeps
//   Source   those of another text, in the cache's first sources[s] slots: all of them
//   Context  those of other rows, which nobody keeps: all of them
enum class Keys : int { Cached = 0, Own = 1, Source = 2, Context = 3 };

// One layer's attention over a packed batch. Rows of sequence s: [starts[s], starts[s+1]).
struct Attention {
  Keys keys;
  bool causal;                // of Cached and Own: a row sees the rows before it and itself (the last `window` of them if
                              // window > 0), else all (those less than `window` away on either side)
  KvLayout layout;
  int64_t heads;              // query heads; heads % kv_heads == 0; head h reads kv head h / (heads / kv_heads)
  int64_t layer;
  float scale;
  int64_t window;             // 0 = none
  int64_t rotary_dim;         // 0 = none; pairs (j, j + rotary_dim / 2)
  const Turns* turns;         // [sequences]
  bool rotate_on_read;        // keys are cached unrotated, and rotated by their slot when they are read
  ScoreChanges changes;
  PositionTerms positioned;
  uint8_t* pool;
  int64_t block_bytes;
  int64_t sequences;
  const int32_t* starts;
  const int32_t* past;        // Cached
  const int32_t* sources;     // Source
  const int32_t* tables;      // [sequences][table_stride]; of keys in a cache
  int64_t table_stride;
  const int32_t* positions;   // [rows], for rotary
  const float* qkv;           // [rows][ld]: q heads
  int64_t ld;
  const float* kv;            // [rows of keys][kv_ld]: k heads, then v heads; not of Source
  int64_t kv_ld;
  const int32_t* key_starts;  // [sequences + 1]: where the new keys of each sequence begin; not of Source
  float* out;                 // [rows][heads * head_dim]
  std::atomic<int64_t>* taken;  // zero before the first thread begins: items of work that threads took
  bool keeps() const { return keys == Keys::Cached || keys == Keys::Source; }  // keys lie in a cache
  bool changes_scores() const { return changes.any() || positioned.any(); }
};

// A thread's view of the team that runs a program: its number, a barrier, and scratch memory of its own.
struct Team {
  int tid, size;
  void* shared;                                // the pool's barrier state
  void (*barrier_fn)(void* shared, int tid);
  uint8_t* scratch;                            // 64-byte aligned, private to the thread
  int64_t scratch_bytes;
  uint8_t* common;                             // 64-byte aligned, one for all threads of the team
  int64_t common_bytes;
  void barrier() const { if (size > 1) barrier_fn(shared, tid); }
};

// ---------------------------------------------------------------- the table
struct Kernels {
  const char* name;
  // y = W x for all rows of x and the panels [p0, p1) of w. scratch: at least matmul_scratch(k) bytes, private.
  void (*matmul)(const Matrix& w, const Activations& x, int64_t p0, int64_t p1, const Epilogue& e, uint8_t* scratch);
  // Norm (or copy) of `rows` rows of k floats, ld apart, then into the rows of `x` from r on (planes, sums, offsets, scale;
  // zero padding columns). scratch: prepare_scratch(k) bytes.
  void (*prepare)(const Norm& norm, const float* in, int64_t ld, Activations& x, int64_t r, int64_t rows,
                  uint8_t* scratch);
  // Norm of rows of k floats into floats; out may be in.
  void (*norm)(const Norm& norm, const float* in, int64_t in_ld, float* out, int64_t out_ld, int64_t k, int64_t rows);
  // Row `row` of w, dequantised, into out[k].
  void (*lookup)(const Matrix& w, int64_t row, float* out);
  // out[i] += scale * x[i], rounded after the product and after the sum.
  void (*add)(float* out, const float* x, float scale, int64_t k);
  // Rows of k floats: out = in * (1 + scale) + shift, the sum 1 + scale rounded, then one fma; out may be in.
  void (*modulate)(const float* in, int64_t in_ld, float* out, int64_t out_ld, const float* shift, const float* scale,
                   int64_t k, int64_t rows);
  // out[i] = fma(gate[i], x[i], out[i]).
  void (*add_gated)(float* out, const float* x, const float* gate, int64_t k);
  // out[i] = act(in[i]); out may be in.
  void (*activate)(Act act, const float* in, float* out, int64_t n);
  // One layer's attention, run by every thread of the team together (it calls team.barrier()).
  void (*attention)(const Attention& a, const Team& team);
  // Keys and values of all rows into the cache's slots past[s] + i: of an Attention that has no query heads.
  void (*store)(const Attention& a, const Team& team);
  // Bytes of team.scratch and team.common that attention needs for a batch whose longest context (the keys of a
  // sequence) is `context`.
  int64_t (*attention_scratch)(const Attention& a, int64_t rows, int64_t context);
  int64_t (*attention_common)(const Attention& a, int64_t rows, int64_t context);
  // out[i] = e^(in[i] - shift): softmax without its division.
  void (*exp_shifted)(const float* in, float shift, float* out, int64_t n);
  // x[i] cut to [-limit, limit]; NaN stays.
  void (*clip)(float* x, float limit, int64_t k);
  // x[i] * scale if softcap is 0, else softcap * tanh(x[i] * scale / softcap), the division as a product with 1 / softcap.
  void (*cap)(float* x, float scale, float softcap, int64_t k);
  // The `chosen` greatest of n scores, greatest first, the lowest index first among equals, and their softmax over all n;
  // normalise: divided by the sum of the chosen ones, added in that order. scores is overwritten.
  void (*route)(float* scores, int64_t n, int64_t chosen, bool normalise, int32_t* which, float* share);
  float (*sigmoid)(float x);
  // Keys [w.n][w.k] and values [w.k][w.n], ld apart, into the memory of Q8A and Q8C matrices; keys less their mean, their
  // scales times `factor`.
  void (*pack_keys)(const float* in, int64_t ld, float factor, const Matrix& w);
  void (*pack_values)(const float* in, int64_t ld, const Matrix& w);
  // Row r of x (Int15) from x.k scores: 2^(score - the greatest), divided by their sum.
  void (*prepare_softmax)(const float* scores, Activations& x, int64_t r);
  // Row r of x from `count` pixels of `width` channels side by side (count * width = x.k), null = zeros.
  // scratch: prepare_scratch(x.k) bytes.
  void (*prepare_window)(const float* const* pixels, int64_t count, int64_t width, Activations& x, int64_t r,
                         uint8_t* scratch);
  // Of `rows` pixels of k channels, each after the other: sums[c] of x - pivot[c], and squares[c] of its squares.
  void (*channel_sums)(const float* in, int64_t rows, int64_t k, const float* pivot, float* sums, float* squares);
  // Rows of k floats: out = act(x * scale + shift), product and sum rounded together; out may be in.
  void (*scale_rows)(const float* in, float* out, const float* scale, const float* shift, Act act, int64_t k,
                     int64_t rows);
};

constexpr int64_t prepare_scratch(int64_t k) { return 4 * round_up(k, kBlockK) * 4; }
constexpr int64_t matmul_scratch(int64_t k) { return 4 * 16 * round_up(k, kBlockK) + 64 * 1024; }

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
const Kernels& amx_emulated_kernels();  // for tests
#elif defined(__aarch64__)
// neon.cpp goes here: dotprod/i8mm variants of the integer products over generic/*.inl with a NEON simd wrapper.
#endif

}  // namespace fp
