#include "program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace fp {

namespace {

// Up to this many rows every thread prepares all activations for itself, which is cheaper than a barrier.
constexpr int64_t kOwnRows = 4;
constexpr int64_t kOwnPercent = 80;
// Working memory from this size on lies in huge pages: outputs of a row are kilobytes apart, a page each otherwise.
constexpr int64_t kHugeFrom = 1 << 20;
// What a thread asks for of its next stream of weights before it waits for the others: hides the latency of its start.
constexpr int64_t kFetchAhead = 4096;

}  // namespace

void Program::Memory::reserve(int64_t wanted) {
  if (wanted <= bytes) return;
  region = std::make_unique<Region>(wanted, wanted >= kHugeFrom);
  data = region->data();
  bytes = wanted;
}

void Program::prepare_memory(const Step& step) {
  buffers_.resize(widths_.size());
  scratch_.resize(size_t(pool_->size()));
  for (size_t i = 0; i < widths_.size(); ++i)
    if (!bound_[i]) buffers_[i].reserve(step.rows * widths_[i] * 4 + 64);
  for (RotaryTable* table : rotaries_) table->prepare(step);
  int64_t shared = 0, own = 0, scratch = 0, common = 64, mixture = 0;
  for (Op& op : ops_) {
    if (op.kind == OpKind::Linear || op.kind == OpKind::Gated) {
      const Activations x = activations(op, step.rows);
      (step.rows <= kOwnRows ? own : shared) = std::max(step.rows <= kOwnRows ? own : shared, x.bytes());
      scratch = std::max(scratch, std::max(matmul_scratch(x.k), prepare_scratch(x.k)));
    }
    if (op.kind == OpKind::Positions || op.kind == OpKind::Types || op.kind == OpKind::AddNormed)
      scratch = std::max(scratch, widths_[size_t(op.out)] * 4 + 64);
    if (op.kind == OpKind::Experts) {
      mixture = std::max(mixture, Mixture(*op.experts, step.rows, nullptr).bytes);
      for (const GatedMlp& mlp : op.experts->mlps)
        for (int64_t k : {mlp.gate.w.k, mlp.down.w.k})
          scratch = std::max(scratch, std::max(matmul_scratch(k), prepare_scratch(k)));
    }
    if (op.kind == OpKind::Attention) {
      const int64_t context = op.attention.keys == Keys::Source ? step.longest_source : step.longest_context;
      scratch = std::max(scratch, kernels_.attention_scratch(op.attention, step.rows, context));
      common = std::max(common, kernels_.attention_common(op.attention, step.rows, context));
    }
  }
  shared_activations_.reserve(shared);
  common_.reserve(common);
  experts_memory_.reserve(mixture);
  for (auto& memory : scratch_) memory.reserve(round_up(own, 64) + scratch);
  if (!counters_) counters_.reset(new std::atomic<int64_t>[2 * ops_.size()]);
  for (size_t i = 0; i < 2 * ops_.size(); ++i) counters_[i].store(0, std::memory_order_relaxed);
}

// What the products of an op read, not placed yet.
Activations Program::activations(const Op& op, int64_t rows) {
  Activations x = activations_for(op.parts[0].w, rows);
  for (const LinearPart& part : op.parts) x.summed = x.summed || needs_sums(part.w.format);
  return x;
}

// The panels of all parts of an op, one part after the other. A gated pair counts once: one thread makes up, then gate.
int64_t Program::panels(const Op& op) {
  int64_t total = 0;
  for (const LinearPart& part : op.parts) {
    total += part.w.panels();
    if (op.kind == OpKind::Gated) break;
  }
  return total;
}

// Where the panels that are thread `tid`'s own begin.
int64_t Program::first_panel(int64_t total, int64_t rows, int64_t tid, int64_t size) {
  return rows > kStreamRows ? 0 : size == 1 ? total * tid : total * kOwnPercent / 100 / size * tid;
}

void Program::fetch_ahead(size_t index, int64_t rows, const Team& team) const {
  for (size_t i = index + 1; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (op.kind == OpKind::Experts) return;  // which of them is not known yet
    if (op.kind != OpKind::Linear && op.kind != OpKind::Gated) continue;
    int64_t first = first_panel(panels(op), rows, team.tid, team.size);
    // A gated op reads `up`, its second part, first.
    size_t part = op.kind == OpKind::Gated ? 1 : 0;
    while (first >= op.parts[part].w.panels()) first -= op.parts[part++].w.panels();
    const uint8_t* begin = op.parts[part].w.panel(first);
    for (int64_t at = 0; at < kFetchAhead; at += 64) __builtin_prefetch(begin + at);
    return;
  }
}

void Program::linear(Op& op, int index, const Step& step, const Team& team) {
  const float* in = buffer(op.in);
  const int64_t in_width = widths_[size_t(op.in)], rows = step.rows;
  uint8_t* own = team.scratch;
  uint8_t* scratch = own;
  Activations x = activations(op, rows);
  if (rows <= kOwnRows) {
    x.place(own);
    scratch = own + x.bytes();
    kernels_.prepare(op.norm, in, in_width, x, 0, rows, scratch);
  } else {
    x.place(shared_activations_.data);
    const int64_t begin = rows * team.tid / team.size, end = rows * (team.tid + 1) / team.size;
    kernels_.prepare(op.norm, in + begin * in_width, in_width, x, begin, end - begin, scratch);
    team.barrier();
  }

  const bool gated = op.kind == OpKind::Gated;
  const int64_t total = panels(op);
  const int64_t ld = widths_[size_t(op.out)];
  auto take = [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t i = 0; i < op.parts.size() && begin < end; ++i) {
      const LinearPart& part = op.parts[i];
      int64_t last = first + part.w.panels();
      int64_t p0 = std::max(begin, first) - first, p1 = std::min(end, last) - first;
      if (p0 < p1) {
        Epilogue e{op.mode, op.act, part.bias, buffer(op.out) + part.column, ld};
        if (gated) {
          Epilogue up{Mode::Store, Act::None, op.parts[1].bias, buffer(op.out), ld};
          kernels_.matmul(op.parts[1].w, x, p0, p1, up, scratch);
          e.mode = Mode::Gate;
        }
        kernels_.matmul(part.w, x, p0, p1, e, scratch);
      }
      if (gated) break;
      first = last;
    }
  };
  share_panels(total, rows, counters_[size_t(index)], team, take);
  if (rows <= kStreamRows) fetch_ahead(size_t(index), rows, team);
  team.barrier();
}

// The operations on rows of floats: each thread has a contiguous share of the rows, the same in all of them.
void Program::run_rows(const Op& op, const Step& step, const Team& team) {
  const int64_t width = widths_[size_t(op.out)], in_width = op.in < 0 ? 0 : widths_[size_t(op.in)];
  const int64_t begin = step.rows * team.tid / team.size, rows = step.rows * (team.tid + 1) / team.size - begin;
  float* out = buffer(op.out) + begin * width;
  const float* in = op.in < 0 ? nullptr : buffer(op.in) + begin * in_width;
  float* spare = reinterpret_cast<float*>(team.scratch);  // one row
  auto each_row = [&](auto work) {
    for (int64_t r = 0; r < rows; ++r) work(begin + r, out + r * width, in + r * in_width);
  };
  auto add_row_of = [&](auto row) {  // of a table
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
    case OpKind::Positions: return add_row_of([&](int64_t r) { return int64_t(step.positions[r]) + op.offset; });
    case OpKind::Types: return add_row_of([&](int64_t r) { return int64_t(step.types ? step.types[r] : 0); });
    case OpKind::Norm:
      if (op.norm.kind != NormKind::None) return kernels_.norm(op.norm, in, in_width, out, width, width, rows);
      return each_row([&](int64_t, float* to, const float* from) { std::memcpy(to, from, size_t(width) * 4); });
    case OpKind::AddNormed:
      return each_row([&](int64_t, float* to, const float* from) {
        if (op.norm.kind != NormKind::None) kernels_.norm(op.norm, from, in_width, spare, width, width, 1);
        kernels_.add(to, op.norm.kind == NormKind::None ? from : spare, op.scale, width);
      });
    case OpKind::HeadNorm:
      for (int64_t h = 0; h < op.heads; ++h) {
        Norm norm = op.norm;
        if (op.each) norm.weight += h * op.head_dim;
        if (op.each && norm.bias) norm.bias += h * op.head_dim;
        float* head = out + op.column + h * op.head_dim;
        kernels_.norm(norm, head, width, head, width, op.head_dim, rows);
      }
      return;
    case OpKind::Clip:
      return each_row([&](int64_t, float* to, const float*) { kernels_.clip(to + op.column, op.limit, op.head_dim); });
    default:  // Gather
      each_row([&](int64_t r, float* to, const float*) {
        std::memcpy(to, buffer(op.in) + step.wanted[r] * width, size_t(width) * 4);
      });
  }
}

void Program::run_op(Op& op, int index, const Step& step, const Team& team) {
  switch (op.kind) {
    case OpKind::Linear:
    case OpKind::Gated: linear(op, index, step, team); return;
    case OpKind::Experts: experts(op, index, step, team); return;
    case OpKind::Attention:
    case OpKind::Store: {
      Attention a = op.attention;
      if (op.rotary) a.turns = op.rotary->turns();
      if (a.keys != Keys::Own) {
        const CacheGroup& group = step.groups[size_t(op.group)];
        a.pool = group.pool;
        a.block_bytes = group.block_bytes;
        a.tables = group.tables;
        a.table_stride = step.table_stride;
      }
      a.sequences = step.sequences;
      a.starts = step.starts;
      a.past = step.past;
      a.sources = step.sources;
      a.positions = step.positions;
      a.qkv = buffer(op.in);
      a.ld = widths_[size_t(op.in)];
      a.out = op.kind == OpKind::Store ? nullptr : buffer(op.out);
      a.taken = &counters_[size_t(index)];
      (op.kind == OpKind::Store ? kernels_.store : kernels_.attention)(a, team);
      break;
    }
    case OpKind::Cap: {  // all columns of all rows are alike, and one row may be a whole vocabulary
      const int64_t vectors = (step.rows * widths_[size_t(op.out)] + 15) / 16;
      const int64_t begin = vectors * team.tid / team.size * 16;
      const int64_t end = std::min(vectors * (team.tid + 1) / team.size * 16, step.rows * widths_[size_t(op.out)]);
      kernels_.cap(buffer(op.out) + begin, op.scale, op.limit, end - begin);
      break;
    }
    default: run_rows(op, step, team);
  }
  if (op.meet) team.barrier();
}

void Program::run(const Step& step, bool timed) {
  prepare_memory(step);
  Barrier& barrier = pool_->barrier();
  // A look-up of a few rows is done before a second thread has woken up.
  const bool alone = !heavy_ && step.rows <= kOwnRows;
  auto work = [&](int tid) {
    Memory& scratch = scratch_[size_t(tid)];
    Team team{tid, alone ? 1 : pool_->size(), &barrier,
              [](void* shared, int) { static_cast<Barrier*>(shared)->wait(); },
              scratch.data, scratch.bytes, common_.data, common_.bytes};
    using clock = std::chrono::steady_clock;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (timed && tid == 0) {
        auto start = clock::now();
        run_op(ops_[i], int(i), step, team);
        ops_[i].seconds += std::chrono::duration<double>(clock::now() - start).count();
      } else {
        run_op(ops_[i], int(i), step, team);
      }
    }
  };
  if (alone) {
    DenormalGuard guard;
    work(0);
  } else {
    pool_->run(work);
  }
}

}  // namespace fp
