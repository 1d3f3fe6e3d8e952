// Matrices and programs as Python holds them, and the functions that bind what works on programs.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cache_bindings.h"
#include "cpu_features.h"
#include "program.h"

namespace fp_python {

// A packed matrix and the memory it lies in.
struct PyMatrix {
  fp::Matrix matrix;
  Bytes memory;
};

inline fp::Act act_of(int number) {
  require(number >= 0 && number < fp::kActs, "an activation's number");
  return fp::Act(number);
}

// A program and the Python objects whose memory it points to.
struct PyProgram {
  PyProgram(std::shared_ptr<fp::Pool> pool, const std::string& isa) : program(std::move(pool), fp::kernels_for(isa)) {}
  fp::Program program;
  std::vector<nanobind::object> matrices;
  std::vector<ConstFloats> vectors;
  std::vector<ConstFloats2> tables;
  std::vector<std::shared_ptr<fp::RotaryTable>> rotary;
  std::vector<std::unique_ptr<uint8_t[]>> positioned;  // vectors of relative positions, by distance
  int64_t vocabulary = 0, position_rows = 0, type_rows = 0;
  std::vector<CacheUse> groups;
  bool needs_ids = false, needs_positions = false, needs_wanted = false, needs_starts = false;
  bool needs_sizes = false, needs_contexts = false;
  int levels = 1;

  int add_buffer(int64_t width, int space) {
    require(width > 0, "buffer width");
    require(space >= fp::kContext && space < fp::kMostLevels,
            "a buffer's space is a level from 0 to 15, or that of images or contexts");
    needs_starts = needs_starts || space != 0;
    needs_contexts = needs_contexts || space == fp::kContext;
    needs_sizes = needs_sizes || space > 0;
    levels = std::max(levels, space + 1);
    return program.add_buffer(width, space);
  }
  void level_zero(int buffer) const {
    require(program.space(buffer) == 0, "an operation on tokens wants buffers of level 0");
  }
  // Makes an operation read `width` columns of a buffer that has a row for each sequence.
  void read_by(fp::Op& op, int by, int64_t column, int64_t width) const {
    require(program.space(by) == fp::kImages, "a row for each sequence lies in the space of images");
    require(op.out != by, "an operation that changes what it reads");
    require(column >= 0 && column <= program.width(by) - width, "columns of the row for each sequence");
    op.by = by;
    op.column = column;
  }
  void same_space(int in, int out) const {
    require(program.space(in) == program.space(out), "an operation's buffers lie in different spaces");
  }

  bool rotates_on_read() const {
    return std::any_of(rotary.begin(), rotary.end(), [](const auto& table) { return table->rotates_on_read(); });
  }
  void check_rotary(int64_t sequences, const std::optional<Ints>& regime, const std::optional<Ints>& lengths) const {
    auto in_range = [&](const std::optional<Ints>& values, int64_t limit, const char* what) {
      if (!values) return;
      require(int64_t(values->size()) == sequences, what);
      for (int64_t s = 0; s < sequences; ++s) require(values->data()[s] >= 0 && values->data()[s] < limit, what);
    };
    in_range(regime, 2, "a rotary regime is 0 or 1, one for each sequence");
    in_range(lengths, int64_t(1) << 24, "a length is out of range, one for each sequence");
  }
  // Completes an attention op that uses the cache: its layer in its group.
  void join_group(fp::Op& op, int64_t layer, int64_t group) {
    fp::Attention& a = op.attention;
    require(layer >= 0 && layer < (int64_t(1) << 16), "a layer below zero or beyond all models");
    require(group >= 0 && group < (int64_t(1) << 16), "a group below zero or beyond all models");
    a.layer = layer;
    op.group = int(group);
    if (group >= int64_t(groups.size())) groups.resize(size_t(group) + 1);
    groups[size_t(group)].join(a);
  }
  const float* floats(const std::optional<ConstFloats>& array, int64_t size) {
    if (!array) return nullptr;
    require(int64_t(array->size()) == size, "a norm or bias has the wrong length");
    vectors.push_back(*array);
    return array->data();
  }
  fp::Norm norm(int kind, float eps, const std::optional<ConstFloats>& weight, const std::optional<ConstFloats>& bias,
                int64_t size) {
    require(kind >= 0 && kind < fp::kNorms, "a norm's kind");
    return {fp::NormKind(kind), eps, floats(weight, size), floats(bias, size)};
  }
  const fp::Matrix& hold(nanobind::handle matrix) {
    matrices.push_back(nanobind::borrow(matrix));
    return nanobind::cast<PyMatrix&>(matrix).matrix;
  }
  // (matrix, bias or None); n: the rows it must have, 0 = any.
  fp::LinearPart part(nanobind::handle pair, int64_t n, int64_t k) {
    nanobind::tuple both = nanobind::cast<nanobind::tuple>(pair);
    require(nanobind::len(both) == 2, "a product is a matrix and its bias");
    const fp::Matrix& w = hold(both[0]);
    require((!n || w.n == n) && w.k == k, "an expert's matrix has another shape");
    return {w, floats(nanobind::cast<std::optional<ConstFloats>>(both[1]), w.n), 0};
  }
};

nanobind::class_<PyProgram> bind_program(nanobind::module_& m);
void bind_images(nanobind::class_<PyProgram>& program);
void bind_steps(nanobind::module_& m, nanobind::class_<PyProgram>& program);

}  // namespace fp_python
