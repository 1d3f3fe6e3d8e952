// A stage of a model, recorded once as a list of operations and run natively as often as wanted: one call from Python
// a stage and step, however many layers there are. Every thread of the pool walks the list and meets the others at
// barriers between operations.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "byte_attention.h"
#include "experts.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "rotary.h"

namespace fp {

enum class OpKind : int {
  Embed, Positions, Types, Norm, AddNormed, HeadNorm, Modulate, AddGated, AddRows, Activate, Copy, Clip,
  Cap, Gather, Linear, Gated, Experts, Attention, Store, Conv, GroupNorm
};

// A thread computes its own rows of these and reads nothing else that they write.
constexpr bool row_wise(OpKind kind) { return kind <= OpKind::Clip; }
// Whether it is worth waking the other threads for a few rows of it.
constexpr bool is_heavy(OpKind kind) { return kind >= OpKind::Linear; }

// Up to this many rows each thread first has contiguous panels of its own, one stream of weights, and only the last part
// is taken as threads come free; above, all panels are. So a thread that the machine slows holds nobody up for long
// (measured: 5 to 10% of a decode step on a shared machine).
constexpr int64_t kStreamRows = 8;
constexpr int64_t kChunk = 4;  // panels taken at a time
// A stretch: operations that treat every row alone. From this many rows a thread on, a thread takes some rows at a time
// through all of them (program_rows.cpp).
constexpr int64_t kStretchRows = 32;

// What a convolution reads for a pixel (y, x): size * size pixels from (y, x) * stride - before on. upsample: of an image
// whose pixel (y, x) is the source's (y / 2, x / 2).
struct Window {
  int64_t size = 1, stride = 1, before = 0;
  bool upsample = false;
};
constexpr int64_t kMostWindow = 7 * 7;

struct Op {
  OpKind kind = OpKind::Norm;
  std::string label;  // what explain calls it
  int in = -1, out = -1;
  int by = -1;  // what else it reads: Modulate, AddGated, AddRows: a row for each sequence; Attention: contexts' keys
  Norm norm;
  std::shared_ptr<const fp::Experts> experts;
  float scale = 1;                // Embed, AddNormed, Cap, Experts
  float limit = 0;                // Clip; the soft limit of Cap
  int64_t offset = 0;             // Positions
  int64_t column = 0, heads = 1, head_dim = 0;  // HeadNorm, Clip: `heads` segments of head_dim columns from `column`
                                                // Copy: of `out`; AddGated, AddRows, Modulate (its shift), Attention: of `by`
  int64_t scale_column = 0;                     // Modulate
  const float* vector = nullptr;                // Copy: what it adds, or null
  Window window;                  // Conv
  int64_t groups = 1;             // GroupNorm
  bool each = false;              // HeadNorm: every segment has its own weights
  bool meet = true;               // threads meet after it
  std::vector<LinearPart> parts;  // Gated: gate, then up
  Mode mode = Mode::Store;
  Act act = Act::None;
  Attention attention{};
  int group = 0;  // whose memory the attention's layer lies in, if it keeps keys
  RotaryTable* rotary = nullptr;
  double seconds = 0;
};

// Operations [its own, end) that a thread does for some rows at a time. passed: buffers that only carry rows from one of
// them to a later one, and where in a thread's memory they stand for the rows at hand.
struct Stretch {
  struct Passed {
    int buffer;
    int64_t offset;  // bytes
  };
  size_t end = 0;   // 0: none begins here
  int64_t rows = 0;  // at a time, at most
  std::vector<Passed> passed;
  int64_t bytes = 0;  // of them
};

// Which rows a buffer has in a run. Level l >= 0: those of the step (tokens, or pixels of images, row by row), of images
// halved l times; or one for each sequence; or those of the sequences' contexts.
constexpr int kImages = -1, kContext = -2, kMostLevels = 16;

// The rows of one space: sequence s has [starts[s], starts[s + 1]).
struct Rows {
  int64_t count = 0;
  const int32_t* starts = nullptr;  // null: not known, or one a sequence
  int64_t longest = 0;              // of a sequence
};

// Rows [begin, end) as an operation sees them: memory of the thread that does them, and where buffers that are passed on
// within a stretch stand in it.
struct RowRange {
  int64_t begin, end;
  uint8_t* scratch;
  const Stretch* stretch = nullptr;
  uint8_t* passed = nullptr;
};

// The blocks of the layers that see equally far, and each sequence's: tables [sequences][Step::table_stride].
struct CacheGroup {
  uint8_t* pool = nullptr;
  int64_t block_bytes = 0;
  const int32_t* tables = nullptr;
};

// What one run works on. Pointers are borrowed for the call.
struct Step {
  int64_t rows = 0;  // of level 0
  const int32_t* ids = nullptr;        // [rows], for Embed
  const int32_t* positions = nullptr;  // [rows], for Positions and Attention
  const int32_t* wanted = nullptr;     // [rows], for Gather: rows of the input
  const int32_t* types = nullptr;      // [rows], for Types; null = all 0
  int64_t sequences = 0;
  const int32_t* starts = nullptr;
  const int32_t* past = nullptr;     // [sequences]; null without groups
  const int32_t* sources = nullptr;  // [sequences]: keys of each sequence's source, for Keys::Source
  std::vector<CacheGroup> groups;
  int64_t table_stride = 0;
  const int32_t* regime = nullptr;   // [sequences], 0 or 1: which of two lists of rotary frequencies; null = all 0
  const int32_t* lengths = nullptr;  // [sequences]: the length that dynamic frequencies follow, 0 = plain; null = all 0
  int64_t longest_context = 0;  // of its own tokens, past ones included
  int64_t longest_source = 0;
  int64_t last_position = 0;
  const int32_t* sizes = nullptr;  // [sequences][2], height and width at level 0; null = texts
  std::vector<Rows> halved;        // levels 1, 2, ...
  Rows contexts;

  Rows in_space(int space) const {
    if (space == kImages) return {sequences, nullptr, 1};
    if (space == kContext) return contexts;
    return space ? halved[size_t(space) - 1] : Rows{rows, starts, longest_rows};
  }
  // The height (axis 0) or width (1) of image s at a level.
  int64_t size(int64_t s, int axis, int level) const {
    return (int64_t(sizes[2 * s + axis]) + (int64_t(1) << level) - 1) >> level;
  }
  int64_t longest_rows = 0;  // of a sequence at level 0, past ones not included
};

class Program {
 public:
  Program(std::shared_ptr<Pool> pool, const Kernels& kernels) : pool_(std::move(pool)), kernels_(kernels) {}

  int add_buffer(int64_t width, int space) {
    widths_.push_back(width);
    spaces_.push_back(space);
    return int(widths_.size()) - 1;
  }
  void add(Op op) {
    heavy_ = heavy_ || is_heavy(op.kind);
    if (!ops_.empty() && row_wise(ops_.back().kind) && row_wise(op.kind) && space(ops_.back()) == space(op))
      ops_.back().meet = false;
    if (op.rotary && std::find(rotaries_.begin(), rotaries_.end(), op.rotary) == rotaries_.end())
      rotaries_.push_back(op.rotary);
    ops_.push_back(std::move(op));
    stretches_.clear();
    counters_.reset();
  }
  const std::vector<Op>& ops() const { return ops_; }
  const char* isa() const { return kernels_.name; }
  int64_t width(int buffer) const { return widths_.at(size_t(buffer)); }
  int space(int buffer) const { return spaces_.at(size_t(buffer)); }
  // Where an operation works: the space of what it writes.
  int space(const Op& op) const { return space(op.out < 0 ? op.in : op.out); }

  // Buffers that the caller owns for this run; the others live in the program. Call start() first.
  void start() { bound_.assign(widths_.size(), nullptr); }
  void bind(int buffer, float* data) { bound_.at(size_t(buffer)) = data; }
  void run(const Step& step, bool timed);
  // When all operations are recorded: for each the moment in which it runs, numbered in order. Threads meet between
  // moments; within one a thread may be at another operation than the rest.
  std::vector<int> moments();
  // Buffers that stretches pass on in memory of their threads, where there are rows enough.
  std::vector<int> passed();
  void reset_timings() { for (Op& op : ops_) op.seconds = 0; }

 private:
  struct Memory {  // grows, never shrinks
    std::unique_ptr<Region> region;
    uint8_t* data = nullptr;
    int64_t bytes = 0;
    void reserve(int64_t wanted);
  };

  static Activations activations(const Op& op, int64_t rows);
  static int64_t panels(const Op& op);
  static int64_t first_panel(int64_t total, int64_t rows, int64_t tid, int64_t size);
  void fetch_ahead(size_t index, int64_t rows, const Team& team) const;
  void prepare_memory(const Step& step);
  void run_op(Op& op, int index, const Step& step, const Team& team);
  void linear(Op& op, int index, const Step& step, const Team& team);
  void products(const Op& op, const Activations& x, float* out, int64_t p0, int64_t p1, uint8_t* scratch);
  // program_rows.cpp
  void run_rows(const Op& op, const Step& step, const RowRange& rows);
  void linear_rows(const Op& op, const RowRange& rows);
  float* first_row(int buffer, const RowRange& rows) const;
  int64_t rows_of(const Op& op, const Step& step) const { return step.in_space(space(op)).count; }
  // Whether the stretch that begins with operation i is worth it.
  bool by_rows(size_t i, const Step& step) const {
    return stretches_[i].end && rows_of(ops_[i], step) >= kStretchRows * pool_->size();
  }
  void find_stretches();
  size_t first_touch(size_t i, int buffer) const;
  bool carries_over(int buffer) const;
  void run_stretch(size_t begin, const Step& step, const Team& team, bool timed);
  void experts(const Op& op, int index, const Step& step, const Team& team);  // experts.cpp
  // program_images.cpp
  bool own_rows(const Op& op, int64_t rows) const;
  int64_t rows_at_a_time(const Op& op, int64_t rows) const;
  void conv(const Op& op, int index, const Step& step, const Team& team);
  int64_t group_norm_bytes(const Op& op, const Step& step) const;
  void group_norm(const Op& op, const Step& step, const Team& team);
  // Calls take(begin, end) with panels out of [0, total) until all threads together have taken every one.
  template <typename Take>
  void share_panels(int64_t total, int64_t rows, std::atomic<int64_t>& counter, const Team& team, const Take& take) {
    const int64_t mine = first_panel(total, rows, 1, team.size), shared = mine * team.size;
    if (mine) take(mine * team.tid, mine * (team.tid + 1));
    const int64_t chunk = rows <= kStreamRows ? std::max<int64_t>(1, (total - shared) / (team.size * 4)) : kChunk;
    for (int64_t begin; shared < total && (begin = shared + counter.fetch_add(chunk)) < total;)
      take(begin, std::min(total, begin + chunk));
  }
  float* buffer(int id) const {
    float* bound = bound_[size_t(id)];
    return bound ? bound : reinterpret_cast<float*>(buffers_[size_t(id)].data);
  }

  std::shared_ptr<Pool> pool_;
  const Kernels& kernels_;
  std::vector<Op> ops_;
  std::vector<Stretch> stretches_;  // the one that begins with each operation
  std::vector<RotaryTable*> rotaries_;  // each once, however many layers share it
  bool heavy_ = false;  // has matrix products
  std::vector<int64_t> widths_;
  std::vector<int> spaces_;
  std::vector<float*> bound_;
  std::vector<Memory> buffers_;
  Memory shared_activations_, common_, experts_memory_;
  std::vector<ExpertRows> expert_rows_;
  std::vector<Memory> scratch_;
  std::unique_ptr<std::atomic<int64_t>[]> counters_;  // two for every operation
};

}  // namespace fp
