"""Training images: Fashion-MNIST (Debian's package dataset-fashion-mnist) or scikit-learn's digits."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_NAMES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FASHION_FLIPS = (0, 1, 2, 3, 4, 6)  # shoes all point to the left, and bags' handles lean
DIGITS_HELD_OUT = 360


@dataclass(frozen=True)
class Images:
    """pixels: float32 [n, height, width], -1..1;  labels: int64 [n];  flips: labels whose mirror image is as likely."""

    pixels: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    flips: tuple[int, ...]


def _numbers(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def fashion(part: str) -> Images:
    """`part`: "train" (60,000 images) or "t10k" (10,000 held out), 28 x 28."""
    if not FASHION.is_dir():
        raise SystemExit(f"{FASHION} is missing: apt-get install dataset-fashion-mnist")
    pixels = _numbers(FASHION / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = _numbers(FASHION / f"{part}-labels-idx1-ubyte.gz", 8)
    return Images(pixels.astype(np.float32) / 127.5 - 1, labels.astype(np.int64), FASHION_NAMES, FASHION_FLIPS)


def digits(part: str) -> Images:
    """`part`: "train" (1,437 images) or "t10k" (360 held out), 8 x 8."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    chosen = order[:-DIGITS_HELD_OUT] if part == "train" else order[-DIGITS_HELD_OUT:]
    pixels = bunch.images[chosen].astype(np.float32) / 8 - 1
    return Images(pixels, bunch.target[chosen].astype(np.int64), tuple("0123456789"), ())


DATA = {"fashion": fashion, "digits": digits}
