"""`forwardpass zero-shot TEXT... --label A --label B`: labels that the model was never trained on."""

from __future__ import annotations

from ..errors import ParameterError
from .reading import answer_each, given, input_texts, load, show_ranked


def run(text, model, dtype, threads, file, label, hypothesis, json, **options) -> int:
    if not label:
        raise ParameterError("expected at least one --label, found none")
    texts = input_texts(text, file)
    with load(model, "zero-shot", "a model of natural-language inference", dtype, threads) as loaded:
        asked = given({**options, "hypothesis_template": hypothesis})
        answer_each(texts, lambda some: loaded.zero_shot(some, label, **asked),
                    lambda one, ranked: show_ranked(one, ranked, json=json, alone=len(texts) == 1), what="classifying")
    return 0
