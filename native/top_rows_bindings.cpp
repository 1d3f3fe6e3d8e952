// Rows of logits for beam search, from Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>

#include "arrays.h"
#include "cpu_features.h"
#include "kernels.h"
#include "pool.h"
#include "top_rows.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fp_python;

namespace {

const fp::Kernels& kernels_of(const std::optional<std::string>& isa) {
  static const fp::Kernels& best = fp::kernels_for(fp::available_isas()[0]);  // all give the same bits
  return isa ? fp::kernels_for(*isa) : best;
}

fp::RowsOf rows_of(const ConstFloats2& values, const Ints& rows) {
  require(values.shape(1) > 0 && values.shape(1) < (size_t(1) << 31), "rows of nothing");
  for (size_t i = 0; i < rows.size(); ++i)
    require(rows.data()[i] >= 0 && size_t(rows.data()[i]) < values.shape(0), "a row is out of range");
  return {values.data(), int64_t(values.shape(1)), rows.data(), int64_t(rows.size())};
}

template <typename T>
auto moved(const std::vector<T>& values) {
  auto out = new_array<T>(values.size());
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

}  // namespace

void bind_top_rows(nb::module_& m) {
  m.def("log_softmax", [](fp::Pool* pool, ConstFloats2 values, Ints rows, Floats2 out,
                          std::optional<std::string> isa) {
    const fp::RowsOf in = rows_of(values, rows);
    require(out.shape(0) == rows.size() && out.shape(1) == values.shape(1), "the result has the wrong shape");
    auto log_sums = new_array<float>(rows.size());
    {
      nb::gil_scoped_release release;
      fp::log_softmax(pool, kernels_of(isa), in, out.data(), log_sums.data());
    }
    return log_sums;
  }, "pool"_a.none(), "values"_a, "rows"_a, "out"_a, "isa"_a.none() = nb::none(),
     "log-softmax of some rows, each into one of out. Returns log(sum(exp(row - greatest))): NaN for a row that is no "
     "distribution. pool: None = this thread alone.");

  m.def("best_continuations", [](fp::Pool* pool, ConstFloats2 values, Ints rows, ConstFloats before, Ints starts,
                                 int64_t vocabulary, int64_t k, bool normalise, std::optional<std::string> isa) {
    const fp::RowsOf in = rows_of(values, rows);
    require(before.size() == rows.size() && starts.size() > 0, "arguments disagree on the number of rows");
    require(starts.data()[0] == 0 && size_t(starts.data()[starts.size() - 1]) == rows.size(),
            "segments do not cover the rows");
    for (size_t s = 1; s < starts.size(); ++s) require(starts.data()[s - 1] <= starts.data()[s], "segments overlap");
    require(vocabulary > 0 && vocabulary <= in.width, "vocabulary out of range");
    require(k > 0 && k <= std::max<int64_t>(1, in.count) * vocabulary, "k out of range");
    fp::Continuations found;
    {
      nb::gil_scoped_release release;
      found = fp::best_continuations(pool, kernels_of(isa), in, before.data(), starts.data(),
                                     int64_t(starts.size()) - 1, vocabulary, k, normalise);
    }
    return nb::make_tuple(moved(found.scores), moved(found.parents), moved(found.tokens), moved(found.log_sums));
  }, "pool"_a.none(), "values"_a, "rows"_a, "before"_a, "starts"_a, "vocabulary"_a, "k"_a, "normalise"_a,
     "isa"_a.none() = nb::none(),
     "(scores, parents, tokens) [segments * k] of the k best values + before of each segment's rows, best first, and "
     "the rows' log(sum(exp(row - greatest))) if they are normalised: NaN for a row that is no distribution.");
}
