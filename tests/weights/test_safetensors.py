"""The safetensors reader against files of the safetensors package, and against hostile ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.safetensors import open_safetensors

HUGE = 1 << 63


def write(path, raw: bytes):
    path.write_bytes(raw)
    return path


def entry(first: int, last: int, shape=None, dtype: str = "F32") -> dict:
    shape = [(last - first) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def test_reads_what_the_safetensors_package_writes(tmp_path):
    rng = np.random.default_rng(5)
    arrays = {
        "a.weight": rng.standard_normal((3, 5), np.float32),
        "b.weight": rng.standard_normal((7,)).astype(np.float16),
        "c.bias": rng.standard_normal((2, 2, 3), np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5, np.float32),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "pt"})
    for place in (path, tmp_path, str(tmp_path)):
        with open_safetensors(place) as source:
            assert source.kind == "safetensors" and source.path == path and source.metadata == {}
            assert set(source.tensors) == set(arrays)
            for name, array in arrays.items():
                info = source.tensors[name]
                assert info.shape == array.shape and info.nbytes == array.nbytes
                found = dequantize(info.type, source.data(name), info.shape)
                assert np.array_equal(found, array.astype(np.float32))
                assert not source.data(name).flags.writeable
                source.release(name)
    with pytest.raises(ModelFileError, match="closed"):
        source.data("a.weight")


def test_bfloat16_and_other_types(tmp_path, safetensors_bytes):
    header = {"w": entry(0, 4, [2], "BF16"), "ids": entry(4, 20, [2], "I64")}
    path = write(tmp_path / "m.safetensors", safetensors_bytes(header, bytes([0x80, 0x3F, 0, 0xC0]) + bytes(16)))
    with open_safetensors(tmp_path) as source:
        assert source.path == path
        assert dequantize("BF16", source.data("w"), (2,)).tolist() == [1, -2]
        assert source.tensors["ids"].type == "I64"
        with pytest.raises(UnsupportedModelError, match="'ids' has type I64; supported types are F32"):
            source.data("ids")


# --- shards -----------------------------------------------------------------------------------------------------


def shards(folder, weight_map=None):
    first, second = {"a": np.arange(4, dtype=np.float32)}, {"b": np.arange(6, dtype=np.float32), "c": np.ones(1, "f4")}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors"} | dict.fromkeys("bc", "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 44}, "weight_map": names | (weight_map or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_with_an_index(tmp_path):
    shards(tmp_path)
    for place in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with open_safetensors(place) as source:
            assert set(source.tensors) == {"a", "b", "c"}
            assert source.data("b").view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
            assert source.data("a").view("<f4").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"d": "model-00002-of-00002.safetensors"}, "'d' in model-00002"),
        ({"a": "../elsewhere.safetensors"}, "plain .safetensors file name"),
        ({"a": "/etc/passwd"}, "plain .safetensors file name"),
        ({"a": "..\\x.safetensors"}, "plain .safetensors file name"),
        ({"a": "x\n.safetensors"}, "plain .safetensors file name"),
        ({"a": 5}, "plain .safetensors file name"),
        ({"a": "model-00003-of-00002.safetensors"}, "nothing at this path"),
        ({"c": "model-00001-of-00002.safetensors"}, "'c' in model-00001"),
    ],
)
def test_an_index_that_contradicts_its_shards(tmp_path, refuses, change, match):
    shards(tmp_path, change)
    refuses(open_safetensors, tmp_path, match, ModelFileError)


def test_shards_that_contradict_each_other(tmp_path, refuses):
    shards(tmp_path)
    save_file({"a": np.ones(4, "f4"), "x": np.ones(1, "f4")}, tmp_path / "model-00001-of-00002.safetensors")
    refuses(open_safetensors, tmp_path, "1 more, the first 'x'", ModelFileError)
    save_file({"a": np.ones(4, "f4"), "b": np.ones(1, "f4")}, tmp_path / "model-00001-of-00002.safetensors")
    refuses(open_safetensors, tmp_path, "'b'", ModelFileError)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refuses(open_safetensors, tmp_path, None, ModelFileError)


BROKEN = ["", "[]", "{", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": []}}', "[" * 100_000]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_broken_indices(tmp_path, refuses, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refuses(open_safetensors, tmp_path, None, ModelFileError, megabytes=20)


def test_which_file_a_directory_means(tmp_path, refuses):
    refuses(open_safetensors, tmp_path, "model.safetensors or an index", ModelFileError)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    refuses(open_safetensors, tmp_path, "may run code", ModelFileError)
    save_file({"x": np.ones(1, "f4")}, tmp_path / "one.safetensors")
    with open_safetensors(tmp_path) as source:
        assert source.path.name == "one.safetensors"
    save_file({"x": np.ones(1, "f4")}, tmp_path / "two.safetensors")
    refuses(open_safetensors, tmp_path, "2 safetensors files and no index", ModelFileError)
    save_file({"x": np.ones(1, "f4")}, tmp_path / "model.safetensors")
    with open_safetensors(tmp_path) as source:
        assert source.path.name == "model.safetensors"
    refuses(open_safetensors, tmp_path / "none", "nothing at this path", ModelFileError)
    refuses(open_safetensors, "nul\0", "path", ModelFileError)


# --- hostile files ----------------------------------------------------------------------------------------------


def good() -> dict:
    return {"a": entry(0, 16), "b": entry(16, 24)}


def flat(text: str) -> bytes:
    return text.encode()


HOSTILE = {
    "one byte cut": (lambda s: s(good(), bytes(23)), "truncated"),
    "half": (lambda s: s(good(), bytes(24))[: len(s(good(), bytes(24))) // 2], "header of at most|truncated"),
    "one byte more": (lambda s: s(good(), bytes(25)), "belong to no tensor"),
    "overlap": (lambda s: s({"a": entry(0, 16), "b": entry(12, 24)}, bytes(24)), "'b' at data offset 16"),
    "same range twice": (lambda s: s({"a": entry(0, 16), "b": entry(0, 16)}, bytes(16)), "data offset 16"),
    "hole": (lambda s: s({"a": entry(0, 16), "b": entry(20, 24)}, bytes(24)), "data offset 16"),
    "first tensor late": (lambda s: s({"a": entry(8, 16)}, bytes(16)), "data offset 0"),
    "shape too big": (lambda s: s({"a": entry(0, 16, [5])}, bytes(16)), "20 bytes for tensor 'a'"),
    "shape too small": (lambda s: s({"a": entry(0, 16, [3])}, bytes(16)), "12 bytes"),
    "shape wraps": (lambda s: s({"a": entry(0, 0, [1 << 62, 4])}), "bytes for tensor 'a'"),
    "shape negative": (lambda s: s({"a": entry(0, 16, [-2, -2])}, bytes(16)), "a shape"),
    "shape of 2^63": (lambda s: s({"a": entry(0, 16, [HUGE])}, bytes(16)), "a shape"),
    "shape of floats": (lambda s: s({"a": entry(0, 16, [4.0])}, bytes(16)), "a shape"),
    "shape of true": (lambda s: s({"a": entry(0, 4, [True])}, bytes(4)), "a shape"),
    "shape a number": (lambda s: s({"a": entry(0, 16, 4)}, bytes(16)), "a shape"),
    "nine dimensions": (lambda s: s({"a": entry(0, 4, [1] * 9)}, bytes(4)), "at most 8"),
    "offset negative": (lambda s: s({"a": entry(-16, 0, [4])}, bytes(16)), "ascending data_offsets"),
    "offsets backwards": (lambda s: s({"a": entry(16, 0, [4])}, bytes(16)), "ascending data_offsets"),
    "offset huge": (lambda s: s({"a": entry(0, HUGE, [4])}, bytes(16)), "ascending data_offsets"),
    "range past the end": (lambda s: s({"a": entry(0, 1 << 40)}, bytes(16)), "truncated"),
    "three offsets": (lambda s: s({"a": entry(0, 16) | {"data_offsets": [0, 8, 16]}}, bytes(16)), "two ascending"),
    "number of 5000 digits": (lambda s: s(flat('{"a":' + "9" * 5000 + "}")), "JSON"),
    "size field 2^63": (lambda s: s(good(), bytes(24), HUGE), "header of at most"),
    "size field 2^64-1": (lambda s: s(good(), bytes(24), 2 * HUGE - 1), "header of at most"),
    "size field 0": (lambda s: s(good(), bytes(24), 0), "JSON"),
    "size field one short": (lambda s: s(good(), bytes(24), len(json.dumps(good())) - 1), "JSON"),
    "7 bytes": (lambda s: bytes(7), "8 bytes of the header"),
    "0 bytes": (lambda s: b"", "empty file"),
    "header a list": (lambda s: s([]), "JSON object, found a list"),
    "header not UTF-8": (lambda s: s(b'{"\xff": 1}'), "JSON"),
    "arrays 100000 deep": (lambda s: s(b"[" * 100_000), "JSON"),
    "name twice": (lambda s: s(flat('{"a":%s,"a":%s}' % ((json.dumps(entry(0, 4)),) * 2)), bytes(4)), "twice"),
    "field twice": (
        lambda s: s(flat('{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}'), bytes(4)),
        "twice",
    ),
    "unknown dtype": (lambda s: s({"a": entry(0, 16, dtype="Q4")}, bytes(16)), "safetensors dtype"),
    "dtype a list": (lambda s: s({"a": entry(0, 16, dtype=["F32"])}, bytes(16)), "safetensors dtype"),
    "field missing": (lambda s: s({"a": {"dtype": "F32", "shape": [4]}}, bytes(16)), "data_offsets in"),
    "field unknown": (lambda s: s({"a": entry(0, 16) | {"strides": [4]}}, bytes(16)), "data_offsets in"),
    "entry null": (lambda s: s({"a": None}), "data_offsets in"),
    "name with a surrogate": (lambda s: s(flat(f'{{"\\ud800":{json.dumps(entry(0, 4))}}}'), bytes(4)), "printable"),
    "name empty": (lambda s: s({"": entry(0, 4)}, bytes(4)), "printable"),
    "metadata of numbers": (lambda s: s({"__metadata__": {"a": 1}}), "strings to strings"),
    "metadata a list": (lambda s: s({"__metadata__": []}), "strings to strings"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name, tmp_path, safetensors_bytes, refuses):
    build, match = HOSTILE[name]
    path = write(tmp_path / "model.safetensors", build(safetensors_bytes))
    message = refuses(open_safetensors, path, match, ModelFileError)
    assert str(path) in message and len(message) < 1000
    refuses(open_safetensors, tmp_path, match, ModelFileError)


def test_a_file_without_tensors_is_valid(tmp_path, safetensors_bytes):
    with open_safetensors(write(tmp_path / "model.safetensors", safetensors_bytes({}))) as source:
        assert source.tensors == {}
