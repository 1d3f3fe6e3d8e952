"""What the commands that read texts have in common: where texts come from, and answers a line each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ParameterError
from .output import one_line, print_json, write
from .progress import Progress

AT_ONCE = 512
"""Texts that are worked on together: enough for full steps, and soon enough for the next line of output."""
LONGEST_SHOWN = 80
LINE_ENDS = re.compile("\r\n|\n|\r")
"""Not the rarer characters that str.splitlines also takes for ends of lines: they are part of a text."""


def input_texts(words: Sequence[str] | None, files: Sequence[str] | None, what: str = "text") -> list[str]:
    """The words themselves, then the lines of files; "-" stands for the lines of standard input, which are also read if
    nothing is named and something is piped in. Empty lines are left out. ParameterError where nothing remains."""
    texts: list[str] = []
    if not words and not files and not sys.stdin.isatty():
        words = ["-"]
    for word in words or ():
        if word == "-":
            texts += _lines("standard input", lambda: sys.stdin.buffer.read())
        else:
            try:
                word.encode("utf-8")  # bytes that are not UTF-8 arrive in sys.argv as lone surrogates
            except UnicodeError as error:
                raise ParameterError(f"the {what} must be UTF-8: {error}") from None
            texts.append(word)
    for file in files or ():
        texts += _lines(file, lambda file=file: _read(file))
    if not texts:
        raise ParameterError(f"expected at least one {what}, found none: name it, pass --file FILE with one a line, or "
                             "- for standard input")
    return texts


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    if not Path(file).is_file():
        raise ParameterError(f"{file}: expected a text file, found none; check the path")
    return Path(file).read_bytes()


def _lines(name: str, read: Callable[[], bytes]) -> list[str]:
    try:
        lines = LINE_ENDS.split(read().decode("utf-8-sig"))
        return [line for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{name}: expected readable UTF-8 text, found: {error}") from None


def answer_each(texts: Sequence, work: Callable[[Sequence], Sequence], show: Callable, *, what: str) -> None:
    """show(text, result) for each text, in order, as results come; work: some texts -> their results. what: said of the
    work while it goes on."""
    with Progress("texts") as progress:
        for at in range(0, len(texts), AT_ONCE):
            some = texts[at : at + AT_ONCE]
            for text, result in zip(some, work(some), strict=True):
                show(text, result)
            if len(texts) > AT_ONCE:
                progress(what, at + len(some), len(texts))


def check_top(top: int | None) -> None:
    """Before a model is loaded and all texts are read for it."""
    if top is not None and top < 1:
        raise ParameterError(f"--top must be at least 1, not {top}")


def shown(text: str | Sequence[str], longest: int = LONGEST_SHOWN) -> str:
    """A text or pair on one line, cut if it is long."""
    line = one_line(text) if isinstance(text, str) else " | ".join(map(one_line, text))
    return line if len(line) <= longest else line[: longest - 3] + "..."


def show_ranked(text, ranked: Sequence[tuple[str, float]], *, json: bool, alone: bool, kind: str = "text") -> None:
    """Labels with scores, best first. alone: there is no other text, so it need not be repeated. kind: what it is."""
    if json:
        print_json({**record(text, kind), "labels": [{"label": label, "score": score} for label, score in ranked]})
        return
    lines = [] if alone else [shown(text)]
    lines += [f"{'' if alone else '    '}{score:.4f}  {one_line(label)}" for label, score in ranked]
    write("\n".join(lines) + "\n")


def record(text: str | Sequence[str], kind: str = "text") -> dict:
    return {kind: text} if isinstance(text, str) else {"pair": list(text)}


def load(model: str | None, command: str, kind: str, dtype: str, threads: int | None):
    """The model, with progress while it is fetched. kind: of model that is wanted, said where none is named."""
    from .run import load as load_model

    if model is None:
        raise ParameterError(f"{command} needs a model: name {kind} with --model, a directory, a file or hf:org/name")
    return load_model(model, dtype, "auto", threads)


def given(options: dict) -> dict:
    """Only what the user said: everything else is the library's default."""
    return {name: value for name, value in options.items() if value is not None}
