#include "experts.h"

#include <algorithm>
#include <cstring>

#include "program.h"

namespace fp {

namespace {

// Hands out 64-byte aligned pieces of one memory.
struct Pieces {
  uint8_t* memory;
  int64_t used = 0;
  template <typename T>
  T* take(int64_t count) {
    uint8_t* piece = memory ? memory + used : nullptr;
    used += round_up(count * int64_t(sizeof(T)), 64);
    return reinterpret_cast<T*>(piece);
  }
  Activations activations(Activations a) {
    a.place(take<uint8_t>(a.bytes()));
    return a;
  }
};

// What the products of one expert read: gate and up the rows, down the inner values.
Activations rows_of(const GatedMlp& mlp, int64_t rows) { return activations_for(mlp.gate.w, mlp.up.w, rows); }
Activations inner_of(const GatedMlp& mlp, int64_t rows) { return activations_for(mlp.down.w, rows); }

// Room for the activations of all slots, whichever experts the rows choose. An expert's rows are padded to tiles of 16.
int64_t slots_bytes(const Experts& e, int64_t rows, Activations (*read)(const GatedMlp&, int64_t)) {
  const int64_t slots = rows * e.chosen, groups = std::min(e.count, slots);
  int64_t most = 0;
  for (int64_t i = 0; i < e.count; ++i) most = std::max(most, read(e.mlps[size_t(i)], 1).bytes());
  return (slots + 15 * groups) * most + (e.shared() ? read(e.mlps.back(), rows).bytes() : 0);
}

}  // namespace

Mixture::Mixture(const Experts& e, int64_t rows, uint8_t* memory) : rows(rows), width(e.router.w.k) {
  Pieces pieces{memory};
  const int64_t routed = rows * e.chosen, shared = e.shared() ? rows : 0;
  int64_t inner_width = 0;
  for (int64_t i = 0; i < e.count; ++i) inner_width = std::max(inner_width, e.mlps[size_t(i)].down.w.k);
  normed = pieces.take<float>(rows * width);
  router = pieces.activations(activations_for(e.router.w, rows));
  scores = pieces.take<float>(rows * e.count);
  if (e.gated) gate = pieces.activations(activations_for(e.shared_gate.w, rows));
  gates = pieces.take<float>(e.gated ? rows : 0);
  which = pieces.take<int32_t>(routed);
  share = pieces.take<float>(routed);
  slot = pieces.take<int32_t>(routed);
  row_of = pieces.take<int32_t>(routed + shared);
  x_memory = pieces.take<uint8_t>(slots_bytes(e, rows, rows_of));
  y_memory = pieces.take<uint8_t>(slots_bytes(e, rows, inner_of));
  inner = pieces.take<float>(routed * inner_width + shared * e.mlps.back().down.w.k);
  answers = pieces.take<float>((routed + shared) * width);
  bytes = pieces.used;
}

void Mixture::group(const Experts& e, std::vector<ExpertRows>& out) const {
  const int64_t routed = rows * e.chosen;
  Pieces xs{x_memory}, ys{y_memory};
  float* next = inner;
  int64_t first = 0;
  auto add = [&](const GatedMlp& mlp, int64_t count) {
    if (!count) return;
    out.push_back({&mlp, first, count, xs.activations(rows_of(mlp, count)), ys.activations(inner_of(mlp, count)), next});
    next += count * mlp.down.w.k;
    first += count;
  };
  out.clear();
  std::vector<int64_t> place(size_t(e.count) + 1, 0);  // of each expert's next slot
  for (int64_t i = 0; i < routed; ++i) ++place[size_t(which[i]) + 1];
  for (int64_t i = 0; i < e.count; ++i) {
    add(e.mlps[size_t(i)], place[size_t(i) + 1]);
    place[size_t(i) + 1] += place[size_t(i)];
  }
  for (int64_t i = 0; i < routed; ++i) {
    slot[i] = int32_t(place[size_t(which[i])]++);
    row_of[slot[i]] = int32_t(i / e.chosen);
  }
  if (!e.shared()) return;
  add(e.mlps.back(), rows);
  for (int64_t r = 0; r < rows; ++r) row_of[routed + r] = int32_t(r);
}

// Panels [begin, end) of all experts' products, one expert after the other.
template <typename Panels, typename Product>
void each_expert(const std::vector<ExpertRows>& groups, int64_t begin, int64_t end, const Panels& panels,
                 const Product& product) {
  int64_t first = 0;
  for (const ExpertRows& group : groups) {
    const int64_t last = first + panels(group);
    const int64_t p0 = std::max(begin, first) - first, p1 = std::min(end, last) - first;
    if (p0 < p1) product(group, p0, p1);
    first = last;
  }
}

void Program::experts(const Op& op, int index, const Step& step, const Team& team) {
  const Experts& e = *op.experts;
  Mixture m(e, rows_of(op, step), experts_memory_.data);
  const int64_t rows = m.rows, width = m.width;
  const int64_t begin = rows * team.tid / team.size, end = rows * (team.tid + 1) / team.size;
  uint8_t* scratch = team.scratch;
  const float* in = buffer(op.in);

  for (int64_t r = begin; r < end; ++r) {
    float* row = m.normed + r * width;
    if (op.norm.kind == NormKind::None) std::memcpy(row, in + r * width, size_t(width) * 4);
    else kernels_.norm(op.norm, in + r * width, width, row, width, width, 1);
    kernels_.prepare(Norm{}, row, width, m.router, r, 1, scratch);
    if (e.gated) kernels_.prepare(Norm{}, row, width, m.gate, r, 1, scratch);
  }
  team.barrier();

  const int64_t panels = e.router.w.panels();
  kernels_.matmul(e.router.w, m.router, panels * team.tid / team.size, panels * (team.tid + 1) / team.size,
                  {Mode::Store, Act::None, e.router.bias, m.scores, e.count}, scratch);
  if (e.gated && team.tid == team.size - 1)
    kernels_.matmul(e.shared_gate.w, m.gate, 0, 1, {Mode::Store, Act::None, e.shared_gate.bias, m.gates, 1}, scratch);
  team.barrier();

  for (int64_t r = begin; r < end; ++r)
    kernels_.route(m.scores + r * e.count, e.count, e.chosen, e.normalise, m.which + r * e.chosen,
                   m.share + r * e.chosen);
  team.barrier();
  if (team.tid == 0) m.group(e, expert_rows_);
  team.barrier();

  // One slot after the other, each prepared by the thread that gets it, from `source` rows into the activations `to`.
  auto prepare = [&](auto&& source, Activations ExpertRows::*to) {
    const int64_t slots = expert_rows_.back().first + expert_rows_.back().rows;
    const int64_t mine = slots * team.tid / team.size, last = slots * (team.tid + 1) / team.size;
    for (ExpertRows& group : expert_rows_)
      for (int64_t s = std::max(mine, group.first); s < std::min(last, group.first + group.rows); ++s)
        kernels_.prepare(Norm{}, source(group, s), 0, group.*to, s - group.first, 1, scratch);
    team.barrier();
  };
  auto multiply = [&](std::atomic<int64_t>& counter, auto&& panels_of, auto&& product) {
    int64_t total = 0;
    for (const ExpertRows& group : expert_rows_) total += panels_of(group);
    share_panels(total, rows, counter, team,
                 [&](int64_t p0, int64_t p1) { each_expert(expert_rows_, p0, p1, panels_of, product); });
    team.barrier();
  };

  prepare([&](const ExpertRows&, int64_t s) { return m.normed + m.row_of[s] * width; }, &ExpertRows::x);
  multiply(counters_[size_t(index)], [](const ExpertRows& group) { return group.mlp->gate.w.panels(); },
           [&](const ExpertRows& group, int64_t p0, int64_t p1) {
             const GatedMlp& mlp = *group.mlp;
             const int64_t ld = mlp.down.w.k;
             kernels_.matmul(mlp.up.w, group.x, p0, p1, {Mode::Store, Act::None, mlp.up.bias, group.inner, ld},
                             scratch);
             kernels_.matmul(mlp.gate.w, group.x, p0, p1, {Mode::Gate, op.act, mlp.gate.bias, group.inner, ld},
                             scratch);
           });
  prepare([&](const ExpertRows& group, int64_t s) { return group.inner + (s - group.first) * group.mlp->down.w.k; },
          &ExpertRows::y);
  multiply(counters_[ops_.size() + size_t(index)], [](const ExpertRows& group) { return group.mlp->down.w.panels(); },
           [&](const ExpertRows& group, int64_t p0, int64_t p1) {
             const LinearPart& down = group.mlp->down;
             float* out = m.answers + group.first * width;
             kernels_.matmul(down.w, group.y, p0, p1, {Mode::Store, Act::None, down.bias, out, width}, scratch);
           });

  float* sum = reinterpret_cast<float*>(scratch);
  for (int64_t r = begin; r < end; ++r) {
    std::memset(sum, 0, size_t(width) * 4);
    for (int64_t i = r * e.chosen; i < (r + 1) * e.chosen; ++i)
      kernels_.add(sum, m.answers + m.slot[i] * width, m.share[i], width);
    if (e.shared())
      kernels_.add(sum, m.answers + (rows * e.chosen + r) * width, e.gated ? kernels_.sigmoid(m.gates[r]) : 1.0f,
                   width);
    float* out = buffer(op.out) + r * width;
    if (op.mode == Mode::Store) std::memset(out, 0, size_t(width) * 4);
    kernels_.add(out, sum, op.scale, width);
  }
  team.barrier();
}

}  // namespace fp
