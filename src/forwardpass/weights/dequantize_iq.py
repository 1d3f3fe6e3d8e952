"""GGUF's types whose values come from tables (IQ, MXFP4, NVFP4): formats as in ggml's ggml-common.h.

The IQ1 to IQ3 types store indices into grids of vectors of 4 or 8 levels, and signs: either eight bits for eight
values, or seven, where the eighth makes the number of minus signs even. A scale of 3 or 4 bits, d times an odd number
of halves or ones, holds for 16 or 32 values.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from forwardpass.weights.block_fields import half, numbers, planes, scaled
from forwardpass.weights.iq_tables import FP4_LEVELS, GRIDS, IQ4_LEVELS, vectors

_IQ4 = np.array(IQ4_LEVELS, np.float32)
_FP4 = np.array(FP4_LEVELS, np.float32)
_SEVEN_SIGNS = np.array([bits | (bits.bit_count() & 1) << 7 for bits in range(128)], np.uint8)


@cache
def _grid(name: str) -> np.ndarray:
    """float32 [vectors, width]"""
    return np.frombuffer(vectors(GRIDS[name]), np.int8).reshape(-1, GRIDS[name].width).astype(np.float32)


def _signed(signs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Eight sign bits a byte, lowest first, 1 = minus -> float32 [blocks, values]."""
    minus = np.unpackbits(signs, axis=-1, bitorder="little").reshape(values.shape[0], -1)
    return values.reshape(minus.shape) * (np.float32(1) - np.float32(2) * minus.astype(np.float32))


def _signs_and_scale(blocks: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint32 words [blocks, 8] of four times seven sign bits and a scale s -> signs uint8 [blocks, 32], d (s + 1/2)."""
    signs = _SEVEN_SIGNS[words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127]
    scales = half(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    return signs.reshape(blocks.shape[0], -1), scales


def _half_scales(blocks: np.ndarray, start: int) -> np.ndarray:
    """d (s + 1/2) / 4 for the sixteen nibbles s of 8 bytes, each for 16 values: byte i has those of group 2 i and
    2 i + 1 -> float32 [blocks, 16]."""
    nibbles = planes(blocks[:, start : start + 8], 1, 4)
    return half(blocks, 0) * (np.float32(0.5) + nibbles.astype(np.float32)) * np.float32(0.25)


def iq2_xxs(blocks: np.ndarray) -> np.ndarray:
    """d, then for 32 values: 4 bytes of indices, a word of signs and scale."""
    words = numbers(blocks, 2, 66, "<u4").reshape(-1, 8, 2)
    signs, scales = _signs_and_scale(blocks, words[:, :, 1])
    index = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    return scaled(scales * np.float32(0.25), _signed(signs, _grid("IQ2_XXS")[index]))


def iq2_xs(blocks: np.ndarray) -> np.ndarray:
    """d, for 8 values each a 16-bit number (index of 9 bits, 7 sign bits), 8 bytes of scales."""
    codes = numbers(blocks, 2, 66, "<u2")
    return scaled(_half_scales(blocks, 66), _signed(_SEVEN_SIGNS[codes >> 9], _grid("IQ2_XS")[codes & 511]))


def iq2_s(blocks: np.ndarray) -> np.ndarray:
    """d, 32 bytes of indices, 32 of signs, 8 with two high bits of the indices each, 8 bytes of scales."""
    index = blocks[:, 2:34] | planes(blocks[:, 66:74], 1, 2).astype(np.uint16) << 8
    return scaled(_half_scales(blocks, 74), _signed(blocks[:, 34:66], _grid("IQ2_S")[index]))


def iq3_xxs(blocks: np.ndarray) -> np.ndarray:
    """d, 64 bytes of indices, 8 words of signs and scale."""
    signs, scales = _signs_and_scale(blocks, numbers(blocks, 66, 98, "<u4"))
    return scaled(scales * np.float32(0.5), _signed(signs, _grid("IQ3_XXS")[blocks[:, 2:66]]))


def iq3_s(blocks: np.ndarray) -> np.ndarray:
    """d, 64 bytes of indices, 8 with their ninth bits, 32 of signs, 4 of scales: d (2 s + 1), s a nibble."""
    index = blocks[:, 2:66] | planes(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scales = half(blocks, 0) * (1 + 2 * planes(blocks[:, 106:110], 1, 4)).astype(np.float32)
    return scaled(scales, _signed(blocks[:, 74:106], _grid("IQ3_S")[index]))


_IQ1_DELTA = np.float32(0.125)


def iq1_s(blocks: np.ndarray) -> np.ndarray:
    """d, 32 bytes of indices, 8 numbers of 16 bits: four times three high bits of the indices, a scale of 3 bits, a
    sign. Values are those of the grid plus an eighth, or minus an eighth if the sign is set."""
    high = numbers(blocks, 34, 50, "<u2")
    thirds = high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    index = blocks[:, 2:34] | thirds.reshape(-1, 32) << 8
    scales = half(blocks, 0) * (2 * (high >> 12 & 7) + 1).astype(np.float32)
    delta = np.where(high & 0x8000, -_IQ1_DELTA, _IQ1_DELTA)
    return scaled(scales, (_grid("IQ1_S")[index].reshape(-1, 8, 32) + delta[:, :, None]).reshape(-1, 256))


def iq1_m(blocks: np.ndarray) -> np.ndarray:
    """32 bytes of indices, 16 with a nibble (three high bits of an index, a sign) for each, 4 numbers of 16 bits: four
    times three bits of scale, each for 16 values, and on top four bits of d. Signs as in IQ1_S, one for 8 values."""
    nibbles = planes(blocks[:, 32:48], 1, 4)
    words = numbers(blocks, 48, 56, "<u2")
    pieces = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(pieces, axis=1, keepdims=True).view("<f2").astype(np.float32)
    thirds = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    index = blocks[:, :32] | (nibbles & 7).astype(np.uint16) << 8
    delta = np.where(nibbles & 8, -_IQ1_DELTA, _IQ1_DELTA)
    values = _grid("IQ1_S")[index] + delta[:, :, None]
    return scaled(d * (2 * thirds + 1).astype(np.float32), values.reshape(-1, 256))


def iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """Blocks of 32: d, 16 bytes of nibbles."""
    return scaled(half(blocks, 0), _IQ4[planes(blocks[:, 2:], 16, 4)])


def iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """d, 8 times two high bits of a scale (stored + 32) in a 16-bit number, their nibbles, 128 bytes of nibbles."""
    high = numbers(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = planes(blocks[:, 4:8], 1, 4) | high << 4
    return scaled(half(blocks, 0) * (scales.astype(np.float32) - np.float32(32)), _IQ4[planes(blocks[:, 8:], 16, 4)])


def mxfp4(blocks: np.ndarray) -> np.ndarray:
    """Blocks of 32: an exponent e, 16 bytes of nibbles. The levels are doubled, so the scale is 2^(e - 128)."""
    e = blocks[:, :1].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, e - np.uint32(1) << np.uint32(23))
    return scaled(bits.view(np.float32), _FP4[planes(blocks[:, 1:], 16, 4)])


def nvfp4(blocks: np.ndarray) -> np.ndarray:
    """Blocks of 64: 4 scales, 32 bytes of nibbles. A scale is e4m3 without its sign, for 16 values; the levels are
    doubled, so it counts half. The code for not-a-number, 0x7f, means 0."""
    exponent, fraction = (blocks[:, :4] >> 3 & 15).astype(np.int32), (blocks[:, :4] & 7).astype(np.float32)
    normal = np.ldexp(np.float32(1) + fraction / np.float32(8), exponent - 8)
    scales = np.where(exponent == 0, fraction * np.float32(2**-10), normal)
    return scaled(np.where(blocks[:, :4] == 0x7F, np.float32(0), scales), _FP4[planes(blocks[:, 4:], 8, 4)])
