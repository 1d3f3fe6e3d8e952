"""`forwardpass fill-mask TEXT...`: what may stand where the mask is."""

from __future__ import annotations

from dataclasses import asdict

from .output import one_line, print_json, write
from .reading import answer_each, check_top, given, input_texts, load, shown


def run(text, model, dtype, threads, file, top, json, **options) -> int:
    check_top(top)
    texts = input_texts(text, file)
    with load(model, "fill-mask", "a masked language model", dtype, threads) as loaded:
        asked = given({**options, "top_k": top})

        def show(one, masks) -> None:
            if json:
                print_json({"text": one, "masks": [[asdict(candidate) for candidate in mask] for mask in masks]})
                return
            for number, mask in enumerate(masks, 1):
                if len(texts) > 1 or len(masks) > 1:
                    write(shown(one) + (f" (mask {number})" if len(masks) > 1 else "") + "\n")
                for candidate in mask:
                    write(f"{candidate.score:.4f}  {one_line(candidate.token)}\n")

        answer_each(texts, lambda some: loaded.fill_mask(some, **asked), show, what="filling masks")
    return 0
