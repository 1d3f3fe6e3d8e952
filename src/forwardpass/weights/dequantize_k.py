"""The K-quants and the ternary types of GGUF, in blocks of 256 values: formats as in ggml's ggml-common.h.

A block has one or two half-precision numbers and small integers that multiply them, one for each 16 or 32 values.
"""

from __future__ import annotations

import numpy as np

from forwardpass.weights.block_fields import half, numbers, planes, scaled


def q2_k(blocks: np.ndarray) -> np.ndarray:
    """16 bytes (scale low, minimum high, each 4 bits, for 16 values), 64 bytes of two-bit values, d, dmin."""
    scales = half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    minima = half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    return scaled(scales, planes(blocks[:, 16:80], 32, 2)) - np.repeat(minima, 16, axis=1)


def q3_k(blocks: np.ndarray) -> np.ndarray:
    """32 bytes of third bits, 64 of two-bit values, 12 of scales, d. A third bit that is NOT set subtracts 4.

    Scale i of 16 has 6 bits, stored + 32: its low four are nibble i of the first 8 bytes, its high two those numbered
    i in the last 4 bytes.
    """
    low, high = planes(blocks[:, 96:104], 8, 4), planes(blocks[:, 104:108], 4, 2)
    scales = half(blocks, 108) * ((low | high << 4).astype(np.float32) - np.float32(32))
    values = planes(blocks[:, 32:96], 32, 2).astype(np.int8) + (planes(blocks[:, :32], 32, 1) << 2).astype(np.int8)
    return scaled(scales, values - np.int8(4))


def _scales_and_minima(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d, dmin and 12 bytes with eight pairs of 6 bits -> two float32 [blocks, 8].

    Bytes 0-3 hold scales 0-3 in their low six bits, bytes 4-7 minima 0-3. Bytes 8-11 hold the low four bits of scales
    4-7 (low) and minima 4-7 (high), whose high two bits are the high ones of bytes 0-3 and 4-7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return half(blocks, 0) * scales.astype(np.float32), half(blocks, 2) * minima.astype(np.float32)


def q4_k(blocks: np.ndarray) -> np.ndarray:
    """Scales as above, 128 bytes of nibbles."""
    scales, minima = _scales_and_minima(blocks)
    return scaled(scales, planes(blocks[:, 16:], 32, 4)) - np.repeat(minima, 32, axis=1)


def q5_k(blocks: np.ndarray) -> np.ndarray:
    """Scales as above, 32 bytes of fifth bits, 128 of nibbles."""
    scales, minima = _scales_and_minima(blocks)
    values = planes(blocks[:, 48:], 32, 4) | planes(blocks[:, 16:48], 32, 1) << 4
    return scaled(scales, values) - np.repeat(minima, 32, axis=1)


def q6_k(blocks: np.ndarray) -> np.ndarray:
    """128 bytes of nibbles, 64 of high two bits, 16 int8 scales, d. Values are stored + 32."""
    scales = half(blocks, 208) * numbers(blocks, 192, 208, "i1").astype(np.float32)
    values = planes(blocks[:, :128], 64, 4) | planes(blocks[:, 128:192], 32, 2) << 4
    return scaled(scales, values.astype(np.int8) - np.int8(32))


def q8_k(blocks: np.ndarray) -> np.ndarray:
    """A float32 d, 256 int8 values, then their sums, which nothing needs."""
    return scaled(numbers(blocks, 0, 4, "<f4"), numbers(blocks, 4, 260, "i1"))


_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def tq1_0(blocks: np.ndarray) -> np.ndarray:
    """Five trits (stored + 1) a byte: 32 bytes, 16 bytes, then 4 bytes of four trits, d.

    A byte b is a fraction b / 256 in base 3: multiplied by 3^i (whole parts fall off the eight bits), its next digit
    is what 3 b has above 256.
    """
    pieces = [blocks[:, :32], blocks[:, 32:48], blocks[:, 48:52]]
    powers = [_POWERS, _POWERS, _POWERS[:4]]
    shifted = [(p[:, None, :] * w).reshape(blocks.shape[0], -1) for p, w in zip(pieces, powers, strict=True)]
    trits = np.concatenate(shifted, axis=1).astype(np.uint16) * 3 >> 8
    return scaled(half(blocks, 52), trits.astype(np.int8) - np.int8(1))


def tq2_0(blocks: np.ndarray) -> np.ndarray:
    """64 bytes of two-bit values (stored + 1), d."""
    return scaled(half(blocks, 64), planes(blocks[:, :64], 32, 2).astype(np.int8) - np.int8(1))
