// What Python sees. Everything that could read or write outside an array is checked here; the release of the GIL
// around every call that computes happens here too.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>

#include "arrays.h"
#include "cache_bindings.h"
#include "cpu_features.h"
#include "greedy.h"
#include "machine_limits.h"
#include "memory.h"
#include "pack.h"
#include "program.h"
#include "rows.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fp_python;

namespace {

fp::Matrix matrix_shape(int format, int64_t n, int64_t k) {
  require(format >= 0 && format < fp::kFormats, "no such matrix format");
  require(n > 0 && k > 0 && n < (int64_t(1) << 31) && k < (int64_t(1) << 24), "matrix shape out of range");
  require(!fp::has_row_scale(fp::Format(format)) || k <= fp::kMostColumns,
          "a matrix with exact integer sums has at most 131072 columns");
  return fp::Matrix{fp::Format(format), n, k, nullptr};
}

// A packed matrix and the memory it lies in.
struct PyMatrix {
  fp::Matrix matrix;
  Bytes memory;
};

struct PyRegion {
  explicit PyRegion(int64_t bytes) : region(bytes, true) {}
  fp::Region region;
};

// A program and the Python objects whose memory it points to.
struct PyProgram {
  PyProgram(std::shared_ptr<fp::Pool> pool, const std::string& isa) : program(std::move(pool), fp::kernels_for(isa)) {}
  fp::Program program;
  std::vector<nb::object> matrices;
  std::vector<ConstFloats> vectors;
  std::vector<ConstFloats2> tables;
  std::vector<std::shared_ptr<fp::RotaryTable>> rotary;
  int64_t vocabulary = 0, position_rows = 0;
  std::vector<CacheUse> groups;
  bool needs_ids = false, needs_positions = false, needs_wanted = false;

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
  const float* floats(const std::optional<ConstFloats>& array, int64_t size) {
    if (!array) return nullptr;
    require(int64_t(array->size()) == size, "a norm or bias has the wrong length");
    vectors.push_back(*array);
    return array->data();
  }
  fp::Norm norm(int kind, float eps, const std::optional<ConstFloats>& weight, const std::optional<ConstFloats>& bias,
                int64_t size) {
    require(kind >= 0 && kind <= 2 && (kind == 0 || weight), "norm without a weight");
    return {fp::NormKind(kind), eps, floats(weight, size), floats(bias, size)};
  }
  const fp::Matrix& hold(nb::handle matrix) {
    matrices.push_back(nb::borrow(matrix));
    return nb::cast<PyMatrix&>(matrix).matrix;
  }
  // (matrix, bias or None); n: the rows it must have, 0 = any.
  fp::LinearPart part(nb::handle pair, int64_t n, int64_t k) {
    nb::tuple both = nb::cast<nb::tuple>(pair);
    require(nb::len(both) == 2, "a product is a matrix and its bias");
    const fp::Matrix& w = hold(both[0]);
    require((!n || w.n == n) && w.k == k, "an expert's matrix has another shape");
    return {w, floats(nb::cast<std::optional<ConstFloats>>(both[1]), w.n), 0};
  }
};

fp::Op make_op(fp::OpKind kind, const std::string& label) {
  fp::Op op;
  op.kind = kind;
  op.label = label;
  return op;
}

template <typename T>
nb::ndarray<nb::numpy, T> new_array(size_t size) {
  T* data = new T[size];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, {size}, owner);
}

}  // namespace

void bind_testing(nb::module_& parent);  // testing_bindings.cpp

NB_MODULE(_native, m) {
  m.doc() = "Kernels of forwardpass. Internal: use the package's own functions.";
  nb::set_leak_warnings(false);  // a model still open when the interpreter exits is no leak

  m.def("isas", &fp::available_isas, "Instruction sets that work here, best first.");
  m.def("cpu_name", &fp::cpu_name);
  m.attr("formats") = [] {  // matrix layouts in the order of their numbers
    nb::list names;
    for (const char* name : fp::kFormatNames) names.append(name);
    return nb::tuple(names);
  }();
  m.def("activations", [](int format) {
    switch (fp::act_kind(matrix_shape(format, 1, 1).format)) {
      case fp::ActKind::Float: return "float32";
      case fp::ActKind::Bf16: return "bfloat16";
      case fp::ActKind::Int15: return "int8";
    }
    return "";
  }, "format"_a, "What a product with a matrix of this format multiplies.");
  m.def("matrix_bytes", [](int format, int64_t n, int64_t k) { return matrix_shape(format, n, k).bytes(); });
  m.def("release_pages", [](ConstBytes bytes) { fp::release_pages(bytes.data(), int64_t(bytes.size())); });

  nb::class_<fp::Pool>(m, "Pool").def(nb::init<int>(), "threads"_a).def_prop_ro("threads", &fp::Pool::size);

  nb::class_<PyRegion>(m, "Region")
      .def(nb::init<int64_t>(), "bytes"_a)
      .def("view", [](nb::object self, int64_t offset, int64_t bytes) {
        fp::Region& region = nb::cast<PyRegion&>(self).region;
        require(offset >= 0 && bytes >= 0 && bytes <= region.bytes() && offset <= region.bytes() - bytes,
                "view outside the region");
        return nb::ndarray<nb::numpy, uint8_t>(region.data() + offset, {size_t(bytes)}, self);
      });

  nb::class_<PyMatrix>(m, "Matrix")
      .def("__init__", [](PyMatrix* self, int format, int64_t n, int64_t k, Bytes memory) {
        fp::Matrix matrix = matrix_shape(format, n, k);
        require(int64_t(memory.size()) == matrix.bytes(), "memory does not fit the matrix");
        require(reinterpret_cast<uintptr_t>(memory.data()) % 64 == 0, "matrix memory must be 64-byte aligned");
        matrix.data = memory.data();
        new (self) PyMatrix{matrix, memory};
      })
      .def_prop_ro("format", [](const PyMatrix& self) { return int(self.matrix.format); })
      .def_prop_ro("n", [](const PyMatrix& self) { return self.matrix.n; })
      .def_prop_ro("k", [](const PyMatrix& self) { return self.matrix.k; })
      .def_prop_ro("nbytes", [](const PyMatrix& self) { return self.matrix.bytes(); });

  m.def("pack", [](fp::Pool& pool, int format, int64_t n, int64_t k, const std::string& type, ConstBytes rows,
                   std::optional<Ints> order, Bytes out) {
    fp::Matrix shape = matrix_shape(format, n, k);
    const int source = fp::find_stored_type(type);
    require(int64_t(out.size()) == shape.bytes(), "packed memory has the wrong size");
    fp::check_packing(shape, fp::stored_type(source));
    require(int64_t(rows.size()) == n * fp::stored_row_bytes(fp::stored_type(source), k),
            "stored rows have the wrong size");
    if (order) {
      require(int64_t(order->size()) == n, "row order has the wrong length");
      for (int64_t i = 0; i < n; ++i) require(order->data()[i] >= 0 && order->data()[i] < n, "row order out of range");
    }
    const int32_t* rows_order = order ? order->data() : nullptr;
    bool finite;
    {
      nb::gil_scoped_release release;
      std::atomic<int64_t> next{0};
      std::atomic<bool> good{true};
      pool.run([&](int) {
        std::vector<uint64_t> scratch(size_t(fp::pack_scratch(k)) / 8 + 8);
        for (int64_t p; (p = next.fetch_add(8)) < shape.panels();)
          if (!fp::pack_panels(shape, out.data(), source, rows.data(), rows_order, p,
                               std::min(p + 8, shape.panels()), reinterpret_cast<uint8_t*>(scratch.data())))
            good = false;
      });
      finite = good;
    }
    return finite;
  }, "pool"_a, "format"_a, "n"_a, "k"_a, "type"_a, "rows"_a, "order"_a.none(), "out"_a,
     "Packs stored rows into `out`. False if a weight is NaN or infinite.");

  nb::class_<fp::RotaryTable>(m, "RotaryTable")
      .def("__init__", [](fp::RotaryTable* self, std::vector<float> inv_freq, float factor,
                          std::vector<float> long_inv_freq, std::optional<std::tuple<double, double, int64_t>> ntk) {
        require(!inv_freq.empty() && (long_inv_freq.empty() || long_inv_freq.size() == inv_freq.size()),
                "rotary frequencies");
        std::unique_ptr<fp::DynamicNtk> dynamic;
        if (ntk) {
          auto [base, growth, trained] = *ntk;
          require(long_inv_freq.empty() && inv_freq.size() > 1 && base > 0 && growth >= 1 && trained > 0,
                  "dynamic rotary frequencies");
          dynamic = std::make_unique<fp::DynamicNtk>(fp::DynamicNtk{base, growth, trained});
        }
        new (self) fp::RotaryTable(std::move(inv_freq), factor, std::move(long_inv_freq), std::move(dynamic));
      }, "inv_freq"_a, "factor"_a, "long_inv_freq"_a = std::vector<float>(), "ntk"_a.none() = nb::none())
      .def("rows", [](fp::RotaryTable& self, int64_t positions) {
        fp::RotaryRows& rows = self.plain();
        rows.reserve(positions);
        size_t size = size_t(positions * self.dim() / 2);
        auto cos = new_array<float>(size), sin = new_array<float>(size);
        std::copy_n(rows.turns().cos, size, cos.data());
        std::copy_n(rows.turns().sin, size, sin.data());
        return nb::make_tuple(cos, sin);
      }, "positions"_a, "(cos, sin) of the plain frequencies, [positions * dim / 2] each.")
      .def("frequencies", [](const fp::RotaryTable& self, int64_t length) {
        require(self.rotates_on_read(), "these frequencies do not depend on the length");
        return self.frequencies(length);
      }, "length"_a, "What a sequence of this length is rotated with, under dynamic scaling.");

  nb::class_<PyKvMemory>(m, "KvMemory")
      .def(nb::init<int, int64_t, int64_t, int64_t, int64_t>(), "kv_type"_a, "layers"_a, "kv_heads"_a, "head_dim"_a,
           "blocks"_a)
      .def_ro("block_bytes", &PyKvMemory::block_bytes)
      .def_ro("blocks", &PyKvMemory::blocks)
      .def("clear", [](PyKvMemory& self, int64_t block) { std::fill_n(self.data(block), self.block_bytes, 0); })
      .def("copy", [](PyKvMemory& self, int64_t from, int64_t to) {
        std::copy_n(self.data(from), self.block_bytes, self.data(to));
      })
      .def("release", [](PyKvMemory& self, int64_t block) { fp::release_pages(self.data(block), self.block_bytes); },
           "Give a block's memory back to the system. What the block then holds is not defined: clear it before use.");

  nb::class_<PyProgram>(m, "Program")
      .def(nb::init<std::shared_ptr<fp::Pool>, const std::string&>(), "pool"_a, "isa"_a)
      .def_prop_ro("isa", [](const PyProgram& self) { return self.program.isa(); }, "Name of the table it runs.")
      .def("buffer", [](PyProgram& self, int64_t width) {
        require(width > 0, "buffer width");
        return self.program.add_buffer(width);
      })
      .def("embed", [](PyProgram& self, int out, nb::object table, float scale, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Embed, label);
        op.out = out;
        op.scale = scale;
        op.parts.push_back({self.hold(table), nullptr, 0});
        require(op.parts[0].w.k == self.program.width(out), "embedding width");
        self.vocabulary = op.parts[0].w.n;
        self.needs_ids = true;
        self.program.add(std::move(op));
      })
      .def("positions", [](PyProgram& self, int out, nb::object table, int64_t offset, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Positions, label);
        op.out = out;
        op.offset = offset;
        op.parts.push_back({self.hold(table), nullptr, 0});
        require(op.parts[0].w.k == self.program.width(out), "position table width");
        require(offset >= 0 && offset < op.parts[0].w.n, "position offset");
        self.position_rows = op.parts[0].w.n - offset;
        self.needs_positions = true;
        self.program.add(std::move(op));
      })
      .def("norm", [](PyProgram& self, int in, int out, int kind, float eps, std::optional<ConstFloats> weight,
                      std::optional<ConstFloats> bias, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Norm, label);
        op.in = in;
        op.out = out;
        require(self.program.width(in) == self.program.width(out), "norm");
        op.norm = self.norm(kind, eps, weight, bias, self.program.width(in));
        self.program.add(std::move(op));
      })
      .def("add_normed", [](PyProgram& self, int in, int out, int kind, float eps, std::optional<ConstFloats> weight,
                            std::optional<ConstFloats> bias, float scale, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::AddNormed, label);
        op.in = in;
        op.out = out;
        op.scale = scale;
        require(in != out && self.program.width(in) == self.program.width(out), "widths of an addition");
        op.norm = self.norm(kind, eps, weight, bias, self.program.width(in));
        self.program.add(std::move(op));
      })
      .def("head_norm", [](PyProgram& self, int buffer, int64_t column, int64_t heads, int64_t head_dim, int kind,
                           float eps, std::optional<ConstFloats> weight, std::optional<ConstFloats> bias, bool each,
                           const std::string& label) {
        fp::Op op = make_op(fp::OpKind::HeadNorm, label);
        op.out = buffer;
        op.column = column;
        op.heads = heads;
        op.head_dim = head_dim;
        op.each = each;
        require(kind != 0 && column >= 0 && heads > 0 && head_dim > 0 && heads <= (int64_t(1) << 24) &&
                    head_dim <= (int64_t(1) << 24) && column + heads * head_dim <= self.program.width(buffer),
                "columns of a head norm");
        op.norm = self.norm(kind, eps, weight, bias, each ? heads * head_dim : head_dim);
        self.program.add(std::move(op));
      })
      .def("clip", [](PyProgram& self, int buffer, int64_t column, int64_t width, float limit,
                      const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Clip, label);
        op.out = buffer;
        op.column = column;
        op.head_dim = width;
        op.limit = limit;
        require(column >= 0 && width > 0 && width <= self.program.width(buffer) - column && limit > 0, "clip");
        self.program.add(std::move(op));
      })
      .def("cap", [](PyProgram& self, int buffer, float scale, float softcap, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Cap, label);
        op.out = buffer;
        op.scale = scale;
        op.limit = softcap;
        require(self.program.width(buffer) > 0 && softcap >= 0, "cap");
        self.program.add(std::move(op));
      })
      .def("gather", [](PyProgram& self, int in, int out, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Gather, label);
        op.in = in;
        op.out = out;
        require(self.program.width(in) == self.program.width(out), "gather widths");
        self.needs_wanted = true;
        self.program.add(std::move(op));
      })
      .def("linear", [](PyProgram& self, int in, int out, int norm_kind, float eps, std::optional<ConstFloats> weight,
                        std::optional<ConstFloats> bias, nb::list parts, int mode, int act, bool gated,
                        const std::string& label) {
        fp::Op op = make_op(gated ? fp::OpKind::Gated : fp::OpKind::Linear, label);
        op.in = in;
        op.out = out;
        op.mode = fp::Mode(mode);
        op.act = fp::Act(act);
        require(nb::len(parts) > 0 && (!gated || nb::len(parts) == 2), "parts of a linear op");
        const int64_t in_width = self.program.width(in), out_width = self.program.width(out);
        op.norm = self.norm(norm_kind, eps, weight, bias, in_width);
        int64_t column = 0;
        for (nb::handle item : parts) {
          nb::tuple part = nb::cast<nb::tuple>(item);
          const fp::Matrix& w = self.hold(part[0]);
          require(w.k == in_width, "a weight's columns differ from its input");
          const float* part_bias = self.floats(nb::cast<std::optional<ConstFloats>>(part[1]), w.n);
          op.parts.push_back({w, part_bias, gated ? 0 : column});
          column += w.n;
          require(gated ? w.n == out_width : column <= out_width, "a weight's rows differ from its output");
          require(fp::act_kind(w.format) == fp::act_kind(op.parts[0].w.format),
                  "weights that share an input must share a kind of activation");
        }
        self.program.add(std::move(op));
      })
      .def("experts", [](PyProgram& self, int in, int out, int norm_kind, float eps, std::optional<ConstFloats> weight,
                         std::optional<ConstFloats> bias, nb::tuple router, nb::list mlps,
                         std::optional<nb::tuple> shared, std::optional<nb::tuple> shared_gate, int64_t chosen,
                         bool normalise, int act, int mode, float scale, const std::string& label) {
        fp::Op op = make_op(fp::OpKind::Experts, label);
        op.in = in;
        op.out = out;
        op.mode = fp::Mode(mode);
        op.act = fp::Act(act);
        op.scale = scale;
        const int64_t width = self.program.width(in);
        require(width == self.program.width(out), "experts answer in the width of their input");
        op.norm = self.norm(norm_kind, eps, weight, bias, width);
        auto experts = std::make_shared<fp::Experts>();
        experts->count = int64_t(nb::len(mlps));
        experts->chosen = chosen;
        experts->normalise = normalise;
        require(chosen > 0 && chosen <= experts->count, "more experts chosen than there are");
        experts->router = self.part(router, experts->count, width);
        auto add = [&](nb::tuple parts) {
          require(nb::len(parts) == 3, "an expert is gate, up and down");
          fp::LinearPart gate = self.part(parts[0], 0, width), up = self.part(parts[1], gate.w.n, width);
          require(fp::act_kind(gate.w.format) == fp::act_kind(up.w.format),
                  "weights that share an input must share a kind of activation");
          experts->mlps.push_back({gate, up, self.part(parts[2], width, gate.w.n)});
        };
        for (nb::handle mlp : mlps) add(nb::cast<nb::tuple>(mlp));
        if (shared) add(*shared);
        require(!shared_gate || shared, "a gate without a shared expert");
        experts->gated = shared_gate.has_value();
        if (shared_gate) experts->shared_gate = self.part(*shared_gate, 1, width);
        op.experts = std::move(experts);
        self.program.add(std::move(op));
      })
      .def("attention", [](PyProgram& self, int qkv, int out, int64_t layer, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, float scale, int64_t window, int kv_type,
                           std::shared_ptr<fp::RotaryTable> rotary, std::optional<ConstFloats> slopes, float softcap,
                           std::optional<ConstFloats2> bias, const std::string& label, int64_t group) {
        fp::Op op = make_op(fp::OpKind::Attention, label);
        op.in = qkv;
        op.out = out;
        require(kv_heads > 0 && heads % kv_heads == 0 && head_dim > 0 && head_dim <= 1024, "attention heads");
        require(self.program.width(qkv) == (heads + 2 * kv_heads) * head_dim, "qkv width");
        require(self.program.width(out) == heads * head_dim, "attention output width");
        fp::Attention& a = op.attention;
        a.layout = {fp::KvType(kv_type), kv_heads, head_dim};
        a.heads = heads;
        a.layer = layer;
        a.scale = scale;
        a.window = window;
        if (rotary) {
          require(rotary->dim() <= head_dim, "rotary dimensions exceed the head");
          a.rotary_dim = rotary->dim();
          a.rotate_on_read = rotary->rotates_on_read();
          op.rotary = rotary.get();
          self.rotary.push_back(rotary);
          self.needs_positions = true;
        }
        require(softcap >= 0, "a soft cap is positive, or 0 for none");
        a.changes.softcap = softcap;
        a.changes.slopes = self.floats(slopes, heads);
        if (bias) {
          const int64_t columns = int64_t(bias->shape(1)), beyond = 2 * fp::ScoreChanges::kBeyond;
          require(int64_t(bias->shape(0)) == heads && columns > beyond && columns % 2 == 1, "relative bias");
          a.changes.reach = (columns - 1 - beyond) / 2;
          a.changes.bias = bias->data();
          self.tables.push_back(*bias);
        }
        require(layer >= 0 && window >= 0, "a layer or window below zero");
        require(group >= 0 && group <= int64_t(self.groups.size()), "groups are numbered in order of their first layers");
        op.group = int(group);
        if (group == int64_t(self.groups.size())) self.groups.push_back({a.layout, layer + 1, window});
        self.groups[size_t(group)].join(a);
        self.program.add(std::move(op));
      }, "qkv"_a, "out"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a, "kv_type"_a,
         "rotary"_a.none(), "slopes"_a.none(), "softcap"_a, "bias"_a.none(), "label"_a, "group"_a = 0)
      .def("run", [](PyProgram& self, int64_t rows, std::optional<Ints> ids, std::optional<Ints> positions,
                     std::optional<Ints> wanted, std::optional<Ints> starts, std::optional<Ints> past,
                     std::optional<Ints3> tables, std::vector<PyKvMemory*> memories,
                     std::vector<std::tuple<int, Floats2>> bound, bool timed, std::optional<Ints> regime, std::optional<Ints> lengths) {
        fp::Step step;
        step.rows = rows;
        require(rows > 0, "no rows");
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
        if (!self.groups.empty()) {
          require(starts && past && tables && starts->size() > 1, "cache arguments missing");
          step.sequences = int64_t(starts->size()) - 1;
          step.starts = starts->data();
          step.past = past->data();
          require(int64_t(past->size()) == step.sequences, "cache arguments disagree on the number of sequences");
          require(step.starts[0] == 0 && step.starts[step.sequences] == rows, "starts do not cover the rows");
          set_cache(step, self.groups, *tables, memories,
                    [&](int64_t s) { return int64_t(step.starts[s + 1]) - step.starts[s]; });
        }
        self.check_rotary(step.sequences, regime, lengths);
        if (regime) step.regime = regime->data();
        if (lengths) step.lengths = lengths->data();
        for (int64_t s = 0; s < step.sequences && self.rotates_on_read(); ++s)
          for (int64_t r = step.starts[s]; r < step.starts[s + 1]; ++r)
            require(step.positions[r] == step.past[s] + r - step.starts[s],
                    "dynamic rotary frequencies need positions that are the cache's slots");
        for (int64_t s = 0; s < step.sequences && lengths; ++s)
          require(step.lengths[s] == 0 || step.lengths[s] >= step.past[s] + step.starts[s + 1] - step.starts[s],
                  "a sequence is longer than its length");
        for (auto& [id, array] : bound) {
          require(int64_t(array.shape(1)) == self.program.width(id), "a bound array has the wrong width");
          require(int64_t(array.shape(0)) >= (&array == &std::get<1>(bound[0]) ? in_rows : rows),
                  "a bound array has too few rows");
        }
        nb::gil_scoped_release release;
        self.program.start();
        for (auto& [id, array] : bound) self.program.bind(id, array.data());
        self.program.run(step, timed);
      }, "rows"_a, "ids"_a.none(), "positions"_a.none(), "wanted"_a.none(), "starts"_a.none(), "past"_a.none(),
         "tables"_a.none(), "memories"_a, "bound"_a, "timed"_a, "regime"_a.none() = nb::none(),
         "lengths"_a.none() = nb::none())
      .def("timings", [](PyProgram& self) {
        nb::list out;
        for (const fp::Op& op : self.program.ops()) out.append(nb::make_tuple(op.label, op.seconds));
        return out;
      })
      .def("reset_timings", [](PyProgram& self) { self.program.reset_timings(); });

  // buffers: embed out; layers in, out; project in, out.
  m.def("greedy_steps", [](PyProgram& embed, PyProgram& layers, PyProgram& project, std::vector<int> buffers, Ints ids,
                           Ints positions, Ints past, Ints3 tables, std::vector<PyKvMemory*> memories,
                           int64_t steps, int64_t vocabulary, std::vector<Ints> ends, bool timed,
                           std::optional<Ints> regime, std::optional<Ints> lengths) {
    const int64_t count = int64_t(ids.size());
    const int64_t width = embed.program.width(buffers.at(0)), logits_width = project.program.width(buffers.at(4));
    require(count > 0 && steps > 0 && buffers.size() == 5, "greedy steps of nothing");
    require(int64_t(positions.size()) == count && int64_t(past.size()) == count && int64_t(ends.size()) == count,
            "arguments disagree on the number of sequences");
    require(vocabulary > 0 && vocabulary <= logits_width && vocabulary <= embed.vocabulary, "vocabulary");
    layers.check_rotary(count, regime, lengths);
    const bool on_read = layers.rotates_on_read();
    fp::Greedy run;
    run.cache.sequences = count;
    run.cache.past = past.data();
    set_cache(run.cache, layers.groups, tables, memories, [&](int64_t) { return steps; });
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
  }, "embed"_a, "layers"_a, "project"_a, "buffers"_a, "ids"_a, "positions"_a, "past"_a, "tables"_a, "memories"_a, "steps"_a,
     "vocabulary"_a, "ends"_a, "timed"_a, "regime"_a.none() = nb::none(), "lengths"_a.none() = nb::none(),
     "Up to `steps` steps of the likeliest token, step by step for all sequences: int32 [steps done * sequences], and "
     "the seconds of the three stages.");

  m.def("bounds", [](Ints values) {
    require(values.size() > 0, "bounds of nothing");
    auto [least, most] = std::minmax_element(values.data(), values.data() + values.size());
    return nb::make_tuple(*least, *most);
  }, "(least, greatest) of an int32 array.");

  // Rows of logits: what sampling needs of a large vocabulary without sorting it.
  m.def("argmax", [](ConstFloats row) { return fp::argmax(row.data(), int64_t(row.size())); });
  m.def("top_k", [](ConstFloats row, int64_t k) {
    require(k > 0 && k <= int64_t(row.size()), "k out of range");
    auto out = new_array<int32_t>(size_t(k));
    fp::top_k(row.data(), int64_t(row.size()), k, out.data());
    return out;
  }, "The indices of the k greatest values, greatest first, lower index first among equals.");
  m.def("softmax_weights", [](ConstFloats row) {
    static const fp::Kernels& kernels = fp::kernels_for(fp::available_isas()[0]);  // all give the same bits
    auto out = new_array<float>(row.size());
    const int64_t n = int64_t(row.size());
    nb::gil_scoped_release release;
    fp::DenormalGuard guard;
    kernels.exp_shifted(row.data(), fp::greatest(row.data(), n), out.data(), n);
    return out;
  }, "exp(row - max), float32.");
  m.def("log_sum_exp", [](ConstFloats row) { return fp::log_sum_exp(row.data(), int64_t(row.size())); });

  m.def("read_bandwidth", &fp::read_bandwidth, "pool"_a, "bytes"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second that all threads of the pool together read from a buffer of this size.");
  m.def("matrix_rate", &fp::matrix_rate, "pool"_a, "isa"_a, "integer"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Operations a second of the best matrix instructions of an instruction set, registers only.");

  bind_testing(m);
}
