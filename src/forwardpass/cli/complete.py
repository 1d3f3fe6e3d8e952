"""`forwardpass complete FILE --at LINE:COL`: what belongs at the cursor of a source file."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ParameterError
from .output import print_json
from .run import as_record, given, load, stream_out

MOST_BYTES = 64 << 20
"""Largest file that is read: of a larger one no more than a context's worth around the cursor could matter."""


def run(file, at, model, dtype, kv_dtype, threads, prefix_only, context_tokens, json, **sampling) -> int:
    text = read_source(file)
    prefix, suffix = cut(text, at, file)
    with load(model, dtype, kv_dtype, threads) as loaded:
        params = {**given(sampling), "context_tokens": context_tokens}
        after = None if prefix_only else suffix or None  # at the end of a file there is no middle
        if json:
            print_json(as_record(loaded.complete(prefix, after, **params)))
            return 0
        return stream_out(lambda: loaded.complete(prefix, after, stream=True, **params))


def read_source(file: str) -> str:
    """The file's text, or all of stdin for "-". ParameterError if it can't be read or is not UTF-8."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            if not Path(file).is_file():
                raise ParameterError(f"{file}: expected a source file, found none; check the path")
            with open(file, "rb") as opened:
                raw = opened.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ParameterError(f"{file}: expected at most {MOST_BYTES >> 20} MiB of text; cut out the part around "
                                 "the cursor")
        return raw.decode("utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{file}: expected readable UTF-8 text, found: {error}") from None


def cut(text: str, at: str | None, file: str) -> tuple[str, str]:
    """(before, after) the cursor at "LINE:COL", both counted from 1; a column just behind the line's last character is
    its end. Without `at` the cursor is at the end of the text."""
    if at is None:
        return text, ""
    line, _, column = at.partition(":")
    if not (line.isdecimal() and column.isdecimal() and line.isascii() and column.isascii()
            and max(len(line), len(column)) < 10):
        raise ParameterError(f"--at must be LINE:COL, two numbers counted from 1, not {at[:50]!r}")
    lines = text.splitlines(keepends=True) or [""]
    if text.endswith(("\n", "\r")):
        lines.append("")  # the cursor may stand on the empty line behind the last line's end
    if not 1 <= int(line) <= len(lines):
        raise ParameterError(f"--at {at}: {file} has {len(lines)} lines; expected a line from 1 to {len(lines)}")
    width = len(lines[int(line) - 1].rstrip("\r\n"))
    if not 1 <= int(column) <= width + 1:
        raise ParameterError(f"--at {at}: line {line} has {width} characters; expected a column from 1 to {width + 1}")
    place = sum(map(len, lines[: int(line) - 1])) + int(column) - 1
    return text[:place], text[place:]
