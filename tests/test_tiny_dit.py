"""The model that the package carries draws what it is told, and does not merely copy its training images.

    pytest -m models tests/test_tiny_dit.py -s

runs the proof: it needs torch and Fashion-MNIST (apt-get install dataset-fashion-mnist), and takes some minutes.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import fashion
import forwardpass
from forwardpass import catalog

NAMES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
STEPS, GUIDANCE, EACH = 20, 3.0, 50


@pytest.fixture(scope="module")
def model():
    with forwardpass.load("tiny-dit") as model:
        yield model


def drawn(model, prompts, **options):
    drawing = model.draw(prompts, num_inference_steps=STEPS, guidance_scale=GUIDANCE, **options)
    return np.stack([np.asarray(image.convert("L")) for image in drawing.images])


def test_it_is_a_small_diffusers_folder():
    folder = catalog.resolve("tiny-dit")
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "DiTPipeline" and index["vae"] == [None, None]
    assert [index["id2label"][str(i)] for i in range(10)] == NAMES
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 8_000_000


def test_it_draws_what_it_is_told(model):
    """Two of each kind, judged by a rough classifier that needs nothing but a file of 4 KB."""
    images = drawn(model, np.repeat(NAMES, 2).tolist(), seed=list(range(20)))
    assert images.shape == (20, 28, 28) and images.dtype == np.uint8
    found = fashion.probe(images)
    assert (found == np.repeat(np.arange(10), 2)).sum() >= 16, found


def test_other_seeds_give_other_images(model):
    images = drawn(model, ["Bag"] * 3, seed=[1, 2, 1])
    assert np.array_equal(images[0], images[2])
    assert np.abs(images[0].astype(int) - images[1]).mean() > 5


@pytest.fixture(scope="module")
def proof(model):
    real, labels = fashion.images("train")
    return {
        "real": real,
        "labels": labels,
        "held_out": fashion.images("t10k"),
        "samples": drawn(model, np.repeat(NAMES, EACH).tolist(), seed=list(range(10 * EACH))),
        "kinds": np.repeat(np.arange(10), EACH),
    }


@pytest.mark.models
@pytest.mark.timeout(1800)
def test_a_judge_that_knows_only_real_images_recognises_the_samples(proof):
    judge = fashion.classifier(proof["real"], proof["labels"])
    images, labels = proof["held_out"]
    on_real = (judge(images) == labels).mean()
    found = judge(proof["samples"])
    right = found == proof["kinds"]
    print(f"\nthe judge is right on {on_real:.1%} of {len(labels)} held-out real images, and on {right.mean():.1%} of "
          f"{len(right)} samples at {STEPS} steps and guidance {GUIDANCE:g}")
    for kind, name in enumerate(NAMES):
        print(f"    {name}: {right[proof['kinds'] == kind].mean():.0%}")
    assert on_real >= 0.9
    assert right.mean() >= 0.9


@pytest.mark.models
@pytest.mark.timeout(1800)
def test_the_samples_are_no_copies_of_training_images(proof):
    """Copies lie nearer to the training images than real images do that were never trained on."""
    real, held_out = proof["real"], proof["held_out"]
    known = np.concatenate([real, real[:, :, ::-1]])  # training flipped some kinds
    each = np.concatenate([np.flatnonzero(held_out[1] == kind)[:EACH] for kind in range(10)])
    expected = fashion.nearest(held_out[0][each], known)
    found = fashion.nearest(proof["samples"], known)
    noisy = real[::120] + np.random.default_rng(0).normal(0, 4, (500, 28, 28))  # what this would say of bad copies
    copies = fashion.nearest(np.clip(noisy, 0, 255).astype(np.uint8), known)
    floor = np.quantile(expected, 0.02)

    def said(distances):
        low, middle, high = np.quantile(distances, [0.1, 0.5, 0.9])
        return f"{low:.1f} {middle:.1f} {high:.1f}, {(distances < floor).mean():.1%} below {floor:.1f}"

    print("\ndistance to the nearest training image in grey values: 10%, 50%, 90% of 500, and how many are as near as "
          f"the nearest 2% of held-out images\n    held-out images: {said(expected)}\n    samples: {said(found)}\n"
          f"    copies with noise: {said(copies)}")
    assert (copies < floor).mean() > 0.9
    assert (found < floor).mean() <= 0.06
    assert np.median(found) >= 0.6 * np.median(expected)
