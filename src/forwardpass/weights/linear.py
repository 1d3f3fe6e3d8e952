"""A quantised linear layer of a Hugging Face checkpoint, and checked access to the tensors it is stored in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.source import Source

Rows = tuple[np.ndarray, np.ndarray, np.ndarray | int]
"""codes [rows, k], scales float32 [rows, groups], zeros int32 [rows, groups] or 0: weight = (code - zero) * scale."""

_INTEGERS = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Linear:
    """One quantised matrix [outputs, inputs]: what stands in for `name`.weight.

    type: a row type of repack.py;  group_of: int32 [inputs], the group of each column;  rows(first, last): a multiple
    of 32 outputs, or the last ones;  parts: the tensors it is stored in, which are hidden.
    """

    name: str
    shape: tuple[int, int]
    type: str
    group_of: np.ndarray
    rows: Callable[[int, int], Rows]
    parts: tuple[str, ...]


class Settings:
    """`quantization_config`: values that are checked when they are asked for."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self.values = path, values

    def wrong(self, name: str, expected: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: quantization_config: {name}: expected {expected}, found "
                             f"{_short(self.values.get(name))}; fix config.json or fetch the model again")

    def unsupported(self, name: str, known: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.path}: quantization_config: {name} = {_short(self.values.get(name))} is "
                                    f"not supported; known: {known}; use a conversion to one of these")

    def choice(self, name: str, known: tuple, default: Any = None) -> Any:
        """One of `known`, compared without regard to case."""
        value = self.values.get(name, default)
        value = value.lower() if isinstance(value, str) else value
        if (type(value), value) not in [(type(one), one) for one in known]:  # 4.0 is not 4: it cannot count bits
            self.unsupported(name, ", ".join(map(str, known)))
        return value

    def group_size(self, default: int = -1) -> int:
        """Columns that share a scale; -1 = all."""
        value = self.values.get("group_size", default)
        value = -1 if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or (value != -1 and not 1 <= value < 1 << 24):
            self.wrong("group_size", "-1 or a number of columns")
        return value


class Tensors:
    """The tensors of a checkpoint as typed arrays."""

    def __init__(self, source: Source):
        self.source = source

    def need(self, name: str, types: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> tuple[int, ...]:
        """The shape of a tensor that must be there, of one of these types and of this shape (None = any size but 0)."""
        info = self.source.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.source.path}: expected the tensor {name} of a quantised layer, found none; "
                                 "fetch the model again")
        if info.type not in types:
            self.wrong(name, f"type {' or '.join(types)}", info.type)
        fits = shape is None or (len(info.shape) == len(shape) and all(
            found > 0 if wanted is None else wanted == found for wanted, found in zip(shape, info.shape, strict=True)))
        if not fits:
            self.wrong(name, f"shape {[('any' if size is None else size) for size in shape]}", list(info.shape))
        return info.shape

    def wrong(self, name: str, expected: str, found: object) -> NoReturn:
        raise ModelFileError(f"{self.source.path}: tensor {name}: expected {expected}, found {found}; the layer and "
                             "its quantization_config do not fit together: fetch the model again")

    def has(self, name: str) -> bool:
        return name in self.source.tensors

    def integers(self, name: str) -> np.ndarray:
        """An integer tensor; packed words (I32) come as uint32."""
        info = self.source.tensors[name]
        kind = np.dtype(np.uint32 if info.type == "I32" else _INTEGERS[info.type]).newbyteorder("<")
        return self.source.raw(name).view(kind).reshape(info.shape)

    def floats(self, name: str) -> np.ndarray:
        """float32, a copy."""
        info = self.source.tensors[name]
        return dequantize(info.type, self.source.raw(name), info.shape)


FLOATS = _FLOATS


def modules_with(source: Source, suffix: str) -> list[str]:
    """Names of the modules that have a tensor of this name, in the file's order."""
    return [name.removesuffix("." + suffix) for name in source.tensors if name.endswith("." + suffix)]


def columns(group_size: int, k: int) -> np.ndarray:
    """int32 [k]: the group of each column."""
    return np.arange(k, dtype=np.int32) // (k if group_size == -1 else group_size)


def check_groups(tensors: Tensors, name: str, group_size: int, k: int) -> int:
    """The number of groups; ModelFileError where the columns do not make whole groups."""
    size = k if group_size == -1 else group_size
    if k % size:
        tensors.wrong(name, f"inputs in whole groups of {size} (group_size)", f"{k} inputs")
    return k // size


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
