// Runs of recorded programs: one step, and several of the likeliest token. Everything that a step reads is checked here
// against what its program recorded, and the GIL is released while it computes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "greedy.h"
#include "program_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fp_python {

namespace {

// Sizes of images and where contexts begin: what the spaces of a program need besides its rows. Keeps arrays that the
// step points to.
struct Spaces {
  std::vector<std::vector<int32_t>> starts;  // of level 0, if the sizes say it, and of the others

  // Where the images begin at a level, and how many rows that is.
  const std::vector<int32_t>& begins(const fp::Step& step, int64_t sequences, int level) {
    std::vector<int32_t>& out = starts.emplace_back(1, 0);
    int64_t total = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      total += step.size(s, 0, level) * step.size(s, 1, level);
      require(total < (int64_t(1) << 31), "images of too many pixels");
      out.push_back(int32_t(total));
    }
    return out;
  }
};

int64_t longest(const int32_t* starts, int64_t sequences) {
  int64_t most = 0;
  for (int64_t s = 0; s < sequences; ++s) most = std::max<int64_t>(most, int64_t(starts[s + 1]) - starts[s]);
  return most;
}

void set_spaces(fp::Step& step, const PyProgram& self, const std::optional<Ints>& starts,
                const std::optional<Ints2>& sizes, const std::optional<Ints>& context_starts, Spaces& spaces) {
  if (sizes) {
    step.sequences = int64_t(sizes->shape(0));
    step.sizes = sizes->data();
    require(step.sequences > 0 && sizes->shape(1) == 2, "sizes are the height and width of each image");
    for (int64_t i = 0; i < 2 * step.sequences; ++i)
      require(step.sizes[i] > 0 && step.sizes[i] < (1 << 24), "an image's size is out of range");
    const std::vector<int32_t>& found = spaces.begins(step, step.sequences, 0);
    require(found.back() == step.rows, "the sizes of the images do not cover the rows");
    require(!starts || (starts->size() == found.size() && std::equal(found.begin(), found.end(), starts->data())),
            "starts are not those of the images' sizes");
    step.starts = found.data();
  }
  require(!self.needs_sizes || sizes, "a program of images wants their sizes");
  if (self.needs_starts && !sizes) {
    require(starts && starts->size() > 1, "where do sequences start?");
    step.sequences = int64_t(starts->size()) - 1;
    step.starts = starts->data();
    require(step.starts[0] == 0 && step.starts[step.sequences] == step.rows, "starts do not cover the rows");
    for (int64_t s = 0; s < step.sequences; ++s) require(step.starts[s + 1] > step.starts[s], "an empty sequence");
  }
  if (step.starts) step.longest_context = step.longest_rows = longest(step.starts, step.sequences);
  for (int level = 1; level < self.levels; ++level) {
    const std::vector<int32_t>& found = spaces.begins(step, step.sequences, level);
    step.halved.push_back({found.back(), found.data(), longest(found.data(), step.sequences)});
  }
  if (self.needs_contexts) {
    require(context_starts && int64_t(context_starts->size()) == step.sequences + 1,
            "where does the context of each sequence start?");
    const int32_t* begins = context_starts->data();
    require(begins[0] == 0, "contexts start at row 0");
    for (int64_t s = 0; s < step.sequences; ++s) require(begins[s + 1] >= begins[s], "a context of less than no rows");
    step.contexts = {begins[step.sequences], begins, longest(begins, step.sequences)};
  }
}

void run(PyProgram& self, int64_t rows, std::optional<Ints> ids, std::optional<Ints> positions,
         std::optional<Ints> wanted, std::optional<Ints> starts, std::optional<Ints> past, std::optional<Ints3> tables,
         std::vector<PyKvMemory*> memories, std::vector<std::tuple<int, Floats2>> bound, bool timed,
         std::optional<Ints> regime, std::optional<Ints> lengths, std::optional<Ints> types,
         std::optional<Ints> sources, std::optional<Ints2> sizes, std::optional<Ints> context_starts) {
  fp::Step step;
  step.rows = rows;
  require(rows > 0, "no rows");
  Spaces spaces;
  set_spaces(step, self, starts, sizes, context_starts, spaces);
  auto all_in = [](const Ints& a, int64_t size, int64_t limit, const char* what) {
    require(int64_t(a.size()) == size, what);
    for (int64_t i = 0; i < size; ++i) require(a.data()[i] >= 0 && a.data()[i] < limit, what);
    return a.data();
  };
  int64_t in_rows = rows;
  if (self.needs_wanted) {
    require(wanted.has_value() && !bound.empty(), "which rows are wanted?");
    in_rows = int64_t(std::get<1>(bound[0]).shape(0));
    step.wanted = all_in(*wanted, rows, in_rows, "a wanted row is out of range");
  }
  if (self.needs_ids) {
    require(ids.has_value(), "token ids missing");
    step.ids = all_in(*ids, rows, self.vocabulary, "a token id is out of range");
  }
  if (self.needs_positions) {
    require(positions.has_value(), "positions missing");
    int64_t limit = self.position_rows ? self.position_rows : int64_t(1) << 24;
    step.positions = all_in(*positions, rows, limit, "a position is out of range");
    for (int64_t i = 0; i < rows; ++i) step.last_position = std::max<int64_t>(step.last_position, step.positions[i]);
  }
  if (self.type_rows && types) step.types = all_in(*types, rows, self.type_rows, "a token type is out of range");
  auto rows_of = [&](int64_t s) { return int64_t(step.starts[s + 1]) - step.starts[s]; };
  if (!self.groups.empty()) {
    require(past && tables, "cache arguments missing");
    require(int64_t(past->size()) == step.sequences, "cache arguments disagree on the number of sequences");
    step.past = past->data();
    set_cache(step, self.groups, *tables, memories, sources, rows_of);
  }
  auto past_of = [&](int64_t s) { return int64_t(step.past ? step.past[s] : 0); };
  self.check_rotary(step.sequences, regime, lengths);
  if (regime) step.regime = regime->data();
  if (lengths) step.lengths = lengths->data();
  for (int64_t s = 0; s < step.sequences && self.rotates_on_read(); ++s)
    for (int64_t r = step.starts[s]; r < step.starts[s + 1]; ++r)
      require(step.positions[r] == past_of(s) + r - step.starts[s],
              "dynamic rotary frequencies need positions that are the cache's slots");
  for (int64_t s = 0; s < step.sequences && lengths; ++s)
    require(step.lengths[s] == 0 || step.lengths[s] >= past_of(s) + rows_of(s),
            "a sequence is longer than its length");
  for (auto& [id, array] : bound) {
    require(int64_t(array.shape(1)) == self.program.width(id), "a bound array has the wrong width");
    const bool gathered = self.needs_wanted && &array == &std::get<1>(bound[0]);
    require(int64_t(array.shape(0)) >= (gathered ? in_rows : step.in_space(self.program.space(id)).count),
            "a bound array has too few rows");
  }
  nb::gil_scoped_release release;
  self.program.start();
  for (auto& [id, array] : bound) self.program.bind(id, array.data());
  self.program.run(step, timed);
}

// buffers: embed out; layers in, out; project in, out.
nb::tuple greedy_steps(PyProgram& embed, PyProgram& layers, PyProgram& project, std::vector<int> buffers, Ints ids,
                       Ints positions, Ints past, Ints3 tables, std::vector<PyKvMemory*> memories, int64_t steps,
                       int64_t vocabulary, std::vector<Ints> ends, bool timed, std::optional<Ints> regime,
                       std::optional<Ints> lengths, std::optional<Ints> sources) {
  const int64_t count = int64_t(ids.size());
  const int64_t width = embed.program.width(buffers.at(0)), logits_width = project.program.width(buffers.at(4));
  require(count > 0 && steps > 0 && buffers.size() == 5, "greedy steps of nothing");
  for (const PyProgram* program : {&embed, &layers, &project})
    require(!program->needs_sizes && !program->needs_contexts, "greedy steps of images");
  require(int64_t(positions.size()) == count && int64_t(past.size()) == count && int64_t(ends.size()) == count,
          "arguments disagree on the number of sequences");
  require(vocabulary > 0 && vocabulary <= logits_width && vocabulary <= embed.vocabulary, "vocabulary");
  layers.check_rotary(count, regime, lengths);
  const bool on_read = layers.rotates_on_read();
  fp::Greedy run;
  run.cache.sequences = count;
  run.cache.past = past.data();
  set_cache(run.cache, layers.groups, tables, memories, sources, [&](int64_t) { return steps; });
  if (regime) run.regime.assign(regime->data(), regime->data() + count);
  if (lengths) run.lengths.assign(lengths->data(), lengths->data() + count);
  for (int64_t s = 0; s < count; ++s) {
    int64_t id = ids.data()[s], position = positions.data()[s];
    require(id >= 0 && id < embed.vocabulary, "a token id is out of range");
    require(position >= 0 && (!embed.position_rows || position + steps <= embed.position_rows),
            "a position is out of range");
    require(!on_read || position == past.data()[s],
            "dynamic rotary frequencies need positions that are the cache's slots");
    require(!lengths || lengths->data()[s] == 0 || lengths->data()[s] > past.data()[s],
            "a sequence is longer than its length");
    run.ids.push_back(int32_t(id));
    run.positions.push_back(int32_t(position));
    run.past.push_back(past.data()[s]);
    run.ends.emplace_back(ends[size_t(s)].data(), ends[size_t(s)].data() + ends[size_t(s)].size());
  }
  run.width = width;
  run.logits_width = logits_width;
  run.vocabulary = vocabulary;
  run.buffers = std::move(buffers);
  {
    nb::gil_scoped_release release;
    run.run(embed.program, layers.program, project.program, steps, timed);
  }
  const size_t done = run.tokens.size();
  auto tokens = new_array<int32_t>(done);
  std::copy_n(run.tokens.data(), done, tokens.data());
  return nb::make_tuple(tokens, run.seconds[0], run.seconds[1], run.seconds[2]);
}

}  // namespace

void bind_steps(nb::module_& m, nb::class_<PyProgram>& program) {
  program.def("run", &run, "rows"_a, "ids"_a.none(), "positions"_a.none(), "wanted"_a.none(), "starts"_a.none(),
              "past"_a.none(), "tables"_a.none(), "memories"_a, "bound"_a, "timed"_a, "regime"_a.none() = nb::none(),
              "lengths"_a.none() = nb::none(), "types"_a.none() = nb::none(), "sources"_a.none() = nb::none(),
              "sizes"_a.none() = nb::none(), "context_starts"_a.none() = nb::none());
  m.def("greedy_steps", &greedy_steps, "embed"_a, "layers"_a, "project"_a, "buffers"_a, "ids"_a, "positions"_a,
        "past"_a, "tables"_a, "memories"_a, "steps"_a, "vocabulary"_a, "ends"_a, "timed"_a,
        "regime"_a.none() = nb::none(), "lengths"_a.none() = nb::none(), "sources"_a.none() = nb::none(),
        "Up to `steps` steps of the likeliest token, step by step for all sequences: int32 [steps done * sequences], "
        "and the seconds of the three stages.");
}

}  // namespace fp_python
