"""Packed models: one file that holds a whole model, written by `quantize` and read back without any other file.

The head (see weights/packed_file.py) says what the data are: the arena of packed matrices, then the vectors as float32,
then the tokenizer's text. The head's checksum is checked always. Every piece of the arena and the rest has its own, and
all are checked whenever the model is loaded, by the threads that read: a flipped bit is an error, never another answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from forwardpass.backends import native
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import spec_json
from forwardpass.models.fields import show
from forwardpass.models.loading import Arena, Place, agree, lay_out, region_for
from forwardpass.models.spec import MAX_SIZE, ModelSpec
from forwardpass.models.task_settings import TaskSettings, read_task_settings
from forwardpass.models.weight_rows import HEAD, BoundRow, WeightRow, is_matrix, targets
from forwardpass.quant.formats import DTYPES
from forwardpass.weights import packed_file
from forwardpass.weights.packed import LAYOUT
from forwardpass.weights.source import TensorInfo, damaged

AGAIN = "quantize the source again"


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What the head of a packed model says.

    dtype: what it was packed as;  places: of the matrices in the arena;  vectors: target -> shape of what else there
    is;  generation: the settings of generation_config;  tokenizer: bytes of its text, 0 = none;  stored: target ->
    bytes of that tensor in the source's own format;  settings: how it makes vectors and what its labels are called.
    """

    path: Path
    dtype: str
    spec: ModelSpec
    places: tuple[Place, ...]
    vectors: Mapping[str, tuple[int, ...]]
    generation: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    tokenizer: int
    stored: Mapping[str, int]
    digests: tuple[str, ...]
    start: int
    arena_bytes: int
    rest_bytes: int
    settings: TaskSettings

    def tensors(self) -> list[TensorInfo]:
        """The matrices, each with its kernel layout as its type, and the vectors."""
        found = [TensorInfo(one.bound.target, one.bound.row.shape, one.format, one.nbytes) for one in self.places]
        return found + [TensorInfo(name, shape, "F32", 4 * prod(shape)) for name, shape in self.vectors.items()]

    def read(self, backend: native.NativeBackend, progress: Callable[[int, int], None] | None = None) -> Arena:
        """All weights. Raises ModelFileError if a byte is not what was written, CapacityError if they don't fit into
        memory."""
        region = region_for(self.path, self.arena_bytes)
        data = region.view(0, self.arena_bytes)

        def same(number: int, part: memoryview) -> bool:
            return hashlib.sha256(part).hexdigest() == self.digests[number]

        with open(self.path, "rb") as file:
            if not packed_file.fill(file.fileno(), self.start, data, backend.threads, same, progress):
                raise self._flipped()
        rest, vectors, at = self._rest(), {}, 0
        for name, shape in self.vectors.items():
            vectors[name] = np.frombuffer(rest, "<f4", prod(shape), at).astype(np.float32).reshape(shape)
            if not np.isfinite(vectors[name]).all():
                raise damaged(self.path, f"finite numbers in {name}", "NaN or infinity", AGAIN)
            at += vectors[name].nbytes
        return Arena(list(self.places), data, region, vectors)

    def tokenizer_text(self) -> str | None:
        """The tokenizer as it was kept, None if the model has none."""
        if not self.tokenizer:
            return None
        try:
            return self._rest()[self.rest_bytes - self.tokenizer :].decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(self.path, "a tokenizer in UTF-8", "other bytes", AGAIN) from None

    def _rest(self) -> bytes:
        with open(self.path, "rb") as file:
            rest = os.pread(file.fileno(), self.rest_bytes, self.start + self.arena_bytes)
        if hashlib.sha256(rest).hexdigest() != self.digests[-1]:
            raise self._flipped()
        return rest

    def _flipped(self) -> ModelFileError:
        return damaged(self.path, "the bytes that were written", "others: a checksum differs", "copy the file again")


def write(path: Path, arena: Arena, *, spec: ModelSpec, dtype: str, tokenizer: str | None,
          generation: Mapping[str, Any], eos_token_ids: tuple[int, ...], stored: Mapping[str, int], threads: int,
          files: Mapping[str, Any], dense: Mapping[str, np.ndarray],
          progress: Callable[[int, int], None] | None = None) -> None:
    """Write a packed model; the file is whole or not there. files: what read_task_settings reads;  dense: the arrays of
    TaskSettings.dense_shapes. Raises OSError."""
    text = (tokenizer or "").encode()
    vectors = {**arena.vectors, **dense}
    rest = b"".join(one.astype("<f4").tobytes() for one in vectors.values()) + text
    head = {
        "layout": LAYOUT, "dtype": dtype, "spec": spec_json.to_json(spec),
        "matrices": [[one.bound.target, one.format] for one in arena.places],
        "vectors": list(vectors), "files": dict(files),
        "generation": dict(generation), "eos_token_ids": list(eos_token_ids), "tokenizer": len(text),
        "stored": dict(stored),
        "digests": [*packed_file.digests(arena.data, threads), hashlib.sha256(rest).hexdigest()],
    }
    packed_file.write(path, [packed_file.beginning(head), arena.data, rest], progress, sync=True)


def open_packed(path: Path) -> PackedModel:
    """Read and check the head of a packed model; nothing large is allocated. Raises ModelFileError or
    UnsupportedModelError."""
    head, start, nbytes = packed_file.read_head(path)
    if head.get("layout") != LAYOUT or "spec" not in head:
        raise UnsupportedModelError(f"{path}: the file is packed for kernels of layout {show(head.get('layout'))}, "
                                    f"this program has {LAYOUT}; {AGAIN} with this program")

    def wrong(what: str, expected: str) -> ModelFileError:
        return damaged(path, f"{what}: {expected}", show(head.get(what)), AGAIN)

    if head.get("dtype") not in DTYPES:
        raise wrong("dtype", f"one of {', '.join(DTYPES)}")
    spec = spec_json.from_json(head["spec"], f"{path}: spec")
    shapes = {name: shape for name, shape in targets(spec).items() if not (spec.tied and name == HEAD)}
    matrices = {name: shape for name, shape in shapes.items() if is_matrix(name, shape)}
    places, arena = _places(head.get("matrices"), matrices, head, wrong)
    names = head.get("vectors")
    wanted = {name: shape for name, shape in shapes.items() if name not in matrices}
    files = head.get("files", {})
    if not isinstance(files, dict):
        raise wrong("files", "JSON values by name")
    settings = read_task_settings(files, spec)
    wanted |= settings.dense_shapes()
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(wanted):
        raise wrong("vectors", f"the {len(wanted)} that the spec and the files ask for")
    tokenizer = head.get("tokenizer")
    if not _natural(tokenizer):
        raise wrong("tokenizer", "a number of bytes")
    rest = 4 * sum(map(prod, wanted.values())) + tokenizer
    if nbytes != arena + rest:
        raise damaged(path, f"{arena + rest} bytes of data", f"{nbytes}", "copy the file again")
    digests = head.get("digests")
    if not isinstance(digests, list) or len(digests) != -(-arena // packed_file.PIECE) + 1 \
            or not all(isinstance(one, str) for one in digests):
        raise wrong("digests", "one checksum for each piece")
    generation, ends = head.get("generation"), head.get("eos_token_ids")
    if not isinstance(generation, dict):
        raise wrong("generation", "an object")
    if not isinstance(ends, list) or not all(_natural(one) for one in ends):
        raise wrong("eos_token_ids", "token ids")
    return PackedModel(path, head["dtype"], spec, places, {str(name): wanted[name] for name in names}, generation,
                       tuple(ends), tokenizer, _stored(head, shapes, wrong), tuple(digests), start, arena, rest,
                       settings)


def _places(listed: Any, shapes: Mapping[str, tuple[int, ...]], head: Mapping[str, Any],
            wrong: Callable[[str, str], ModelFileError]) -> tuple[tuple[Place, ...], int]:
    good = isinstance(listed, list) and all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(word, str) for word in one) for one in listed)
    if not good or len(listed) != len(shapes) or {one[0] for one in listed} != set(shapes):
        raise wrong("matrices", f"the {len(shapes)} that the spec asks for")
    formats = dict(listed)
    if not set(formats.values()) <= set(native.FORMATS):
        raise wrong("matrices", f"layouts out of {', '.join(native.FORMATS)}")
    agreed = dict(formats)
    agree(agreed)
    if agreed != formats:
        raise wrong("matrices", "layouts that fit together where matrices share an input")
    bound = [BoundRow(WeightRow(name, (name,), shapes[name]), TensorInfo(name, shapes[name], format, 0))
             for name, format in listed]
    try:
        places, total = lay_out(zip(bound, formats.values(), strict=True))
    except ValueError as error:  # sizes that no kernel takes
        raise wrong("matrices", str(error)) from None
    return tuple(places), total


def _stored(head: Mapping[str, Any], shapes: Mapping[str, Any], wrong: Callable[[str, str], ModelFileError]
            ) -> dict[str, int]:
    stored = head.get("stored")
    if not isinstance(stored, dict) or set(stored) != set(shapes) or not all(map(_natural, stored.values())):
        raise wrong("stored", "bytes of each tensor")
    return stored


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_SIZE * MAX_SIZE
