"""A model's packed weights kept in the user's cache directory, so that the next start reads instead of repacking.

One file a (source, dtype): a header line, then the arena as the kernels read it. The header holds everything the bytes
depend on; a file whose header differs is ignored and replaced. Failing to write it (a full disk, a read-only home)
costs only the time of the next start. The oldest files go when together they exceed `MAX_TOTAL`.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

LAYOUT = 2
"""Counts up whenever a kernel layout or the order of the arena changes."""
MIN_BYTES = 8 << 20
"""Smaller models are packed faster than their cache file is found."""
MAX_TOTAL = 32 << 30
_HEADER = 4096
_TEXT = ".vocabulary"
_PIECE = 8 << 20


def source_key(files: Iterable[Path], dtype: str) -> str:
    """Names the packed form of these files: changes when a file's path, size or time of change does."""
    facts = []
    for file in files:
        status = file.stat()
        facts.append([str(file.resolve()), status.st_size, status.st_mtime_ns])
    return json.dumps({"layout": LAYOUT, "dtype": dtype, "files": facts})


def _place(directory: Path, key: str) -> Path:
    return directory / "packed" / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".fpk")


def read(directory: Path, key: str, arena: np.ndarray, threads: int) -> bool:
    """Fill `arena` (uint8) from the packed file for `key`; False if there is none that fits."""
    path = _place(directory, key)
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        if os.fstat(file).st_size != _HEADER + arena.size or os.pread(file, _HEADER, 0) != _header(key):
            return False
        view = memoryview(arena)

        def fill(at: int) -> bool:
            return os.preadv(file, [view[at : at + _PIECE]], _HEADER + at) == min(_PIECE, arena.size - at)

        with ThreadPoolExecutor(threads) as pool:
            whole = all(pool.map(fill, range(0, arena.size, _PIECE)))
        os.utime(path)
        return whole
    except OSError:
        return False
    finally:
        os.close(file)


def write(directory: Path, key: str, arena: np.ndarray) -> None:
    """Keep `arena` for next time, atomically. Never raises for a disk that does not want it."""
    path = _place(directory, key)
    if _keep(path, _header(key), memoryview(arena)):
        with suppress(OSError):
            _trim(path.parent, path)


def read_text(directory: Path, key: str) -> str | None:
    """The text kept beside the packed file for `key` (a vocabulary ready to load), None if there is none that fits."""
    try:
        kept = _place(directory, key).with_suffix(_TEXT).read_bytes()
    except OSError:
        return None
    return kept[_HEADER:].decode("utf-8", "replace") if kept[:_HEADER] == _header(key) else None


def write_text(directory: Path, key: str, text: str) -> None:
    """Keep `text` for next time, atomically. Never raises for a disk that does not want it."""
    _keep(_place(directory, key).with_suffix(_TEXT), _header(key), text.encode())


def packed_bytes(directory: Path, key: str) -> int:
    """Size of the packed file for `key`, 0 if there is none."""
    try:
        return _place(directory, key).stat().st_size
    except OSError:
        return 0


def _header(key: str) -> bytes:
    return (b"forwardpass packed\n" + hashlib.sha256(key.encode()).hexdigest().encode()).ljust(_HEADER, b"\0")


def _keep(path: Path, *parts: bytes | memoryview) -> bool:
    half = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(half, "wb") as file:
            for part in parts:
                file.write(part)
        os.replace(half, path)
        return True
    except OSError:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        return False


def _trim(folder: Path, newest: Path) -> None:
    files = sorted((f for f in folder.glob("*.fpk") if f != newest), key=lambda f: f.stat().st_mtime, reverse=True)
    total = newest.stat().st_size
    for file in files:
        total += file.stat().st_size
        if total > MAX_TOTAL:
            file.unlink(missing_ok=True)
            file.with_suffix(_TEXT).unlink(missing_ok=True)
