"""Builders of model files, valid and hostile, byte by byte, and a watch over what reading them costs."""

from __future__ import annotations

import gc
import json
import struct
import time
import tracemalloc
from typing import ClassVar

import pytest

from forwardpass.errors import ForwardpassError


class GgufBytes:
    """Pieces of a GGUF file, written by hand so that each can be wrong."""

    TYPES: ClassVar = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10}
    TYPES |= {"i64": 11, "f64": 12, "string": 8, "array": 9}
    FORMATS: ClassVar = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "B"}
    FORMATS |= {"u64": "Q", "i64": "q", "f64": "d"}

    @staticmethod
    def u32(value: int) -> bytes:
        return struct.pack("<I", value)

    @staticmethod
    def u64(value: int) -> bytes:
        return struct.pack("<Q", value)

    def string(self, text: str | bytes) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode()
        return self.u64(len(raw)) + raw

    def value(self, kind: str, value) -> bytes:
        return self.string(value) if kind == "string" else struct.pack("<" + self.FORMATS[kind], value)

    def pair(self, key: str | bytes, kind: str, value) -> bytes:
        return self.string(key) + self.u32(self.TYPES[kind]) + self.value(kind, value)

    def array(self, kind: str, values, count: int | None = None) -> bytes:
        """An array's type, count and items; nested arrays are given as bytes."""
        items = b"".join(values) if kind == "array" else b"".join(self.value(kind, value) for value in values)
        return self.u32(self.TYPES[kind]) + self.u64(len(values) if count is None else count) + items

    def array_pair(self, key: str, kind: str, values, count: int | None = None) -> bytes:
        return self.string(key) + self.u32(9) + self.array(kind, values, count)

    def tensor(
        self, name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None
    ) -> bytes:
        head = self.string(name) + self.u32(len(dims) if n_dims is None else n_dims)
        return head + b"".join(map(self.u64, dims)) + self.u32(kind) + self.u64(offset)

    def file(
        self,
        pairs=(),
        tensors=(),
        data: bytes = b"",
        *,
        magic: bytes = b"GGUF",
        version: int = 3,
        n_pairs: int | None = None,
        n_tensors: int | None = None,
        alignment: int = 32,
    ) -> bytes:
        head = magic + self.u32(version)
        head += self.u64(len(tensors) if n_tensors is None else n_tensors)
        head += self.u64(len(pairs) if n_pairs is None else n_pairs)
        head += b"".join(pairs) + b"".join(tensors)
        if tensors:
            head += bytes(-len(head) % alignment)
        return head + data


@pytest.fixture(scope="session")
def gguf_bytes() -> GgufBytes:
    return GgufBytes()


@pytest.fixture(scope="session")
def safetensors_bytes():
    def build(header, data: bytes = b"", length: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    return build


@pytest.fixture(scope="session")
def refuses():
    """refuses(open, path, match) checks that opening fails with our error, in under a second and little memory."""

    def check(opener, path, match=None, expected: type[Exception] = ForwardpassError, megabytes: float = 4.0) -> str:
        gc.disable()  # a collection would count as time of the opener
        tracemalloc.start()
        started = time.perf_counter()
        try:
            with pytest.raises(expected, match=match) as caught:
                opener(path)
            seconds = time.perf_counter() - started
            peak = tracemalloc.get_traced_memory()[1] / 1e6
        finally:
            tracemalloc.stop()
            gc.enable()
        assert seconds < 1 and peak < megabytes, f"{seconds:.2f} s, {peak:.1f} MB"
        return str(caught.value)

    return check
