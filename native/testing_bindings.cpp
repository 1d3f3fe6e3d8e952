// Single kernels of one instruction set on NumPy arrays, for the tests: `_native.testing`. What needs several threads or
// a KV cache (attention above all) is tested through `Program`, which runs the same table.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "cpu_features.h"
#include "kernels.h"
#include "pool.h"
#include "stored_rows.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fp_python;

namespace {

using Optional = std::optional<ConstFloats>;

struct Aligned {  // 64-byte aligned, full of garbage: what nobody writes must not matter
  explicit Aligned(int64_t bytes) : owner(new uint8_t[size_t(bytes) + 128]) {
    std::fill_n(owner.get(), bytes + 128, uint8_t(0xd5));
    data = owner.get() + (64 - reinterpret_cast<uintptr_t>(owner.get()) % 64) % 64;
  }
  std::unique_ptr<uint8_t[]> owner;
  uint8_t* data;
};

fp::Matrix packed_matrix(int format, int64_t n, int64_t k, const ConstBytes& packed) {
  require(format >= 0 && format < fp::kFormats && n > 0 && k > 0, "matrix shape");
  fp::Matrix w{fp::Format(format), n, k, packed.data()};
  require(int64_t(packed.size()) == w.bytes() && reinterpret_cast<uintptr_t>(packed.data()) % 64 == 0, "packed memory");
  return w;
}

const float* pointer(const Optional& array, int64_t size) {
  require(!array || int64_t(array->size()) == size, "a vector has the wrong length");
  return array ? array->data() : nullptr;
}

fp::Norm make_norm(int kind, float eps, const Optional& weight, const Optional& bias, int64_t k) {
  require(kind >= 0 && kind < fp::kNorms, "norm");
  return {fp::NormKind(kind), eps, pointer(weight, k), pointer(bias, k)};
}

// Activations with memory of their own, filled from rows of x.
struct Prepared {
  Prepared(const fp::Kernels& kernels, fp::Format format, const fp::Norm& norm, const ConstFloats2& x)
      : a(fp::activations_for({format, 1, int64_t(x.shape(1)), nullptr}, int64_t(x.shape(0)))), memory(a.bytes()) {
    a.place(memory.data);
    Aligned scratch(fp::prepare_scratch(a.k));
    kernels.prepare(norm, x.data(), a.k, a, 0, a.rows, scratch.data);
  }
  fp::Activations a;
  Aligned memory;
};

void check_row(int type, const ConstBytes& row, int64_t k) {
  const fp::StoredType& stored = fp::stored_type(type);
  require(k > 0 && k % stored.values == 0 && int64_t(row.size()) == fp::stored_row_bytes(stored, k), "stored row");
}

template <typename T>
nb::ndarray<nb::numpy, T> copied(const T* from, std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (size_t s : shape) size *= s;
  T* data = new T[size];
  std::copy_n(from, size, data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

}  // namespace

void bind_testing(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("testing", "Single kernels on arrays, for tests.");

  m.def("isas", &fp::testing_isas, "Tables that only tests run, if this machine can.");

  m.def("table", [](const std::string& isa) {
    const fp::Kernels& k = fp::kernels_for(isa);
    auto address = [](auto f) { return reinterpret_cast<uintptr_t>(f); };
    nb::dict out;
    out["matmul"] = address(k.matmul);
    out["prepare"] = address(k.prepare);
    out["norm"] = address(k.norm);
    out["lookup"] = address(k.lookup);
    out["add"] = address(k.add);
    out["attention"] = address(k.attention);
    return nb::make_tuple(k.name, out);
  }, "isa"_a, "(name, addresses of its kernels): two tables that share an entry show it.");

  m.def("matmul", [](const std::string& isa, int format, int64_t n, int64_t k, ConstBytes packed, ConstFloats2 x,
                     int mode, int act, Optional bias, Floats2 out, int64_t p0, int64_t p1) {
    const fp::Kernels& kernels = fp::kernels_for(isa);
    const fp::Matrix w = packed_matrix(format, n, k, packed);
    require(int64_t(x.shape(1)) == k && x.shape(0) > 0 && out.shape(0) == x.shape(0) && int64_t(out.shape(1)) >= n,
            "x or out");
    require(0 <= p0 && p0 <= p1 && p1 <= w.panels() && mode >= 0 && mode <= 2 && act >= 0 && act < fp::kActs, "arguments");
    fp::DenormalGuard guard;
    Prepared x_(kernels, w.format, fp::Norm{}, x);
    Aligned scratch(fp::matmul_scratch(k));
    fp::Epilogue e{fp::Mode(mode), fp::Act(act), pointer(bias, n), out.data(), int64_t(out.shape(1))};
    kernels.matmul(w, x_.a, p0, p1, e, scratch.data);
  }, "isa"_a, "format"_a, "n"_a, "k"_a, "packed"_a, "x"_a, "mode"_a, "act"_a, "bias"_a.none(), "out"_a, "p0"_a, "p1"_a,
     "Panels [p0, p1) of the product with every row of x, into out [rows, at least n].");

  m.def("prepare", [](const std::string& isa, int format, ConstFloats2 x, int kind, float eps, Optional weight,
                      Optional bias) {
    require(format >= 0 && format < fp::kFormats && x.shape(0) > 0 && x.shape(1) > 0, "arguments");
    fp::DenormalGuard guard;
    fp::Norm norm = make_norm(kind, eps, weight, bias, int64_t(x.shape(1)));
    Prepared x_(fp::kernels_for(isa), fp::Format(format), norm, x);
    const fp::Activations& a = x_.a;
    return nb::make_tuple(copied<uint8_t>(a.planes, {size_t(a.planes_bytes())}),
                          copied<int32_t>(a.sums, {a.summed ? 2u : 0u, size_t(a.rows_pad()), size_t(a.sums_of_row())}),
                          copied<int32_t>(a.offsets, {size_t(a.offsets_bytes() / 4)}),
                          copied<float>(a.scale, {size_t(a.scale_bytes() / 4)}));
  }, "isa"_a, "format"_a, "x"_a, "kind"_a, "eps"_a, "weight"_a.none(), "bias"_a.none(),
     "(planes, sums, offsets, scale) as native/kernels.h describes them, what products with a matrix format read.");

  m.def("norm", [](const std::string& isa, int kind, float eps, ConstFloats weight, Optional bias, ConstFloats2 x,
                   Floats2 out) {
    const int64_t rows = int64_t(x.shape(0)), k = int64_t(x.shape(1)), ld = int64_t(out.shape(1));
    require(kind != 0 && int64_t(out.shape(0)) == rows && ld >= k, "arguments");
    fp::DenormalGuard guard;
    fp::kernels_for(isa).norm(make_norm(kind, eps, weight, bias, k), x.data(), k, out.data(), ld, k, rows);
  }, "isa"_a, "kind"_a, "eps"_a, "weight"_a, "bias"_a.none(), "x"_a, "out"_a, "Rows of x into out [rows, at least k].");

  m.def("lookup", [](const std::string& isa, int format, int64_t n, int64_t k, ConstBytes packed, int64_t row,
                     Floats out) {
    const fp::Matrix w = packed_matrix(format, n, k, packed);
    require(row >= 0 && row < n && int64_t(out.size()) == k, "arguments");
    fp::DenormalGuard guard;
    fp::kernels_for(isa).lookup(w, row, out.data());
  }, "isa"_a, "format"_a, "n"_a, "k"_a, "packed"_a, "row"_a, "out"_a);

  m.def("add", [](const std::string& isa, Floats out, ConstFloats x, float scale) {
    require(out.size() == x.size(), "arguments");
    fp::DenormalGuard guard;
    fp::kernels_for(isa).add(out.data(), x.data(), scale, int64_t(x.size()));
  }, "isa"_a, "out"_a, "x"_a, "scale"_a);

  m.def("clip", [](const std::string& isa, Floats x, float limit) {
    fp::DenormalGuard guard;
    fp::kernels_for(isa).clip(x.data(), limit, int64_t(x.size()));
  }, "isa"_a, "x"_a, "limit"_a);

  m.def("cap", [](const std::string& isa, Floats x, float scale, float softcap) {
    fp::DenormalGuard guard;
    fp::kernels_for(isa).cap(x.data(), scale, softcap, int64_t(x.size()));
  }, "isa"_a, "x"_a, "scale"_a, "softcap"_a);

  m.def("stored_type", [](const std::string& name) {
    const fp::StoredType& t = fp::stored_type(fp::find_stored_type(name));
    nb::dict out;
    out["values"] = t.values;
    out["bytes"] = t.bytes;
    out["grouped"] = t.grouped;
    out["least"] = t.least;
    out["greatest"] = t.greatest;
    out["with_min"] = t.with_min;
    out["span"] = t.span;
    return out;
  }, "name"_a, "What native/stored_rows.h says of a stored type.");

  m.def("stored_floats", [](const std::string& name, ConstBytes row, Floats out) {
    int type = fp::find_stored_type(name);
    check_row(type, row, int64_t(out.size()));
    fp::read_floats(type, row.data(), int64_t(out.size()), out.data());
  }, "name"_a, "row"_a, "out"_a, "One stored row as float32.");

  m.def("stored_groups", [](const std::string& name, ConstBytes row, int64_t k) {
    int type = fp::find_stored_type(name);
    check_row(type, row, k);
    require(fp::stored_type(type).grouped, "floats have no groups");
    std::vector<fp::Group> groups(size_t(k / 16));
    fp::read_groups(type, row.data(), k, groups.data());
    std::vector<int8_t> q;
    std::vector<float> d, minima;
    for (const fp::Group& g : groups) {
      q.insert(q.end(), g.q, g.q + 16);
      d.push_back(g.d);
      minima.push_back(g.m);
    }
    return nb::make_tuple(copied<int8_t>(q.data(), {q.size()}), copied<float>(d.data(), {d.size()}),
                          copied<float>(minima.data(), {minima.size()}));
  }, "name"_a, "row"_a, "k"_a, "(q int8 [k], d float32 [k / 16], m float32 [k / 16]) of one stored row.");

  m.def("route", [](const std::string& isa, Floats scores, int64_t chosen, bool normalise) {
    require(chosen > 0 && chosen <= int64_t(scores.size()), "arguments");
    fp::DenormalGuard guard;
    std::vector<int32_t> which(static_cast<size_t>(chosen), -1);
    std::vector<float> share(which.size(), 0.0f);
    fp::kernels_for(isa).route(scores.data(), int64_t(scores.size()), chosen, normalise, which.data(), share.data());
    return nb::make_tuple(copied(which.data(), {which.size()}), copied(share.data(), {share.size()}));
  }, "isa"_a, "scores"_a, "chosen"_a, "normalise"_a,
     "(indices int32, shares float32) of the chosen; scores are used up.");

  m.def("sigmoid", [](const std::string& isa, float x) {
    fp::DenormalGuard guard;
    return fp::kernels_for(isa).sigmoid(x);
  }, "isa"_a, "x"_a);

  m.def("run_pool", [](fp::Pool& pool, int64_t jobs) {
    std::unique_ptr<std::atomic<int64_t>[]> counts(new std::atomic<int64_t>[size_t(pool.size())]());
    std::atomic<int64_t> late{0};
    {
      nb::gil_scoped_release release;
      for (int64_t job = 0; job < jobs; ++job) {
        std::atomic<int> here{0};
        pool.run([&](int tid) {
          here.fetch_add(1);
          pool.barrier().wait();
          if (here.load() != pool.size()) late.fetch_add(1);  // somebody passed the barrier too early
          pool.barrier().wait();
          counts[size_t(tid)].fetch_add(1);
        });
      }
    }
    nb::list out;
    for (int i = 0; i < pool.size(); ++i) out.append(counts[size_t(i)].load());
    return nb::make_tuple(out, late.load());
  }, "pool"_a, "jobs"_a, "(jobs that each member ran, members that passed a barrier too early).");
}
