"""ONNX files, written by the `onnx` package, give their tensors back under their modules' names."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.folder import folder_files, open_folder
from forwardpass.weights.onnx_file import OnnxFile
from forwardpass.weights.onnx_folder import open_onnx

RNG = np.random.default_rng(3)
SCALE = np.float32(0.037)


def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def save(path, nodes, tensors):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors)
    onnx.save(helper.make_model(graph), path)
    return path


def values(source, name):
    info = source.tensors[name]
    return dequantize(info.type, source.data(name), info.shape)


def quantised(name, codes, scale=SCALE, zero=0):
    return [tensor(f"{name}_quantized", codes), tensor(f"{name}_scale", np.float32(scale)),
            tensor(f"{name}_zero_point", np.asarray(zero, codes.dtype))]


@pytest.fixture
def parts():
    """Nodes and tensors of a small export: a norm, a float product, an int8 one, a table with a zero point."""
    floats = RNG.standard_normal((64, 96), np.float32)
    codes = RNG.integers(-128, 128, (96, 64), np.int8)
    table = RNG.integers(0, 256, (10, 64), np.uint8)
    table[0, :2] = 0, 255
    bias = RNG.integers(0, 256, (32, 6), np.uint8)
    nodes = [
        helper.make_node("Add", ["x", "m.norm.bias"], ["a"], "/m/norm/Add"),
        helper.make_node("MatMul", ["a", "onnx::MatMul_7"], ["b"], "/m/layer.0/up/MatMul"),
        helper.make_node("DynamicQuantizeLinear", ["b"], ["bq", "bs", "bz"], "/m/layer.0/down/Quantize"),
        helper.make_node("MatMulInteger", ["bq", "onnx::MatMul_8_quantized", "bz", "onnx::MatMul_8_zero_point"], ["c"],
                         "/m/layer.0/down/MatMul_quant"),
        helper.make_node("Gather", ["m.table.weight_quantized", "ids"], ["d"], "/m/table/Gather"),
        helper.make_node("Gather", ["m.relative.weight_quantized", "ids"], ["e"], "/m/relative/Gather"),
    ]
    tensors = [tensor("m.norm.bias", np.arange(64, dtype=np.float32)), tensor("onnx::MatMul_7", floats),
               *quantised("onnx::MatMul_8", codes), *quantised("m.table.weight", table, 0.5, 100),
               *quantised("m.relative.weight", bias, 0.25, 7), tensor("shape", np.array([1, -1], np.int64))]
    return nodes, tensors, {"floats": floats, "codes": codes, "table": table, "bias": bias}


def test_names_shapes_and_values(tmp_path, parts):
    nodes, tensors, stored = parts
    save(tmp_path / "model.onnx", nodes, tensors)
    with open_onnx(tmp_path, {"onnx_files": {"model.onnx": {"m.": "net."}}}) as source:
        kinds = {name: (info.type, info.shape) for name, info in source.tensors.items()}
        assert kinds == {
            "net.norm.bias": ("F32", (64,)), "net.layer.0.up.weight": ("F32", (96, 64)),
            "net.layer.0.down.weight": ("C8", (64, 96)), "net.table.weight": ("W16", (10, 64)),
            "net.relative.weight": ("F32", (32, 6)),
        }
        assert np.array_equal(values(source, "net.norm.bias"), np.arange(64))
        assert np.array_equal(values(source, "net.layer.0.up.weight"), stored["floats"].T)
        assert np.array_equal(values(source, "net.layer.0.down.weight"), stored["codes"].T * SCALE)
        assert np.array_equal(values(source, "net.table.weight"), (stored["table"].astype(np.float32) - 100) * 0.5)
        assert np.array_equal(values(source, "net.relative.weight"), (stored["bias"].astype(np.float32) - 7) * 0.25)


def test_eight_bits_are_kept_where_they_fit(tmp_path):
    """A zero point of 128 leaves eight bits; so does any other if no value is too far from it."""
    near = RNG.integers(20, 240, (4, 32), np.uint8)
    save(tmp_path / "a.onnx", [], [*quantised("a.weight", RNG.integers(0, 256, (4, 32), np.uint8), zero=128),
                                   *quantised("b.weight", near, zero=130), *quantised("c.weight", near, zero=10)])
    with open_onnx(tmp_path, {}) as source:
        assert [source.tensors[f"{name}.weight"].type for name in "abc"] == ["C8", "C8", "W16"]
        assert np.array_equal(values(source, "b.weight"), (near.astype(np.float32) - 130) * SCALE)


def test_one_scale_for_each_output(tmp_path):
    codes, scales = RNG.integers(-127, 128, (32, 8), np.int8), RNG.random(8, np.float32)
    nodes = [helper.make_node("DequantizeLinear", ["w_quantized", "w_scale", "w_zero_point"], ["w"], axis=1),
             helper.make_node("MatMul", ["x", "w"], ["y"], "/proj/MatMul")]
    tensors = [tensor("w_quantized", codes), tensor("w_scale", scales), tensor("w_zero_point", np.zeros(8, np.int8))]
    save(tmp_path / "a.onnx", nodes, tensors)
    with open_onnx(tmp_path, {}) as source:
        assert source.tensors["proj.weight"].type == "C8"
        assert np.array_equal(values(source, "proj.weight"), codes.T * scales[:, None])


def test_gemm_says_how_it_is_stored(tmp_path):
    matrix = RNG.standard_normal((8, 4), np.float32)
    for transposed, shape in ((1, (8, 4)), (0, (4, 8))):
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "/classifier/Gemm", transB=transposed)
        save(tmp_path / "a.onnx", [node], [tensor("w", matrix), tensor("classifier.bias", np.ones(8, np.float32))])
        with open_onnx(tmp_path, {}) as source:
            assert source.tensors["classifier.weight"].shape == shape
            assert np.array_equal(values(source, "classifier.weight"), matrix if transposed else matrix.T)


def test_numbers_that_are_not_raw_bytes(tmp_path):
    """The other spellings of a tensor's values that the format has."""
    tensors = [helper.make_tensor("f.weight", TensorProto.FLOAT, [3], [1.5, -2.0, 3.25]),
               helper.make_tensor("h.weight", TensorProto.FLOAT16, [2], np.array([1.5, -2.0], np.float16)),
               helper.make_tensor("i.weight_quantized", TensorProto.INT8, [4], [-1, 2, -128, 127]),
               helper.make_tensor("i.weight_scale", TensorProto.FLOAT, [], [0.5]),
               helper.make_tensor("i.weight_zero_point", TensorProto.INT8, [], [-3])]
    save(tmp_path / "a.onnx", [], tensors)
    with open_onnx(tmp_path, {}) as source:
        assert values(source, "f.weight").tolist() == [1.5, -2.0, 3.25]
        assert values(source, "h.weight").tolist() == [1.5, -2.0]
        assert values(source, "i.weight").tolist() == [1.0, 2.5, -62.5, 65.0]


def cut_export(path):
    """A table that was cut along its second axis, a matrix, and tensors of another model behind it."""
    table = RNG.standard_normal((1, 5, 4), np.float32)
    save(path, [], [tensor("b.up.weight", np.ones((2, 4), np.float32)), tensor("onnx::Concat_1", table[:, :1]),
                    tensor("decoder.up.weight", np.zeros((3, 3), np.float32)),
                    tensor("onnx::Reshape_2", table[:, 1:])])
    return table


FILES = {"a.onnx": {"b.": "", "decoder.": None}}


def test_parts_are_joined_and_others_left_out(tmp_path):
    table = cut_export(tmp_path / "a.onnx")
    config = {"onnx_files": FILES, "onnx_joined": {"places": ["onnx::Concat_1", "onnx::Reshape_2"]}}
    with open_onnx(tmp_path, config) as source:
        assert set(source.tensors) == {"up.weight", "places"} and source.tensors["places"].shape == (1, 5, 4)
        assert np.array_equal(values(source, "places"), table)
        source.release("places")
        assert np.array_equal(values(source, "places"), table)


@pytest.mark.parametrize("joined", [
    3, ["a"], {"p": []}, {"p": [3]}, {"p": "onnx::Concat_1"}, {"p": ["missing"]}, {"up.weight": ["onnx::Concat_1"]},
    {"p": ["onnx::Concat_1", "up.weight"]}, {"p": ["onnx::Concat_1", "onnx::Concat_1"]},
])
def test_parts_that_cannot_be_joined(joined, tmp_path):
    cut_export(tmp_path / "a.onnx")
    with pytest.raises(ModelFileError):
        open_onnx(tmp_path, {"onnx_files": FILES, "onnx_joined": joined})


def test_safetensors_beside_named_files(tmp_path):
    """A head that was trained on top of an exported model."""
    from safetensors.numpy import save_file

    cut_export(tmp_path / "a.onnx")
    save_file({"classifier.weight": np.full((2, 4), 3, np.float32)}, tmp_path / "model.safetensors")
    with open_folder(tmp_path, {"onnx_files": FILES}) as source:
        assert {"classifier.weight", "up.weight"} < set(source.tensors)
        assert values(source, "classifier.weight").tolist() == [[3] * 4] * 2
        source.release("classifier.weight")
    assert folder_files(tmp_path) == [tmp_path / "model.safetensors", tmp_path / "a.onnx"]
    save_file({"up.weight": np.ones((2, 4), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="in two of them"):
        open_folder(tmp_path, {"onnx_files": FILES})


def test_a_folder_prefers_safetensors(tmp_path, parts):
    from safetensors.numpy import save_file

    save(tmp_path / "model.onnx", *parts[:2])
    assert folder_files(tmp_path) == [tmp_path / "model.onnx"]
    with open_folder(tmp_path, {}) as source:
        assert "m.norm.bias" in source.tensors
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    with open_folder(tmp_path, {}) as source:
        assert list(source.tensors) == ["a"]


@pytest.mark.parametrize("named", [3, {}, {"../a.onnx": {}}, {"a.txt": {}}, {"a.onnx": 1}, {"a.onnx": {"x": 3}}, ["a"]])
def test_bad_lists_of_files(tmp_path, named):
    with pytest.raises(ModelFileError, match="onnx_files"):
        open_onnx(tmp_path, {"onnx_files": named})


def test_contradictions_are_told(tmp_path):
    codes = np.ones((4, 32), np.int8)
    for tensors, what in (
        ([tensor("a.weight_quantized", codes)], "a scale"),
        ([tensor("a.weight_quantized", codes), tensor("a.weight_scale", np.ones(3, np.float32))], "one scale"),
        ([*quantised("a.weight", codes)[:2], tensor("a.weight_zero_point", np.array([0, 1], np.int8))], "zero point"),
    ):
        save(tmp_path / "a.onnx", [], tensors)
        with pytest.raises(ModelFileError, match=what):
            open_onnx(tmp_path, {})
    with pytest.raises(ModelFileError, match="a model file"):
        open_onnx(tmp_path, {"onnx_files": {"missing.onnx": {}}})
    for name in "ab":
        save(tmp_path / f"{name}.onnx", [], [tensor("same.weight", np.ones(3, np.float32))])
    with pytest.raises(ModelFileError, match="two of them"):
        open_onnx(tmp_path, {})


def test_tensors_elsewhere_and_strange_types_are_refused(tmp_path):
    apart = tensor("a.weight", np.ones(3, np.float32))
    apart.ClearField("raw_data")
    apart.data_location = TensorProto.EXTERNAL
    apart.external_data.add(key="location", value="../../etc/passwd")
    save(tmp_path / "a.onnx", [], [apart])
    with pytest.raises(UnsupportedModelError, match="a file of its own"):
        open_onnx(tmp_path, {})
    save(tmp_path / "a.onnx", [], [helper.make_tensor("s", TensorProto.STRING, [1], [b"x"])])
    with pytest.raises(UnsupportedModelError, match="ONNX type 8"):
        open_onnx(tmp_path, {})


def test_damage_is_our_error_and_cheap(tmp_path, parts):
    """Every cut, and thousands of changed bytes: a sound file or our error, never anything else."""
    path = save(tmp_path / "a.onnx", *parts[:2])
    whole = path.read_bytes()
    rng = random.Random(5)
    damaged = [whole[:cut] for cut in range(0, len(whole), 97)]
    for _ in range(600):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(0, 1200 if rng.random() < 0.5 else len(changed))] = rng.randrange(256)
        damaged.append(bytes(changed))
    opened = 0
    for raw in damaged:
        path.write_bytes(raw)
        try:
            with open_onnx(tmp_path, {}) as source:
                for name in source.tensors:
                    source.data(name)
                opened += 1
        except ForwardpassError:
            pass
    assert opened  # a changed weight is no damage that can be seen


def test_huge_claims_allocate_nothing(tmp_path):
    dims = helper.make_tensor("a.weight", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    dims.dims[:] = [2**62, 2**62]
    save(tmp_path / "a.onnx", [], [dims])
    with pytest.raises(ModelFileError, match="values in tensor"):
        OnnxFile(tmp_path / "a.onnx")
