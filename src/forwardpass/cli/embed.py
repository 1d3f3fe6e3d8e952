"""`forwardpass embed TEXT...`: texts to vectors, or the texts nearest to a question."""

from __future__ import annotations

from pathlib import Path

from ..errors import ParameterError
from .output import print_json, write
from .reading import answer_each, check_top, given, input_texts, load, shown

NUMBERS_SHOWN = 6


def run(text, model, dtype, threads, file, nearest, top, save, json, **options) -> int:
    if nearest is not None and save is not None:
        raise ParameterError("--nearest prints texts and --save writes vectors: give one of them")
    if nearest is not None and options["output"] not in (None, "float32"):
        raise ParameterError("--nearest compares float32 vectors: leave --output out")
    check_save(save)
    if top is not None and nearest is None:
        raise ParameterError("--top is how many texts --nearest prints: leave it out, or ask with --nearest QUESTION")
    check_top(top)
    texts = input_texts(text, file)
    with load(model, "embed", "an embedding model", dtype, threads) as loaded:
        asked = given(options)
        vectors = []

        def show(text, vector) -> None:
            if nearest is not None or save is not None:
                vectors.append(vector)
            elif json:
                print_json({"text": text, "vector": vector.tolist()})
            else:
                show_vector(shown(text), vector)

        answer_each(texts, lambda some: loaded.embed(some, **asked), show, what="embedding")
        if save is not None:
            save_rows(save, vectors)
        if nearest is not None:
            _nearest(loaded, nearest, texts, vectors, 5 if top is None else top, asked, json)
    return 0


def show_vector(name: str, vector) -> None:
    """What it belongs to, and its first numbers."""
    numbers = ", ".join(f"{number:.4g}" for number in vector[:NUMBERS_SHOWN].tolist())
    more = ", ..." if len(vector) > NUMBERS_SHOWN else ""
    write(f"{name}\n    {len(vector)} numbers: {numbers}{more}\n")


def check_save(path: str | None) -> None:
    """Before a model is loaded and all is read for it."""
    if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise ParameterError(f"--save {path}: expected the name of a file in a folder that exists")


def save_rows(path: str, vectors) -> None:
    """A row a vector, as NumPy's .npy file."""
    import numpy as np

    try:
        with open(path, "wb") as file:
            np.save(file, np.stack(vectors))
    except OSError as error:
        raise ParameterError(f"--save {path}: the file could not be written: {error.strerror}") from None


def _nearest(model, question: str, texts: list[str], vectors, top: int, options: dict, json: bool) -> None:
    import numpy as np

    if "query" in model.settings.prompts and "prompt" not in options:
        options = {**options, "prompt": "query"}  # models that tell questions from texts name their prompts so
    scores = model.similarity(model.embed(question, **options), np.stack(vectors))[0]
    for i in np.argsort(-scores, kind="stable")[:top].tolist():
        if json:
            print_json({"index": i, "score": float(scores[i]), "text": texts[i]})
        else:
            write(f"{scores[i]:.4f}  {shown(texts[i], 1000)}\n")
