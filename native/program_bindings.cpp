// What Python records of a program: every width, shape and index of an op is checked here, once.
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
#include <string>
#include <utility>

#include "formats.h"
#include "program_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fp_python {

namespace {

// in: the buffer that it reads, of the same space; -1 for none but `out`.
fp::Op make_op(PyProgram& self, fp::OpKind kind, const std::string& label, int in, int out) {
  if (in >= 0 && out >= 0) self.same_space(in, out);
  fp::Op op;
  op.kind = kind;
  op.label = label;
  op.in = in;
  op.out = out;
  return op;
}

fp::KvLayout kv_layout(int type, int64_t kv_heads, int64_t head_dim) {
  require(type >= 0 && type <= 2, "a type of keys and values");
  require(kv_heads > 0 && kv_heads <= (int64_t(1) << 24) && head_dim > 0 && head_dim <= 1024, "attention heads");
  return {fp::KvType(type), kv_heads, head_dim};
}

fp::Op make_attention(PyProgram& self, fp::Keys keys, int in, int out, int type, int64_t heads, int64_t kv_heads,
                      int64_t head_dim, float scale, const std::string& label) {
  fp::Op op = make_op(self, fp::OpKind::Attention, label, in, out);
  fp::Attention& a = op.attention;
  a.keys = keys;
  a.layout = kv_layout(type, kv_heads, head_dim);
  a.heads = heads;
  a.scale = scale;
  require(heads > 0 && heads <= (int64_t(1) << 24) && heads % kv_heads == 0, "attention heads");
  if (a.keeps()) self.level_zero(out);
  require(self.program.space(out) >= 0, "attention of rows that are neither tokens nor pixels");
  const bool beside = keys == fp::Keys::Cached || keys == fp::Keys::Own;
  require(self.program.width(in) == (heads + (beside ? 2 * kv_heads : 0)) * head_dim, "qkv width");
  require(in != out && self.program.width(out) == heads * head_dim, "attention output width");
  self.needs_starts = true;
  return op;
}

// Vectors of relative positions, [heads, rows, head_dim], as fp::PositionTerms wants them: by distance.
const uint8_t* by_distance(PyProgram& self, const fp::Attention& a, const std::optional<ConstFloats3>& vectors,
                           const Ints& index, float scale) {
  if (!vectors) return nullptr;
  const int64_t rows = int64_t(vectors->shape(1)), d = a.layout.head_dim, d_pad = a.layout.d_pad();
  require(int64_t(vectors->shape(0)) == a.heads && int64_t(vectors->shape(2)) == d, "vectors of relative positions");
  for (size_t i = 0; i < index.size(); ++i)
    require(index.data()[i] >= 0 && index.data()[i] < rows, "a relative position has no vector");
  const bool floats = a.layout.type == fp::KvType::F32;
  const int64_t stride = a.positioned.stride(), distances = int64_t(index.size());
  self.positioned.emplace_back(new uint8_t[size_t(a.heads * d_pad * stride * (floats ? 4 : 2))]());
  uint8_t* out = self.positioned.back().get();
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t at = 0; at < stride; ++at) {
      const int64_t distance = std::clamp<int64_t>(at - fp::ScoreChanges::kBeyond, 0, distances - 1);
      const float* from = vectors->data() + (h * rows + index.data()[distance]) * d;
      for (int64_t i = 0; i < d; ++i) {
        const float x = from[i] * scale;
        if (floats) reinterpret_cast<float*>(out)[(h * d_pad + i) * stride + at] = x;
        else reinterpret_cast<uint16_t*>(out)[(h * d_pad / 2 + i / 2) * stride * 2 + at * 2 + i % 2] = fp::f32_to_bf16(x);
      }
    }
  return out;
}

}  // namespace

nb::class_<PyProgram> bind_program(nb::module_& m) {
  return nb::class_<PyProgram>(m, "Program")
      .def(nb::init<std::shared_ptr<fp::Pool>, const std::string&>(), "pool"_a, "isa"_a)
      .def_prop_ro("isa", [](const PyProgram& self) { return self.program.isa(); }, "Name of the table it runs.")
      .def("buffer", &PyProgram::add_buffer, "width"_a, "space"_a = 0)
      .def("embed", [](PyProgram& self, int out, nb::object table, float scale, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Embed, label, -1, out);
        self.level_zero(out);
        op.scale = scale;
        op.parts.push_back({self.hold(table), nullptr, 0});
        require(op.parts[0].w.k == self.program.width(out), "embedding width");
        self.vocabulary = op.parts[0].w.n;
        self.needs_ids = true;
        self.program.add(std::move(op));
      })
      .def("positions", [](PyProgram& self, int out, nb::object table, int64_t offset, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Positions, label, -1, out);
        self.level_zero(out);
        op.offset = offset;
        op.parts.push_back({self.hold(table), nullptr, 0});
        require(op.parts[0].w.k == self.program.width(out), "position table width");
        require(offset >= 0 && offset < op.parts[0].w.n, "position offset");
        self.position_rows = op.parts[0].w.n - offset;
        self.needs_positions = true;
        self.program.add(std::move(op));
      })
      .def("types", [](PyProgram& self, int out, nb::object table, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Types, label, -1, out);
        self.level_zero(out);
        op.parts.push_back({self.hold(table), nullptr, 0});
        require(op.parts[0].w.k == self.program.width(out), "token type table width");
        self.type_rows = self.type_rows ? std::min(self.type_rows, op.parts[0].w.n) : op.parts[0].w.n;
        self.program.add(std::move(op));
      })
      .def("norm", [](PyProgram& self, int in, int out, int kind, float eps, std::optional<ConstFloats> weight,
                      std::optional<ConstFloats> bias, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Norm, label, in, out);
        require(self.program.width(in) == self.program.width(out), "norm");
        op.norm = self.norm(kind, eps, weight, bias, self.program.width(in));
        self.program.add(std::move(op));
      })
      .def("add_normed", [](PyProgram& self, int in, int out, int kind, float eps, std::optional<ConstFloats> weight,
                            std::optional<ConstFloats> bias, float scale, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::AddNormed, label, in, out);
        op.scale = scale;
        require(in != out && self.program.width(in) == self.program.width(out), "widths of an addition");
        op.norm = self.norm(kind, eps, weight, bias, self.program.width(in));
        self.program.add(std::move(op));
      })
      .def("head_norm", [](PyProgram& self, int buffer, int64_t column, int64_t heads, int64_t head_dim, int kind,
                           float eps, std::optional<ConstFloats> weight, std::optional<ConstFloats> bias, bool each,
                           const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::HeadNorm, label, -1, buffer);
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
        fp::Op op = make_op(self, fp::OpKind::Clip, label, -1, buffer);
        op.column = column;
        op.head_dim = width;
        op.limit = limit;
        require(column >= 0 && width > 0 && width <= self.program.width(buffer) - column && limit > 0, "clip");
        self.program.add(std::move(op));
      })
      .def("cap", [](PyProgram& self, int buffer, float scale, float softcap, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Cap, label, -1, buffer);
        op.scale = scale;
        op.limit = softcap;
        require(self.program.width(buffer) > 0 && softcap >= 0, "cap");
        self.program.add(std::move(op));
      })
      .def("gather", [](PyProgram& self, int in, int out, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Gather, label, in, out);
        self.level_zero(out);
        require(self.program.width(in) == self.program.width(out), "gather widths");
        self.needs_wanted = true;
        self.program.add(std::move(op));
      })
      .def("modulate", [](PyProgram& self, int in, int out, int kind, float eps, std::optional<ConstFloats> weight,
                          std::optional<ConstFloats> bias, int by, int64_t shift, int64_t scale,
                          const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Modulate, label, in, out);
        const int64_t width = self.program.width(out);
        require(self.program.width(in) == width, "widths of a modulation");
        self.read_by(op, by, shift, width);
        self.read_by(op, by, scale, width);
        op.column = shift;
        op.scale_column = scale;
        op.norm = self.norm(kind, eps, weight, bias, width);
        self.program.add(std::move(op));
      })
      .def("add_gated", [](PyProgram& self, int in, int out, int by, int64_t gate, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::AddGated, label, in, out);
        require(in != out && self.program.width(in) == self.program.width(out), "widths of an addition");
        self.read_by(op, by, gate, self.program.width(out));
        self.program.add(std::move(op));
      })
      .def("add_rows", [](PyProgram& self, int out, int by, int64_t column, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::AddRows, label, -1, out);
        self.read_by(op, by, column, self.program.width(out));
        self.program.add(std::move(op));
      })
      .def("activate", [](PyProgram& self, int in, int out, int act, const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Activate, label, in, out);
        require(self.program.width(in) == self.program.width(out), "widths of an activation");
        op.act = act_of(act);
        self.program.add(std::move(op));
      })
      .def("copy", [](PyProgram& self, int in, int out, int64_t column, std::optional<ConstFloats> add,
                      const std::string& label) {
        fp::Op op = make_op(self, fp::OpKind::Copy, label, in, out);
        const int64_t width = self.program.width(in);
        require(in != out && column >= 0 && column <= self.program.width(out) - width, "columns of a copy");
        op.column = column;
        op.vector = self.floats(add, width);
        self.program.add(std::move(op));
      }, "source"_a, "out"_a, "column"_a, "add"_a.none(), "label"_a)
      .def("linear", [](PyProgram& self, int in, int out, int norm_kind, float eps, std::optional<ConstFloats> weight,
                        std::optional<ConstFloats> bias, nb::list parts, int mode, int act, bool gated,
                        const std::string& label) {
        fp::Op op = make_op(self, gated ? fp::OpKind::Gated : fp::OpKind::Linear, label, in, out);
        op.mode = fp::Mode(mode);
        op.act = act_of(act);
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
        fp::Op op = make_op(self, fp::OpKind::Experts, label, in, out);
        op.mode = fp::Mode(mode);
        op.act = act_of(act);
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
                           std::optional<ConstFloats2> bias, const std::string& label, int64_t group, bool causal,
                           std::optional<ConstFloats3> position_keys, std::optional<ConstFloats3> position_queries,
                           std::optional<Ints> distances, bool own) {
        const bool keeps = causal && !own;
        fp::Op op = make_attention(self, keeps ? fp::Keys::Cached : fp::Keys::Own, qkv, out, kv_type, heads, kv_heads,
                                   head_dim, scale, label);
        fp::Attention& a = op.attention;
        a.causal = causal;
        require(window >= 0, "a window below zero");
        a.window = window;
        if (rotary) {
          require(rotary->dim() <= head_dim, "rotary dimensions exceed the head");
          self.level_zero(out);
          a.rotary_dim = rotary->dim();
          a.rotate_on_read = keeps && rotary->rotates_on_read();
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
        if (position_keys || position_queries) {
          require(!causal && heads == kv_heads, "relative positions of another attention than an encoder's");
          require(distances && distances->size() % 2 == 1 && distances->size() < (size_t(1) << 18),
                  "vectors for distances as far before as after");
          a.positioned.reach = int64_t(distances->size()) / 2;
          a.positioned.keys = by_distance(self, a, position_keys, *distances, 1.0f);
          a.positioned.queries = by_distance(self, a, position_queries, *distances, scale);
        }
        if (keeps) self.join_group(op, layer, group);
        self.program.add(std::move(op));
      }, "qkv"_a, "out"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a, "kv_type"_a,
         "rotary"_a.none(), "slopes"_a.none(), "softcap"_a, "bias"_a.none(), "label"_a, "group"_a = 0,
         "causal"_a = true, "position_keys"_a.none() = nb::none(), "position_queries"_a.none() = nb::none(),
         "distances"_a.none() = nb::none(), "own"_a = false)
      .def("context_attention", [](PyProgram& self, int q, int kv, int out, int64_t column, int64_t heads,
                                   int64_t head_dim, float scale, int kv_type, const std::string& label) {
        fp::Op op = make_attention(self, fp::Keys::Context, q, out, kv_type, heads, heads, head_dim, scale, label);
        require(self.program.space(kv) == fp::kContext, "keys of contexts lie in their space");
        require(column >= 0 && column <= self.program.width(kv) - 2 * heads * head_dim, "columns of keys and values");
        op.by = kv;
        op.column = column;
        self.program.add(std::move(op));
      }, "q"_a, "kv"_a, "out"_a, "column"_a, "heads"_a, "head_dim"_a, "scale"_a, "kv_type"_a, "label"_a)
      .def("store", [](PyProgram& self, int kv, int64_t layer, int64_t kv_heads, int64_t head_dim, int kv_type,
                       const std::string& label, int64_t group) {
        fp::Op op = make_op(self, fp::OpKind::Store, label, kv, -1);
        self.level_zero(kv);
        op.attention.keys = fp::Keys::Cached;
        op.attention.layout = kv_layout(kv_type, kv_heads, head_dim);
        require(self.program.width(kv) == 2 * kv_heads * head_dim, "width of keys and values");
        self.needs_starts = true;
        self.join_group(op, layer, group);
        self.program.add(std::move(op));
      }, "kv"_a, "layer"_a, "kv_heads"_a, "head_dim"_a, "kv_type"_a, "label"_a, "group"_a)
      .def("cross_attention", [](PyProgram& self, int q, int out, int64_t layer, int64_t heads, int64_t kv_heads,
                                 int64_t head_dim, float scale, int kv_type, const std::string& label, int64_t group) {
        fp::Op op = make_attention(self, fp::Keys::Source, q, out, kv_type, heads, kv_heads, head_dim, scale, label);
        self.join_group(op, layer, group);
        self.program.add(std::move(op));
      }, "q"_a, "out"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "kv_type"_a, "label"_a, "group"_a)
      .def("moments", [](PyProgram& self) { return self.program.moments(); })
      .def("passed", [](PyProgram& self) { return self.program.passed(); })
      .def("timings", [](PyProgram& self) {
        nb::list out;
        for (const fp::Op& op : self.program.ops()) out.append(nb::make_tuple(op.label, op.seconds));
        return out;
      })
      .def("reset_timings", [](PyProgram& self) { self.program.reset_timings(); });
}

}  // namespace fp_python
