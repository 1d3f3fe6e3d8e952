"""`forwardpass embed-image FILE...`: images to vectors, or the images nearest to one."""

from __future__ import annotations

from ..errors import ParameterError
from .embed import check_save, save_rows, show_vector
from .images import input_images, look
from .output import one_line, print_json, write
from .reading import check_top, given, load


def run(image, model, dtype, threads, nearest, top, save, json, **options) -> int:
    if nearest is not None and save is not None:
        raise ParameterError("--nearest prints images and --save writes vectors: give one of them")
    check_save(save)
    if top is not None and nearest is None:
        raise ParameterError("--top is how many images --nearest prints: leave it out, or ask with --nearest FILE")
    check_top(top)
    images = input_images(image)
    with load(model, "embed-image", "a model that reads images", dtype, threads) as loaded:
        asked = given(options)
        question = None if nearest is None else loaded.embed_image(nearest, **asked)
        vectors = []

        def show(name, vector) -> None:
            if nearest is not None or save is not None:
                vectors.append((name, vector))
            elif json:
                print_json({"image": name, "vector": vector.tolist()})
            else:
                show_vector(one_line(name), vector)

        status = look(images, lambda some, **how: loaded.embed_image(some, **asked, **how), show, json=json,
                      what="embedding")
        if not vectors:
            return status
        if save is not None:
            save_rows(save, [vector for _, vector in vectors])
        if nearest is not None:
            _show_nearest(loaded, question, vectors, 5 if top is None else top, json)
        return status


def _show_nearest(model, question, vectors, top: int, json: bool) -> None:
    import numpy as np

    scores = model.similarity(question, np.stack([vector for _, vector in vectors]))[0]
    for i in np.argsort(-scores, kind="stable")[:top].tolist():
        if json:
            print_json({"image": vectors[i][0], "score": float(scores[i])})
        else:
            write(f"{scores[i]:.4f}  {one_line(vectors[i][0])}\n")
