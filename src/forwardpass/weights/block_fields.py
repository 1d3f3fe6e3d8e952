"""Pieces that the readers of GGUF's block formats share. `blocks` is always uint8 [blocks, bytes of a block]."""

from __future__ import annotations

import numpy as np


def numbers(blocks: np.ndarray, start: int, stop: int, code: str) -> np.ndarray:
    """Bytes start to stop of every block, read as numbers of the dtype `code` -> [blocks, count]."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(code)


def half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The half-precision number at one byte offset of every block -> float32 [blocks, 1]."""
    return numbers(blocks, start, start + 2, "<f2").astype(np.float32)


def planes(packed: np.ndarray, width: int, bits: int) -> np.ndarray:
    """Small unsigned numbers -> uint8 [blocks, bytes * 8 / bits]. Each run of `width` bytes holds 8 / bits runs of
    `width` values: first those in the lowest bits of its bytes, then those in the next bits, and so on.

    width 16, 4 bits: byte j holds value j (low) and value j + 16 (high); byte 16 + j values 32 + j and 48 + j.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(packed.shape[0], -1, 1, width)
    return (runs >> shifts & np.uint8((1 << bits) - 1)).reshape(packed.shape[0], -1)


def scaled(scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    """float32 [blocks, n], each of the scales [blocks, s] times its n / s values."""
    grouped = values.astype(np.float32).reshape(*scales.shape, -1)
    return (scales.astype(np.float32)[:, :, None] * grouped).reshape(values.shape[0], -1)
