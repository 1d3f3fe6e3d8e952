"""Images through the engine: decoded and prepared a few at a time, while those before them are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from forwardpass.contracts import EncoderImage, Hidden
from forwardpass.errors import ForwardpassError, ParameterError
from forwardpass.scheduler.reading import checked_image
from forwardpass.stages import project
from forwardpass.stages.images import ImageProcessing, read_image
from forwardpass.stages.labels import activate, activation_for, ranked
from forwardpass.stages.pooling import normalized, pool
from forwardpass.tasks.texts import checked_texts, encoded, finite, flag, limit_for, text_vectors, whole_number

AT_ONCE = 16
"""Images that are prepared together. Twice as many are in memory: these, and those that are computed."""
POOLINGS = ("cls", "mean", "max")
OnError = Callable[[int, ForwardpassError], None]
Ranked = list[tuple[str, float]]


def classify_each(model, images: Any, top_k: int | None, on_error: OnError | None) -> Iterator[Ranked | None]:
    """See Model.classify_image."""
    top_k = None if top_k is None else whole_number("top_k", top_k, 1)
    labels = model.settings.labels
    activation = activation_for(model.settings.problem, len(labels))
    network = tower(model)

    def scores(hidden: Hidden) -> list[Ranked]:
        rows = activate(finite(project.label_scores(network, hidden)), activation)
        return [ranked(labels, row, top_k) for row in rows]

    return read_each(model, images, scores, on_error)


def embed_each(model, images: Any, pooling: str | Sequence[str] | None, normalize: bool | None,
               on_error: OnError | None) -> Iterator[np.ndarray | None]:
    """See Model.embed_image."""
    how = None if pooling is None else _poolings(pooling)
    normal = False if normalize is None else flag("normalize", normalize)
    network = tower(model)
    head, first = network.spec.head, network.spec.patches.first
    if how is None and head.task == "none":
        how = ("cls",) if network.spec.patches.classes else ("mean",)
    if how and "cls" in how and not network.spec.patches.classes:
        raise ParameterError("pooling 'cls' needs a class token, and this model has none: take 'mean' or leave it out")

    def vectors(hidden: Hidden) -> list[np.ndarray]:
        if how:
            out = pool(hidden, how, first)
        else:
            out = (project.vectors if head.task == "vector" else project.pooled)(network, hidden)
        return list(normalized(finite(out)) if normal else finite(out).copy())

    return read_each(model, images, vectors, on_error)


def zero_shot_each(model, images: Any, labels: Any, template: str, on_error: OnError | None
                   ) -> Iterator[Ranked | None]:
    """See Model.zero_shot_image."""
    labels = checked_texts(list(labels) if isinstance(labels, Iterator) else labels, "labels")
    if len(set(labels)) < len(labels):
        raise ParameterError("labels: expected each label once")
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ParameterError("hypothesis_template must be a text with one {} where the label goes, not "
                             f"{str(template)[:80]!r}")
    texts = [template.replace("{}", label) for label in labels]
    texts = normalized(text_vectors(model, encoded(model, texts, limit_for(model, None, None)))).astype(np.float64)
    network = tower(model)
    scale, bias = model.network.pair
    activation = model.spec.contrast

    def scores(hidden: Hidden) -> list[Ranked]:
        vectors = normalized(finite(project.vectors(network, hidden)))
        # A product of its own for each image: the sums of a larger one may be in another order.
        raw = [scale * np.add.reduce(texts * vector, axis=1) + bias for vector in vectors]
        return [ranked(labels, activate(row, activation), None) for row in raw]

    return read_each(model, images, scores, on_error)


def tower(model):
    """The network that reads images: the model's own, or its vision tower."""
    return model.network.vision if model.spec.vision else model.network


def several(images: Any) -> bool:
    """Whether they are images, not one."""
    if isinstance(images, (str, bytes, bytearray, memoryview, Mapping)) or hasattr(images, "read"):
        return False
    return images.ndim == 4 if isinstance(images, np.ndarray) else isinstance(images, Iterable)


def gathered(images: Any, each: Iterator[Any]) -> Any:
    """All results, or the one of a single image."""
    return list(each) if several(images) else next(each)


def stacked(images: Any, each: Iterator[np.ndarray | None]) -> np.ndarray:
    """The same of vectors: float32 [images, d], with a row of NaN where there is none."""
    found = list(each) if several(images) else [next(each)]
    width = next((len(vector) for vector in found if vector is not None), 0)
    rows = [np.full(width, np.nan, np.float32) if vector is None else vector for vector in found]
    return np.stack(rows) if several(images) else rows[0]


def read_each(model, images: Any, read: Callable[[Hidden], Sequence[Any]], on_error: OnError | None
              ) -> Iterator[Any]:
    """What `read` makes of each image, in order; None where on_error was told of an error. While some are computed a
    thread decodes the next. The arguments are checked at once, images when their turn comes."""
    if on_error is not None and not callable(on_error):
        raise ParameterError(f"on_error must be a function of a number and an error, not {on_error!r}")
    many = several(images)
    if many and hasattr(images, "__len__") and len(images) == 0:
        raise ParameterError("images: expected at least one image, found none")
    model.engine  # noqa: B018  the error of a closed model
    return _results(model, iter(images if many else [images]), many, read, on_error)


def _results(model, images: Iterator[Any], many: bool, read, on_error) -> Iterator[Any]:
    processing, spec = ImageProcessing(model.settings.images), model.spec.images
    at = 0

    def some() -> list[EncoderImage | ForwardpassError]:
        nonlocal at
        found = []
        for image in islice(images, AT_ONCE):
            found.append(_prepared(image, _named(image, at, many), processing, spec))
            at += 1
            if isinstance(found[-1], ForwardpassError) and on_error is None:
                break  # it ends them all
        return found

    with ThreadPoolExecutor(1, "forwardpass-images") as thread:
        number, chunk = 0, some()
        while chunk:
            ends = len(chunk) < AT_ONCE or (isinstance(chunk[-1], ForwardpassError) and on_error is None)
            following = None if ends else thread.submit(some)
            ready = [one for one in chunk if isinstance(one, EncoderImage)]
            results = iter(model.engine.encode(ready, read) if ready else ())
            for one in chunk:
                if isinstance(one, EncoderImage):
                    yield next(results)
                elif on_error is None:
                    raise one
                else:
                    on_error(number, one)
                    yield None
                number += 1
            chunk = following.result() if following else []


def _prepared(image: Any, name: str, processing: ImageProcessing, spec) -> EncoderImage | ForwardpassError:
    try:
        found = EncoderImage(processing(read_image(image, name), name), name)
        checked_image(0, found, spec)  # by itself, so that one that the model can't read is not in others' way
        return found
    except ForwardpassError as error:
        return error


def _named(image: Any, number: int, many: bool) -> str:
    """What errors call an image: its path or name, else its number among several."""
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)[:300]
    name = getattr(image, "name", None) or getattr(image, "filename", None)
    if isinstance(name, str) and name:
        return name[:300]
    return f"image {number}" if many else "the image"


def _poolings(pooling: str | Sequence[str]) -> tuple[str, ...]:
    names = pooling if isinstance(pooling, (list, tuple)) else [pooling]
    if not names or not all(isinstance(name, str) and name in POOLINGS for name in names):
        raise ParameterError(f"pooling must be one of {', '.join(POOLINGS)}, or several of them, not {pooling!r}")
    return tuple(names)
