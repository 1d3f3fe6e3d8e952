"""The values inside a GGUF header: a bounds-checked cursor, and metadata whose arrays are decoded when first read.

Layout, all little-endian: a string is a uint64 byte count and UTF-8 bytes; an array is a uint32 item type, a uint64
count and the items.  https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.weights.source import damaged

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: ("uint8", "<u1"),
    1: ("int8", "<i1"),
    2: ("uint16", "<u2"),
    3: ("int16", "<i2"),
    4: ("uint32", "<u4"),
    5: ("int32", "<i4"),
    6: ("float32", "<f4"),
    7: ("bool", "|u1"),
    10: ("uint64", "<u8"),
    11: ("int64", "<i8"),
    12: ("float64", "<f8"),
}
TYPE_NAMES = {STRING: "string", ARRAY: "array"} | {number: name for number, (name, _) in SCALARS.items()}
MAX_DEPTH = 4
"""Arrays inside arrays: no known file has any, and a deep chain is an attack on the stack."""
MAX_INNER_ARRAYS = 65_536
WINDOW = 1 << 17
"""Bytes of a string array searched at a time, which bounds the memory of the search."""

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Cursor:
    """Reads forward through a buffer and never past its end."""

    def __init__(self, buffer: Any, path: Path):
        self.buffer = buffer
        self.path = path
        self.size = len(buffer)
        self.position = 0
        self.inner_arrays = 0

    def need(self, nbytes: int, what: str) -> None:
        left = self.size - self.position
        if nbytes > left:
            raise damaged(self.path, f"{nbytes} bytes of {what} at byte {self.position}", f"{left} bytes")

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.buffer, self.position)
        self.position += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.buffer, self.position)
        self.position += 8
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if limit is not None and length > limit:
            raise damaged(self.path, f"{what} of at most {limit} bytes", f"{length} bytes")
        self.need(length, what)
        raw = bytes(self.buffer[self.position : self.position + length])
        self.position += length
        return self._text(raw, what)

    def type_number(self, what: str) -> int:
        number = self.u32(f"the type of {what}")
        if number not in TYPE_NAMES:
            raise damaged(self.path, f"a value type from 0 to 12 for {what}", str(number))
        return number

    def scalar(self, number: int, what: str) -> bool | int | float | str:
        if number == STRING:
            return self.string(what)
        dtype = np.dtype(SCALARS[number][1])
        self.need(dtype.itemsize, what)
        value = np.frombuffer(self.buffer, dtype, 1, self.position)[0].item()
        self.position += dtype.itemsize
        if number == BOOL:
            if value > 1:
                raise damaged(self.path, f"0 or 1 for the boolean {what}", str(value))
            return bool(value)
        return value

    def array(self, what: str, decode: bool, depth: int = 1) -> Any:
        """Steps over one array (type, count, items); with `decode`, also returns it: a list of strings, a numpy
        array of numbers, or a list of such for nested arrays. Without it, nothing of the array's size is kept."""
        if depth > MAX_DEPTH:
            raise damaged(self.path, f"arrays nested at most {MAX_DEPTH} deep in {what}", "deeper nesting")
        number = self.type_number(f"the items of {what}")
        count = self.u64(f"the item count of {what}")
        if number == STRING:
            return self._strings(count, what, decode)
        if number == ARRAY:
            self.need(count * 12, f"{count} inner arrays of {what}")
            self.inner_arrays += count
            if self.inner_arrays > MAX_INNER_ARRAYS:
                raise damaged(self.path, f"at most {MAX_INNER_ARRAYS} inner arrays", f"more in {what}")
            inner = [self.array(what, decode, depth + 1) for _ in range(count)]
            return inner if decode else None
        dtype = np.dtype(SCALARS[number][1])
        self.need(count * dtype.itemsize, f"{count} items of {what}")
        start, self.position = self.position, self.position + count * dtype.itemsize
        if count == 0:
            return np.empty(0, np.bool_ if number == BOOL else dtype) if decode else None
        if number != BOOL and not decode:
            return None
        values = np.frombuffer(self.buffer, dtype, count, start)
        if number == BOOL:
            if values.max() > 1:
                raise damaged(self.path, f"0 or 1 for the booleans in {what}", str(values.max()))
            values = values.view(np.bool_)
        return values if decode else None

    def _strings(self, count: int, what: str, decode: bool) -> list[str] | None:
        self.need(count * 8, f"{count} strings of {what}")
        if not decode:
            for _, ends in self._spans(count, what):
                self.position = int(ends[-1])
            return None
        start = self.position
        spans = list(self._spans(count, what))
        if not spans:
            return []
        self.position = int(spans[-1][1][-1])
        # All texts are decoded at once. Where lengths are below 256 and texts hold no NUL, the only zeros are in the
        # length fields: they go, but for one before each text, which separates it from the text before.
        raw = np.frombuffer(self.buffer, np.uint8, self.position - start, start).copy()
        keep = raw != 0
        for begins, _ in spans:
            raw[begins - (start + 8)] = 0
            keep[begins - (start + 8)] = True
        kept = raw[keep]
        longest = max(int((ends - begins).max()) for begins, ends in spans)
        if longest < 256 and kept.size == raw.size - 7 * count:
            try:
                return kept.tobytes().decode("utf-8").split("\0")[1:]
            except UnicodeDecodeError:
                pass
        # A long text, a NUL in a text, or bytes that aren't UTF-8: one by one, so that an error can name its item.
        texts = []
        for begins, ends in spans:
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                texts.append(self._text(bytes(self.buffer[begin:end]), f"{what}, item {len(texts)}"))
        return texts

    def _spans(self, count: int, what: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """First byte and end of each of `count` strings from here on, some thousands at a time (int64 arrays).

        Each string's place depends on the lengths of all before it, so a plain loop would visit them one by one.
        `_guess` finds a whole window of short strings with array operations and proves the guess; where it fails
        (long or empty strings), some strings are visited singly, so that a hostile file gains nothing.
        """
        position = self.position
        while count:
            begins, ends = self._guess(position, count)
            if begins.size < 64:
                begins, ends = self._visit(position, min(count, 4096), what)
            yield begins, ends
            count -= begins.size
            position = int(ends[-1])

    def _guess(self, position: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """A length below 256 is one byte and seven zeros, and text rarely holds zeros. So each run of exactly seven
        zeros ends a length field:  02 00 00 00 00 00 00 00 h i 01 00 ...  -> fields at 0, 10, ...
        Proof: the first field is at `position`, and each next one is where the lengths put it."""
        window = np.frombuffer(self.buffer, np.uint8)[position : position + WINDOW]
        zeros = np.flatnonzero(window == 0)
        first = np.flatnonzero(np.diff(zeros, prepend=-2) != 1)
        fields = zeros[first] - 1
        if fields.size == 0 or fields[0] != 0:
            return fields[:0], fields[:0]
        fields = fields[:count]
        ends = fields + 8 + window[fields]
        proved = np.diff(first, append=zeros.size)[: fields.size] == 7
        proved[1:] &= fields[1:] == ends[:-1]
        proved &= ends <= window.size
        good = proved.size if proved.all() else int(np.argmin(proved))
        return fields[:good] + (position + 8), ends[:good] + position

    def _visit(self, position: int, count: int, what: str) -> tuple[np.ndarray, np.ndarray]:
        ends = np.empty(count, np.int64)
        begins = np.empty(count, np.int64)
        for index in range(count):
            begin = position + 8
            # Compared before it is added up, in Python's unbounded integers.
            length = _U64.unpack_from(self.buffer, position)[0] if begin <= self.size else 0
            if begin > self.size or length > self.size - begin:
                raise damaged(self.path, f"a string of {what} at byte {position}", "a string that passes the end")
            position = begin + length
            begins[index] = begin
            ends[index] = position
        return begins, ends

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"UTF-8 text in {what}", f"the bytes {raw[:32]!r} ({error.reason})") from None


class Metadata(Mapping[str, Any]):
    """GGUF metadata. Scalars and strings are Python values; arrays are kept as bytes and decoded on first access.

    An array of strings is a list of str, an array of numbers a read-only numpy array, nested arrays are lists.
    Reading an array whose strings aren't UTF-8 raises ModelFileError.
    """

    def __init__(self, path: Path):
        self._path = path
        self._values: dict[str, Any] = {}
        self._raw: dict[str, bytes] = {}
        self.types: dict[str, str] = {}

    def read_pair(self, cursor: Cursor) -> None:
        key = cursor.string("a metadata key", limit=65_535)
        what = f"metadata {key!r}"
        if not key:
            raise damaged(self._path, "a metadata key", "an empty key")
        if key in self.types:
            raise damaged(self._path, "every metadata key once", f"{key!r} twice")
        number = cursor.type_number(what)
        if number != ARRAY:
            self._values[key] = cursor.scalar(number, what)
            self.types[key] = TYPE_NAMES[number]
            return
        start = cursor.position
        cursor.array(what, decode=False)
        self._raw[key] = bytes(cursor.buffer[start : cursor.position])
        self.types[key] = f"array of {TYPE_NAMES[_U32.unpack_from(self._raw[key])[0]]}"

    def count(self, key: str) -> int:
        """Items of an array, without decoding it."""
        raw = self._raw.get(key)
        if raw is not None:
            return _U64.unpack_from(raw, 4)[0]
        value = self._values[key]
        if isinstance(value, list | np.ndarray):
            return len(value)
        raise ModelFileError(f"{self._path}: metadata {key!r} is a {self.types[key]}, not an array")

    def __getitem__(self, key: str) -> Any:
        raw = self._raw.get(key)
        if raw is None:
            return self._values[key]
        value = Cursor(raw, self._path).array(f"metadata {key!r}", decode=True)
        self._values[key] = value  # before the bytes go: another thread may be reading
        self._raw.pop(key, None)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def __contains__(self, key: object) -> bool:
        return key in self.types
