"""A model's packed weights kept in the user's cache directory, so that the next start reads instead of repacking.

One file a (source, dtype), in the format of packed_file.py: its head holds a hash of everything the bytes depend on,
its data are the arena as the kernels read it. A file whose head differs is ignored and replaced. Failing to write it (a
full disk, a read-only home) costs only the time of the next start. The oldest files go when together they exceed
`MAX_TOTAL`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from forwardpass.weights import packed_file

LAYOUT = 2
"""Counts up whenever a kernel layout or the order of the arena changes."""
MIN_BYTES = 8 << 20
"""Smaller models are packed faster than their cache file is found."""
MAX_TOTAL = 32 << 30
_TEXT = ".vocabulary"


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
        start = packed_file.beginning(_head(key))
        if os.fstat(file).st_size != len(start) + arena.size or os.pread(file, len(start), 0) != start:
            return False
        whole = packed_file.fill(file, len(start), arena, threads)
        os.utime(path)
        return whole
    except OSError:
        return False
    finally:
        os.close(file)


def write(directory: Path, key: str, arena: np.ndarray) -> None:
    """Keep `arena` for next time, atomically. Never raises for a disk that does not want it."""
    path = _place(directory, key)
    with suppress(OSError):
        _keep(path, key, arena)
        _trim(path.parent, path)


def read_text(directory: Path, key: str) -> str | None:
    """The text kept beside the packed file for `key` (a vocabulary ready to load), None if there is none that fits."""
    try:
        kept = _place(directory, key).with_suffix(_TEXT).read_bytes()
    except OSError:
        return None
    start = packed_file.beginning(_head(key))
    return kept[len(start) :].decode("utf-8", "replace") if kept.startswith(start) else None


def write_text(directory: Path, key: str, text: str) -> None:
    """Keep `text` for next time, atomically. Never raises for a disk that does not want it."""
    with suppress(OSError):
        _keep(_place(directory, key).with_suffix(_TEXT), key, text.encode())


def packed_bytes(directory: Path, key: str) -> int:
    """Size of the packed file for `key`, 0 if there is none. Benchmarks subtract it from the memory of a process."""
    try:
        return _place(directory, key).stat().st_size
    except OSError:
        return 0


def _head(key: str) -> dict[str, str]:
    return {"cache": hashlib.sha256(key.encode()).hexdigest()}


def _keep(path: Path, key: str, data: bytes | np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    packed_file.write(path, [packed_file.beginning(_head(key)), data])


def _trim(folder: Path, newest: Path) -> None:
    files = sorted((f for f in folder.glob("*.fpk") if f != newest), key=lambda f: f.stat().st_mtime, reverse=True)
    total = newest.stat().st_size
    for file in files:
        total += file.stat().st_size
        if total > MAX_TOTAL:
            file.unlink(missing_ok=True)
            file.with_suffix(_TEXT).unlink(missing_ok=True)
