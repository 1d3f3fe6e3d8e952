"""What lies between a denoiser's numbers and a picture's: guidance, and pixels to and from numbers around zero."""

from __future__ import annotations

import numpy as np


def guided(shown: np.ndarray, avoided: np.ndarray, scale: float) -> np.ndarray:
    """avoided + scale * (shown - avoided), float32: predictions of one step, with what a picture is to show and with
    what it is to be led away from (Ho and Salimans 2021, classifier-free guidance, in the form of Imagen, where a scale
    of 1 changes nothing)."""
    return avoided + np.float32(scale) * (shown - avoided)


def to_pixels(values: np.ndarray) -> np.ndarray:
    """float32 in -1..1 -> uint8 in 0..255 of the same shape; what lies outside becomes the nearest of them."""
    return np.rint((values * np.float32(0.5) + np.float32(0.5)).clip(0, 1) * np.float32(255)).astype(np.uint8)


def from_pixels(pixels: np.ndarray) -> np.ndarray:
    """uint8 in 0..255 -> float32 in -1..1."""
    return pixels.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
