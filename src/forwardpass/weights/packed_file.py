"""Our own file format: a JSON head, then packed matrices as the kernels read them. Cache files and packed models are in
it.

    0   16 bytes  magic
    16  uint32    version of this format
    20  uint64    bytes of the head
    28  32 bytes  SHA-256 of the head
    60  the head, UTF-8 JSON; then zeros up to a multiple of 4096
    then the data, whose meaning the head gives

Numbers are little-endian. Data begin on a page, so a file can be mapped; we read it, to have it in huge pages.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from forwardpass.errors import UnsupportedModelError
from forwardpass.weights.source import damaged

MAGIC = b"forwardpass pack"
VERSION = 1
PAGE = 4096
PIECE = 8 << 20
"""Data are read and checked in pieces of this size, several at a time."""
MAX_HEAD = 64 << 20
_START = struct.Struct("<16sIQ32s")


def beginning(head: dict[str, Any]) -> bytes:
    """Everything before the data."""
    text = json.dumps(head, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    whole = _START.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text
    return whole + bytes(-len(whole) % PAGE)


def is_packed(path: Path) -> bool:
    """Whether a file begins as ours do. Never raises."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_head(path: Path) -> tuple[dict[str, Any], int, int]:
    """(head, first byte of the data, bytes of the data). Raises ModelFileError or UnsupportedModelError."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_START.size)
            if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
                raise damaged(path, "a packed model", "another kind of file", "name a file that quantize wrote")
            _, version, length, digest = _START.unpack(start)
            if version != VERSION:
                raise UnsupportedModelError(f"{path}: the file has version {version}, this program reads version "
                                            f"{VERSION}; quantize the source again with this program")
            if length > min(MAX_HEAD, size - _START.size):
                raise damaged(path, f"a head of at most {min(MAX_HEAD, size - _START.size)} bytes", f"{length} bytes",
                              "copy the file again")
            text = file.read(length)
            first = -(-(_START.size + length) // PAGE) * PAGE
            padding = file.read(first - _START.size - length)
    except OSError as error:
        raise damaged(path, "a readable file", f"an error: {error.strerror or error}", "check the disk") from None
    if hashlib.sha256(text).digest() != digest or padding.strip(b"\0"):
        raise damaged(path, "the head that was written", "other bytes (its checksum differs)", "copy the file again")
    try:
        head = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "a head of JSON", str(error)[:100], "quantize the source again") from None
    if not isinstance(head, dict):
        raise damaged(path, "a head that is an object", f"a {type(head).__name__}", "quantize the source again")
    if size < first:
        raise damaged(path, f"at least {first} bytes", f"{size} bytes", "copy the file again")
    return head, first, size - first


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def fill(file: int, first: int, out: np.ndarray, threads: int, check: Callable[[int, memoryview], bool] | None = None,
         progress: Callable[[int, int], None] | None = None) -> bool:
    """Read `out` (uint8) from byte `first` of an open file, in parallel. False where bytes are missing, or where
    check(number of the piece, its bytes) is."""
    view, done = memoryview(out), 0

    def piece(at: int) -> bool:
        part = view[at : at + PIECE]
        return os.preadv(file, [part], first + at) == len(part) and (check is None or check(at // PIECE, part))

    with ThreadPoolExecutor(threads) as pool:
        for good in pool.map(piece, range(0, out.size, PIECE)):
            if not good:
                return False
            done = min(done + PIECE, out.size)
            if progress:
                progress(done, out.size)
    return True


def digests(data: np.ndarray, threads: int) -> list[str]:
    """SHA-256 of each piece, in hexadecimal."""
    view = memoryview(data)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda at: hashlib.sha256(view[at : at + PIECE]).hexdigest(), range(0, data.size, PIECE)))


def write(path: Path, parts: Sequence[bytes | np.ndarray], progress: Callable[[int, int], None] | None = None,
          sync: bool = False) -> None:
    """Write a file beside its place, then rename it: `path` is whole or untouched. Raises OSError.

    sync: do not return before the disk has it.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    total, done = sum(len(part) for part in parts), 0
    try:
        with open(half, "wb") as file:
            for part in _pieces(parts):
                file.write(part)
                done += len(part)
                if progress:
                    progress(done, total)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(half, path)
    except BaseException:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise


def _pieces(parts: Iterable[bytes | np.ndarray]) -> Iterable[memoryview]:
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), PIECE):
            yield view[at : at + PIECE]

