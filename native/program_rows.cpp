// Operations that treat every row alone, and stretches of them.
//
// With many rows a buffer between two operations is larger than a core's L2: what one writes, the next reads from afar. So
// where weights are small, a thread takes a few rows through all operations up to the next that mixes rows (attention),
// while the weights go by once for each few rows, and threads meet at the end only. What only carries rows from one of
// these operations to the next stands in memory of the thread, always the same. A row's bits don't depend on any of it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "program.h"

namespace fp {

namespace {

// More weights than this would have to come from memory again for every few rows.
constexpr int64_t kStretchWeights = 8 << 20;
constexpr int64_t kLeastRows = 16, kMostRows = 128;
constexpr int64_t kModulatedRows = 8;  // that are normalised and then modulated while they are at hand

// What the buffers of the rows at hand may take: half of L2.
int64_t room() {
  static const int64_t bytes = [] {
    const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return std::clamp<int64_t>(found > 0 ? found : 1 << 20, 1 << 18, 1 << 21) / 2;
  }();
  return bytes;
}

bool is_product(const Op& op) { return op.kind == OpKind::Linear || op.kind == OpKind::Gated; }

// Whether an operation may be part of a stretch. Of products those that read weights as they lie: with others every call
// unpacks them again.
bool treats_rows_alone(const Op& op) {
  auto bytes = [](const LinearPart& part) { return part.w.format == Format::Q8A || part.w.format == Format::Q8C; };
  return row_wise(op.kind) || (is_product(op) && std::all_of(op.parts.begin(), op.parts.end(), bytes));
}

// Whether an operation writes whole rows of its output and reads nothing that was there.
bool fills(const Op& op, int64_t width, int64_t in_width) {
  if (op.in == op.out) return false;
  if (op.kind == OpKind::Embed || op.kind == OpKind::Norm || op.kind == OpKind::Gated || op.kind == OpKind::Modulate ||
      op.kind == OpKind::Activate)
    return true;
  if (op.kind == OpKind::Copy) return op.column == 0 && in_width == width;
  int64_t columns = 0;
  for (const LinearPart& part : op.parts) columns += part.w.n;
  return op.kind == OpKind::Linear && op.mode == Mode::Store && columns == width;
}

}  // namespace

float* Program::first_row(int id, const RowRange& rows) const {
  if (rows.stretch && !bound_[size_t(id)])
    for (const Stretch::Passed& one : rows.stretch->passed)
      if (one.buffer == id) return reinterpret_cast<float*>(rows.passed + one.offset);
  return buffer(id) + rows.begin * widths_[size_t(id)];
}

void Program::run_rows(const Op& op, const Step& step, const RowRange& rows) {
  const int64_t begin = rows.begin, end = rows.end;
  const int64_t width = widths_[size_t(op.out)], in_width = op.in < 0 ? 0 : widths_[size_t(op.in)];
  float* out = first_row(op.out, rows);
  const float* in = op.in < 0 || op.kind == OpKind::Gather ? nullptr : first_row(op.in, rows);
  float* spare = reinterpret_cast<float*>(rows.scratch);  // one row
  auto each_row = [&](auto work) {  // work(row, its output, its input)
    for (int64_t r = begin; r < end; ++r) work(r, out + (r - begin) * width, in ? in + (r - begin) * in_width : nullptr);
  };
  // work(first output, first input, rows, the sequence's row of `by`) for the rows of each sequence
  auto each_sequence = [&](auto work) {
    const int32_t* starts = step.in_space(spaces_[size_t(op.out)]).starts;
    const float* by = buffer(op.by);
    const int64_t by_width = widths_[size_t(op.by)];
    int64_t s = starts ? std::upper_bound(starts, starts + step.sequences + 1, int32_t(begin)) - starts - 1 : begin;
    for (int64_t r = begin, last; r < end; r = last, ++s) {
      last = starts ? std::min<int64_t>(end, starts[s + 1]) : r + 1;
      work(out + (r - begin) * width, in ? in + (r - begin) * in_width : nullptr, last - r, by + s * by_width);
    }
  };
  auto add_rows_of_table = [&](auto row) {
    each_row([&](int64_t r, float* to, const float*) {
      kernels_.lookup(op.parts[0].w, row(r), spare);
      kernels_.add(to, spare, 1.0f, width);
    });
  };
  switch (op.kind) {
    case OpKind::Embed:
      return each_row([&](int64_t r, float* to, const float*) {
        kernels_.lookup(op.parts[0].w, step.ids[r], to);
        if (op.scale != 1.0f) kernels_.cap(to, op.scale, 0.0f, width);
      });
    case OpKind::Positions:
      return add_rows_of_table([&](int64_t r) { return int64_t(step.positions[r]) + op.offset; });
    case OpKind::Types: return add_rows_of_table([&](int64_t r) { return int64_t(step.types ? step.types[r] : 0); });
    case OpKind::Norm:
      if (op.norm.kind != NormKind::None) return kernels_.norm(op.norm, in, in_width, out, width, width, end - begin);
      return each_row([&](int64_t, float* to, const float* from) { std::memcpy(to, from, size_t(width) * 4); });
    case OpKind::AddNormed:
      return each_row([&](int64_t, float* to, const float* from) {
        if (op.norm.kind != NormKind::None) kernels_.norm(op.norm, from, in_width, spare, width, width, 1);
        kernels_.add(to, op.norm.kind == NormKind::None ? from : spare, op.scale, width);
      });
    case OpKind::HeadNorm:
      for (int64_t h = 0; h < op.heads; ++h) {
        Norm norm = op.norm;
        if (op.each && norm.weight) norm.weight += h * op.head_dim;
        if (op.each && norm.bias) norm.bias += h * op.head_dim;
        float* head = out + op.column + h * op.head_dim;
        kernels_.norm(norm, head, width, head, width, op.head_dim, end - begin);
      }
      return;
    case OpKind::Modulate:
      return each_sequence([&](float* to, const float* from, int64_t count, const float* by) {
        for (int64_t n; count > 0; count -= n, to += n * width, from += n * width) {
          n = std::min<int64_t>(count, kModulatedRows);
          const bool normed = op.norm.kind != NormKind::None;
          if (normed) kernels_.norm(op.norm, from, width, to, width, width, n);
          kernels_.modulate(normed ? to : from, width, to, width, by + op.column, by + op.scale_column, width, n);
        }
      });
    case OpKind::AddGated:
      return each_sequence([&](float* to, const float* from, int64_t count, const float* by) {
        for (; count > 0; --count, to += width, from += width) kernels_.add_gated(to, from, by + op.column, width);
      });
    case OpKind::AddRows:
      return each_sequence([&](float* to, const float*, int64_t count, const float* by) {
        for (; count > 0; --count, to += width) kernels_.add(to, by + op.column, 1.0f, width);
      });
    case OpKind::Activate: return kernels_.activate(op.act, in, out, (end - begin) * width);
    case OpKind::Copy:
      return each_row([&](int64_t, float* to, const float* from) {
        std::memcpy(to + op.column, from, size_t(in_width) * 4);
        if (op.vector) kernels_.add(to + op.column, op.vector, 1.0f, in_width);
      });
    case OpKind::Clip:
      return each_row([&](int64_t, float* to, const float*) { kernels_.clip(to + op.column, op.limit, op.head_dim); });
    default:  // Gather
      each_row([&](int64_t r, float* to, const float*) {
        std::memcpy(to, buffer(op.in) + step.wanted[r] * width, size_t(width) * 4);
      });
  }
}

void Program::linear_rows(const Op& op, const RowRange& rows) {
  const int64_t count = rows.end - rows.begin;
  Activations x = activations(op, count);
  x.place(rows.scratch);
  uint8_t* scratch = rows.scratch + x.bytes();
  kernels_.prepare(op.norm, first_row(op.in, rows), widths_[size_t(op.in)], x, 0, count, scratch);
  products(op, x, first_row(op.out, rows), 0, panels(op), scratch);
}

// Where the stretch that begins with operation i first touches a buffer; its end if it does not.
size_t Program::first_touch(size_t i, int id) const {
  size_t at = i;
  while (at < stretches_[i].end && ops_[at].in != id && ops_[at].out != id) ++at;
  return at;
}

// Whether a buffer's rows outlast the stretches that touch it.
bool Program::carries_over(int id) const {
  for (size_t i = 0, end = 0; i < ops_.size(); ++i) {
    if (ops_[i].by == id) return true;
    if (stretches_[i].end) {
      end = stretches_[i].end;
      const size_t at = first_touch(i, id);
      if (at < end) {
        const Op& op = ops_[at];
        if (op.out != id || !fills(op, widths_[size_t(id)], op.in < 0 ? 0 : widths_[size_t(op.in)])) return true;
      }
    }
    if (i >= end && (ops_[i].in == id || ops_[i].out == id)) return true;
  }
  return false;
}

void Program::find_stretches() {
  stretches_.resize(ops_.size());
  for (size_t begin = 0, end; begin < ops_.size(); begin = std::max(end, begin + 1)) {
    int64_t weights = 0, most = 1;  // bytes, most of a row
    bool product = false;
    for (end = begin; end < ops_.size(); ++end) {
      const Op& op = ops_[end];
      if (!treats_rows_alone(op) || space(op) != space(ops_[begin])) break;
      int64_t row = (widths_[size_t(op.out)] + (op.in < 0 ? 0 : widths_[size_t(op.in)])) * 4;
      if (is_product(op)) {
        product = true;
        for (const LinearPart& part : op.parts) weights += part.w.bytes();
        row += activations(op, kLeastRows).bytes() / kLeastRows;
      }
      most = std::max(most, row);
    }
    if (!product || weights > kStretchWeights) continue;
    stretches_[begin].end = end;
    stretches_[begin].rows = std::clamp(room() / most / kLeastRows * kLeastRows, kLeastRows, kMostRows);
  }
  for (size_t id = 0; id < widths_.size(); ++id) {
    if (carries_over(int(id))) continue;
    for (size_t i = 0; i < ops_.size(); ++i) {
      Stretch& stretch = stretches_[i];
      if (first_touch(i, int(id)) >= stretch.end) continue;
      stretch.passed.push_back({int(id), stretch.bytes});
      stretch.bytes += round_up(stretch.rows * widths_[id] * 4, 64);
    }
  }
}

std::vector<int> Program::moments() {
  if (stretches_.empty()) find_stretches();
  std::vector<int> out;
  int moment = 0;
  for (size_t i = 0, end = 0; i < ops_.size(); ++i) {
    out.push_back(moment);
    end = std::max(end, stretches_[i].end);
    if (i + 1 >= end && ops_[i].meet) ++moment;
  }
  return out;
}

std::vector<int> Program::passed() {
  if (stretches_.empty()) find_stretches();
  std::vector<int> out;
  for (const Stretch& stretch : stretches_)
    for (const Stretch::Passed& one : stretch.passed)
      if (std::find(out.begin(), out.end(), one.buffer) == out.end()) out.push_back(one.buffer);
  return out;
}

void Program::run_stretch(size_t begin, const Step& step, const Team& team, bool timed) {
  using clock = std::chrono::steady_clock;
  const Stretch& stretch = stretches_[begin];
  const int64_t count = rows_of(ops_[begin], step);
  std::atomic<int64_t>& counter = counters_[begin];
  auto start = clock::now();
  int64_t first = counter.load(std::memory_order_relaxed);
  while (first < count) {
    // Fewer rows towards the end, so that threads end together.
    const int64_t share = round_up((count - first) / (2 * team.size), kLeastRows);
    const int64_t last = std::min(count, first + std::clamp(share, kLeastRows, stretch.rows));
    if (!counter.compare_exchange_weak(first, last, std::memory_order_relaxed)) continue;
    const RowRange rows{first, last, team.scratch + stretch.bytes, &stretch, team.scratch};
    for (size_t i = begin; i < stretch.end; ++i) {
      Op& op = ops_[i];
      if (is_product(op)) linear_rows(op, rows);
      else run_rows(op, step, rows);
      if (timed && team.tid == 0) {
        const auto now = clock::now();
        op.seconds += std::chrono::duration<double>(now - start).count();
        start = now;
      }
    }
    first = counter.load(std::memory_order_relaxed);
  }
  team.barrier();
  if (timed && team.tid == 0)
    ops_[stretch.end - 1].seconds += std::chrono::duration<double>(clock::now() - start).count();
}

}  // namespace fp
