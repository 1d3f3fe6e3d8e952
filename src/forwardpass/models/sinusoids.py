"""Fixed positions of waves (Vaswani et al. 2017). Sines and cosines are our own, so that every machine has the same."""

from __future__ import annotations

import math

import numpy as np

_QUARTER = (1.570796325802803, 9.920935739593517e-10, 5.721188726109832e-18)
"""pi / 2 in three parts; the first two have so few bits that their product with a number below 2^24 is exact."""
_SINE = [(-1) ** i / math.factorial(2 * i + 1) for i in range(9)]
_COSINE = [(-1) ** i / math.factorial(2 * i) for i in range(10)]


def table(frequencies: tuple[float, ...], rows: int) -> np.ndarray:
    """float32 [rows, 2 * frequencies]: row p is [sin(p f) for each f, then cos(p f)]. f: from 0 to 1."""
    out = np.empty((rows, 2, len(frequencies)), np.float32)
    for at in range(0, rows, 4096):
        angle = np.arange(at, min(at + 4096, rows), dtype=np.float64)[:, None] * np.array(frequencies)
        out[at : at + 4096, 0], out[at : at + 4096, 1] = sine_and_cosine(angle)
    return out.reshape(rows, -1)


def sine_and_cosine(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both of float64 angles from 0 to 2^24, by additions and multiplications alone: these round alike everywhere."""
    quarters = np.rint(angle * (2 / np.pi))
    for part in _QUARTER:
        angle = angle - quarters * part
    square = angle * angle
    sine, cosine = _series(_SINE, square) * angle, _series(_COSINE, square)
    turn = quarters.astype(np.int64) % 4
    swap = turn % 2 == 1
    first, second = np.where(swap, cosine, sine), np.where(swap, sine, cosine)
    return np.where(turn >= 2, -first, first), np.where((turn == 1) | (turn == 2), -second, second)


def _series(factors: list[float], square: np.ndarray) -> np.ndarray:
    total = np.full_like(square, factors[-1])
    for factor in factors[-2::-1]:
        total = total * square + factor
    return total


def of_grid(height: int, width: int, columns: int, base: int, scale: float) -> np.ndarray:
    """Places in a grid of patches, row by row: float32 [height * width, columns], a quarter of them each the sines and
    cosines of the column's and the sines and cosines of the row's place.

    The i-th of n stands at i * base / n / scale, so that a larger picture's patches lie closer together instead of
    further out; frequencies are 10000 ** (-4 i / columns). Places are rounded to float32 where diffusers rounds them.
    """
    quarter = columns // 4
    frequencies = 1 / 10000 ** (np.arange(quarter, dtype=np.float64) / quarter)

    def waves(count: int) -> np.ndarray:
        places = np.arange(count, dtype=np.float32) / np.float32(count / base) / np.float32(scale)
        return np.concatenate(sine_and_cosine(places.astype(np.float64)[:, None] * frequencies), axis=1)

    out = np.empty((height, width, columns), np.float32)
    out[:, :, : 2 * quarter] = waves(width)
    out[:, :, 2 * quarter :] = waves(height)[:, None]
    return out.reshape(height * width, columns)


def of_timesteps(timesteps: np.ndarray, width: int, flip: bool, shift: float) -> np.ndarray:
    """What a denoiser is told of its steps (Ho et al. 2020): float32 [n] -> float32 [n, width].

    Columns are sines and then cosines of timestep * 10000 ** (-i / (width // 2 - shift)), i from 0 on; flip: cosines
    first. An odd width ends with a column of zeros. Exponents, frequencies and angles are rounded to float32 where
    diffusers rounds them: angles reach thousands, so that a more exact one would be another.
    """
    half = width // 2
    exponents = np.float32(-math.log(10000)) * np.arange(half, dtype=np.float32) / np.float32(half - shift)
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = np.asarray(timesteps, np.float32)[:, None] * frequencies
    sines = sine_and_cosine(np.abs(angles).astype(np.float64))
    out = np.zeros((len(angles), width), np.float32)
    out[:, :half], out[:, half : 2 * half] = np.copysign(1, angles) * sines[0], sines[1]
    if flip:
        out[:, : 2 * half] = np.roll(out[:, : 2 * half], half, axis=1)
    return out
