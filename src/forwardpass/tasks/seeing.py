"""What `Model` does with images: labels, vectors, and labels that it was never trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from forwardpass.errors import ForwardpassError
from forwardpass.tasks import images as work
from forwardpass.tasks.abilities import require

Ranked = list[tuple[str, float]]
OnError = Callable[[int, ForwardpassError], None]


class Seeing:
    """Methods of Model. An image is a path, the bytes of a file, a binary file object, an image of Pillow's, or a uint8
    array [h, w], [h, w, 3] (RGB) or [h, w, 4] (RGBA); stages/images.py says how it is read. One image gives one result,
    a list of them, or an array [n, h, w, 3], gives a list. An image's result has the same bits alone and in any batch.

    What all of them understand:
    stream: results come one by one, in order, from an iterator, and `images` may be any iterable, say a generator of
        paths. No more than a few images are in memory at a time, whether or not results are streamed.
    on_error: called as on_error(number, error) for each image that cannot be read, whose result is then None (of
        embed_image without stream: a row of NaN). Without it the first such image raises.
    Each raises UnsupportedModelError if the model can't do the task, and ParameterError for images that are none and
    for arguments that make no sense.
    """

    def classify_image(self, images: Any, *, top_k: int | None = 5, stream: bool = False,
                       on_error: OnError | None = None) -> Ranked | list[Ranked] | Iterator[Ranked]:
        """(label, score) of an image, best first.

        top_k: labels at most, None = all. Scores of an image sum to 1 over all labels (softmax), unless the config says
        that an image may have several labels: then each is scored by itself (sigmoid).
        """
        require(self, "classify_image")
        each = work.classify_each(self, images, top_k, on_error)
        return each if stream else work.gathered(images, each)

    def embed_image(self, images: Any, *, pooling: str | Sequence[str] | None = None, normalize: bool | None = None,
                    stream: bool = False, on_error: OnError | None = None) -> np.ndarray | Iterator[np.ndarray]:
        """The vector of an image, float32 [d]; of a list [images, d].

        pooling: "cls" (the class token), "mean" (of the patches), "max" (each column's greatest, of the patches), or
            several side by side. Default: as the model's files say: what its pooler or projection makes, of CLIP and
            SigLIP a vector in one space with those of texts (`embed`); what the head of a classifier reads; without any
            head the class token.
        normalize: vectors of length 1. Default: False.
        """
        require(self, "embed_image")
        each = work.embed_each(self, images, pooling, normalize, on_error)
        return each if stream else work.stacked(images, each)

    def zero_shot_image(self, images: Any, labels: str | Iterable[str], *,
                        hypothesis_template: str = "This is a photo of {}.", stream: bool = False,
                        on_error: OnError | None = None) -> Ranked | list[Ranked] | Iterator[Ranked]:
        """(label, score) of any labels, best first, by a model that puts images and texts into one space (Radford et
        al. 2021, CLIP; Zhai et al. 2023, SigLIP): how well the image fits the template with the label in it.

        Scores of an image sum to 1 with CLIP (softmax over the labels); with SigLIP each label is scored by itself
        (sigmoid). The labels are read once for all images.
        """
        require(self, "zero_shot_image")
        each = work.zero_shot_each(self, images, labels, hypothesis_template, on_error)
        return each if stream else work.gathered(images, each)
