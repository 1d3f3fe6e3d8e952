"""The text and JSON files beside a checkpoint's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..errors import ModelFileError

_MOST = 256 * 2**20
MAX_HOLES = 1 << 16
"""Ids that no token has, up to the greatest id: a vocabulary with more is damaged, and would cost memory."""


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST:
            raise ModelFileError(f"{path} has {path.stat().st_size} bytes; expected at most {_MOST}.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error


def read_object(path: Path) -> dict:
    """The object in a JSON file; {} when there is no such file."""
    if not path.is_file():
        return {}
    return _read(path, dict, "object")


def read_list(path: Path) -> list:
    """The list in a JSON file. Raises ModelFileError, also where there is no file."""
    return _read(path, list, "list")


def _read(path: Path, kind: type, called: str):
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise ModelFileError(f"{path}: expected a JSON {called}, found {type(value).__name__}.")
    return value


def numbered(vocab: Mapping[str, object], path: Path) -> list[str]:
    """The tokens of {token: id} by id, holes filled with names of their own. path: of the file, for errors."""
    ids = list(vocab.values())
    most = len(ids) + MAX_HOLES
    if not ids or not all(type(i) is int and 0 <= i < most for i in ids) or len(set(ids)) != len(ids):
        raise ModelFileError(f"{path}: expected every token with an id of its own, below {most}; fetch it again.")
    tokens = [f"[EMPTY_{i}]" for i in range(max(ids) + 1)]
    for token, i in vocab.items():
        tokens[i] = token
    return tokens
