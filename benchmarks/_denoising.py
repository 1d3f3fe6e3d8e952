"""The same few steps of drawing for every engine: DDIM with guidance in NumPy, from the same noise, for the same
conditions. Both the asking and the answering end import this; it needs NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

LABELS = (207, 1000)
"""The class that is drawn, and the number that stands for no class in particular."""
GUIDANCE = {"dit": 4.0, "unet": 7.5}


def noise(size: tuple[int, int]) -> np.ndarray:
    """float32 [height, width, 4]."""
    return np.random.default_rng(11).standard_normal((*size, 4)).astype(np.float32)


def texts() -> np.ndarray:
    """What a text encoder might say of a prompt and of none: float32 [2, 77, 768]."""
    return np.random.default_rng(12).standard_normal((2, 77, 768)).astype(np.float32)


def draw(predict: Callable[[np.ndarray, float], np.ndarray], start: np.ndarray, steps: int, guidance: float
         ) -> np.ndarray:
    """float32 [height, width, 4] after so many steps. predict(latents [2, height, width, 4] of the condition and of
    none, timestep) -> the noise in both; more channels than four are variances, and left out."""
    kept = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    times = np.linspace(999, 0, steps + 1).astype(np.int64)
    x = start.astype(np.float64)
    for now, after in pairwise(times):
        wanted, other = predict(np.stack([x, x]).astype(np.float32), float(now))[..., :4].astype(np.float64)
        guided = other + guidance * (wanted - other)
        clean = (x - (1 - kept[now]) ** 0.5 * guided) / kept[now] ** 0.5
        x = kept[after] ** 0.5 * clean + (1 - kept[after]) ** 0.5 * guided
    return x.astype(np.float32)


def psnr(image: np.ndarray, reference: np.ndarray) -> float:
    """Decibels: the reference's range over the root of the mean squared difference."""
    error = np.mean((image.astype(np.float64) - reference) ** 2)
    return float(10 * np.log10((float(reference.max()) - float(reference.min())) ** 2 / error)) if error else 200.0


def pictures(count: int) -> np.ndarray:
    """uint8 [count, 224, 224, 3]: smooth colours, edges and some noise."""
    rng = np.random.default_rng(13)
    y, x = np.mgrid[0:224, 0:224] / 224
    out = np.empty((count, 224, 224, 3), np.uint8)
    for image in out:
        waves = sum(rng.uniform(-1, 1, 3) * np.sin(2 * np.pi * (rng.uniform(-4, 4) * x + rng.uniform(-4, 4) * y)
                                                   + rng.uniform(0, 6))[..., None] for _ in range(5))
        inside = np.hypot(x - rng.uniform(0.3, 0.7), y - rng.uniform(0.3, 0.7)) < rng.uniform(0.1, 0.3)
        waves = waves + inside[..., None] * rng.uniform(-2, 2, 3) + 0.1 * rng.standard_normal((224, 224, 3))
        image[:] = np.clip(128 + 50 * waves, 0, 255)
    return out
