"""The proof of seeing: real weights, real images, and answers that are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fashion
import forwardpass

pytestmark = pytest.mark.models
DOCS = Path(__file__).parents[1] / "docs"


def images(part: str, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """uint8 [28, 28] each, and labels, drawn at random, as many of each of the ten classes."""
    pixels, labels = fashion.images(part)
    random = np.random.default_rng(11)
    chosen = np.concatenate([random.permutation(np.flatnonzero(labels == i))[: count // 10] for i in range(10)])
    return list(pixels[chosen]), labels[chosen]


@pytest.fixture(scope="module")
def clothes():
    with forwardpass.load("fashion-dinov2", dtype="bfloat16") as model:
        yield model


def test_the_picture_of_the_readme(clothes):
    label, score = clothes.classify_image(DOCS / "images" / "ankle-boot.png", top_k=1)[0]
    assert label == "Ankle boot" and score > 0.9


def test_four_of_five_images_that_nobody_trained_on(clothes):
    """400 images of the test set; a random answer is right once in ten."""
    pixels, labels = images("t10k", 400)
    names = clothes.settings.labels
    right = [names.index(ranked[0][0]) == label
             for ranked, label in zip(clothes.classify_image(pixels, top_k=1, stream=True), labels, strict=True)]
    print(f"{np.mean(right):.3f} of {len(right)} images right")
    assert np.mean(right) >= 0.8


def test_images_of_a_kind_lie_together(clothes):
    """Without any training: the nearest centre of the vectors of twenty images of each class."""
    pixels, labels = images("train", 200)
    tests, answers = images("t10k", 200)
    vectors = clothes.embed_image(pixels, pooling="cls", normalize=True)
    centres = np.stack([vectors[labels == i].mean(axis=0) for i in range(10)])
    nearest = clothes.similarity(clothes.embed_image(tests, pooling="cls"), centres).argmax(axis=1)
    print(f"{np.mean(nearest == answers):.3f} of {len(tests)} images right")
    assert np.mean(nearest == answers) >= 0.45


def test_files_of_all_sizes_and_kinds_give_the_same_answer(clothes, tmp_path):
    boot = Image.open(DOCS / "images" / "ankle-boot.png")
    paths = []
    for size in (60, 280, 1500):
        for kind in ("png", "jpg", "webp", "bmp"):
            paths.append(tmp_path / f"{size}.{kind}")
            boot.resize((size, size)).convert("RGB").save(paths[-1])
    assert {ranked[0][0] for ranked in clothes.classify_image(paths)} == {"Ankle boot"}
