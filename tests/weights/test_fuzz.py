"""Damaged model files by the thousand: each either opens as a sound file or raises our error, and costs little."""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from forwardpass.errors import ForwardpassError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.gguf import TYPES, open_gguf
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.safetensors import open_safetensors
from forwardpass.weights.source import BLOCKS

ABSURD = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
ABSURD += [2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
# Python's own objects for a file of a few hundred values; what a file claims must never add to it.
ALLOWANCE = 300_000


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    tokens = ["<s>", "é", *[f"word{i}" for i in range(120)]]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.5] * len(tokens))
    writer.add_token_types([1] * len(tokens))
    writer.add_chat_template("{{ messages }}")
    rows = np.random.default_rng(6).standard_normal((4, 32), np.float32)
    writer.add_tensor("a.weight", rows)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("b.weight", gguf.quantize(rows, kind), raw_dtype=kind)
    blocks = np.random.default_rng(7).integers(0, 256, (2, 1, 110), dtype=np.uint8)  # one of each IQ3_S and MXFP4 row
    writer.add_tensor("k.weight", blocks[0], raw_dtype=gguf.GGMLQuantizationType.IQ3_S)
    writer.add_tensor("m.weight", blocks[1, :, :102], raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.add_tensor("c.weight", np.ones(8, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def small_safetensors(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "small.safetensors"
    arrays = {"a": np.ones((4, 8), "f4"), "b": np.ones(6, "f2"), "c": np.ones(3, "f4")}
    save_file(arrays, path, metadata={"format": "pt"})
    return path.read_bytes()


def read_all(opener, path) -> bool:
    """Opens and reads everything. False: our error. Any other exception fails the test."""
    try:
        with opener(path) as source:
            for value in source.metadata.values():
                assert value is not None
            for name, info in source.tensors.items():
                if info.type in BLOCKS:
                    view = source.data(name)
                    assert view.size == info.nbytes
                    dequantize(info.type, view, info.shape)
        return True
    except ForwardpassError:
        return False


def survives(opener, path, variants) -> tuple[int, int]:
    """Reads every variant; returns how many opened and how many were refused."""
    opened = refused = 0
    tracemalloc.start()
    try:
        for raw in variants:
            path.write_bytes(raw)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            started = time.perf_counter()
            fine = read_all(opener, path)
            seconds = time.perf_counter() - started
            peak = tracemalloc.get_traced_memory()[1] - before
            assert seconds < 1 and peak < ALLOWANCE + 8 * len(raw), (seconds, peak, raw[:64])
            opened += fine
            refused += not fine
    finally:
        tracemalloc.stop()
    return opened, refused


def cuts(raw: bytes, rng: random.Random, number: int):
    places = set(range(0, 96)) | {len(raw) - 1} | {rng.randrange(len(raw)) for _ in range(number)}
    return [raw[:place] for place in sorted(places) if place < len(raw)]


def flips(raw: bytes, rng: random.Random, number: int, region: int):
    for _ in range(number):
        damaged = bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 8])):
            damaged[rng.randrange(region)] ^= 1 << rng.randrange(8)
        yield bytes(damaged)


def absurd_numbers(raw: bytes, rng: random.Random, number: int, region: int):
    for _ in range(number):
        damaged = bytearray(raw)
        width, code = rng.choice([(4, "<I"), (8, "<Q")])
        place = rng.randrange(region - width)
        damaged[place : place + width] = struct.pack(code, rng.choice(ABSURD) % (1 << 8 * width))
        yield bytes(damaged)


def splices(raw: bytes, rng: random.Random, number: int, region: int):
    """Pieces taken out, doubled, or overwritten by other pieces."""
    for _ in range(number):
        start, length = rng.randrange(region), rng.randrange(1, 64)
        other = rng.randrange(region)
        piece = rng.choice([b"", raw[start : start + length] * 2, raw[other : other + length], rng.randbytes(length)])
        yield raw[:start] + piece + raw[start + length :]


def header_size(raw: bytes) -> int:
    """Everything before the tensors' data: where damage matters."""
    return raw.index(b"c.weight") + 40


def test_truncated_gguf(small_gguf, tmp_path):
    assert read_all(open_gguf, _whole(tmp_path / "whole.gguf", small_gguf))
    # The file ends with padding after the last tensor, so a cut of the very end loses nothing.
    opened, refused = survives(open_gguf, tmp_path / "f.gguf", cuts(small_gguf, random.Random(1), 250))
    assert opened <= 20 and refused > 200


@pytest.mark.parametrize("damage", [flips, absurd_numbers, splices])
def test_damaged_gguf(small_gguf, tmp_path, damage):
    region = header_size(small_gguf)
    variants = damage(small_gguf, random.Random(damage.__name__), 700, region)
    assert sum(survives(open_gguf, tmp_path / "f.gguf", variants)) == 700


def test_absurd_number_at_every_place_of_the_gguf_start(small_gguf, tmp_path):
    def variants():
        for place in range(8, 120):
            for value in (2**31, 2**63, 2**64 - 1):
                yield small_gguf[:place] + struct.pack("<Q", value) + small_gguf[place + 8 :]

    survives(open_gguf, tmp_path / "f.gguf", variants())


def test_noise_after_the_magic(tmp_path):
    rng = random.Random(7)
    noise = [b"GGUF" + struct.pack("<I", 3) + rng.randbytes(rng.randrange(200)) for _ in range(200)]
    assert survives(open_gguf, tmp_path / "f.gguf", noise)[0] == 0
    zeros = b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 12) + bytes(1 << 17)
    assert survives(open_gguf, tmp_path / "f.gguf", [zeros])[0] == 0


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - set(REPACKED)))
def test_a_type_number_and_a_shape_that_lie(kind, gguf_bytes, tmp_path):
    """Any type over any shape, in a file of 300 bytes of tensors: nothing is allocated for what isn't there."""
    b, rng = gguf_bytes, random.Random(kind)
    number = next(number for number, (name, *_) in TYPES.items() if name == kind)
    files = []
    for _ in range(60):
        sizes = [1, 3, 16, 32, 64, 256, 512, 1 << 20, 1 << 40, (1 << 64) - 256]
        dims = [rng.choice(sizes) for _ in range(rng.choice([1, 2, 3]))]
        tensors = [b.tensor("t", dims, number, rng.choice([0, 32, 1 << 62]))]
        files.append(b.file((), tensors, rng.randbytes(300)))
    files.append(b.file((), [b.tensor("t", [BLOCKS[kind][0]], number)], rng.randbytes(300)))
    opened, refused = survives(open_gguf, tmp_path / "f.gguf", files)
    assert opened and refused


def test_damaged_parts_of_a_split_file(gguf_bytes, tmp_path):
    b, rng = gguf_bytes, random.Random(9)
    parts = []
    for i in range(2):
        keys = [b.pair("split.no", "u16", i), b.pair("split.count", "u16", 2), b.pair("split.tensors.count", "i32", 2)]
        parts.append(b.file(keys, [b.tensor("ab"[i], [8])], bytes(32)))
    paths = [tmp_path / f"s-0000{i}-of-00002.gguf" for i in (1, 2)]
    for damaged in (0, 1):
        for path, raw in zip(paths, parts, strict=True):
            path.write_bytes(raw)
        for damage in (flips, absurd_numbers, splices):
            variants = damage(parts[damaged], rng, 150, len(parts[damaged]) - 32)
            survives(lambda _: open_gguf(paths[0]), paths[damaged], variants)  # read through the first part


def test_every_cut_of_a_safetensors_file(small_safetensors, tmp_path):
    assert read_all(open_safetensors, _whole(tmp_path / "whole.safetensors", small_safetensors))
    every = [small_safetensors[:length] for length in range(len(small_safetensors))]
    assert survives(open_safetensors, tmp_path / "f.safetensors", every)[0] == 0


@pytest.mark.parametrize("damage", [flips, absurd_numbers, splices])
def test_damaged_safetensors(small_safetensors, tmp_path, damage):
    region = 8 + int.from_bytes(small_safetensors[:8], "little")
    variants = damage(small_safetensors, random.Random(damage.__name__), 500, region)
    assert sum(survives(open_safetensors, tmp_path / "f.safetensors", variants)) == 500


def test_safetensors_headers_with_odd_values(small_safetensors, tmp_path):
    """Valid JSON with values of the wrong kind in every place."""
    length = int.from_bytes(small_safetensors[:8], "little")
    header, data = json.loads(small_safetensors[8 : 8 + length]), small_safetensors[8 + length :]
    odd = [None, True, -1, 1.5, 1e300, 2**63, 2**70, "", "F32", [], [[]], [None], [2**62, 2**62], {}, {"a": 1}]

    def variants():
        for name in header:
            for value in odd:
                yield header | {name: value}
                for field in ("dtype", "shape", "data_offsets", "other"):
                    yield header | {name: header[name] | {field: value}}

    files = []
    for changed in variants():
        text = json.dumps(changed).encode()
        files.append(struct.pack("<Q", len(text)) + text + data)
    opened, refused = survives(open_safetensors, tmp_path / "f.safetensors", files)
    assert refused > 200 and opened <= 20


def test_damaged_index(tmp_path):
    save_file({"a": np.ones(4, "f4")}, tmp_path / "one.safetensors")
    text = json.dumps({"metadata": {}, "weight_map": {"a": "one.safetensors"}}).encode()
    path = tmp_path / "model.safetensors.index.json"
    rng = random.Random(8)
    for variants in (cuts(text, rng, 20), flips(text, rng, 200, len(text)), splices(text, rng, 200, len(text))):
        survives(open_safetensors, path, variants)


def _whole(path, raw: bytes):
    path.write_bytes(raw)
    return path
