"""Text to measure perplexity on: the file FORWARDPASS_TEXT names, else the docstrings of the standard library."""

from __future__ import annotations

import ast
import inspect
import sysconfig
from pathlib import Path

from forwardpass import config

WINDOW = 512
"""Tokens scored together; the first of each window is not scored."""


def corpus() -> str:
    path = config.text_path()
    return docstrings() if path is None else path.read_text(encoding="utf-8", errors="replace")


def docstrings(least: int = 200) -> str:
    """Docstrings of the standard library's top-level modules, in order of file name, those of `least` characters up."""
    found = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= least:
                    found.append(inspect.cleandoc(text))
    return "\n\n".join(found)


def windows(tokenizer, count: int) -> list[list[int]]:
    """The corpus's first `count` tokens in windows of 512; a shorter last window is left out."""
    text = corpus()
    ids = tokenizer.encode(text[: 8 * count], add_special_tokens=False, parse_special=False)[:count]
    if len(ids) < count:
        raise ValueError(f"the text has {len(ids)} tokens, {count} are wanted")
    return [ids[i : i + WINDOW] for i in range(0, count - WINDOW + 1, WINDOW)]
