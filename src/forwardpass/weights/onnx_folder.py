"""The weights of a directory that holds ONNX files, under the names their modules had before the export.

Exporters keep the names of most parameters, but a matrix that is multiplied with becomes an anonymous one, stored
[inputs, outputs]; its operation's name still is the module's path: "/encoder/layer.0/query/MatMul" stands for
encoder.layer.0.query.weight. Quantised weights, (q - zero_point) * scale, keep their eight bits where a matrix or an
output has one scale and q - zero_point fits them.

config.json may say `"onnx_files": {"encoder.onnx": {"enc.": "encoder.", "other.": null}}`: which files, and for each
the prefixes of names that the export added, with what belongs there; null leaves those tensors out. Safetensors beside
named ONNX files hold more of the same model. `"onnx_joined": {"positions": ["onnx::Concat_3", "onnx::Reshape_9"]}` puts
a tensor together that the export cut along its first axis of more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.weights.onnx_file import Node, OnnxFile, Stored
from forwardpass.weights.repack import GROUP, pack_rows
from forwardpass.weights.source import Source, TensorInfo, damaged, stored_bytes

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm")
_FLOATS = ("F32", "F16", "BF16")
_QUANTISED, _SCALE, _ZERO = "_quantized", "_scale", "_zero_point"


@dataclass(frozen=True, slots=True)
class _Weight:
    """Where a tensor's values are. turned: stored [inputs, outputs]; scale, zero: of a quantised one."""

    file: OnnxFile
    stored: Stored
    turned: bool
    scale: np.ndarray | None = None
    zero: int = 0


def find_onnx_files(directory: Path, values: Mapping[str, Any]) -> list[Path]:
    """The ONNX files of a directory that config.json names, or all of them."""
    named = values.get("onnx_files")
    if named is None:
        return sorted(directory.glob("*.onnx"))
    good = isinstance(named, dict) and named and all(
        isinstance(prefixes, dict) and all(to is None or isinstance(to, str) for to in prefixes.values())
        and name.endswith(".onnx") and Path(name).name == name for name, prefixes in named.items())
    if not good:
        raise ModelFileError(f"{directory / 'config.json'}: onnx_files: expected names of .onnx files in this folder, "
                             f"each with prefixes and what replaces them, found {str(named)[:80]}; fix the file")
    return [directory / name for name in named]


class OnnxSource:
    """See weights/source.py. kind is "safetensors": the names are those of Hugging Face checkpoints."""

    kind = "safetensors"
    metadata: Mapping[str, Any] = {}
    warnings: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def __init__(self, directory: Path, paths: list[Path], prefixes: Mapping[str, Mapping[str, str | None]],
                 joined: Mapping[str, list[str]] | None = None, beside: Source | None = None):
        """joined: name -> those of its parts, as they are renamed;  beside: more tensors of the same model."""
        self.path = directory
        self.tensors: dict[str, TensorInfo] = {}
        self._weights: dict[str, _Weight] = {}
        self._files: list[OnnxFile] = []
        self._last: tuple[str, np.ndarray] | None = None
        self._joined = {name: list(parts) for name, parts in (joined or {}).items()}
        self._beside = beside
        try:
            for path in paths:
                file = OnnxFile(path)
                self._files.append(file)
                for name, weight in _weights(file):
                    renamed = _renamed(name, prefixes.get(path.name, {}))
                    if renamed is not None:
                        self._add(renamed, weight)
            for name, parts in self._joined.items():
                self._join(name, parts)
            for name, info in (beside.tensors if beside else {}).items():
                self._check_new(name)
                self.tensors[name] = info
        except BaseException:
            self.close()
            raise

    def _check_new(self, name: str) -> None:
        if name in self.tensors:
            raise damaged(self.path, "each tensor in one ONNX file", f"{name[:80]!r} in two of them",
                          "name the files to be read in config.json's onnx_files")

    def _join(self, name: str, parts: list[str]) -> None:
        """Present `parts` as one tensor: their bytes follow one another, for the axes before the joined one are 1."""
        self._check_new(name)
        infos = [self.tensors.pop(part, None) for part in parts]
        if None in infos or len({info.type for info in infos}) != 1:
            raise damaged(self.path, f"the parts of {name[:80]!r}, all of one type", str(parts)[:200])
        shapes = [info.shape for info in infos]
        axis = next((i for i, sizes in enumerate(zip(*shapes, strict=False)) if set(sizes) != {1}), 0)
        if len({(len(one), one[:axis], one[axis + 1 :]) for one in shapes}) != 1 or infos[0].type not in _FLOATS:
            raise damaged(self.path, f"parts of {name[:80]!r} that differ in one axis", str(shapes)[:200])
        shape = (*shapes[0][:axis], sum(one[axis] for one in shapes), *shapes[0][axis + 1 :])
        self.tensors[name] = TensorInfo(name, shape, infos[0].type, sum(info.nbytes for info in infos))

    def _add(self, name: str, weight: _Weight) -> None:
        self._check_new(name)
        shape = weight.stored.shape[::-1] if weight.turned else weight.stored.shape
        kind = _type(weight, shape)
        nbytes = weight.stored.nbytes + (0 if weight.scale is None else weight.scale.nbytes)
        self.tensors[name] = TensorInfo(name, shape, kind, nbytes)
        self._weights[name] = weight

    def data(self, name: str) -> np.ndarray:
        """See Source. The newest tensor is kept, for parts of it may be asked for one after the other."""
        if self._beside and name in self._beside.tensors:
            return self._beside.data(name)
        if name in self._joined:
            return np.concatenate([_bytes(weight, TensorInfo(part, weight.stored.shape, self.tensors[name].type,
                                                             weight.stored.nbytes))
                                   for part, weight in ((one, self._weights[one]) for one in self._joined[name])])
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: there is no tensor {name!r}; it has {len(self.tensors)} tensors")
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, _bytes(self._weights[name], self.tensors[name])
        return self._last[1]

    raw = data

    def release(self, name: str) -> None:
        if self._beside and name in self._beside.tensors:
            self._beside.release(name)
            return
        for part in self._joined.get(name, [name]):
            stored = self._weights[part].stored
            self._weights[part].file.file.release(stored.start, stored.nbytes)

    def close(self) -> None:
        self._last = None
        if self._beside:
            self._beside.close()
        for file in self._files:
            file.close()

    def __enter__(self) -> OnnxSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_onnx(directory: Path, values: Mapping[str, Any], beside: Source | None = None) -> OnnxSource:
    """The weights of a directory's ONNX files. values: config.json;  beside: more of them, closed with these.
    ModelFileError or UnsupportedModelError."""
    try:
        paths, joined = find_onnx_files(directory, values), values.get("onnx_joined") or {}
        if not isinstance(joined, dict) or not all(
                isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts)
                for parts in joined.values()):
            raise ModelFileError(f"{directory / 'config.json'}: onnx_joined: expected names of tensors, each with a "
                                 f"list of its parts, found {str(joined)[:80]}; fix the file")
    except BaseException:
        if beside:
            beside.close()
        raise
    return OnnxSource(directory, paths, values.get("onnx_files") or {}, joined, beside)


def _weights(file: OnnxFile) -> Iterator[tuple[str, _Weight]]:
    """(name, weight) of everything in a file that is one: matrices of products, tables, and named vectors."""
    users: dict[str, list[Node]] = {}
    for node in file.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    helpers = {name + end for name in (one.removesuffix(_QUANTISED) for one in file.tensors) for end in (_SCALE, _ZERO)}
    for name, stored in file.tensors.items():
        quantised = name.endswith(_QUANTISED) and stored.element in ("U8", "I8")
        if name in helpers or not stored.shape or not (quantised or stored.element in _FLOATS):
            continue  # scales, shapes and other constants of the graph
        scale, zero = _scale(file, stored) if quantised else (None, 0)
        base = name.removesuffix(_QUANTISED) if quantised else name
        node = _product(name, users)
        if node is None or len(stored.shape) != 2:
            yield base, _Weight(file, stored, False, scale, zero)
            continue
        module = ".".join(part for part in node.name.split("/")[:-1] if part)
        own = base if base.endswith(".weight") else f"{module}.weight"
        yield own, _Weight(file, stored, not node.transposed, scale, zero)


def _product(name: str, users: Mapping[str, list[Node]]) -> Node | None:
    """The operation that multiplies with this tensor, directly or after it was dequantised."""
    for node in users.get(name, ()):
        if node.kind in _PRODUCTS and node.inputs[1:2] == (name,):
            return node
        if node.kind == "DequantizeLinear" and node.inputs[0] == name and node.outputs:
            found = next((user for user in users.get(node.outputs[0], ())
                          if user.kind in _PRODUCTS and user.inputs[1:2] == (node.outputs[0],)), None)
            if found:
                return found
    return None


def _scale(file: OnnxFile, stored: Stored) -> tuple[np.ndarray, int]:
    """float32 scale(s) of a quantised tensor, and its zero point, which all of its values share."""
    base = stored.name.removesuffix(_QUANTISED)
    parts = [file.tensors.get(base + end) for end in (_SCALE, _ZERO)]
    if parts[0] is None or parts[0].element != "F32":
        raise damaged(file.path, f"a scale {base[:80]}{_SCALE} in float32", "none")
    zeros = np.unique(file.array(parts[1])) if parts[1] is not None else np.zeros(1, np.int64)
    if zeros.size != 1 or (parts[1] is not None and parts[1].element != stored.element):
        raise damaged(file.path, f"one zero point for {base[:80]!r}, of its own type", f"{zeros.size}")
    return file.array(parts[0]).reshape(-1), int(zeros[0])


def _type(weight: _Weight, shape: tuple[int, ...]) -> str:
    """C8 keeps eight bits; other quantised tensors become what they mean, in float32."""
    if weight.scale is None:
        return weight.stored.element
    if weight.scale.size not in (1, shape[0]):
        raise damaged(weight.file.path, f"one scale for {weight.stored.name[:80]!r}, or one for each of its {shape[0]} "
                      "outputs", str(weight.scale.size))
    if len(shape) != 2 or not shape[0] or not shape[1] or shape[1] % GROUP:
        return "F32"
    values = weight.file.array(weight.stored)
    return "C8" if int(values.min()) - weight.zero >= -128 and int(values.max()) - weight.zero <= 127 else "W16"


def _bytes(weight: _Weight, info: TensorInfo) -> np.ndarray:
    """uint8 [nbytes] of a tensor in its type."""
    values = weight.file.array(weight.stored)
    if weight.turned:
        values = np.ascontiguousarray(values.T)
    if weight.scale is not None:
        rows = info.shape[0]
        scale = np.broadcast_to(weight.scale.reshape(-1, 1), (rows, 1))
        codes = values.astype(np.int16) - np.int16(weight.zero)
        if info.type == "F32":
            shape = (rows, *(1,) * (len(info.shape) - 1))
            values = codes.astype(np.float32) * scale.reshape(shape)
        else:
            codes = codes.astype(np.int8 if info.type == "C8" else np.float32)
            values = pack_rows(info.type, codes, scale, 0, np.zeros(info.shape[1], np.int64))
            assert values.nbytes == stored_bytes(info.type, info.shape)
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    flat.flags.writeable = False
    return flat


def _renamed(name: str, prefixes: Mapping[str, str | None]) -> str | None:
    for old, new in prefixes.items():
        if name.startswith(old):
            return None if new is None else new + name[len(old):]
    return name
