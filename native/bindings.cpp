// What Python sees, with program_bindings.cpp and step_bindings.cpp. Everything that could read or write outside an
// array is checked in these files; the release of the GIL around every call that computes happens there too.
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
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cpu_features.h"
#include "machine_limits.h"
#include "memory.h"
#include "pack.h"
#include "program_bindings.h"
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

struct PyRegion {
  explicit PyRegion(int64_t bytes) : region(bytes, true) {}
  fp::Region region;
};

}  // namespace

void bind_testing(nb::module_& parent);  // testing_bindings.cpp
void bind_top_rows(nb::module_& m);      // top_rows_bindings.cpp

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
      case fp::ActKind::Int15: return "int15";
      case fp::ActKind::Int8: return "int8";
    }
    return "";
  }, "format"_a, "What a product with a matrix of this format reads.");
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

  nb::class_<PyProgram> program = bind_program(m);
  bind_images(program);
  bind_steps(m, program);

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
  bind_top_rows(m);

  m.def("read_bandwidth", &fp::read_bandwidth, "pool"_a, "bytes"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second that all threads of the pool together read from a buffer of this size.");
  m.def("matrix_rate", &fp::matrix_rate, "pool"_a, "isa"_a, "integer"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Operations a second of the best matrix instructions of an instruction set, registers only.");

  bind_testing(m);
}
