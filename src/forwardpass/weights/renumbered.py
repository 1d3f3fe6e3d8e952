"""Vocabularies whose numbers are not those of the SentencePiece model that cuts their texts (Marian, M2M-100).

A vocab.json numbers the tokens: pieces of one model or two, and what no model has, since the texts of training had it.
A text is cut with the source's model; a piece gets the number of its spelling, and so does a run of characters that the
model does not know. What has no number is unknown.

The model that cuts is made with the pieces at their numbers, so that special tokens need no translation. Pieces without
a number stand behind them, and a number whose token is no piece holds a name that no text contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError
from .recipes import SPACE
from .sentence_pieces import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    PieceFile,
    build_pairs,
    build_unigrams,
)
from .tokenizer import Tokenizer, VocabularyFacts


def cutting_backend(file: PieceFile, tokens: Sequence[str], special: Mapping[int, bool], unknown: int,
                    suffix: tuple[int, ...]) -> Backend:
    """The `tokenizers` object that cuts texts. tokens: by number; special: those that are looked for as they are
    written; unknown: the token for all that has no number; suffix: what ends a text."""
    pieces, taken = file.pieces, set(tokens)
    known = {token: i for i, token in enumerate(pieces.tokens) if pieces.types[i] in (NORMAL, USER_DEFINED, BYTE)}
    if not known:
        raise ModelFileError("the SentencePiece model has no pieces of text; fetch the model again.")
    behind = [token for token in known if token not in taken]
    least = min(float(pieces.scores[i]) for i in known.values())
    names, scores, types = [], [], []
    for number, token in enumerate([*tokens, *behind]):
        if number in special or number == unknown:
            name, score, kind = token, 0.0, UNKNOWN if number == unknown else CONTROL
        elif token in known:
            name, score, kind = token, float(pieces.scores[known[token]]), pieces.types[known[token]]
        else:
            name, score, kind = _absent(number), least, NORMAL
        names.append(name)
        scores.append(score)
        types.append(kind)
    renumbered = replace(pieces, tokens=names, scores=np.array(scores), types=types, unknown=unknown, suffix=suffix)
    return (build_pairs if file.kind == "bpe" else build_unigrams)(renumbered)[0]


def _absent(number: int) -> str:
    """A name for a token that no text has: it begins with a code point that Unicode keeps free for such uses. No part
    of it is a token, so that nothing is merged to it."""
    return f"\uffff{chr(0xF0000 + number % 2**16)}{chr(0x100000 + number // 2**16)}"


class Renumbered(Tokenizer):
    """tokens: by number, of what the model generates;  spelled: token -> number of what it reads, where that is a
    vocabulary of its own."""

    def __init__(self, backend: Backend, facts: VocabularyFacts, tokens: Sequence[str],
                 spelled: Mapping[str, int] | None = None) -> None:
        super().__init__(backend, facts)
        self.tokens, self.spelled = list(tokens), spelled
        self._targets = {token: i for i, token in enumerate(self.tokens)}
        self._numbers = self._targets if spelled is None else spelled
        self._rows = 1 + max(self._numbers.values())
        self._unknown = self._numbers[facts.variables["unk_token"]]
        self._coded = facts.languages is not None and facts.languages.target_place == "text"
        if spelled is not None:  # the same special tokens, by their numbers in the other vocabulary
            self._added = {self._targets[one.content]: one for one in self._added.values()
                           if one.content in self._targets}
            self.special_ids = frozenset(i for i, one in self._added.items() if one.special)

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """As Tokenizer.encode. parse_special also finds a target language's token at the beginning (">>fra<<")."""
        ids: list[int] = []
        if parse_special and self._coded and isinstance(text, str) and (found := re.match(">>.*?<<", text, re.DOTALL)):
            ids, text = [self._numbers.get(found[0], self._unknown)], text[found.end() :]
        encoding = self._cut(text, parse_special)
        for i, token, (start, end) in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
            if i == self._unknown:  # BPE says "unknown", the other what it is
                token = text[start:end].replace(" ", SPACE) if token == self.backend.id_to_token(i) else token
                i = self._numbers.get(token, i)
            ids.append(i if i < self._rows else self._unknown)
        return [*self.prefix_ids, *ids, *self.suffix_ids] if add_special_tokens else ids

    def token_to_id(self, token: str) -> int | None:
        return self._targets.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None

    def _header(self) -> dict:
        return super()._header() | {"tokens": self.tokens, "spelled": self.spelled}
