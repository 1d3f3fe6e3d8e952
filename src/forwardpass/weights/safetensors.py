"""Safetensors, a single file or shards with an index, memory-mapped and read strictly.

A file is: uint64 header length (little-endian), a JSON header that gives each tensor's dtype, shape and byte range,
then the tensors' bytes without a hole.  https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forwardpass.errors import ModelFileError
from forwardpass.weights.source import MappedFile, MappedSource, TensorInfo, damaged

DTYPE_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
DTYPE_BITS |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
DTYPE_BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}

MAX_HEADER = 16 << 20
"""About 100,000 tensors. Parsed JSON takes several times its text, so the text must be small."""
MAX_DIMENSIONS = 8
INDEX_SUFFIX = ".safetensors.index.json"


def is_index(name: str) -> bool:
    """Whether a file of this name lists shards. Diffusers puts the name of a variant within the suffix
    (model.safetensors.index.fp16.json)."""
    return re.search(r"\.safetensors\.index(\.\w+)?\.json$", name) is not None


def open_safetensors(path: str | os.PathLike[str]) -> MappedSource:
    """Opens a file, an index (`is_index`) or a directory that holds either, as a `Source`.

    In a directory `model.safetensors` comes first, then `model.safetensors.index.json`, then the only file or index
    under another name. Tensors of types other than F32, F16 and BF16 are listed, and `data` raises
    UnsupportedModelError for them: checkpoints carry such buffers without needing them.
    Raises ModelFileError when anything is missing, truncated, corrupt or contradicts itself.
    """
    path = _find(Path(path))
    files: list[MappedFile] = []
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, tuple[MappedFile, int]] = {}
    try:
        if is_index(path.name):
            for shard, names in _read_index(path).items():
                listed = _read_file(path.parent / shard, files, tensors, places)
                _compare(path, shard, names, listed)
        else:
            _read_file(path, files, tensors, places)
    except BaseException:
        for file in files:
            file.close()
        raise
    return MappedSource(path, "safetensors", files, tensors, places, {})


def _find(path: Path) -> Path:
    try:
        if not path.is_dir():
            return path
        names = sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise damaged(path, "a readable directory", f"an error: {error}", "check the path") from None
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    single = [name for name in names if name.endswith(".safetensors")]
    for wanted in ("model.safetensors", "model" + INDEX_SUFFIX):
        if wanted in names:
            return path / wanted
    for candidates in (indices, single):
        if len(candidates) == 1:
            return path / candidates[0]
    if single or indices:
        raise damaged(path, "one checkpoint", f"{len(single)} safetensors files and no index", "name one of them")
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    found = f"only {pickles[0]!r}, which may run code when loaded" if pickles else f"{len(names)} other files"
    raise damaged(path, "model.safetensors or an index of shards", found, "save the model with save_pretrained")


def _read_file(
    path: Path,
    files: list[MappedFile],
    tensors: dict[str, TensorInfo],
    places: dict[str, tuple[MappedFile, int]],
) -> list[str]:
    """Adds one file's tensors to those read so far and returns its tensors' names."""
    file = MappedFile(path)
    files.append(file)
    if file.size < 8:
        raise damaged(path, "at least the 8 bytes of the header's length", f"{file.size} bytes")
    length = int.from_bytes(file.map[:8], "little")
    if length > file.size - 8:
        raise damaged(path, f"a header of at most the remaining {file.size - 8} bytes", f"{length} bytes")
    if length > MAX_HEADER:
        raise damaged(path, f"a header of at most {MAX_HEADER} bytes", f"{length} bytes")
    header = _parse(path, file.map[8 : 8 + length])
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise damaged(path, "__metadata__ that maps strings to strings", type(notes).__name__)

    entries = sorted((_read_entry(path, name, entry) for name, entry in header.items()), key=lambda item: item[1:])
    start, end = 8 + length, 0
    for info, first, last in entries:
        # No hole and no overlap: each tensor starts where the one before it ended, and the last ends the file.
        if first != end:
            raise damaged(path, f"tensor {info.name!r} at data offset {end}, where the last one ends", str(first))
        if info.name in tensors:
            raise damaged(path, "every tensor once", f"{info.name!r} also in {places[info.name][0].path.name}")
        tensors[info.name] = info
        places[info.name] = file, start + first
        end = last
    if start + end != file.size:
        fault = "truncated" if start + end > file.size else "followed by bytes that belong to no tensor"
        raise damaged(path, f"{start + end} bytes", f"{file.size} bytes: the file is {fault}", "fetch it again")
    return [info.name for info, _, _ in entries]


def _read_entry(path: Path, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    what = f"tensor {name!r}"
    if not name or not name.isprintable():
        raise damaged(path, "printable tensor names", ascii(name))
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, f"dtype, shape and data_offsets in {what}", _short(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise damaged(path, f"a safetensors dtype in {what}", _short(dtype))
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise damaged(path, f"a shape of at most {MAX_DIMENSIONS} sizes in {what}", _short(shape))
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged(path, f"two ascending data_offsets in {what}", _short(offsets))
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    nbytes = offsets[1] - offsets[0]
    if bits != nbytes * 8:
        raise damaged(path, f"{bits / 8:g} bytes for {what} of shape {shape} and type {dtype}", f"{nbytes} bytes")
    return TensorInfo(name, tuple(shape), dtype, nbytes), offsets[0], offsets[1]


def _read_index(path: Path) -> dict[str, list[str]]:
    """Shard file name -> names of the tensors it should hold."""
    file = MappedFile(path)
    try:
        if file.size > MAX_HEADER:
            raise damaged(path, f"an index of at most {MAX_HEADER} bytes", f"{file.size} bytes")
        index = _parse(path, file.map[:])
    finally:
        file.close()
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise damaged(path, "a weight_map from tensor names to files", _short(weight_map))
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        # A shard lies beside its index: a name with a folder in it could point anywhere on the machine.
        plain = isinstance(shard, str) and shard.endswith(".safetensors") and shard.isprintable()
        if not plain or "/" in shard or "\\" in shard:
            raise damaged(path, f"a plain .safetensors file name for tensor {name!r}", _short(shard))
        shards.setdefault(shard, []).append(name)
    return shards


def _compare(index: Path, shard: str, expected: Iterable[str], found: Iterable[str]) -> None:
    missing = sorted(set(expected) - set(found))
    extra = sorted(set(found) - set(expected))
    if missing:
        raise damaged(index, f"{missing[0]!r} in {shard}", f"{len(missing)} listed tensors missing there")
    if extra:
        raise damaged(index, f"only listed tensors in {shard}", f"{len(extra)} more, the first {extra[0]!r}")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ModelFileError(f"{path}: a name occurs twice in the JSON; fetch or convert the file again")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "a JSON object", f"something else ({error})") from None
    if not isinstance(value, dict):
        raise damaged(path, "a JSON object", f"a {type(value).__name__}")
    return value


def _naturals(values: Any) -> bool:
    """A list of whole numbers that fit into 63 bits. JSON's true is an int in Python, so types are compared."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
