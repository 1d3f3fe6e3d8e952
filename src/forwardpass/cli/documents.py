"""Whole documents from files, standard input or the command line itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ParameterError

_LIKE_A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z]\w{0,4}")


def input_documents(words: Sequence[str] | None) -> list[str]:
    """A document each: the contents of a file of that name, standard input for "-", and of any other word the word
    itself. Without words, standard input. ParameterError for what looks like a file and is none, and for blanks."""
    found = [_document(word) for word in words or ["-"]]
    for word, text in zip(words or ["standard input"], found, strict=True):
        if not text.strip():
            raise ParameterError(f"{word[:80]}: expected text, found nothing but blanks")
    return found


def _document(word: str) -> str:
    try:
        if word == "-":
            if sys.stdin.isatty():
                raise ParameterError("expected a text, a file or - with something piped in, found nothing")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        if len(word) < 4096 and "\0" not in word and "\n" not in word and Path(word).is_file():
            return Path(word).read_bytes().decode("utf-8-sig")
        word.encode("utf-8")  # bytes that are not UTF-8 arrive in sys.argv as lone surrogates
    except (OSError, UnicodeError) as error:
        raise ParameterError(f"{word[:80]}: expected readable UTF-8 text, found: {error}") from None
    if _LIKE_A_FILE.fullmatch(word):
        raise ParameterError(f"there is no file {word[:200]}; check the path, or write the text in more than one word")
    return word
