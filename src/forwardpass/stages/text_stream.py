"""Token ids to text, one token at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from ..errors import UnsupportedModelError
from ..weights.tokenizer import Tokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Text of a growing list of tokens.

    What `push` and then `finish` return concatenates to exactly `tokenizer.decode(ids)` without those in `skip`; with
    `continues`, to what these ids add to the text before them, where a space in front is part of the text. A
    character spread over several tokens appears with its last byte; one that never completes is a single U+FFFD from
    `finish`. Each token costs the same however long the text already is, because tokens are bytes and only an
    unfinished character (at most 3 bytes) is kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip: Collection[int] = (), continues: bool = False) -> None:
        if not tokenizer.decodes_bytes:
            raise UnsupportedModelError("the tokens of this vocabulary are no pieces of text, so it can't be streamed.")
        self._token_bytes = tokenizer.token_bytes
        self._skip = skip
        self._utf8 = _Utf8("replace")
        self._drop = "" if continues else tokenizer.drops_first_space

    def push(self, token_id: int) -> str:
        """The text that this token completes; may be empty."""
        if token_id in self._skip:
            return ""
        piece = self._token_bytes(token_id)
        if self._drop:
            piece = self._without_first_space(piece)
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """The tail: U+FFFD if the last character is incomplete, else nothing."""
        return self._utf8.decode(b"", True)

    def _without_first_space(self, piece: bytes) -> bytes:
        """SentencePiece writes a space before the first word, which is not part of the text."""
        if self._drop == "token":
            self._drop = ""
            return piece.replace(b" ", b"")
        if piece:
            self._drop = ""
        return piece[1:] if piece.startswith(b" ") else piece
