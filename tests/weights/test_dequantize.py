"""Dequantisation against the gguf package, bit for bit, and one block of each format by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import BLOCKS


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


# The package has no reader for Q8_K; test_quantized.py has a witness for the types that are in no file.
WITNESSED = [kind for kind in BLOCKS if kind not in ("Q8_K", *REPACKED)]


@pytest.mark.parametrize("kind", WITNESSED)
def test_random_bytes_give_the_bits_of_the_gguf_package(kind):
    rng = np.random.default_rng(3)
    values, size = BLOCKS[kind]
    rows, blocks = 67, 5
    raw = rng.integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = dequantize(kind, raw.reshape(-1), (rows, blocks * values))
    assert found.dtype == np.float32 and found.shape == (rows, blocks * values) and found.flags.writeable
    assert np.array_equal(bits(found), bits(np.ascontiguousarray(expected)))


HALVES = {"F16": 0, "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "IQ4_NL": 0}
"""Types of small blocks -> where the scale is; those of 256 values are tested on fewer scales."""
WIDE = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64, "IQ4_XS": 0}
WIDE |= dict.fromkeys(["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"], 0)


@pytest.mark.parametrize("kind", [*HALVES, *WIDE])
def test_every_half_precision_number(kind):
    """All 65,536 scales (or every 61st), among them infinities, subnormals and not-a-numbers."""
    values, size = BLOCKS[kind]
    scales = np.arange(0, 65_536, 1 if kind in HALVES else 61, dtype="<u2")
    raw = np.random.default_rng(4).integers(0, 256, (scales.size, size), dtype=np.uint8)
    place = (HALVES | WIDE)[kind]
    raw[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = dequantize(kind, raw.reshape(-1), (scales.size, values))
    assert np.array_equal(bits(found), bits(np.ascontiguousarray(expected)))


@pytest.mark.parametrize("kind", ["MXFP4", "NVFP4"])
def test_every_eight_bit_scale(kind):
    values, size = BLOCKS[kind]
    raw = np.random.default_rng(5).integers(0, 256, (256, size), dtype=np.uint8)
    raw[:, : 1 if kind == "MXFP4" else 4] = np.arange(256, dtype=np.uint8)[:, None]
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(bits(dequantize(kind, raw.reshape(-1), (256, values))), bits(expected))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(WITNESSED), st.data())
def test_any_bytes_give_the_bits_of_the_gguf_package(kind, data):
    values, size = BLOCKS[kind]
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw[None], gguf.GGMLQuantizationType[kind])
    assert np.array_equal(bits(dequantize(kind, raw, (1, values))), bits(np.ascontiguousarray(expected)))


def test_a_q8_k_block_by_hand():
    quants = np.arange(256, dtype=np.uint8)
    raw = np.concatenate([np.array([0.25], "<f4").view(np.uint8), quants, np.full(32, 0xEE, np.uint8)])
    assert np.array_equal(dequantize("Q8_K", raw, (256,)), quants.view(np.int8).astype(np.float32) / 4)


def test_a_tensor_larger_than_what_is_read_at_once(monkeypatch):
    monkeypatch.setattr("forwardpass.weights.dequantize._AT_A_TIME", 1024)
    for kind in ("F16", "Q4_0", "Q5_K"):
        raw = np.random.default_rng(6).integers(0, 256, 41 * BLOCKS[kind][1], dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(raw[None], gguf.GGMLQuantizationType[kind])
        found = dequantize(kind, raw, (41 * BLOCKS[kind][0],))
        assert np.array_equal(bits(found), bits(np.ascontiguousarray(expected[0])))


def test_one_block_of_each_format_by_hand():
    scale, low = np.array([0.5], "<f2").tobytes(), np.array([-2], "<f2").tobytes()
    nibbles = bytes([0x21] + [0] * 15)  # value 0 is 1, value 16 is 2
    high = (1 << 16 | 1 << 31).to_bytes(4, "little")  # values 16 and 31 have their fifth bit

    def read(kind: str, raw: bytes) -> np.ndarray:
        return dequantize(kind, np.frombuffer(raw, np.uint8), (32,))

    assert read("Q4_0", scale + nibbles)[[0, 1, 16]].tolist() == [0.5 * (1 - 8), 0.5 * -8, 0.5 * (2 - 8)]
    assert read("Q4_1", scale + low + nibbles)[[0, 1, 16]].tolist() == [0.5 - 2, -2, 1 - 2]
    assert read("Q5_0", scale + high + nibbles)[[0, 16, 31]].tolist() == [0.5 * -15, 0.5 * (18 - 16), 0]
    assert read("Q5_1", scale + low + high + nibbles)[[0, 16, 31]].tolist() == [0.5 - 2, 9 - 2, 8 - 2]
    assert read("Q8_0", scale + bytes([3, 0x80] + [0] * 30))[[0, 1, 2]].tolist() == [1.5, -64, 0]
    assert dequantize("BF16", np.array([0x80, 0x3F], np.uint8), (1,)).tolist() == [1.0]


def test_shapes_and_views():
    raw = np.arange(24, dtype="<f4").view(np.uint8)
    assert dequantize("F32", raw, (2, 3, 4))[1, 2, 3] == 23
    shifted = np.concatenate([np.zeros(1, np.uint8), raw])[1:]  # not aligned to four bytes
    shifted.flags.writeable = False
    assert np.array_equal(dequantize("F32", shifted, (24,)), np.arange(24, dtype=np.float32))
    assert dequantize("F32", raw[:4], ()).shape == () and dequantize("F16", raw[:0], (0, 3)).shape == (0, 3)


def test_wrong_input_is_named():
    raw = np.zeros(34, np.uint8)
    with pytest.raises(UnsupportedModelError, match=r"Q8_1.*Q8_0"):
        dequantize("Q8_1", raw, (32,))
    with pytest.raises(ModelFileError, match="Q4_K: expected rows of a multiple of 256 values"):
        dequantize("Q4_K", np.zeros(144, np.uint8), (8, 32))
    with pytest.raises(ModelFileError, match=r"uint8 \[68\], found uint8 \[34\]"):
        dequantize("Q8_0", raw, (2, 32))
    with pytest.raises(ModelFileError, match="multiple of 32"):
        dequantize("Q8_0", raw, (2, 16))
    with pytest.raises(ModelFileError, match="multiple of 32"):
        dequantize("Q8_0", raw, ())
    with pytest.raises(ModelFileError, match="uint8"):
        dequantize("F32", raw.view(np.int8), (1,))
