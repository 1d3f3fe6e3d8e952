"""GGUF models split over files NAME-00001-of-00003.gguf and so on.

Each part is a GGUF file with tensors of its own and the keys split.no (from 0), split.count and split.tensors.count
(of all parts together); the model's other metadata stand in the first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from forwardpass.errors import ModelFileError
from forwardpass.weights.gguf_values import Metadata
from forwardpass.weights.source import damaged

_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


def part_names(name: str) -> Iterator[str]:
    """The names of all parts, in order, of the model that a file of this name is a part of; `name` if it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        yield name
        return
    for number in range(1, int(match[3]) + 1):
        yield f"{match[1]}-{number:05}-of-{match[3]}.gguf"


def gguf_files(path: Path) -> list[Path]:
    """The files of the model that `path` is, or is a part of, as far as names tell. Parts that are missing are left
    out."""
    return [part for part in map(path.with_name, part_names(path.name)) if part == path or part.exists()]


def part_paths(path: Path, metadata: Mapping) -> list[Path]:
    """Every part of the split model that the file at `path` says it belongs to, all of which exist; [path] for a file
    that is whole."""
    count, number = metadata.get("split.count", 0), metadata.get("split.no", 0)
    if count <= 1 and number == 0:
        return [path]
    if not 0 <= number < count <= 99_999:
        raise damaged(path, "split.no below split.count, at most 99999", f"split.no {number}, split.count {count}")
    match = _NAME.fullmatch(path.name)
    if not match or (int(match[2]), int(match[3])) != (number + 1, count):
        raise damaged(
            path,
            f"a name that ends in -{number + 1:05}-of-{count:05}.gguf, as part {number + 1} of {count} has",
            repr(path.name),
            "give the parts the names under which they were published",
        )
    paths = []
    for part in map(path.with_name, part_names(path.name)):
        paths.append(part)
        if not os.path.exists(part):
            raise ModelFileError(
                f"{path} is part {number + 1} of {count}: expected all parts in its folder, found no {part.name}; "
                "fetch the missing part into the same folder"
            )
    return paths


def check_part(path: Path, metadata: Metadata, number: int, count: int, first: Metadata) -> None:
    """Part `number` (from 0) of `count` belongs to the model whose first part has the metadata `first`."""
    for key, expected in (("split.no", number), ("split.count", count)):
        if metadata.get(key) != expected:
            raise damaged(path, f"{key} {expected}, as its name says", str(metadata.get(key)))
    for key in ("split.tensors.count", "general.architecture"):
        if key in metadata and metadata[key] != first.get(key):
            raise damaged(
                path,
                f"{key} {str(first.get(key))[:100]!r} as in the first part",
                repr(str(metadata[key])[:100]),
                "the parts belong to different models: fetch them again",
            )

