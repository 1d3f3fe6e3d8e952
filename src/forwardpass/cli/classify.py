"""`forwardpass classify TEXT...`: labels of texts or pairs, best first."""

from __future__ import annotations

from ..errors import ParameterError
from .reading import answer_each, check_top, given, input_texts, load, show_ranked


def run(text, model, dtype, threads, file, pairs, top, json, **options) -> int:
    check_top(top)
    texts = input_texts(text, file)
    if pairs:
        texts = [_pair(one) for one in texts]
    with load(model, "classify", "a model with labels", dtype, threads) as loaded:
        asked = given({**options, "top_k": top})
        answer_each(texts, lambda some: loaded.classify(some, **asked),
                    lambda one, ranked: show_ranked(one, ranked, json=json, alone=len(texts) == 1), what="classifying")
    return 0


def _pair(line: str) -> tuple[str, str]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise ParameterError(f"--pairs: expected two texts with a tab between them, found {len(parts)} in "
                             f"{line[:80]!r}")
    return parts[0], parts[1]
