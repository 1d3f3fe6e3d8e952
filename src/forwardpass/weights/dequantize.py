"""Stored tensors as float32, in numpy: the definition that the kernels' packing is tested against.

Formats as in ggml's ggml-common.h. The five oldest types are read here: a block holds 32 values of one row: a
half-precision scale d, for the "_1" formats a half-precision minimum m, for the 5-bit formats 32 high bits, then the
low bits. Byte j of the 4-bit part holds value j (low half) and value j + 16 (high half). G4, G8, C8 and W16
are described in repack.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights import dequantize_iq as iq
from forwardpass.weights import dequantize_k as k
from forwardpass.weights.block_fields import half, numbers, planes
from forwardpass.weights.source import BLOCKS, stored_bytes

_AT_A_TIME = 1 << 20
"""Values that are read in one go: what bounds the memory of the steps between."""


def dequantize(type: str, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """raw: uint8 [nbytes] of a tensor stored as `type` ("F32", "Q4_1", ...) -> float32 [shape], newly allocated.

    Raises UnsupportedModelError for another type and ModelFileError when the bytes don't fit the shape.
    """
    if type not in BLOCKS:
        raise UnsupportedModelError(f"tensor type {type!r} can't be dequantised; supported: {', '.join(BLOCKS)}")
    values, size = BLOCKS[type]
    if values > 1 and (not shape or shape[-1] % values):
        raise ModelFileError(f"{type}: expected rows of a multiple of {values} values, found shape {shape}")
    expected = stored_bytes(type, shape)
    if raw.dtype != np.uint8 or raw.ndim != 1 or raw.size != expected:
        raise ModelFileError(
            f"{type} tensor of shape {shape}: expected uint8 [{expected}], found {raw.dtype} {list(raw.shape)}"
        )
    # A scale of a damaged block may be infinite or NaN; the result then is too, and that needs no warning.
    with np.errstate(invalid="ignore", over="ignore"):
        blocks, read = raw.reshape(-1, size), _READERS[type]
        out = np.empty((blocks.shape[0], values), np.float32)
        step = _AT_A_TIME // values
        for start in range(0, blocks.shape[0], step):
            out[start : start + step] = read(blocks[start : start + step])
        return out.reshape(shape)


def _fives(blocks: np.ndarray, start: int) -> np.ndarray:
    """4 bytes of high bits, then 16 of nibbles -> uint8 [blocks, 32]. Bit j of the high bits belongs to value j."""
    high = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return planes(blocks[:, start + 4 : start + 20], 16, 4) | (high << 4)


def _f32(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view("<f4")


def _f16(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return half(blocks, 0) * (planes(blocks[:, 2:], 16, 4).astype(np.float32) - np.float32(8))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return half(blocks, 0) * planes(blocks[:, 4:], 16, 4).astype(np.float32) + half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return half(blocks, 0) * (_fives(blocks, 2).astype(np.float32) - np.float32(16))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return half(blocks, 0) * _fives(blocks, 4).astype(np.float32) + half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return numbers(blocks, 2, 34, "i1").astype(np.float32) * half(blocks, 0)


def _g4(blocks: np.ndarray) -> np.ndarray:
    levels = planes(blocks[:, 8:], 16, 4).astype(np.float32)
    return levels * numbers(blocks, 0, 4, "<f4") + numbers(blocks, 4, 8, "<f4")


def _g8(blocks: np.ndarray) -> np.ndarray:
    return numbers(blocks, 4, 36, "i1").astype(np.float32) * numbers(blocks, 0, 4, "<f4")


_READERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": k.q2_k, "Q3_K": k.q3_k, "Q4_K": k.q4_k, "Q5_K": k.q5_k, "Q6_K": k.q6_k, "Q8_K": k.q8_k,
    "IQ1_S": iq.iq1_s, "IQ1_M": iq.iq1_m, "IQ2_XXS": iq.iq2_xxs, "IQ2_XS": iq.iq2_xs, "IQ2_S": iq.iq2_s,
    "IQ3_XXS": iq.iq3_xxs, "IQ3_S": iq.iq3_s, "IQ4_NL": iq.iq4_nl, "IQ4_XS": iq.iq4_xs,
    "TQ1_0": k.tq1_0, "TQ2_0": k.tq2_0, "MXFP4": iq.mxfp4, "NVFP4": iq.nvfp4,
    "G4": _g4, "G8": _g8, "C8": _g8, "W16": _f32,
}
