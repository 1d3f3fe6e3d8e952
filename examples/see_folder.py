"""What is to be seen in the images of a folder: a label and a vector of each, one after another, and what looks alike.

    python examples/see_folder.py [FOLDER] [MODEL]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import forwardpass


def main(folder: str = "docs/images", name: str = "fashion-dinov2") -> None:
    paths = sorted(Path(folder).glob("*.png"))
    with forwardpass.load(name) as model:
        print("model can:", ", ".join(model.tasks))
        whole, errors = [], {}
        labels = model.classify_image(paths, top_k=1, stream=True, on_error=errors.__setitem__)
        for number, (path, found) in enumerate(zip(paths, labels, strict=True)):  # only a few are in memory at a time
            if found is None:
                print(f"{path.name}: {errors[number]}")
                continue
            whole.append(path)
            print(f"{path.name}: {found[0][0]}, {found[0][1]:.2f}")

        vectors = model.embed_image(whole)
        print("vectors:", vectors.dtype, list(vectors.shape))
        alike = model.similarity(vectors, vectors)
        np.fill_diagonal(alike, -1)
        one, other = np.unravel_index(alike.argmax(), alike.shape)
        print(f"most alike: {whole[one].name} and {whole[other].name}, {alike[one, other]:.2f}")
        print("the same bits one by one:", all(np.array_equal(model.embed_image(path), vector)
                                               for path, vector in zip(whole, vectors, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:3])
