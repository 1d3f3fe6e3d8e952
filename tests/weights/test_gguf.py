"""The GGUF reader against files of the gguf package, and against hostile ones."""

from __future__ import annotations

import os
import struct
import time

import gguf
import numpy as np
import pytest

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.gguf import TYPES, open_gguf
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import BLOCKS

HUGE = 1 << 63
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def write(path, raw: bytes):
    path.write_bytes(raw)
    return path


def test_type_table_agrees_with_the_gguf_package():
    known = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {number: TYPES[number] for number in TYPES if number in known} == {n: known[n] for n in TYPES if n in known}
    assert {"F32", "F16", "BF16", *QUANTISED} <= {known[number][0] for number in TYPES if number in known}


def test_reads_what_the_gguf_package_writes(tmp_path):
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_int8("x.i8", -3)
    writer.add_uint8("x.u8", 250)
    writer.add_int16("x.i16", -300)
    writer.add_uint16("x.u16", 65_000)
    writer.add_int32("x.i32", -70_000)
    writer.add_int64("x.i64", -(1 << 40))
    writer.add_uint64("x.u64", (1 << 64) - 1)
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.yes", True)
    writer.add_bool("x.no", False)
    writer.add_string("tokenizer.chat_template", "{{ messages }} é猫\n")
    tokens = ["", "a", "é", "猫", "🙂", "Ġthe", "nul\0inside", "x" * 1000, *[f"t{i}" for i in range(500)]]
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-i) for i in range(len(tokens))])
    writer.add_token_types([1] * len(tokens))
    writer.add_array("x.flags", [True, False, True])
    writer.add_array("x.ints", [1, -2, 3])
    stored = {}
    for kind in QUANTISED:
        values = rng.standard_normal((6, 64), np.float32)
        stored[f"w.{kind}"] = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(f"w.{kind}", stored[f"w.{kind}"], raw_dtype=gguf.GGMLQuantizationType[kind])
    for name, dtype in (("w.F32", np.float32), ("w.F16", np.float16)):
        stored[name] = rng.standard_normal((3, 5)).astype(dtype)
        writer.add_tensor(name, stored[name])
    stored["w.BF16"] = gguf.quantize(rng.standard_normal((2, 3, 4), np.float32), gguf.GGMLQuantizationType.BF16)
    writer.add_tensor("w.BF16", stored["w.BF16"], raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with open_gguf(path) as source:
        assert source.kind == "gguf" and source.path == path
        data = source.metadata
        assert data["general.architecture"] == "llama"
        wanted = {"x.i8": -3, "x.u8": 250, "x.i16": -300, "x.u16": 65_000, "x.i32": -70_000, "x.i64": -(1 << 40)}
        wanted |= {"x.u64": (1 << 64) - 1, "x.f32": 0.5, "x.f64": 0.1, "x.yes": True, "x.no": False}
        assert {key: data[key] for key in wanted} == wanted
        assert data["x.yes"] is True and type(data["llama.block_count"]) is int
        assert data["tokenizer.chat_template"] == "{{ messages }} é猫\n"
        assert data.count("tokenizer.ggml.tokens") == len(tokens)
        assert data["tokenizer.ggml.tokens"] == tokens
        assert data["tokenizer.ggml.tokens"] is data["tokenizer.ggml.tokens"]
        assert data["tokenizer.ggml.scores"].dtype == np.float32
        assert data["tokenizer.ggml.scores"].tolist() == [float(-i) for i in range(len(tokens))]
        assert data["x.flags"].tolist() == [True, False, True] and data["x.ints"].tolist() == [1, -2, 3]
        assert "nothing" not in data and data.get("nothing", 7) == 7 and len(list(data)) == len(data)
        assert set(source.tensors) == set(stored)
        for name, raw in stored.items():
            info = source.tensors[name]
            view = source.data(name)
            assert info.type == name[2:] and info.nbytes == raw.nbytes and not view.flags.writeable
            assert np.array_equal(view, np.ascontiguousarray(raw).view(np.uint8).reshape(-1))
            source.release(name)
            assert np.array_equal(source.data(name), view)
        assert source.tensors["w.Q4_1"].shape == (6, 64) and source.tensors["w.BF16"].shape == (2, 3, 4)
        with pytest.raises(ModelFileError, match=r"w.Q4_2.*w.Q4_1"):
            source.data("w.Q4_2")
        kept = source.data("w.F32")
    assert np.array_equal(kept, stored["w.F32"].view(np.uint8).reshape(-1))
    assert data["x.ints"].tolist() == [1, -2, 3]
    with pytest.raises(ModelFileError, match="closed"):
        source.data("w.F32")
    source.close()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_and_version(tmp_path, gguf_bytes, version, alignment):
    b = gguf_bytes
    pairs = [b.pair("general.alignment", "u32", alignment)]
    tensors = [b.tensor("a", [2], 0, 0), b.tensor("b", [3], 0, alignment)]
    data = struct.pack("<2f", 1, 2).ljust(alignment, b"\0") + struct.pack("<3f", 3, 4, 5)
    path = write(tmp_path / "a.gguf", b.file(pairs, tensors, data, version=version, alignment=alignment))
    with open_gguf(path) as source:
        assert source.data("a").view("<f4").tolist() == [1, 2] and source.data("b").view("<f4").tolist() == [3, 4, 5]


def test_unknown_but_valid_metadata(tmp_path, gguf_bytes):
    b = gguf_bytes
    nested = b.array("array", [b.array("i32", [1, 2]), b.array("string", ["a", "bc"]), b.array("u8", [])])
    pairs = [
        b.string("my.nested") + b.u32(9) + nested,
        b.array_pair("my.nothing", "string", []),
        b.array_pair("my.no_flags", "bool", []),
        b.pair("some.other.thing", "f64", 2.5),
        b.pair("my.empty", "string", ""),
        b.array_pair("my.empties", "string", [""] * 300),
        b.array_pair("my.long", "string", ["y" * 300_000, "z", ""]),
    ]
    with open_gguf(write(tmp_path / "m.gguf", b.file(pairs))) as source:
        data = source.metadata
        first, second, third = data["my.nested"]
        assert first.tolist() == [1, 2] and second == ["a", "bc"] and third.size == 0
        assert data["my.nothing"] == [] and data["my.no_flags"].dtype == np.bool_
        assert data["some.other.thing"] == 2.5 and data["my.empty"] == "" and data["my.empties"] == [""] * 300
        assert data["my.long"] == ["y" * 300_000, "z", ""]
        assert data.types["my.nested"] == "array of array" and source.tensors == {}
        with pytest.raises(ModelFileError, match="not an array"):
            data.count("some.other.thing")


def test_a_large_vocabulary_is_read_fast(tmp_path, gguf_bytes):
    b = gguf_bytes
    rng = np.random.default_rng(2)
    words = ["Ġ" + "".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(0, 12, 49_152)]
    merges = [f"{word[:2]} {word[2:]}" for word in words]
    pairs = [
        b.array_pair("tokenizer.ggml.tokens", "string", words),
        b.array_pair("tokenizer.ggml.merges", "string", merges),
        b.array_pair("tokenizer.ggml.token_type", "i32", [1] * len(words)),
    ]
    path = write(tmp_path / "v.gguf", b.file(pairs))
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with open_gguf(path) as source:
            tokens, found = source.metadata["tokenizer.ggml.tokens"], source.metadata["tokenizer.ggml.merges"]
        times.append(time.perf_counter() - started)
    assert tokens == words and found == merges
    # About 25 ms on one core of a 2020s server; the margin is for a busy machine.
    assert min(times) < 0.1, times


def nested(b, depth: int) -> bytes:
    return b.u32(9) + b.u64(1) if depth == 0 else (b.u32(9) + b.u64(1)) * depth + b.array("u8", [1])


# Every probe: name -> (bytes of the file, part of the message).
HOSTILE = {
    "n_kv 2^63": (lambda b: b.file(n_pairs=HUGE), "metadata pairs"),
    "n_tensors 2^63": (lambda b: b.file(n_tensors=HUGE), "tensor records"),
    "n_kv one too many": (lambda b: b.file([b.pair("a", "u32", 1)], n_pairs=2), "expected"),
    "string length 2^63": (lambda b: b.file([b.string("a") + b.u32(8) + b.u64(HUGE)], n_pairs=1), "bytes of metadata"),
    "string length 2^64-1": (lambda b: b.file([b.string("a") + b.u32(8) + b.u64(2 * HUGE - 1)]), "bytes of metadata"),
    "key length 2^63": (lambda b: b.file([b.u64(HUGE) + bytes(32)]), "at most 65535"),
    "key past the end": (lambda b: b.file([b.u64(60) + bytes(32)]), "60 bytes of a metadata key"),
    "array length 2^63 of strings": (lambda b: b.file([b.array_pair("a", "string", [], HUGE)]), "strings of"),
    "array length 2^63 of u8": (lambda b: b.file([b.array_pair("a", "u8", [], HUGE)]), "items of"),
    "array length 2^61 of u64": (lambda b: b.file([b.array_pair("a", "u64", [1], 1 << 61)]), "items of"),
    "array length 2^63 of arrays": (lambda b: b.file([b.array_pair("a", "array", [], HUGE)]), "inner arrays"),
    "array cut inside": (lambda b: b.file([b.array_pair("a", "string", ["x" * 40] * 9, 20)]), "expected"),
    "arrays 1000 deep": (lambda b: b.file([b.string("a") + b.u32(9) + nested(b, 1000)]), "nested at most"),
    "arrays 100000 deep": (lambda b: b.file([b.string("a") + b.u32(9) + nested(b, 100_000)]), "nested at most"),
    "arrays 5 deep": (lambda b: b.file([b.string("a") + b.u32(9) + nested(b, 4)]), "nested at most"),
    "many inner arrays": (
        lambda b: b.file([b.array_pair("a", "array", [b.array("u8", [])] * 70_000)]),
        "inner arrays",
    ),
    "array of type 13": (lambda b: b.file([b.string("a") + b.u32(9) + b.u32(13) + b.u64(1) + bytes(8)]), "value type"),
    "value of type 99": (lambda b: b.file([b.string("a") + b.u32(99) + bytes(8)]), "value type"),
    "boolean 2": (lambda b: b.file([b.pair("a", "bool", 2)]), "0 or 1"),
    "boolean array with 7": (lambda b: b.file([b.array_pair("a", "bool", [0, 1, 7])]), "0 or 1"),
    "key twice": (lambda b: b.file([b.pair("a", "u32", 1), b.pair("a", "u32", 1)]), "'a' twice"),
    "key empty": (lambda b: b.file([b.pair("", "u32", 1)]), "empty key"),
    "key not UTF-8": (lambda b: b.file([b.pair(b"\xff\xfe", "u32", 1)]), "UTF-8"),
    "dims 2^42+1 x 1152": (lambda b: b.file((), [b.tensor("t", [(1 << 42) + 1, 1152])], bytes(64)), "inside the file"),
    "dims wrap to 0": (lambda b: b.file((), [b.tensor("t", [1 << 32, 1 << 32])], bytes(64)), "inside the file"),
    "dims 2^63 x 4": (lambda b: b.file((), [b.tensor("t", [HUGE] * 4)], bytes(64)), "inside the file"),
    "dims with 0": (lambda b: b.file((), [b.tensor("t", [4, 0])], bytes(64)), "at least 1"),
    "n_dims 9": (lambda b: b.file((), [b.tensor("t", [1] * 9)], bytes(64)), "1 to 4 dimensions"),
    "n_dims 0": (lambda b: b.file((), [b.tensor("t", [])], bytes(64)), "dimensions|records"),
    "n_dims 2^32-1": (lambda b: b.file((), [b.tensor("t", [1], n_dims=2**32 - 1)], bytes(64)), "1 to 4 dimensions"),
    "alignment 0": (lambda b: b.file([b.pair("general.alignment", "u32", 0)]), "power of two"),
    "alignment 3": (lambda b: b.file([b.pair("general.alignment", "u32", 3)]), "power of two"),
    "alignment 2^30": (lambda b: b.file([b.pair("general.alignment", "u32", 1 << 30)]), "power of two"),
    "alignment a string": (lambda b: b.file([b.pair("general.alignment", "string", "32")]), "of type uint32"),
    "alignment a float": (lambda b: b.file([b.pair("general.alignment", "f32", 32.0)]), "of type uint32"),
    "tensor type 200": (
        lambda b: b.file((), [b.tensor("t", [8], 200)], bytes(64)), "number 200; .* 12 Q4_K, .* 39 MXFP4"
    ),
    "tensor type removed": (lambda b: b.file((), [b.tensor("t", [32], 4)], bytes(64)), "type number 4"),
    "row not whole blocks": (lambda b: b.file((), [b.tensor("t", [33, 32], 2)], bytes(9999)), "multiple of 32"),
    "offset unaligned": (lambda b: b.file((), [b.tensor("t", [4], 0, 4)], bytes(64)), "multiple of 32"),
    "offset past the end": (lambda b: b.file((), [b.tensor("t", [4], 0, 1 << 20)], bytes(64)), "inside the file"),
    "offset 2^64-32": (lambda b: b.file((), [b.tensor("t", [4], 0, 2 * HUGE - 32)], bytes(64)), "inside the file"),
    "last byte cut": (lambda b: b.file((), [b.tensor("t", [4], 0)], bytes(15)), "truncated"),
    "no data": (lambda b: b.file((), [b.tensor("t", [4], 0)]), "truncated"),
    "tensors overlap": (
        lambda b: b.file((), [b.tensor("t", [16], 0), b.tensor("u", [4], 0, 32)], bytes(96)),
        "after the end of 't'",
    ),
    "tensor twice": (lambda b: b.file((), [b.tensor("t", [4]), b.tensor("t", [4], 0, 32)], bytes(64)), "'t' twice"),
    "tensor name empty": (lambda b: b.file((), [b.tensor("", [4])], bytes(64)), "tensor name"),
    "tensor name too long": (lambda b: b.file((), [b.tensor("n" * 257, [4])], bytes(64)), "at most 256"),
    "tensor name not UTF-8": (lambda b: b.file((), [b.tensor(b"\x80", [4])], bytes(64)), "UTF-8"),
    "scores as u8": (lambda b: b.file([b.array_pair("tokenizer.ggml.scores", "u8", [1, 2])]), "array of float32"),
    "tokens as numbers": (lambda b: b.file([b.array_pair("tokenizer.ggml.tokens", "i32", [1])]), "array of string"),
    "token types as f32": (lambda b: b.file([b.array_pair("tokenizer.ggml.token_type", "f32", [1])]), "int32"),
    "scores short": (
        lambda b: b.file(
            [
                b.array_pair("tokenizer.ggml.tokens", "string", ["a", "b"]),
                b.array_pair("tokenizer.ggml.scores", "f32", [0.5]),
            ]
        ),
        "2 entries",
    ),
    "end token a string": (lambda b: b.file([b.pair("tokenizer.ggml.eos_token_id", "string", "2")]), "uint32"),
    "template a number": (lambda b: b.file([b.pair("tokenizer.chat_template", "u32", 2)]), "string"),
    "magic wrong": (lambda b: b.file(magic=b"GGML"), "begins with"),
    "version 0": (lambda b: b.file(version=0), "version 0"),
    "version 1": (lambda b: b.file(version=1), "found 1"),
    "version 99": (lambda b: b.file(version=99), "version 99"),
    "big-endian": (lambda b: b.file(version=3 << 24), "big-endian"),
    "3 bytes": (lambda b: b"GGU", "bytes of magic"),
    "magic only": (lambda b: b"GGUF", "bytes of version"),
    "no counts": (lambda b: b"GGUF" + b.u32(3) + bytes(15), "expected 8 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name, tmp_path, gguf_bytes, refuses):
    build, match = HOSTILE[name]
    path = write(tmp_path / "bad.gguf", build(gguf_bytes))
    message = refuses(open_gguf, path, match)
    assert str(path) in message and len(message) < 1000


def test_string_array_that_passes_the_end(tmp_path, gguf_bytes, refuses):
    b = gguf_bytes
    good = b.array_pair("a", "string", ["ab"] * 5000)
    bad = good[:-10] + b.u64(HUGE - 1) + b"ab"
    refuses(open_gguf, write(tmp_path / "bad.gguf", b.file([bad])), "passes the end")


def test_tokens_that_are_not_utf8_are_named_when_read(tmp_path, gguf_bytes):
    b = gguf_bytes
    tokens = b.array_pair("tokenizer.ggml.tokens", "string", ["a", b"\xc3", b"\xa9"])
    path = write(tmp_path / "t.gguf", b.file([tokens]))
    with open_gguf(path) as source, pytest.raises(ModelFileError, match="tokens', item 1"):
        source.metadata["tokenizer.ggml.tokens"]


def test_known_but_unsupported_types_list_the_supported_ones(tmp_path, gguf_bytes, refuses):
    b = gguf_bytes
    tensors = [b.tensor("ok", [4]), b.tensor("k", [32], 9, 32), b.tensor("l", [32], 9, 96), b.tensor("m", [8], 26, 160)]
    path = write(tmp_path / "k.gguf", b.file((), tensors, bytes(400)))
    message = refuses(open_gguf, path, "Q8_1", UnsupportedModelError)
    assert "2 tensors" in message and "'k'" in message and "1 tensor of type I32" in message and "Q5_1" in message


def test_every_type_of_whole_blocks_opens_and_no_other_row_does(tmp_path, gguf_bytes, refuses):
    b = gguf_bytes
    for number, (name, values, size) in TYPES.items():
        if name not in BLOCKS:
            continue
        assert BLOCKS[name] == (values, size)
        good = b.file((), [b.tensor("t", [2 * values, 3], number)], bytes(6 * size))
        with open_gguf(write(tmp_path / "t.gguf", good)) as source:
            assert source.tensors["t"].type == name and source.data("t").size == 6 * size
        if values > 1:
            bad = b.file((), [b.tensor("t", [2 * values - 1, 3], number)], bytes(6 * size))
            refuses(open_gguf, write(tmp_path / "t.gguf", bad), f"multiple of {values} values in tensor 't'")
    assert set(BLOCKS) - {name for name, *_ in TYPES.values()} == set(REPACKED)  # which are in no file


def test_big_endian_file_of_the_gguf_package(tmp_path, refuses):
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refuses(open_gguf, path, "big-endian", UnsupportedModelError)


def test_paths_that_are_no_files(tmp_path, refuses):
    refuses(open_gguf, tmp_path / "none.gguf", "nothing at this path", ModelFileError)
    refuses(open_gguf, tmp_path, "a directory", ModelFileError)
    refuses(open_gguf, write(tmp_path / "empty.gguf", b""), "empty file", ModelFileError)
    refuses(open_gguf, "nul\0.gguf", "path", ModelFileError)
    refuses(open_gguf, "n" * 5000, "error", ModelFileError)
    os.mkfifo(tmp_path / "pipe.gguf")
    refuses(open_gguf, tmp_path / "pipe.gguf", "pipe", ModelFileError)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuses(open_gguf, tmp_path / "loop", "error", ModelFileError)
    refuses(open_gguf, write(tmp_path / "file", b"GGUF") / "inside.gguf", "error", ModelFileError)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the resident size from /proc")
def test_release_gives_the_pages_back(tmp_path, gguf_bytes):
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    size = 32 << 20
    path = write(tmp_path / "big.gguf", gguf_bytes.file((), [gguf_bytes.tensor("t", [size // 4])], bytes(size)))
    with open_gguf(path) as source:
        before = resident()
        source.data("t").max()
        assert resident() - before > size // 2
        source.release("t")
        assert resident() - before < size // 4


def test_no_permission(tmp_path, refuses, monkeypatch):
    path = write(tmp_path / "secret.gguf", b"GGUF")

    def forbidden(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    # Root may read everything, so the refusal of the system is played.
    monkeypatch.setattr("builtins.open", forbidden)
    refuses(open_gguf, path, "permission", ModelFileError)
