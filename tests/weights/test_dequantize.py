"""Dequantisation against the gguf package, bit for bit, and one block of each format by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.source import BLOCKS


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


@pytest.mark.parametrize("kind", BLOCKS)
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


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if kind not in ("F32", "BF16")])
def test_every_half_precision_number(kind):
    """All 65,536 scales, among them infinities, subnormals and not-a-numbers."""
    values, size = BLOCKS[kind]
    raw = np.random.default_rng(4).integers(0, 256, (65_536, size), dtype=np.uint8)
    raw[:, :2] = np.arange(65_536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = dequantize(kind, raw.reshape(-1), (65_536, values))
    assert np.array_equal(bits(found), bits(np.ascontiguousarray(expected)))


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
    with pytest.raises(UnsupportedModelError, match="Q4_K.*Q8_0"):
        dequantize("Q4_K", raw, (32,))
    with pytest.raises(ModelFileError, match=r"uint8 \[68\], found uint8 \[34\]"):
        dequantize("Q8_0", raw, (2, 32))
    with pytest.raises(ModelFileError, match="multiple of 32"):
        dequantize("Q8_0", raw, (2, 16))
    with pytest.raises(ModelFileError, match="multiple of 32"):
        dequantize("Q8_0", raw, ())
    with pytest.raises(ModelFileError, match="uint8"):
        dequantize("F32", raw.view(np.int8), (1,))
