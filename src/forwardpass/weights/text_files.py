"""The text and JSON files beside a checkpoint's weights."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import ModelFileError

_MOST = 256 * 2**20


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
