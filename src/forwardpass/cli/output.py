"""What every command prints with: JSON, tables, the status line, and text that cannot harm a terminal."""

from __future__ import annotations

import sys


def escape(text: str, keep: str = "") -> str:
    """Control and formatting characters as \\x1b, \\u202e, ...: a model file must not steer the terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    return escape(" ".join(text.splitlines()))


def answer_text(text: str) -> str:
    """Generated text as it goes to stdout: escape sequences are defused on a terminal, kept for a program."""
    if text.isprintable() or not sys.stdout.isatty():
        return text
    # Joiners and marks of emoji and scripts are no escape sequences: only C0 and C1 controls are replaced.
    return "".join(
        c if c in "\n\t" or not (c < " " or "\x7f" <= c <= "\x9f") else c.encode("unicode_escape").decode()
        for c in text
    )


def write(text: str) -> None:
    """To stdout at once. Characters that its encoding lacks become '?', never an exception."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def print_json(value) -> None:
    import json

    write(json.dumps(value, allow_nan=False, default=_plain) + "\n")


def _plain(value):
    """NumPy scalars and arrays, paths and sets inside JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def print_table(columns: list[str], rows: list[list]) -> None:
    """A table for people; when stdout is no terminal, plain aligned columns that grep and cut can use."""
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    lines = [columns, *cells] if any(columns) else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def status_line(prompt_tokens: int, new_tokens: int, first_token_s: float, seconds: float) -> str:
    """The line after an answer. The rate leaves out the first token, whose time is the prompt's."""
    line = f"{prompt_tokens} prompt tokens, {new_tokens} new tokens, first token after {first_token_s:.3f} s"
    rate = rate_after_first(new_tokens, first_token_s, seconds)
    return line if rate is None else f"{line}, {rate:.1f} tokens/s"


def rate_after_first(new_tokens: int, first_token_s: float, seconds: float) -> float | None:
    """Tokens a second after the first token, or None when there is no second one."""
    return (new_tokens - 1) / (seconds - first_token_s) if new_tokens > 1 and seconds > first_token_s else None


def size(nbytes: int) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
