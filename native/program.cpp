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
    if (!bound_[i]) buffers_[i].reserve(step.in_space(spaces_[i]).count * widths_[i] * 4 + 64);
  for (RotaryTable* table : rotaries_) table->prepare(step);
  if (stretches_.empty()) find_stretches();
  int64_t shared = 0, own = 0, scratch = 0, common = 64, mixture = 0;
  for (Op& op : ops_) {
    const Rows rows = step.in_space(space(op));
    if (op.kind == OpKind::Linear || op.kind == OpKind::Gated) {
      const Activations x = activations(op, rows.count);
      (rows.count <= kOwnRows ? own : shared) = std::max(rows.count <= kOwnRows ? own : shared, x.bytes());
      scratch = std::max(scratch, std::max(matmul_scratch(x.k), prepare_scratch(x.k)));
    }
    if (op.kind == OpKind::Conv) {
      const Activations x = activations(op, rows_at_a_time(op, rows.count));
      (own_rows(op, rows.count) ? own : shared) = std::max(own_rows(op, rows.count) ? own : shared, x.bytes());
      scratch = std::max(scratch, std::max(matmul_scratch(x.k), prepare_scratch(x.k)));
    }
    if (op.kind == OpKind::GroupNorm) common = std::max(common, group_norm_bytes(op, step));
    if (op.kind == OpKind::Positions || op.kind == OpKind::Types || op.kind == OpKind::AddNormed)
      scratch = std::max(scratch, widths_[size_t(op.out)] * 4 + 64);
    if (op.kind == OpKind::Experts) {
      mixture = std::max(mixture, Mixture(*op.experts, rows.count, nullptr).bytes);
      for (const GatedMlp& mlp : op.experts->mlps)
        for (int64_t k : {mlp.gate.w.k, mlp.down.w.k})
          scratch = std::max(scratch, std::max(matmul_scratch(k), prepare_scratch(k)));
    }
    if (op.kind == OpKind::Attention) {
      const Keys keys = op.attention.keys;
      const int64_t context = keys == Keys::Source    ? step.longest_source
                              : keys == Keys::Own     ? rows.longest
                              : keys == Keys::Context ? step.contexts.longest
                                                      : step.longest_context;
      scratch = std::max(scratch, kernels_.attention_scratch(op.attention, rows.count, context));
      common = std::max(common, kernels_.attention_common(op.attention, rows.count, context));
      if (multiplies_bytes(op.attention)) {
        const int32_t* key_starts = keys == Keys::Context ? step.contexts.starts : rows.starts;
        scratch = std::max(scratch, byte_attention_scratch(op.attention, key_starts, step.sequences));
      }
    }
  }
  for (size_t i = 0; i < ops_.size(); ++i)
    for (size_t j = i; by_rows(i, step) && j < stretches_[i].end; ++j)
      if (!ops_[j].parts.empty())
        own = std::max(own, stretches_[i].bytes + activations(ops_[j], stretches_[i].rows).bytes());
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
  const int64_t in_width = widths_[size_t(op.in)], rows = rows_of(op, step);
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

  share_panels(panels(op), rows, counters_[size_t(index)], team,
               [&](int64_t p0, int64_t p1) { products(op, x, buffer(op.out), p0, p1, scratch); });
  if (rows <= kStreamRows) fetch_ahead(size_t(index), rows, team);
  team.barrier();
}

// Panels [p0, p1) of an op's products with x; out: the first of its rows in the op's output.
void Program::products(const Op& op, const Activations& x, float* out, int64_t p0, int64_t p1, uint8_t* scratch) {
  const int64_t ld = widths_[size_t(op.out)];
  if (op.kind == OpKind::Gated) {
    kernels_.matmul(op.parts[1].w, x, p0, p1, {Mode::Store, Act::None, op.parts[1].bias, out, ld}, scratch);
    kernels_.matmul(op.parts[0].w, x, p0, p1, {Mode::Gate, op.act, op.parts[0].bias, out, ld}, scratch);
    return;
  }
  int64_t begin = 0;
  for (const LinearPart& part : op.parts) {
    const int64_t end = begin + part.w.panels(), from = std::max(p0, begin) - begin, to = std::min(p1, end) - begin;
    if (from < to) kernels_.matmul(part.w, x, from, to, {op.mode, op.act, part.bias, out + part.column, ld}, scratch);
    begin = end;
  }
}

void Program::run_op(Op& op, int index, const Step& step, const Team& team) {
  const Rows rows = step.in_space(space(op));
  if (rows.count == 0) {
    if (op.meet) team.barrier();
    return;
  }
  switch (op.kind) {
    case OpKind::Linear:
    case OpKind::Gated: linear(op, index, step, team); return;
    case OpKind::Experts: experts(op, index, step, team); return;
    case OpKind::Conv: conv(op, index, step, team); return;
    case OpKind::GroupNorm: group_norm(op, step, team); return;
    case OpKind::Attention:
    case OpKind::Store: {
      Attention a = op.attention;
      if (op.rotary) a.turns = op.rotary->turns();
      if (a.keeps()) {
        const CacheGroup& group = step.groups[size_t(op.group)];
        a.pool = group.pool;
        a.block_bytes = group.block_bytes;
        a.tables = group.tables;
        a.table_stride = step.table_stride;
      }
      a.sequences = step.sequences;
      a.starts = rows.starts;
      a.past = step.past;
      a.sources = step.sources;
      a.positions = step.positions;
      a.qkv = buffer(op.in);
      a.ld = widths_[size_t(op.in)];
      a.kv = a.qkv + a.heads * a.layout.head_dim;
      a.kv_ld = a.ld;
      a.key_starts = a.starts;
      if (a.keys == Keys::Context) {
        a.kv = buffer(op.by) + op.column;
        a.kv_ld = widths_[size_t(op.by)];
        a.key_starts = step.contexts.starts;
      }
      a.out = op.kind == OpKind::Store ? nullptr : buffer(op.out);
      a.taken = &counters_[size_t(index)];
      if (multiplies_bytes(a)) byte_attention(kernels_, a, team);
      else (op.kind == OpKind::Store ? kernels_.store : kernels_.attention)(a, team);
      break;
    }
    case OpKind::Cap: {  // all columns of all rows are alike, and one row may be a whole vocabulary
      const int64_t values = rows.count * widths_[size_t(op.out)], vectors = (values + 15) / 16;
      const int64_t begin = vectors * team.tid / team.size * 16;
      const int64_t end = std::min(vectors * (team.tid + 1) / team.size * 16, values);
      kernels_.cap(buffer(op.out) + begin, op.scale, op.limit, end - begin);
      break;
    }
    default:  // each thread has a contiguous share of the rows, the same in all of these operations
      run_rows(op, step, {rows.count * team.tid / team.size, rows.count * (team.tid + 1) / team.size, team.scratch});
  }
  if (op.meet) team.barrier();
}

void Program::run(const Step& step, bool timed) {
  prepare_memory(step);
  Barrier& barrier = pool_->barrier();
  // A look-up of a few rows is done before a second thread has woken up.
  const bool alone = !heavy_ && std::all_of(spaces_.begin(), spaces_.end(), [&](int space) {
    return step.in_space(space).count <= kOwnRows;
  });
  auto work = [&](int tid) {
    Memory& scratch = scratch_[size_t(tid)];
    Team team{tid, alone ? 1 : pool_->size(), &barrier,
              [](void* shared, int) { static_cast<Barrier*>(shared)->wait(); },
              scratch.data, scratch.bytes, common_.data, common_.bytes};
    using clock = std::chrono::steady_clock;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (by_rows(i, step)) {
        run_stretch(i, step, team, timed);
        i = stretches_[i].end - 1;
      } else if (timed && tid == 0) {
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
