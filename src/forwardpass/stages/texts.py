"""Stage 1 for texts that are read and not continued: ids, token types and offsets of texts and pairs, within a limit.

What is too long is cut or split, never silently: each EncodedText says how many tokens were left out. Only content is
cut; special tokens stay where they are, and ids, types and offsets are cut together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding

from ..errors import ContextLengthError, ParameterError
from ..weights.tokenizer import Tokenizer
from .template import filled_ids

TRUNCATIONS = ("right", "left", "error")
AT_ONCE, LETTERS_AT_ONCE = 4096, 1 << 18
"""Texts and characters that are tokenised together; a longer text is tokenised alone."""
LARGE = 1 << 14
"""Characters from which on texts take turns: until its ids are taken an encoding takes hundreds of bytes a token, and
many callers may come with a megabyte each."""
_TURNS = threading.Semaphore(2)
PAIR_TRUNCATIONS = ("longest_first", "only_first", "only_second")


@dataclass(frozen=True, slots=True)
class Limit:
    """tokens: of a text at most, special ones included;  truncation: the end at which longer ones are cut, or "error";
    pairs: what is cut of a pair, "longest_first" (as much as brings both texts to the same length, then both),
    "only_first" or "only_second"."""

    tokens: int
    truncation: str = "right"
    pairs: str = "longest_first"

    def __post_init__(self) -> None:
        for name, value, known in (("truncation", self.truncation, TRUNCATIONS),
                                   ("pair_truncation", self.pairs, PAIR_TRUNCATIONS)):
            if value not in known:
                raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r}")


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One text or pair as the model reads it.

    ids, types: token ids and token types, one each (types None: the model has none);  cut: content tokens left out;
    encoding: the whole text's, where somebody wants its offsets;  kept: which of its tokens are in ids, None = all.
    """

    ids: list[int]
    types: list[int] | None
    cut: int
    encoding: Encoding | None
    kept: list[int] | None = None

    def pick(self, name: str) -> list:
        """A list of the encoding (offsets, word_ids, sequence_ids), for the tokens in ids."""
        values = getattr(self.encoding, name)
        return values if self.kept is None else [values[i] for i in self.kept]


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], limit: Limit, *, types: bool,
                 offsets: bool = False, keep: int = 0) -> list[EncodedText]:
    """Every text within the limit, in order. types: the model tells token types apart;  keep: leading tokens of each
    text (a prompt's) that are never cut.

    Raises ContextLengthError for one that is longer where the limit's truncation is "error" or cutting does not help,
    ParameterError for one without a single token.
    """
    found = []

    def take(number: int, encoding: Encoding) -> None:
        ids, whole = encoding.ids, encoding if offsets else None
        if 0 < len(ids) <= limit.tokens:
            found.append(EncodedText(ids, encoding.type_ids if types else None, 0, whole))
        else:
            kept = _kept(encoding, limit, number, keep)
            found.append(_part(whole, ids, encoding.type_ids if types else None, kept, len(ids) - len(kept)))

    _each(tokenizer, texts, offsets, take)
    return found


def split_texts(tokenizer: Tokenizer, texts: Sequence[str], limit: Limit, overlap: int, *, types: bool,
                offsets: bool = False, keep: int = 0) -> tuple[list[EncodedText], list[int]]:
    """(parts, the number of the text that each is of). A text longer than the limit becomes parts that each fill it and
    have `overlap` content tokens in common with the next; each has the special tokens and the `keep` leading ones.

    Example: limit 6 with [CLS] and [SEP], so 4 content tokens; overlap 1: w1..w9 gives w1..w4, w4..w7, w7..w9.
    """
    parts, owners = [], []

    def take(number: int, encoding: Encoding) -> None:
        content, _, fixed = _content(encoding, number, keep)
        room = limit.tokens - len(fixed)
        if not 0 <= overlap < room:
            raise ParameterError(f"overlap must be from 0 to {max(room - 1, 0)}, fewer than the {max(room, 0)} tokens "
                                 f"of text that a part has room for, not {overlap}")
        ids, kinds = encoding.ids, encoding.type_ids if types else None  # each is a copy of the whole text's
        whole = encoding if offsets else None
        for at in range(0, max(len(content) - overlap, 1), room - overlap):
            kept = sorted(fixed + content[at : at + room])
            parts.append(_part(whole, ids, kinds, kept, 0))
            owners.append(number)

    _each(tokenizer, texts, offsets, take)
    return parts, owners


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Of all texts together, with the special tokens around each."""
    counts: list[int] = []
    _each(tokenizer, texts, False, lambda _, encoding: counts.append(len(encoding)))
    return sum(counts)


def fill_template(tokenizer: Tokenizer, template: str, values: Mapping[str, str], cut: str, limit: Limit
                  ) -> EncodedText:
    """A text with {name} places, filled (see template.filled_ids). Of what is too long the value `cut` loses tokens, at
    the end that the limit says."""
    with _turn(sum(map(len, values.values()))):
        return _filled(tokenizer, template, values, cut, limit)


def _filled(tokenizer: Tokenizer, template: str, values: Mapping[str, str], cut: str, limit: Limit) -> EncodedText:
    ids = filled_ids(tokenizer, template, values)
    whole = left = tokenizer.plain_backend.encode(values[cut], add_special_tokens=False)
    text, gone = values[cut], 0
    while len(ids) > limit.tokens:
        if limit.truncation == "error" or not len(left):
            raise ContextLengthError(f"a text has {len(ids)} tokens, the limit is {limit.tokens}; shorten it"
                                     + (", or let it be cut with truncation='right'" if len(left) else ""))
        gone += min(len(ids) - limit.tokens, len(left))
        stay = len(whole) - gone
        if limit.truncation == "right":
            text = values[cut][: whole.offsets[stay][0]]
        else:
            text = values[cut][whole.offsets[gone - 1][1] :]
        left = whole.ids[:stay]
        ids = filled_ids(tokenizer, template, {**values, cut: text})
    return EncodedText(ids, None, gone, None)


def _each(tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], offsets: bool,
          take: Callable[[int, Encoding], None]) -> None:
    """take(the number of a text, its encoding) for all of them in order, some at a time."""
    first = 0
    while first < len(texts):
        last, letters = first, 0
        while last < len(texts) and last - first < AT_ONCE and (last == first or letters < LETTERS_AT_ONCE):
            letters += sum(map(len, texts[last])) if isinstance(texts[last], tuple) else len(texts[last])
            last += 1
        with _turn(letters):
            for number, encoding in enumerate(tokenizer.encode_batch(texts[first:last], offsets=offsets, first=first),
                                              first):
                take(number, encoding)
        first = last


def _turn(letters: int) -> AbstractContextManager[Any]:
    return _TURNS if letters > LARGE else nullcontext()


def _content(encoding: Encoding, number: int, keep: int) -> tuple[list[int], list[int], list[int]]:
    """(which tokens may be left out, of the first and of the second text, and which may not)."""
    sequence = encoding.sequence_ids
    if not sequence:
        raise ParameterError(f"text {number} has no tokens, and the model's tokenizer adds none; expected at least one "
                             "token")
    first = [i for i, one in enumerate(sequence) if one == 0 and i >= keep]
    second = [i for i, one in enumerate(sequence) if one == 1]
    return first, second, [i for i, one in enumerate(sequence) if one is None or (one == 0 and i < keep)]


def _part(encoding: Encoding | None, ids: list[int], types: list[int] | None, kept: list[int], cut: int) -> EncodedText:
    """ids, types: the whole text's."""
    return EncodedText([ids[i] for i in kept], types and [types[i] for i in kept], cut, encoding, kept)


def too_long(number: int, tokens: int, limit: Limit) -> ContextLengthError:
    return ContextLengthError(f"text {number} has {tokens} tokens, the limit is {limit.tokens}; shorten it, or let it "
                              "be cut with truncation='right'")


def _kept(encoding: Encoding, limit: Limit, number: int, keep: int) -> list[int]:
    """Which tokens of an encoding stay."""
    first, second, fixed = _content(encoding, number, keep)
    if limit.truncation == "error":
        raise too_long(number, len(encoding), limit)
    rooms = _rooms(len(first), len(second), limit.tokens - len(fixed), limit.pairs if second else "only_first")
    if min(rooms) < 0:
        whole = {"only_first": second, "only_second": first}.get(limit.pairs, [])
        besides = f", and pair_truncation={limit.pairs!r} leaves another {len(whole)} alone" if whole else ""
        raise ContextLengthError(f"text {number} has {len(fixed)} tokens that cannot be left out{besides}; the limit "
                                 f"is {limit.tokens}: raise max_length or shorten the text")
    kept = [*fixed]
    for places, room in zip((first, second), rooms, strict=True):
        kept += places[:room] if limit.truncation == "right" else places[len(places) - room :]
    return sorted(kept)


def _rooms(first: int, second: int, room: int, pairs: str) -> tuple[int, int]:
    """Tokens of both texts that stay, negative where that can't be.

    longest_first: the shorter text stays whole if it fits into half of the room, else each gets half, an odd token
    going to the longer one. Examples with room 7: (3, 20) -> (3, 4); (10, 20) -> (3, 4); (20, 10) -> (4, 3).
    """
    if pairs == "only_first":
        return min(first, room - second), second
    if pairs == "only_second":
        return first, min(second, room - first)
    if room < 0:
        return room, room
    short = min(first, second, room // 2)
    return (short, min(second, room - short)) if first <= second else (min(first, room - short), short)
