"""Vocabularies from the `tokenizer.*` metadata of a GGUF file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ModelFileError, UnsupportedModelError
from .pretokenizers import pretokenizer
from .recipes import SPACE, BytePairs, Recipe, Spaces, WordPieces
from .sentence_pieces import CONTROL, NORMAL, UNKNOWN, Pieces, added_tokens, build_pairs, build_unigrams
from .tokenizer import Tokenizer, VocabularyFacts

_END_MARKS = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>",
     "<|calls|>", "<|flush|>", "<|end_of_turn|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>",
     "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>", "<|endofturn|>")
)  # fmt: skip
"""A GGUF file has room for one or two end tokens where generation_config.json lists all. A control token spelled like
one of these ends a text or a turn in every model that has it."""

_HARMONY = frozenset(("<|return|>", "<|call|>")), frozenset(("<|calls|>", "<|flush|>"))
"""Vocabularies with one of these pairs use <|end|> between the parts of one answer."""

_IDS = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls")
"""Keys `..._token_id`; "seperator" is how the format spells it."""

_MIDDLE_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "pad": ("fim_pad",),
    "repo": ("fim_rep",),
    "file": ("fim_sep",),
}
"""Keys `..._token_id` for filling in a middle, the newer spelling first."""


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file, from its `tokenizer.*` metadata (plain Python values or NumPy arrays).

    Raises UnsupportedModelError for a vocabulary type or word cutter that is not implemented (it is named), and
    ModelFileError for metadata that contradicts itself.
    """
    get = _Metadata(metadata)
    kind = get.text("model")
    if kind not in _TYPES:
        known = ", ".join(f"{name!r} ({_TYPES[name][0]})" for name in _TYPES)
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {kind!r}; expected one of {known}. "
            "Use the model's Hugging Face directory, whose tokenizer.json can be read."
            if kind
            else f"the file has no tokenizer.ggml.model, so it carries no vocabulary; expected one of {known}."
        )
    _, make, defaults, add_bos, add_eos = _TYPES[kind]
    cut = pretokenizer(get.text("pre")) if make is _byte_pairs else None
    if cut is not None:
        add_bos = cut.add_bos
    tokens = get.strings("tokens")
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is missing or empty; expected the vocabulary.")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        first, second = next((seen[t], i) for i, t in enumerate(tokens) if seen.setdefault(t, i) != i)
        raise ModelFileError(f"the vocabulary has token {tokens[first]!r} twice, as {first} and {second}.")
    types = get.integers("token_type", len(tokens))
    ids = {name: get.token(f"{name}_token_id", len(tokens), defaults.get(name)) for name in _IDS}
    if kind == "bert":
        add_eos = get.flag("add_sep_token", True)
        ids["bos"] = ids["cls"] if ids["cls"] is not None else ids["bos"]
        closing = ids["seperator"]
    else:
        add_eos = get.flag("add_eos_token", add_eos)
        closing = ids["eos"]
    add_bos = get.flag("add_bos_token", add_bos)
    prefix = (ids["bos"],) if ids["bos"] is not None and add_bos else ()
    suffix = (closing,) if closing is not None and add_eos else ()
    if ids["unknown"] is None:
        ids["unknown"] = next((i for i, type_ in enumerate(types) if type_ == UNKNOWN), None)

    backend, recipe = make(get, tokens, types, ids, prefix, suffix)
    variables = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    template = metadata.get("tokenizer.chat_template")
    facts = VocabularyFacts(
        vocab_size=len(tokens),
        bos_token_id=ids["bos"],
        eos_token_ids=_ends(tokens, types, ids),
        unk_token_id=ids["unknown"],
        pad_token_id=ids["padding"],
        chat_template=template if isinstance(template, str) else None,
        variables={name: tokens[ids[key]] for name, key in variables.items() if ids[key] is not None},
        middle_ids=_middle_ids(get, len(tokens)),
    )
    return Tokenizer(backend, facts, recipe)


def _middle_ids(get: _Metadata, size: int) -> dict[str, int]:
    found = {role: [get.token(f"{key}_token_id", size, None) for key in keys] for role, keys in _MIDDLE_KEYS.items()}
    return {role: named[0] for role, ids in found.items() if (named := [i for i in ids if i is not None])}


def _ends(tokens: list[str], types: list[int], ids: Mapping[str, int | None]) -> tuple[int, ...]:
    ends = [ids["eos"], ids["eot"], ids["eom"]]
    marks = {tokens[i]: i for i, type_ in enumerate(types) if type_ in (CONTROL, UNKNOWN) and tokens[i] in _END_MARKS}
    if any(pair <= marks.keys() for pair in _HARMONY):
        marks.pop("<|end|>", None)
    return tuple(dict.fromkeys(i for i in [*ends, *sorted(marks.values())] if i is not None))


# -- one function a type: (backend, recipe)

_Made = tuple[Any, Recipe]


def _byte_pairs(get: _Metadata, tokens, types, ids, prefix, suffix) -> _Made:
    recipe = BytePairs(tokens, get.strings("merges"), get.text("pre"), added_tokens(types), prefix, suffix)
    return recipe.build(), recipe


def _scored_pairs(get: _Metadata, tokens, types, ids, prefix, suffix) -> _Made:
    return build_pairs(Pieces(tokens, get.scores(len(tokens)), types, ids["unknown"], _spaces(get), prefix, suffix))


def _unigrams(get: _Metadata, tokens, types, ids, prefix, suffix) -> _Made:
    return build_unigrams(Pieces(tokens, get.scores(len(tokens)), types, ids["unknown"], _spaces(get), prefix, suffix))


def _word_pieces(get: _Metadata, tokens, types, ids, prefix, suffix) -> _Made:
    # The file marks a word's beginning as SentencePiece does, vocab.txt marks what is no beginning. Tokens in square
    # brackets are the same in both.
    special = [len(token) > 2 and token[0] == "[" and token[-1] == "]" for token in tokens]
    if SPACE + "a" in tokens or not any(token.startswith("##") for token in tokens):
        tokens[:] = [
            token if alone else token[1:] if token.startswith(SPACE) else "##" + token
            for token, alone in zip(tokens, special, strict=True)
        ]
    added = {**added_tokens(types), **{i: True for i in (*prefix, *suffix, ids["padding"]) if i is not None}}
    mask = get.token("mask_token_id", len(tokens), None)
    added |= {i: True for i in (ids["unknown"], mask) if i is not None}
    # Files from before the key do not say whether capital letters matter; a vocabulary that has them does.
    cased = any(token != token.lower() for token, alone in zip(tokens, special, strict=True) if not alone)
    lower = get.flag("normalizer.lowercase", not cased)
    accents = get.flag("normalizer.strip_accents", lower)
    if ids["unknown"] is None:
        raise ModelFileError("the vocabulary names no unknown token; expected tokenizer.ggml.unknown_token_id.")
    recipe = WordPieces(tokens, added, ids["unknown"], lower, accents, prefix, suffix)
    return recipe.build(), recipe


def _spaces(get: _Metadata) -> Spaces:
    return Spaces(
        prefix=get.flag("add_space_prefix", True),
        collapse=get.flag("remove_extra_whitespaces", False),
        charsmap=base64.b64encode(get.bytes("precompiled_charsmap")).decode(),
    )


_TYPES: dict[str, tuple[str, Callable[..., _Made], dict[str, int], bool, bool]] = {
    "gpt2": ("byte-level pairs", _byte_pairs, {}, False, False),
    "llama": ("SentencePiece pairs", _scored_pairs, {"bos": 1, "eos": 2, "unknown": 0}, True, False),
    "t5": ("SentencePiece unigrams", _unigrams, {"eos": 1, "unknown": 2, "padding": 0}, False, True),
    "bert": ("word pieces", _word_pieces,
             {"cls": 101, "unknown": 100, "seperator": 102, "padding": 0}, True, True),
}  # fmt: skip
"""By `tokenizer.ggml.model`: what it is, its reader, ids where the file names none, whether BOS and EOS are added."""


class _Metadata:
    """Typed access to `tokenizer.ggml.*`; every mismatch is a ModelFileError that names the key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def _wrong(self, key: str, expected: str, found: Any) -> ModelFileError:
        return ModelFileError(f"tokenizer.ggml.{key}: expected {expected}, found {str(found)[:80]!r}.")

    def _get(self, key: str) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value.tolist() if hasattr(value, "tolist") else value

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, (bool, int)):
            raise self._wrong(key, "true or false", value)
        return bool(value)

    def token(self, key: str, size: int, default: int | None) -> int | None:
        value = self._get(key)
        if value is None:
            return default if default is not None and default < size else None
        if value in (-1, 2**32 - 1):  # both spell "none"
            return None
        if not isinstance(value, int) or not 0 <= value < size:
            raise self._wrong(key, f"a token id from 0 to {size - 1}", value)
        return value

    def strings(self, key: str) -> list[str]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self._wrong(key, "a list of strings", value)
        for item in value:
            if type(item) is not str:
                raise self._wrong(key, "a list of strings", item)
        return list(value)

    def integers(self, key: str, size: int) -> list[int]:
        value = self._get(key)
        if value is None:
            return [NORMAL] * size
        if not isinstance(value, (list, tuple)) or len(value) != size:
            found = len(value) if hasattr(value, "__len__") else value
            raise self._wrong(key, f"{size} numbers, one for each token", found)
        return list(value)

    def scores(self, size: int) -> np.ndarray:
        value = self._get("scores")
        if not isinstance(value, (list, tuple)) or len(value) != size:
            found = "none" if value is None else len(value) if hasattr(value, "__len__") else value
            raise self._wrong("scores", f"{size} numbers, one for each token", found)
        try:
            scores = np.array(value, np.float64)
        except (TypeError, ValueError):
            raise self._wrong("scores", "numbers", value) from None
        if not np.isfinite(scores).all():
            raise self._wrong("scores", "finite numbers", scores[~np.isfinite(scores)][0])
        return scores

    def bytes(self, key: str) -> bytes:
        value = self._get(key)
        if value is None:
            return b""
        try:
            return bytes(byte & 0xFF for byte in value)
        except TypeError as error:
            raise self._wrong(key, "a list of bytes", value) from error
