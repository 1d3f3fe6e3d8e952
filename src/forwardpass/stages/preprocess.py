"""Stage 1: text to packed token ids, lengths and positions."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from ..contracts import Packed, Padded, int32, unpad
from ..errors import ContextLengthError, ParameterError
from ..weights.tokenizer import Tokenizer

__all__ = ["check_ids", "encode_prompt", "pack", "pad", "truncate", "unpad"]


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int], *, vocab_size: int | None = None) -> list[int]:
    """Ids of one raw prompt.

    Text gets the model's own BOS (never a second one) and may spell out special tokens; a list of ids is taken as it
    is. `vocab_size` is the number of rows the model has, where that differs from the tokenizer's. Raises
    ParameterError for an id outside the vocabulary and for a prompt without any token.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, add_special_tokens=True, parse_special=True)
        if not ids:
            raise ParameterError(
                "the prompt has no tokens and this model has no BOS token to start from; expected at least one token."
            )
        return ids
    return check_ids(prompt, vocab_size or tokenizer.vocab_size)


def check_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Token ids as plain ints, each from 0 to vocab_size - 1. Raises ParameterError."""
    if isinstance(ids, (bytes, dict, set)) or not hasattr(ids, "__len__") or not hasattr(ids, "__iter__"):
        raise ParameterError(f"a prompt is text or a list of token ids; found {type(ids).__name__}.")
    if len(ids) == 0:
        raise ParameterError("the prompt has no tokens; expected at least one.")
    checked = []
    for place, token in enumerate(ids):
        if isinstance(token, (bool, np.bool_)) or not isinstance(token, Integral):
            raise ParameterError(f"token {place} of the prompt: expected an int, found {token!r}.")
        if not 0 <= token < vocab_size:
            raise ParameterError(f"token {place} of the prompt is {token}; expected an id from 0 to {vocab_size - 1}.")
        checked.append(int(token))
    return checked


def pack(sequences: Sequence[Sequence[int]], *, past: Sequence[int] | None = None,
         types: Sequence[Sequence[int] | None] | None = None) -> Packed:
    """Sequences side by side without padding.

    `past[i]` tokens of sequence i are already in the cache, so its positions begin there (default 0). `types[i]` are
    the types (segments) of its tokens; None = all 0.
    """
    lengths = [len(ids) for ids in sequences]
    if not lengths or 0 in lengths:
        raise ParameterError("expected at least one sequence and at least one token in each.")
    first = [0] * len(lengths) if past is None else list(past)
    if len(first) != len(lengths):
        raise ParameterError(f"past has {len(first)} entries for {len(lengths)} sequences; expected one each.")
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    token_ids = np.concatenate([np.asarray(ids, np.int32) for ids in sequences])
    positions = np.concatenate([np.arange(p, p + n, dtype=np.int32) for p, n in zip(first, lengths, strict=True)])
    return Packed(token_ids, positions, starts, None if types is None else _packed_types(types, lengths))


def _packed_types(types: Sequence[Sequence[int] | None], lengths: list[int]) -> np.ndarray:
    if len(types) != len(lengths):
        raise ParameterError(f"types has {len(types)} entries for {len(lengths)} sequences; expected one each.")
    rows = [np.zeros(length, np.int32) if one is None else int32(f"types[{i}]", one)
            for i, (one, length) in enumerate(zip(types, lengths, strict=True))]
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row.size != length:
            raise ParameterError(f"types[{i}] has {row.size} entries for {length} tokens; expected one each.")
    return np.concatenate(rows)


def truncate(
    ids: Sequence[int], max_length: int, *, side: str = "right", opening: int = 0, closing: int = 0
) -> list[int]:
    """At most `max_length` ids: content is cut on `side`, the first `opening` and last `closing` tokens stay.

    Example: [CLS] w1 ... w20 [SEP] cut to 8 with one opening and one closing token is [CLS] w1 ... w6 [SEP].
    """
    _check_side("truncation_side", side)
    ids = list(ids)
    if len(ids) <= max_length:
        return ids
    room = max_length - opening - closing
    if room < 0:
        raise ParameterError(f"max_length is {max_length}; the special tokens alone need {opening + closing}.")
    head, content, tail = ids[:opening], ids[opening : len(ids) - closing], ids[len(ids) - closing :]
    return head + (content[:room] if side == "right" else content[len(content) - room :]) + tail


def pad(
    sequences: Sequence[Sequence[int]],
    *,
    padding: str = "longest",
    side: str = "right",
    truncation: bool = False,
    max_length: int | None = None,
    pad_id: int | None,
    truncation_side: str = "right",
    opening: int = 0,
    closing: int = 0,
) -> Padded:
    """The classic rectangle with its mask.

    padding "longest" fills up to the longest sequence, "max_length" up to `max_length`. A sequence longer than
    `max_length` is cut if `truncation` (see `truncate`), otherwise it is a ContextLengthError: nothing is cut silently.
    `pad_id` None (a tokenizer without padding token) means 0, which the mask makes harmless.
    """
    if padding not in ("longest", "max_length"):
        raise ParameterError(f"padding is {padding!r}; expected 'longest' or 'max_length'.")
    _check_side("side", side)
    if max_length is None and (padding == "max_length" or truncation):
        raise ParameterError("max_length is missing; expected a number of tokens for this padding or truncation.")
    whole = isinstance(max_length, Integral) and not isinstance(max_length, bool)
    if max_length is not None and (not whole or max_length < 1):
        raise ParameterError(f"max_length is {max_length!r}; expected an int of 1 or more.")
    rows = [list(ids) for ids in sequences]
    if not rows or not all(rows):
        raise ParameterError("expected at least one sequence and at least one token in each.")
    longest = max(len(row) for row in rows)
    if max_length is not None and longest > max_length:
        if not truncation:
            raise ContextLengthError(
                f"a sequence has {longest} tokens and max_length is {max_length}; shorten it or pass truncation=True."
            )
        rows = [truncate(row, max_length, side=truncation_side, opening=opening, closing=closing) for row in rows]
        longest = max(len(row) for row in rows)
    width = max_length if padding == "max_length" else longest
    input_ids = np.full((len(rows), width), 0 if pad_id is None else pad_id, np.int32)
    mask = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        input_ids[i, place] = row
        mask[i, place] = 1
    return Padded(input_ids, mask)


def _check_side(name: str, side: str) -> None:
    if side not in ("left", "right"):
        raise ParameterError(f"{name} is {side!r}; expected 'left' or 'right'.")
