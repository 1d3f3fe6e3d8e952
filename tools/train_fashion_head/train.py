"""Train the head of `fashion-dinov2`: which of ten kinds of clothes an image shows, from DINOv2's vectors of it.

    python tools/train_fashion_head/train.py                       # writes the head, and tells how good it is
    python tools/train_fashion_head/train.py --images 1000 --out /tmp/head

Images of Fashion-MNIST's training set (Xiao et al., arXiv:1708.07747; Debian's package dataset-fashion-mnist) go
through the catalogue's dinov2-small as the preprocessor_config.json of fashion-dinov2 says: at 112 pixels, a quarter of
the work that 224 take. Their class tokens and means of patches, side by side, are what Dinov2ForImageClassification
gives its head in transformers, too. The head is multinomial logistic regression on columns of mean 0 and deviation 1,
which are then folded into it. How strongly it is regularised is chosen on a fifth of the training images; the test set
is looked at once, for the figure that is printed.
The same --seed, number of images and --dtype give the same head.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression

import forwardpass
from forwardpass import catalog

DATA = Path("/usr/share/datasets/fashion-mnist")
FILES = Path(__file__).parents[2] / "src/forwardpass/catalog/files/fashion-dinov2"
STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def numbers(name: str, header: int) -> np.ndarray:
    """The bytes behind the header of a file of the data set."""
    path = DATA / f"{name}.gz"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: apt-get install dataset-fashion-mnist")
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def some(part: str, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`count` images uint8 [count, 28, 28] of "train" or "t10k", and their labels."""
    images = numbers(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28)
    labels = numbers(f"{part}-labels-idx1-ubyte", 8)
    chosen = random.permutation(len(labels))[:count]
    return images[chosen], labels[chosen]


def backbone(folder: Path, dtype: str) -> forwardpass.Model:
    """dinov2-small, which prepares images as fashion-dinov2 does."""
    for path in catalog.resolve("dinov2-small").iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "preprocessor_config.json").unlink()
    shutil.copy(FILES / "preprocessor_config.json", folder)
    return forwardpass.load(folder, dtype=dtype)


def vectors(model: forwardpass.Model, images: np.ndarray, what: str) -> np.ndarray:
    """float32 [n, 768]: class token and mean of patches."""
    out, start = [], time.perf_counter()
    for vector in model.embed_image(list(images), pooling=["cls", "mean"], stream=True):
        out.append(vector)
        if len(out) % 250 == 0 or len(out) == len(images):
            print(f"{what}: {len(out)} of {len(images)} images, {time.perf_counter() - start:.0f} s", flush=True)
    return np.stack(out)


def fit(features: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """(weight [10, 768], bias [10]) of a head for columns as they are."""
    mean, deviation = features.mean(0), features.std(0) + 1e-6
    model = LogisticRegression(C=strength, max_iter=1000).fit((features - mean) / deviation, labels)
    weight = model.coef_ / deviation
    return weight, model.intercept_ - weight @ mean


def accuracy(head: tuple[np.ndarray, np.ndarray], features: np.ndarray, labels: np.ndarray) -> float:
    return float(((features @ head[0].T + head[1]).argmax(1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=4000, help="images to train on (default 4000)")
    parser.add_argument("--test", type=int, default=1000, help="images of the test set to judge it on (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16", help="what the backbone computes in (default bfloat16)")
    parser.add_argument("--out", type=Path, default=FILES, help="folder for model.safetensors")
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as folder, backbone(Path(folder), given.dtype) as model:
        images, labels = some("train", given.images, random)
        features = vectors(model, images, "train")
        tests, answers = some("t10k", given.test, random)
        held_out = vectors(model, tests, "test")
    cut = len(labels) * 4 // 5
    scores = {c: accuracy(fit(features[:cut], labels[:cut], c), features[cut:], labels[cut:]) for c in STRENGTHS}
    best = max(scores, key=scores.__getitem__)
    head = fit(features, labels, best)
    given.out.mkdir(parents=True, exist_ok=True)
    # Rows first, for save_file writes an array's memory as it lies.
    arrays = {f"classifier.{name}": np.ascontiguousarray(one, np.float32)
              for name, one in zip(("weight", "bias"), head, strict=True)}
    save_file(arrays, given.out / "model.safetensors")
    head = tuple(load_file(given.out / "model.safetensors")[name] for name in arrays)
    centres = np.stack([features[labels == i, :384].mean(0) for i in range(10)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    nearest = float(((held_out[:, :384] @ centres.T).argmax(1) == answers).mean())
    print("of the training images held out: " + ", ".join(f"C = {c:g}: {score:.3f}" for c, score in scores.items()))
    print(f"{given.test} test images: {accuracy(head, held_out, answers):.3f} right; by the nearest centre of a class "
          f"{nearest:.3f}")


if __name__ == "__main__":
    main()
