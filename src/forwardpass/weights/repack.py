"""From a quantised linear's codes, scales and zeros to the row types that the kernels' packers read.

    G4   32 values in 24 bytes: float32 d, float32 m, 16 bytes of nibbles, byte j = value j (low) and j + 16 (high)
    G8   32 values in 36 bytes: float32 d, int8 q[32]; d is exact in half precision
    C8   the same bytes; one d for the whole row, any float32
    W16  float32 values: what has no groups of 32 neighbours with one scale. The kernels keep 16 bits of it.

A weight is q * d + m (G4) or q * d. All products here are exact: a code has 8 bits at most and a scale 11 or fewer.
"""

from __future__ import annotations

import numpy as np

GROUP = 32
REPACKED = ("G4", "G8", "C8", "W16")


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """uint32 [..., n] that hold a little-endian stream of `bits` each -> uint8 [..., n * 32 / bits].

    Example, 4 bits: 0x87654321 gives 1, 2, ..., 8. Three bits run across words: 32 values in three words.
    """
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    if bits == 3:
        each = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:-1], -1, 3)
        return each[..., 0] | each[..., 1] << 1 | each[..., 2] << 2
    fields = [raw >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(fields, axis=-1).reshape(*raw.shape[:-1], -1)


def row_type(bits: int, group_of: np.ndarray, scales: np.ndarray | None) -> str:
    """The type for a linear. group_of: int [k], the group of each column. scales: those of an eight-bit linear without
    zeros, float32 [rows, groups]; None if it has zeros (they do not fit beside eight bits)."""
    k = group_of.size
    if k % GROUP or (group_of.reshape(-1, GROUP) != group_of[::GROUP, None]).any():
        return "W16"
    if bits <= 4:
        return "G4"
    if scales is None:
        return "W16"
    if scales.shape[1] == 1:
        return "C8"
    with np.errstate(over="ignore"):
        return "G8" if (scales == scales.astype(np.float16)).all() else "W16"


def pack_rows(type: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | int, group_of: np.ndarray
              ) -> np.ndarray:
    """Rows of `type`, uint8 [rows, bytes]. Weights are (codes - zeros) * scales.

    codes: [rows, k], int8 or uint8, or float32 for W16;  scales: float32 [rows, groups];
    zeros: int32 [rows, groups] or 0, which G8 and C8 always have.
    """
    rows, k = codes.shape
    if type == "W16":
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is reported when it is packed
            shifted = codes.astype(np.float32)
            if not isinstance(zeros, int):
                shifted -= zeros.astype(np.float32)[:, group_of]
            return (shifted * scales[:, group_of]).view(np.uint8)
    blocks = group_of[::GROUP]
    d = scales[:, blocks]
    if type != "G4":
        out = np.empty((rows, k // GROUP, 36), np.uint8)
        out[..., :4] = d[..., None].view(np.uint8)
        out[..., 4:] = codes.reshape(rows, -1, GROUP).view(np.uint8)
        return out.reshape(rows, -1)
    out = np.empty((rows, k // GROUP, 24), np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        m = (-zeros * scales).astype(np.float32)[:, blocks]
    out[..., :4], out[..., 4:8] = d[..., None].view(np.uint8), m[..., None].view(np.uint8)
    halves = codes.reshape(rows, -1, 2, GROUP // 2)
    out[..., 8:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return out.reshape(rows, -1)
