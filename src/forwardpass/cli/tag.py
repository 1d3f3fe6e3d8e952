"""`forwardpass tag TEXT...`: entities in texts, with their places."""

from __future__ import annotations

from dataclasses import asdict

from .output import one_line, print_json, write
from .reading import answer_each, given, input_texts, load, shown


def run(text, model, dtype, threads, file, json, **options) -> int:
    texts = input_texts(text, file)
    with load(model, "tag", "a model that labels tokens", dtype, threads) as loaded:
        asked = given(options)

        def show(one, entities) -> None:
            if json:
                print_json({"text": one, "entities": [asdict(entity) for entity in entities]})
                return
            indent = "" if len(texts) == 1 else "    "
            lines = [f"{found.score:.4f}  {one_line(found.label)}  {shown(found.text)}  ({found.start}-{found.end})"
                     for found in entities] or ["no entities"]
            write("".join(f"{line}\n" for line in ([shown(one)] if indent else []) + [indent + line for line in lines]))

        answer_each(texts, lambda some: loaded.token_classify(some, **asked), show, what="labelling")
    return 0
