// What Python records of operations on images: shapes and spaces are checked here, once.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "program_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fp_python {

void bind_images(nb::class_<PyProgram>& program) {
  program
      .def("conv", [](PyProgram& self, int in, int out, nb::tuple linear, int64_t size, int64_t stride, bool upsample,
                      int64_t before, int mode, int act, const std::string& label) {
        fp::Op op;
        op.kind = fp::OpKind::Conv;
        op.label = label;
        op.in = in;
        op.out = out;
        op.mode = fp::Mode(mode);
        op.act = act_of(act);
        const int64_t in_width = self.program.width(in), out_width = self.program.width(out);
        const int in_level = self.program.space(in), level = self.program.space(out);
        require(in != out, "a convolution in place");
        require(mode == 0 || mode == 1, "a convolution stores or adds");
        require(size >= 1 && size <= 7 && size % 2 == 1, "a window is 1, 3, 5 or 7 pixels wide");
        require(stride == 1 || stride == 2, "a convolution's stride is 1 or 2");
        require(before == size / 2 || (before == 0 && stride == 2), "padding before an image");
        require(in_level >= 0 && level >= 0, "a convolution's buffers hold images");
        require(!upsample || stride == 1, "a convolution grows images or halves them");
        require(level == in_level + (stride == 2) - upsample, "the level of a convolution's output");
        op.window = {size, stride, before, upsample};
        op.parts.push_back(self.part(linear, out_width, size * size * in_width));
        self.needs_sizes = self.needs_starts = true;
        self.program.add(std::move(op));
      }, "in"_a, "out"_a, "linear"_a, "size"_a, "stride"_a, "upsample"_a, "before"_a, "mode"_a, "act"_a, "label"_a)
      .def("group_norm", [](PyProgram& self, int in, int out, int64_t groups, float eps,
                            std::optional<ConstFloats> weight, std::optional<ConstFloats> bias, int act,
                            const std::string& label) {
        fp::Op op;
        op.kind = fp::OpKind::GroupNorm;
        op.label = label;
        op.in = in;
        op.out = out;
        op.act = act_of(act);
        const int64_t width = self.program.width(in);
        require(width == self.program.width(out), "widths of a group norm");
        require(self.program.space(out) >= 0 && self.program.space(in) == self.program.space(out),
                "a group norm's buffers hold images of one level");
        require(groups > 0 && width % groups == 0, "groups of equally many channels");
        op.groups = groups;
        op.norm = {fp::NormKind::Layer, eps, self.floats(weight, width), self.floats(bias, width)};
        self.needs_starts = true;
        self.program.add(std::move(op));
      }, "in"_a, "out"_a, "groups"_a, "eps"_a, "weight"_a.none(), "bias"_a.none(), "act"_a, "label"_a);
}

}  // namespace fp_python
