"""What all tasks that read texts have in common: arguments checked, texts within a limit, one call of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from forwardpass.contracts import Hidden
from forwardpass.errors import ForwardpassError, ParameterError
from forwardpass.models.spec import ModelSpec
from forwardpass.models.task_settings import TaskSettings
from forwardpass.stages import project
from forwardpass.stages.preprocess import check_ids, truncate
from forwardpass.stages.texts import EncodedText, Limit, encode_texts, too_long
from forwardpass.tasks.notices import notice

Pair = tuple[str, str]


def checked_texts(texts: Any, name: str = "texts") -> list[str]:
    """A list of texts; a single one is a list of one. ParameterError for anything else and for an empty list."""
    if isinstance(texts, str):
        return [texts]
    for number, one in enumerate(_listed(texts, name)):
        if not isinstance(one, str):
            raise ParameterError(f"{name}: expected texts, found {type(one).__name__} at {number}")
    return list(texts)


def checked_inputs(texts: Any, vocab_size: int) -> list[str] | list[list[int]]:
    """The same where token ids are understood, too: all are texts, or all are lists of ids of the vocabulary. A single
    list of ids is a list of one."""
    if isinstance(texts, str):
        return [texts]
    kinds = {_kind(one) for one in _listed(texts, "texts")}
    if kinds == {"ids"}:
        found = []
        for number, ids in enumerate(texts):
            try:
                found.append(check_ids(ids, vocab_size))
            except ParameterError as error:
                raise ParameterError(f"text {number}: {error}") from None
        return found
    return [check_ids(texts, vocab_size)] if kinds == {"id"} else checked_texts(texts)


def _kind(one: Any) -> str:
    if isinstance(one, Integral) and not isinstance(one, (bool, np.bool_)):
        return "id"
    return "ids" if isinstance(one, (list, tuple, np.ndarray)) and len(one) and _kind(one[0]) == "id" else "other"


def checked_pairs(texts: Any) -> list[str | Pair]:
    """The same where each may be two texts, a tuple or list of them."""
    if isinstance(texts, str):
        return [texts]
    found: list[str | Pair] = []
    for number, one in enumerate(_listed(texts, "texts")):
        if isinstance(one, (tuple, list)) and len(one) == 2 and all(isinstance(part, str) for part in one):
            found.append((one[0], one[1]))
        elif isinstance(one, str):
            found.append(one)
        else:
            what = f"{len(one)} things" if isinstance(one, (tuple, list)) else type(one).__name__
            raise ParameterError(f"texts: expected texts or pairs of texts, found {what} at {number}")
    return found


def _listed(texts: Any, name: str) -> Sequence[Any]:
    if isinstance(texts, (bytes, dict, set)) or not hasattr(texts, "__len__") or not hasattr(texts, "__iter__") \
            or getattr(texts, "ndim", 1) == 0:
        raise ParameterError(f"{name} must be a text or a list of texts, not {type(texts).__name__}")
    if len(texts) == 0:
        raise ParameterError(f"{name}: expected at least one text, found an empty list")
    return texts


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` if it is a whole number of at least `low` and, if there is one, at most `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low \
            or (high is not None and value > high):
        interval = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise ParameterError(f"{name} must be a whole number {interval}, not {value!r}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def reader(spec: ModelSpec) -> ModelSpec:
    """The part that reads texts: a pair's encoder, else the model itself."""
    return spec.encoder or spec


def limit_for(model, max_length: int | None, truncation: str | None, pairs: str = "longest_first") -> Limit:
    """The caller's limit, or that of the model's files."""
    if max_length is not None:
        tokens = whole_number("max_length", max_length, 1, reader(model.spec).max_position_embeddings)
    else:
        tokens = longest_text(model.spec, model.settings, model.tokenizer)
    return Limit(tokens, model.tokenizer.truncation_side if truncation is None else truncation, pairs)


def longest_text(spec: ModelSpec, settings: TaskSettings, tokenizer) -> int:
    """Tokens of a text by the model's files: max_seq_length of a sentence-transformers directory, else the tokenizer's
    limit, and never more than there are positions."""
    positions = reader(spec).max_position_embeddings
    return min(positions, settings.max_length or tokenizer.model_max_length or positions)


def encoded(model, texts: Sequence[str | Pair], limit: Limit, *, offsets: bool = False, keep: int = 0
            ) -> list[EncodedText]:
    """Texts as the model reads them. Tells where some were cut. keep: leading tokens that never are."""
    found = encode_texts(model.tokenizer, texts, limit, types=has_types(model.spec), offsets=offsets, keep=keep)
    found = [_filled(model, one) for one in found]
    paired = any(isinstance(text, tuple) for text in texts)
    part = {"only_first": " of the first text", "only_second": " of the second text"}.get(limit.pairs, "")
    report_cut(found, limit, part if paired else "", stacklevel=5)
    return found


def _filled(model, text: EncodedText) -> EncodedText:
    """With the padding that its model always saw behind a text (SigLIP): the tokenizer's, else the config's."""
    missing, own = model.spec.padded - len(text.ids), model.tokenizer.pad_token_id
    return text if missing <= 0 else replace(text, ids=[*text.ids, *[model.spec.pad if own is None else own] * missing])


def encoded_ids(model, texts: Sequence[list[int]], limit: Limit) -> list[EncodedText]:
    """Texts that are token ids already, checked. What is too long is cut as if it had been text: the tokens that the
    tokenizer puts around one stay where they are."""
    found = []
    for number, ids in enumerate(texts):
        cut = len(ids) - limit.tokens
        if cut > 0:
            if limit.truncation == "error":
                raise too_long(number, len(ids), limit)
            opening, closing = list(model.tokenizer.prefix_ids), list(model.tokenizer.suffix_ids)
            around = [len(some) if some and given == some else 0 for some, given in (
                (opening, ids[: len(opening)]), (closing, ids[len(ids) - len(closing) :]))]
            ids = truncate(ids, limit.tokens, side=limit.truncation, opening=around[0], closing=around[1])
        found.append(EncodedText(ids, None, max(cut, 0), None))
    report_cut(found, limit, stacklevel=5)
    return found


def report_cut(texts: Sequence[EncodedText], limit: Limit, part: str = "", stacklevel: int = 4) -> None:
    """Tell where texts were cut. part: what of them;  stacklevel: 4 where a task calls this that a method of the model
    calls, so that the line warned of is the user's."""
    cut = [one.cut for one in texts if one.cut]
    if cut:
        whole = "the text is" if len(texts) == 1 else f"{len(cut)} of {len(texts)} texts are"
        notice(f"{whole} longer than {limit.tokens} tokens: cut on the {limit.truncation}{part}, {sum(cut)} "
               "tokens left out; max_length and truncation say what is done", stacklevel)


def has_types(spec: ModelSpec) -> bool:
    """A table of one token type means the same for all: then the tokenizer's types don't matter."""
    return reader(spec).token_types > 1


def read(model, texts: Sequence[EncodedText], each: Callable[[Hidden], Sequence[Any]]) -> list[Any]:
    """Run the texts; each(hidden states of some of them) gives one result a text. Results are in their order."""
    return model.engine.encode(texts, each)


def text_scores(model, texts: Sequence[EncodedText]) -> list[np.ndarray]:
    """Raw scores float32 [labels] of each text, by a head that labels texts.

    The decoder of an encoder-decoder reads the text once more, one token behind, and its last row is scored (Lewis et
    al. 2020, BART).
    """
    begin = model.facts.start_id if model.spec.encoder else None
    return model.engine.encode(texts, lambda hidden: list(label_scores(model, hidden)), begin)


def vector_width(spec: ModelSpec) -> int:
    """Numbers of a vector that a head makes."""
    return spec.head.outputs or spec.hidden_size


def text_vectors(model, texts: Sequence[EncodedText]) -> np.ndarray:
    """float32 [texts, width] by a head that makes vectors, not normalised."""
    return np.stack(model.engine.encode(texts, lambda hidden: list(made_vectors(model, hidden))))


def made_vectors(model, hidden: Hidden) -> np.ndarray:
    """Those of stage 4, which must be numbers."""
    return finite(project.vectors(model.network, hidden))


def label_scores(model, hidden: Hidden) -> np.ndarray:
    """Those of stage 4, which must be numbers."""
    return finite(project.label_scores(model.network, hidden))


def finite(scores: np.ndarray) -> np.ndarray:
    if not np.isfinite(scores).all():
        raise ForwardpassError("the model's scores must be finite numbers; its weights are damaged, or too large for "
                               "this dtype: try dtype='float32'")
    return scores
