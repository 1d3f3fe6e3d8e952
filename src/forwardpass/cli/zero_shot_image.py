"""`forwardpass zero-shot-image FILE... --labels A,B`: labels of images that the model was never trained on."""

from __future__ import annotations

from ..errors import ParameterError
from .images import input_images, look
from .reading import check_top, given, load, show_ranked


def run(image, model, dtype, threads, label, labels, hypothesis, top, json) -> int:
    wanted = [*(label or ()), *(part.strip() for part in (labels or "").split(",") if part.strip())]
    if not wanted:
        raise ParameterError("expected at least one --label, or --labels with commas between them, found none")
    check_top(top)
    images = input_images(image)
    with load(model, "zero-shot-image", "a CLIP or SigLIP model", dtype, threads) as loaded:
        asked = given({"hypothesis_template": hypothesis})
        return look(images, lambda some, **how: loaded.zero_shot_image(some, wanted, **asked, **how),
                    lambda name, ranked: show_ranked(name, ranked[:top], json=json, alone=len(images) == 1,
                                                     kind="image"),
                    json=json, what="classifying")
