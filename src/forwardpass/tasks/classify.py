"""Labels of texts and pairs, relevance of documents, and labels that the model never saw, through inference."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.stages.labels import ACTIVATIONS, activate, activation_for, best_first, ranked
from forwardpass.stages.texts import encode_texts, fill_template
from forwardpass.tasks.abilities import inference_labels
from forwardpass.tasks.texts import (
    Pair,
    checked_pairs,
    checked_texts,
    encoded,
    flag,
    has_types,
    limit_for,
    report_cut,
    text_scores,
    whole_number,
)

Ranked = list[tuple[str, float]]


def classify(model, texts: Any, *, top_k: int | None, activation: str | None, truncation: str | None,
             pair_truncation: str, max_length: int | None) -> list[Ranked]:
    """See Model.classify."""
    texts = checked_pairs(texts)
    settings = model.settings
    top_k = _top_k(top_k)
    if activation is None:
        own = _implemented(settings.score_activation) if len(settings.labels) == 1 else None
        activation = activation_for(settings.problem, len(settings.labels), own)
    _known(activation)
    rows = text_scores(model, encoded(model, texts, limit_for(model, max_length, truncation, pair_truncation)))
    return [ranked(settings.labels, activate(row, activation), top_k) for row in rows]


def rerank(model, query: str, documents: Any, *, top_k: int | None, activation: str | None, template: str | None,
           truncation: str | None, pair_truncation: str, max_length: int | None) -> list[tuple[int, float]]:
    """See Model.rerank."""
    if not isinstance(query, str):
        raise ParameterError(f"query must be a text, not {type(query).__name__}")
    documents = checked_texts(documents, "documents")
    top_k = _top_k(top_k)
    if activation is None:
        activation = _implemented(model.settings.score_activation) or "sigmoid"
    _known(activation)
    limit = limit_for(model, max_length, truncation, pair_truncation)
    if template is None:
        strip = model.settings.strip
        ready = encoded(model, [(query.strip(), one.strip()) if strip else (query, one) for one in documents], limit)
    else:
        if not isinstance(template, str) or template.count("{query}") != 1 or template.count("{document}") != 1:
            raise ParameterError("template must be a text with one {query} and one {document}, not "
                                 f"{str(template)[:80]!r}")
        ready = [fill_template(model.tokenizer, template, {"query": query, "document": one}, "document", limit)
                 for one in documents]
        report_cut(ready, limit, " of the document")
    scores = np.array([activate(row, activation)[0] for row in text_scores(model, ready)])
    return [(i, float(scores[i])) for i in best_first(scores, top_k)]


def zero_shot(model, text: Any, labels: Any, *, hypothesis_template: str, multi_label: bool, truncation: str | None,
              max_length: int | None) -> Ranked | list[Ranked]:
    """See Model.zero_shot."""
    texts, labels = checked_texts(text, "text"), checked_texts(labels, "labels")
    if len(set(labels)) < len(labels):
        raise ParameterError("labels: expected each label once")
    if not isinstance(hypothesis_template, str) or hypothesis_template.count("{}") != 1:
        raise ParameterError("hypothesis_template must be a text with one {} where the label goes, not "
                             f"{str(hypothesis_template)[:80]!r}")
    multi_label = flag("multi_label", multi_label)
    entailment, opposite = inference_labels(model.settings.labels)
    pairs: list[Pair] = [(one, hypothesis_template.replace("{}", label)) for one in texts for label in labels]
    limit = limit_for(model, max_length, truncation, "only_first")
    ready = encode_texts(model.tokenizer, pairs, limit, types=has_types(model.spec))
    firsts = range(0, len(pairs), len(labels))
    report_cut([max(ready[at : at + len(labels)], key=attrgetter("cut")) for at in firsts], limit)
    rows, found = text_scores(model, ready), []
    for at in firsts:
        raw = np.stack(rows[at : at + len(labels)])
        if multi_label or len(labels) == 1:  # each label by itself: entailment against its opposite
            scores = activate(raw[:, [opposite, entailment]], "softmax")[:, 1]
        else:
            scores = activate(raw[:, entailment], "softmax")
        found.append(ranked(labels, scores, None))
    return found[0] if isinstance(text, str) else found


def _top_k(top_k: int | None) -> int | None:
    return None if top_k is None else whole_number("top_k", top_k, 1)


def _known(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ParameterError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")


def _implemented(activation: str | None) -> str | None:
    if activation is not None and activation not in ACTIVATIONS:
        raise UnsupportedModelError(f"the model's files want its score through {activation[:80]}, which is not "
                                    f"implemented; pass activation= one of {', '.join(ACTIVATIONS)}")
    return activation
