"""Reads what an ONNX file stores: its tensors, and which operation uses each (https://onnx.ai/onnx/repo-docs/IR.html).

Only the parts of the protocol-buffer encoding that this needs, strictly: every length is checked against what holds
it, and nothing is allocated for what a file merely claims. The graph itself is not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forwardpass.errors import UnsupportedModelError
from forwardpass.weights.source import MappedFile, damaged

ELEMENTS = {1: ("F32", 4), 2: ("U8", 1), 3: ("I8", 1), 6: ("I32", 4), 7: ("I64", 8), 9: ("BOOL", 1), 10: ("F16", 2),
            11: ("F64", 8), 16: ("BF16", 2)}
"""TensorProto.DataType -> (our name, bytes of an element)."""
_NUMPY = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64,
          "BOOL": np.bool_, "F64": np.float64, "BF16": np.uint16}
_TYPED = {4: 4, 5: 4, 7: 8, 10: 8}
"""Fields of a tensor that hold its values as typed numbers instead of raw bytes: the element's size there."""
MOST_TENSORS = 200_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor: element type and shape, and its bytes in the file. values: small ones, read already."""

    name: str
    element: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    values: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the graph: its kind, path-like name, inputs, outputs, and whether Gemm's transB is set."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    transposed: bool


class OnnxFile:
    """tensors: by name;  nodes: in the graph's order."""

    def __init__(self, path: Path):
        self.path = path
        self.file = MappedFile(path)
        try:
            self._data = memoryview(self.file.view(0, self.file.size))
            self.tensors: dict[str, Stored] = {}
            self.nodes: list[Node] = []
            for field, start, end, _ in self._fields(0, self.file.size):
                if field == 7:
                    self._read_graph(start, end)
            if not self.tensors:
                raise damaged(path, "an ONNX graph with tensors", "none")
        except BaseException:
            self.close()
            raise

    def array(self, stored: Stored) -> np.ndarray:
        """The values as stored, a read-only view where the file holds them as bytes. BF16 as uint16."""
        if stored.values is not None:
            return stored.values
        kind = np.dtype(_NUMPY[stored.element])
        return self.file.view(stored.start, stored.nbytes).view(kind).reshape(stored.shape)

    def close(self) -> None:
        self._data = memoryview(b"")
        self.file.close()

    # ---- the encoding: fields of (number, kind of value), each with a number or a run of bytes

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """(field number, first byte, past the last, value): bytes for fields of bytes, else an empty run."""
        while at < end:
            key, at = self._varint(at, end)
            kind = key & 7
            if kind == 0:
                value, at = self._varint(at, end)
                yield key >> 3, at, at, value
            elif kind == 2:
                size, at = self._varint(at, end)
                self._inside(size, at, end)
                yield key >> 3, at, at + size, 0
                at += size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                self._inside(size, at, end)
                yield key >> 3, at, at + size, 0
                at += size
            else:
                raise damaged(self.path, "an ONNX file", f"an unknown kind of field ({kind}) at byte {at}")

    def _inside(self, size: int, at: int, end: int) -> None:
        if size > end - at:
            raise damaged(self.path, f"at most {end - at} bytes in a field at byte {at}", f"{size}")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1, at
            shift += 7
        raise damaged(self.path, "an ONNX file", f"a number without an end at byte {at}")

    def _text(self, start: int, end: int) -> str:
        if end - start > 4096:
            raise damaged(self.path, "names of at most 4096 bytes", f"one of {end - start}")
        return bytes(self._data[start:end]).decode("utf-8", "replace")

    # ---- the messages

    def _read_graph(self, at: int, end: int) -> None:
        for field, start, stop, _ in self._fields(at, end):
            if field == 1:
                self.nodes.append(self._node(start, stop))
            elif field == 5:
                one = self._tensor(start, stop)
                if one.name in self.tensors:
                    raise damaged(self.path, "tensors with names of their own", f"{one.name[:80]!r} twice")
                self.tensors[one.name] = one
            if len(self.tensors) > MOST_TENSORS or len(self.nodes) > 10 * MOST_TENSORS:
                raise damaged(self.path, f"at most {MOST_TENSORS} tensors", "more")

    def _node(self, at: int, end: int) -> Node:
        inputs, outputs, name, kind, transposed = [], [], "", "", False
        for field, start, stop, _ in self._fields(at, end):
            if field == 1:
                inputs.append(self._text(start, stop))
            elif field == 2:
                outputs.append(self._text(start, stop))
            elif field == 3:
                name = self._text(start, stop)
            elif field == 4:
                kind = self._text(start, stop)
            elif field == 5:
                transposed = transposed or self._is_set(start, stop, "transB")
        return Node(kind, name, tuple(inputs), tuple(outputs), transposed)

    def _is_set(self, at: int, end: int, wanted: str) -> bool:
        """Whether this attribute is the wanted one and not 0."""
        name, number = "", 0
        for field, start, stop, value in self._fields(at, end):
            if field == 1:
                name = self._text(start, stop)
            elif field == 3:
                number = value
        return name == wanted and number != 0

    def _tensor(self, at: int, end: int) -> Stored:
        name, kind, shape, runs, lone = "", 0, [], {}, []
        for field, start, stop, value in self._fields(at, end):
            if field == 1:
                shape += [value] if start == stop else self._numbers(start, stop)
            elif field == 2:
                kind = value
            elif field == 8:
                name = self._text(start, stop)
            elif field in (9, *_TYPED):
                if start == stop and field != 9:  # one number a field, the old spelling of a list
                    lone.append(value)
                runs[field] = (start, stop)
            elif field in (13, 14) and (field == 13 or value):
                raise UnsupportedModelError(f"{self.path}: tensor {name[:80]!r} lies in a file of its own, which is "
                                            "not supported; export the model as a single file")
            if len(shape) > 8:
                raise damaged(self.path, "tensors of at most 8 axes", f"more in {name[:80]!r}")
        if kind not in ELEMENTS:
            known = ", ".join(name for name, _ in ELEMENTS.values())
            raise UnsupportedModelError(f"{self.path}: tensor {name[:80]!r} has ONNX type {kind}; supported are "
                                        f"{known}; export it in one of them")
        element, size = ELEMENTS[kind]
        count = math.prod(shape)
        if 9 in runs:
            start, stop = runs[9]
            if stop - start != count * size:
                raise damaged(self.path, f"{count * size} bytes in tensor {name[:80]!r}, {element} {shape}",
                              f"{stop - start}")
            return Stored(name, element, tuple(shape), start, stop - start)
        values = self._typed(element, runs, lone)
        if values.size != count:
            raise damaged(self.path, f"{count} values in tensor {name[:80]!r} {shape}", str(values.size))
        return Stored(name, element, tuple(shape), 0, values.nbytes, values.reshape(shape))

    def _typed(self, element: str, runs: dict[int, tuple[int, int]], lone: list[int]) -> np.ndarray:
        """Values in float_data (4), int32_data (5), int64_data (7) or double_data (10)."""
        kind = np.dtype(_NUMPY[element])
        field = next((field for field in _TYPED if field in runs), None)
        if field is None:
            return np.empty(0, kind)
        start, stop = runs[field]
        if field in (4, 10):
            if (stop - start) % _TYPED[field]:
                raise damaged(self.path, "whole numbers of values", f"{stop - start} bytes")
            raw = self.file.view(start, stop - start).view(np.float32 if field == 4 else np.float64)
            return raw.astype(kind)
        numbers = lone or self._numbers(start, stop)
        bits = np.array([number & 0xFFFFFFFFFFFFFFFF for number in numbers], np.uint64).view(np.int64)
        # Half-precision values are written as the integers of their bits.
        return bits.astype(np.uint16).view(kind) if element in ("F16", "BF16") else bits.astype(kind)

    def _numbers(self, start: int, stop: int) -> list[int]:
        numbers = []
        while start < stop:
            value, start = self._varint(start, stop)
            numbers.append(value)
        return numbers
