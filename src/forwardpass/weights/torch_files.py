"""Torch checkpoints (`pytorch_model.bin`, shards with an index, `*.pt`), read by torch itself and by nothing else.

Such a file is a pickle, a program. torch.load(weights_only=True) runs a small part of that language, which makes
tensors and containers, and refuses everything else. torch is imported when such a file is opened, never before;
without torch the file is not read at all.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.source import TensorInfo, check_supported, damaged

NAME = "pytorch_model.bin"
INDEX = NAME + ".index.json"
NESTED = ("state_dict", "model_state_dict", "model")
"""Where training scripts keep the weights inside a larger dictionary."""
MAX_INDEX = 16 << 20

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int8": "I8", "uint8": "U8",
          "int16": "I16", "int32": "I32", "int64": "I64", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}
_CONVERT = """import torch; from safetensors.torch import save_file
save_file({n: t.clone() for n, t in torch.load(%r, weights_only=True).items()}, "model.safetensors")"""


def find_torch_files(directory: Path) -> Path | None:
    """The checkpoint in a directory: the usual name, an index of shards, or the only file that ends in .pt or .pth."""
    for name in (NAME, INDEX):
        if (directory / name).exists():
            return directory / name
    single = sorted(file for file in directory.iterdir() if file.suffix in (".pt", ".pth"))
    return single[0] if len(single) == 1 else None


def torch_shards(path: Path) -> list[Path]:
    """The files of the checkpoint at `path`, an index or a file. Raises ModelFileError for an index that is damaged."""
    if path.name != INDEX:
        return [path]
    try:
        if path.stat().st_size > MAX_INDEX:
            raise damaged(path, f"an index of at most {MAX_INDEX} bytes", f"{path.stat().st_size} bytes")
        names = json.loads(path.read_text("utf-8"))["weight_map"].values()
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, "a weight_map from tensor names to files", f"{type(error).__name__}: {error}") from None
    shards = list(dict.fromkeys(map(str, names)))
    for name in shards:  # a shard lies beside its index: a name with a folder in it could point anywhere
        if "/" in name or "\\" in name or not name.isprintable() or not name.endswith(".bin"):
            raise damaged(path, "plain .bin file names", repr(name[:80]))
    if not shards:
        raise damaged(path, "at least one file", "none")
    return [path.parent / name for name in shards]


class TorchSource:
    """A Source of tensors that torch loaded, mapped where the file allows it."""

    kind = "safetensors"  # the names and shapes of a Hugging Face checkpoint are the same in both containers

    def __init__(self, path: Path, tensors: dict[str, Any]):
        self.path, self.metadata, self.warnings, self.idle = path, {}, (), ()
        self._loaded = tensors
        self.tensors = {name: TensorInfo(name, tuple(one.shape), _type(one), one.numel() * one.element_size())
                        for name, one in tensors.items()}

    def data(self, name: str) -> np.ndarray:
        """See Source."""
        check_supported(self.path, name, self.tensors[name].type)
        return self.raw(name)

    def raw(self, name: str) -> np.ndarray:
        if name not in self._loaded:
            raise ModelFileError(f"{self.path}: there is no tensor {name!r}, or the file was closed")
        import torch

        array = self._loaded[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        array.flags.writeable = False
        return array

    def release(self, name: str) -> None:
        """Nothing to do: torch owns the mapping."""

    def close(self) -> None:
        self._loaded = {}

    def __enter__(self) -> TorchSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_torch(path: Path) -> TorchSource:
    """Opens a file or an index as a Source. Raises UnsupportedModelError without torch, ModelFileError for a file that
    is damaged or holds anything but weights."""
    files = torch_shards(path)
    try:
        import torch
    except ImportError:
        raise UnsupportedModelError(
            f"{path} is a torch checkpoint, which only torch can read, and torch is not installed. Install it, or "
            f"convert the file where it is:\n{_CONVERT % files[0].name}") from None
    tensors: dict[str, Any] = {}
    for file in files:
        loaded = _load(torch, file)
        twice = next((name for name in loaded if name in tensors), None)
        if twice is not None:
            raise damaged(file, "every tensor once", f"{twice!r} in another shard too")
        tensors |= loaded
    return TorchSource(path, tensors)


def _load(torch: ModuleType, path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise damaged(path, "a regular file", "something else", "name a model file")
        with open(path, "rb") as file:
            zipped = file.read(4) == b"PK\3\4"  # older files have no place to map
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except FileNotFoundError:
        raise damaged(path, "a model file", "nothing at this path", "fetch the missing shard") from None
    except ModelFileError:
        raise
    except Exception as error:  # torch raises many kinds for files that are not what it writes
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise damaged(path, "a torch checkpoint of weights and nothing else", f"{type(error).__name__}: {first}",
                      "it may be damaged, or made to run code when it is loaded: use a safetensors version") from None
    for name in NESTED:
        if isinstance(value, dict) and isinstance(value.get(name), dict):
            value = value[name]
            break
    return _checked(torch, path, value)


def _checked(torch: ModuleType, path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise damaged(path, "a dictionary of tensors", f"a {type(value).__name__}", "save the model's state_dict")
    for name, one in value.items():
        if not isinstance(name, str) or not name.isprintable() or not isinstance(one, torch.Tensor):
            raise damaged(path, "tensors by name", f"{ascii(name)[:80]}: a {type(one).__name__}",
                          "save the model's state_dict")
        if one.layout != torch.strided or one.is_quantized or one.device.type != "cpu":
            raise UnsupportedModelError(f"{path}: tensor {name!r} is sparse or quantised by torch; save it as a plain "
                                        "tensor")
        # Strides of zero make a small storage look like any number of values.
        if one.numel() * one.element_size() > one.untyped_storage().nbytes():
            raise damaged(path, f"{one.numel() * one.element_size()} bytes for tensor {name!r}",
                          f"{one.untyped_storage().nbytes()} bytes")
    return value


def _type(tensor: Any) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return _TYPES.get(name, name)


def files_of(path: Path) -> Iterable[Path]:
    """Every file of the checkpoint, the index included."""
    return dict.fromkeys([path, *torch_shards(path)])
