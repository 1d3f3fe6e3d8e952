"""`forwardpass classify-image FILE...`: labels of images, best first."""

from __future__ import annotations

from .images import input_images, look
from .reading import check_top, given, load, show_ranked


def run(image, model, dtype, threads, top, json) -> int:
    check_top(top)
    images = input_images(image)
    with load(model, "classify-image", "a model that labels images", dtype, threads) as loaded:
        return look(images, lambda some, **how: loaded.classify_image(some, **given({"top_k": top}), **how),
                    lambda name, ranked: show_ranked(name, ranked, json=json, alone=len(images) == 1, kind="image"),
                    json=json, what="classifying")
