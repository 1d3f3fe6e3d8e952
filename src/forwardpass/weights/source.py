"""What every checkpoint reader gives: named tensors as read-only views of a memory-mapped file."""

from __future__ import annotations

import difflib
import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError

BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_K": (256, 292),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
    "NVFP4": (64, 36),
    "G4": (32, 24),
    "G8": (32, 36),
    "C8": (32, 36),
    "W16": (1, 4),
}
"""Tensor types that can be read: values in a block, bytes in a block. The last four are in no file: quantised linears
of Hugging Face checkpoints are presented in them (repack.py)."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. shape is in numpy's order, a matrix is (outputs, inputs); nbytes counts the stored bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int


class Source(Protocol):
    """An open checkpoint.

    kind is "gguf" or "safetensors". metadata maps GGUF keys to Python values (str, bool, int, float, list of str,
    numpy array for arrays of numbers); it is empty for safetensors. warnings: sentences for the user; idle: tensors
    that say nothing and need no place in the model.
    """

    path: Path
    kind: str
    tensors: dict[str, TensorInfo]
    metadata: Mapping[str, Any]
    warnings: tuple[str, ...]
    idle: tuple[str, ...]

    def data(self, name: str) -> np.ndarray: ...

    def raw(self, name: str) -> np.ndarray: ...

    def release(self, name: str) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Source: ...

    def __exit__(self, *exc: object) -> None: ...


def damaged(path: Path, expected: str, found: str, advice: str = "fetch or convert the file again") -> ModelFileError:
    return ModelFileError(f"{path}: expected {expected}, found {found}; {advice}")


def check_supported(path: Path, name: str, type_name: str) -> None:
    """Raises UnsupportedModelError, naming the tensor and the types that can be read."""
    if type_name not in BLOCKS:
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} has type {type_name}; supported types are {', '.join(BLOCKS)}; "
            "use a conversion of this model in one of them"
        )


class MappedFile:
    """A regular file mapped for reading. Raises ModelFileError when it is missing, empty or not a readable file."""

    def __init__(self, path: Path):
        self.path = path
        try:
            # Look before opening: opening a pipe would wait for ever.
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise damaged(path, "a model file", "a directory", "name the file inside it")
            if not stat.S_ISREG(mode):
                raise damaged(path, "a regular file", "a device, pipe or socket", "name a model file")
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise damaged(path, "a model file", "an empty file (0 bytes)")
                self.map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise damaged(path, "a model file", "nothing at this path", "check the spelling") from None
        except PermissionError:
            raise damaged(path, "a readable file", "no permission to read it", "change its permissions") from None
        except (OSError, ValueError, OverflowError) as error:  # ValueError: a NUL in the path
            raise damaged(path, "a readable file", f"an error: {error}", "check the path and the disk") from error

    def view(self, start: int, nbytes: int) -> np.ndarray:
        """uint8 [nbytes], read-only. The caller has checked that the range lies inside the file."""
        if self.map is None:
            raise ModelFileError(f"{self.path}: the file was closed; open it again to read from it")
        if nbytes == 0:
            empty = np.empty(0, np.uint8)
            empty.flags.writeable = False
            return empty
        return np.frombuffer(self.map, np.uint8, nbytes, start)

    def release(self, start: int, nbytes: int) -> None:
        """Drops the pages of a range from this process. They come back from the file when read again."""
        if self.map is None or nbytes == 0 or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = start - start % mmap.PAGESIZE
        self.map.madvise(mmap.MADV_DONTNEED, first, start + nbytes - first)

    def close(self) -> None:
        mapping, self.map = self.map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                pass  # a view is still in use: the mapping goes when the last view goes


class MappedSource:
    """Tensors of mapped files. places: tensor name -> (file, first byte)."""

    warnings: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path,
        kind: str,
        files: list[MappedFile],
        tensors: dict[str, TensorInfo],
        places: dict[str, tuple[MappedFile, int]],
        metadata: Mapping[str, Any],
    ):
        self.path = path
        self.kind = kind
        self.tensors = tensors
        self.metadata = metadata
        self._files = files
        self._places = places

    def data(self, name: str) -> np.ndarray:
        """uint8 [nbytes], a read-only view of the mapped file. It need not be aligned to the tensor's item size.

        Raises ModelFileError for an unknown name or a closed source, UnsupportedModelError for a type that can't
        be read. Views stay valid after close().
        """
        check_supported(self.path, name, self._info(name).type)
        return self.raw(name)

    def raw(self, name: str) -> np.ndarray:
        """`data` for a tensor of any type: parts of quantised layers are packed words."""
        info = self._info(name)
        file, start = self._places[name]
        return file.view(start, info.nbytes)

    def release(self, name: str) -> None:
        """Drops the pages that reading this tensor brought into memory; reading it again is allowed."""
        info = self._info(name)
        file, start = self._places[name]
        file.release(start, info.nbytes)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> MappedSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, 3)
            hint = f"nearest are {', '.join(near)}" if near else f"it has {len(self.tensors)} tensors"
            raise ModelFileError(f"{self.path}: there is no tensor {name!r}; {hint}")
        return self.tensors[name]


def stored_bytes(type_name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a supported type; its last dimension is a whole number of blocks."""
    values, size = BLOCKS[type_name]
    return math.prod(shape) // values * size
