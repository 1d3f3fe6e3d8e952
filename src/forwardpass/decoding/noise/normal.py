"""Normally distributed numbers as a pure function of (seed, stream): the noise of a picture depends on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

_BEFORE_FIRST = (1 << 256) - 1  # NumPy counts on before it draws


def normals(seed: int, stream: int, shape: Sequence[int]) -> np.ndarray:
    """float32 of this shape, with mean 0 and variance 1.

    seed, stream: 0 .. 2**64 - 1. Philox 4x64 with the key (seed, stream), as in decoding/rng.py: block b is that of
    the counter (b, 0, 0, 0). Of its four words w each pair becomes two numbers (Box and Muller 1958), from the upper
    53 bits u of a word: r = sqrt(-2 log((u0 + 1) / 2**53)), then r cos(2 pi u1 / 2**53) and r sin(2 pi u1 / 2**53).
    So the first n numbers are the same whatever is drawn after them.
    """
    size = prod(shape)
    generator = np.random.Philox(key=np.array([seed, stream], np.uint64), counter=_BEFORE_FIRST)
    words = generator.random_raw(size + -size % 4)
    uniform = (words >> np.uint64(11)).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((uniform[:, 0] + 1) * 2.0**-53))
    angle = uniform[:, 1] * (2 * np.pi * 2.0**-53)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return pairs.reshape(-1)[:size].astype(np.float32).reshape(tuple(shape))
