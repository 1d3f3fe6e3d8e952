"""Random stored blocks of every type with scales as real files have them: finite, and of a chosen size."""

from __future__ import annotations

import numpy as np

from forwardpass.weights.source import BLOCKS
from kernel_tools import Packed

LEVELS = {"Q4": 16, "Q4H": 16, "Q5": 32, "Q5M": 32, "Q6": 64}
"""Layouts with integer scales -> how many levels they hold."""
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,)}
HALVES |= {"TQ2_0": (64,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
HALVES |= dict.fromkeys(["Q4_0", "Q5_0", "Q8_0", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL",
                         "IQ4_XS"], (0,))
"""Where a block has its half-precision numbers."""


def sound_blocks(kind: str, count: int, rng: np.random.Generator, size: float = 0.01) -> np.ndarray:
    """uint8 [count * bytes of a block]. size: standard deviation of the half-precision numbers."""
    raw = rng.integers(0, 256, (count, BLOCKS[kind][1]), dtype=np.uint8)
    d = (rng.standard_normal((count, 2)) * size).astype("<f2")
    if kind in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(count) * size).astype("<f4")
        if kind == "BF16":
            return (values.view("u4") >> 16).astype("<u2").view(np.uint8)
        return values.astype({"F32": "<f4", "F16": "<f2"}[kind]).view(np.uint8)
    if kind == "Q8_K":
        raw[:, :4] = (rng.standard_normal(count) * size).astype("<f4").view(np.uint8).reshape(-1, 4)
    elif kind == "IQ1_M":  # four bits of d on top of each 16-bit number
        words = raw[:, 48:].copy().view("<u2") & 0x0FFF
        words |= (d.view("<u2")[:, :1] >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        raw[:, 48:] = words.view(np.uint8)
    elif kind == "MXFP4":
        raw[:, 0] = rng.integers(112, 124, count)
    elif kind == "NVFP4":
        raw[:, :4] &= 0x1F  # below 1 / 16
    else:
        for i, place in enumerate(HALVES[kind]):
            raw[:, place : place + 2] = d[:, i : i + 1].copy().view(np.uint8)
    return raw.reshape(-1)


def bound(packed: Packed, kind: str, exact: np.ndarray, only: np.ndarray | None = None) -> np.ndarray:
    """How far docs/weight-formats.md lets a weight of a stored type move in its layout: float64 [rows, columns], or
    what broadcasts to it. exact: the stored values, of the rows `only` if not of all."""
    if packed.format in LEVELS or packed.format == "Q16":
        unit = packed.row_scale()[slice(None) if only is None else only, None].astype(np.float64)
        units = LEVELS[packed.format] / 4 + 0.5 if packed.format in LEVELS else 0.5
        return unit * units + np.abs(exact) * 2e-7  # and the rounding of the float product
    if packed.format == "Q8" and kind not in ("Q8_0", "IQ4_NL"):
        return np.abs(exact) / 2048 + 127 * 2.0**-25
    return np.zeros(())
