"""GGUF version 2 and 3, memory-mapped, read strictly.

A file is: magic "GGUF", uint32 version, uint64 tensor count, uint64 metadata count, metadata, tensor records (name,
uint32 dimension count, uint64 dimensions with the fastest first, uint32 type, uint64 offset), padding to the
alignment, tensor data.  https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from forwardpass.errors import UnsupportedModelError
from forwardpass.weights.gguf_parts import check_part, part_paths
from forwardpass.weights.gguf_values import Cursor, Metadata
from forwardpass.weights.source import BLOCKS, MappedFile, MappedSource, TensorInfo, damaged

# Type number -> name, values in a block, bytes in a block. Those outside source.BLOCKS are known to the format only,
# so that a model that uses them is called unsupported and a number that is in no list is called damage.
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

MAX_DIMENSIONS = 4
MAX_NAME = 256
MIN_PAIR = 8 + 1 + 4 + 1  # key length, a one-letter key, type, the smallest value
MIN_RECORD = 8 + 1 + 4 + 8 + 4 + 8  # name length, a one-letter name, count, one dimension, type, offset
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64))
EXPECTED_TYPES = {
    "general.architecture": ("string",),
    "general.alignment": ("uint32",),
    "split.count": _INTEGERS,
    "split.no": _INTEGERS,
    "split.tensors.count": _INTEGERS,
    "tokenizer.ggml.model": ("string",),
    "tokenizer.ggml.pre": ("string",),
    "tokenizer.ggml.tokens": ("array of string",),
    "tokenizer.ggml.merges": ("array of string",),
    "tokenizer.ggml.scores": ("array of float32",),
    "tokenizer.ggml.token_type": ("array of int32", "array of uint32"),
    "tokenizer.ggml.add_bos_token": ("bool",),
    "tokenizer.ggml.add_eos_token": ("bool",),
    "tokenizer.ggml.add_space_prefix": ("bool",),
    "tokenizer.chat_template": ("string",),
}
"""Keys that carry one meaning in every file. Scores stored as bytes, say, would be read as other numbers."""


class _Part(NamedTuple):
    """One file. tensors: name -> what it is and its first byte in the file."""

    file: MappedFile
    metadata: Metadata
    tensors: dict[str, tuple[TensorInfo, int]]


def open_gguf(path: str | os.PathLike[str]) -> MappedSource:
    """Opens a GGUF file as a `Source`, with all parts of a split model if it is one of them. Nothing of the tensors is
    read yet; close it, or use it in a `with`.

    Raises ModelFileError when a file is missing, truncated, corrupt or contradicts itself or the other parts, and
    UnsupportedModelError for version 1, big-endian files and tensor types that can't be read.
    """
    path = Path(path)
    named = _open_part(path)
    opened, parts = [named], []
    try:
        for other in part_paths(path, named.metadata):
            if other != path:
                opened.append(_open_part(other))
            parts.append(named if other == path else opened[-1])
        return _join(path, parts)
    except BaseException:
        for part in opened:
            part.file.close()
        raise


def _join(path: Path, parts: list[_Part]) -> MappedSource:
    metadata = parts[0].metadata
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, tuple[MappedFile, int]] = {}
    for number, part in enumerate(parts):
        if len(parts) > 1:
            check_part(part.file.path, part.metadata, number, len(parts), metadata)
        for name, (info, start) in part.tensors.items():
            if name in tensors:
                raise damaged(part.file.path, "every tensor in one part", f"{name!r} again")
            tensors[name], places[name] = info, (part.file, start)
    expected = metadata.get("split.tensors.count", len(tensors))
    if len(parts) > 1 and expected != len(tensors):
        raise damaged(path, f"{expected} tensors in its {len(parts)} parts together", str(len(tensors)))
    _check_types(path, tensors)
    return MappedSource(path, "gguf", [part.file for part in parts], tensors, places, metadata)


def _open_part(path: Path) -> _Part:
    file = MappedFile(path)
    try:
        return _read(path, file)
    except BaseException:
        file.close()
        raise


def _read(path: Path, file: MappedFile) -> _Part:
    cursor = Cursor(file.map, path)
    tensor_count, pair_count = _read_counts(cursor)
    metadata = Metadata(path)
    for _ in range(pair_count):
        metadata.read_pair(cursor)
    _check_metadata(path, metadata)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not (8 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0):
        raise damaged(path, f"general.alignment a power of two from 8 to {MAX_ALIGNMENT}", str(alignment))

    records: dict[str, tuple[TensorInfo, int]] = {}
    for _ in range(tensor_count):
        info, offset = _read_record(cursor)
        if info.name in records:
            raise damaged(path, "every tensor name once", f"{info.name!r} twice")
        records[info.name] = info, offset
    start = -(-cursor.position // alignment) * alignment
    _check_ranges(path, records, start, file.size, alignment)
    return _Part(file, metadata, {name: (info, start + offset) for name, (info, offset) in records.items()})


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    path = cursor.path
    cursor.need(4, "magic")
    magic = bytes(cursor.buffer[:4])
    if magic != b"GGUF":
        raise damaged(path, "a GGUF file, which begins with b'GGUF'", repr(magic), "name a GGUF file")
    cursor.position = 4
    version = cursor.u32("version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{path}: expected a little-endian GGUF file, found a big-endian one; use the little-endian conversion"
        )
    if version == 1:
        raise UnsupportedModelError(f"{path}: expected GGUF version 2 or 3, found 1; convert the model again")
    if version not in (2, 3):
        advice = "the file is damaged, or newer than this reader"
        raise damaged(path, "GGUF version 2 or 3", f"version {version}", advice)
    tensors = cursor.u64("tensor count")
    pairs = cursor.u64("metadata count")
    cursor.need(tensors * MIN_RECORD + pairs * MIN_PAIR, f"{pairs} metadata pairs and {tensors} tensor records")
    return tensors, pairs


def _read_record(cursor: Cursor) -> tuple[TensorInfo, int]:
    path = cursor.path
    name = cursor.string("a tensor name", limit=MAX_NAME)
    if not name:
        raise damaged(path, "a tensor name", "an empty name")
    what = f"tensor {name!r}"
    count = cursor.u32(f"the dimension count of {what}")
    if not 1 <= count <= MAX_DIMENSIONS:
        raise damaged(path, f"1 to {MAX_DIMENSIONS} dimensions in {what}", str(count))
    dimensions = [cursor.u64(f"the dimensions of {what}") for _ in range(count)]
    number = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    if number not in TYPES:
        known = ", ".join(f"{known} {name}" for known, (name, *_) in TYPES.items())
        advice = f"the file is damaged, or newer than this reader, which knows {known}"
        raise damaged(path, f"a known tensor type for {what}", f"type number {number}", advice)
    type_name, values, size = TYPES[number]
    if 0 in dimensions:
        raise damaged(path, f"dimensions of at least 1 in {what}", str(dimensions))
    if dimensions[0] % values:
        raise damaged(path, f"rows of a multiple of {values} values in {what} ({type_name})", str(dimensions[0]))
    # Python's integers don't wrap, so an absurd product stays absurd and fails the range check.
    nbytes = math.prod(dimensions) // values * size
    return TensorInfo(name, tuple(reversed(dimensions)), type_name, nbytes), offset


def _check_ranges(
    path: Path, records: dict[str, tuple[TensorInfo, int]], start: int, size: int, alignment: int
) -> None:
    """Every tensor is aligned, inside the file and apart from all others."""
    end, previous = 0, ""
    for info, offset in sorted(records.values(), key=lambda record: record[1]):
        what = f"tensor {info.name!r}"
        if offset % alignment:
            raise damaged(path, f"the offset of {what} at a multiple of {alignment}", str(offset))
        if start + offset + info.nbytes > size:
            raise damaged(
                path,
                f"{what} of shape {info.shape} and type {info.type} to end inside the file of {size} bytes",
                f"its end at byte {start + offset + info.nbytes}",
                "the file is truncated or damaged: fetch it again",
            )
        if offset < end:
            raise damaged(path, f"{what} after the end of {previous!r} at offset {end}", f"offset {offset}")
        end, previous = offset + info.nbytes, info.name


def _check_types(path: Path, tensors: dict[str, TensorInfo]) -> None:
    unsupported: dict[str, list[str]] = {}
    for info in tensors.values():
        if info.type not in BLOCKS:
            unsupported.setdefault(info.type, []).append(info.name)
    if unsupported:
        found = "; ".join(
            f"{len(names)} tensor{'s' * (len(names) > 1)} of type {type_name} (first {names[0]!r})"
            for type_name, names in unsupported.items()
        )
        raise UnsupportedModelError(
            f"{path}: {found}; supported types are {', '.join(BLOCKS)}; use a conversion of this model in one of them"
        )


def _check_metadata(path: Path, metadata: Metadata) -> None:
    """Types of the keys that mean the same everywhere, and the lengths of the vocabulary's columns."""
    for key, found in metadata.types.items():
        expected = EXPECTED_TYPES.get(key)
        if expected is None and key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            expected = _INTEGERS
        if expected is not None and found not in expected:
            raise damaged(path, f"metadata {key!r} of type {' or '.join(expected)}", found)
    if "tokenizer.ggml.tokens" not in metadata:
        return
    tokens = metadata.count("tokenizer.ggml.tokens")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        if key in metadata and metadata.count(key) != tokens:
            raise damaged(path, f"{tokens} entries in {key!r}, one a token", str(metadata.count(key)))
