"""Quantised Hugging Face checkpoints: each quantised linear is presented as one tensor `NAME.weight` [out, in].

The tensors it is stored in are hidden, so that everything after this (names, slices of fused layers, packing) works as
for any other checkpoint. A module is quantised if its tensors are there, whatever the config's lists say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from forwardpass import config
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights import awq, compressed, fp8, gptq
from forwardpass.weights.linear import Linear, Settings, Tensors
from forwardpass.weights.repack import pack_rows
from forwardpass.weights.source import BLOCKS, Source, TensorInfo, stored_bytes

METHODS = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed, "fp8": fp8, "fbgemm_fp8": fp8}
"""By quant_method."""
_CHUNK = 1 << 20
"""Weights that a thread repacks at a time; its temporary arrays take a dozen bytes for each."""


def quantization(values: Mapping[str, Any]) -> Any:
    """The config's quantisation under either of its names, None if there is none."""
    return values.get("quantization_config") or values.get("compression_config") or None


def open_quantized(source: Source, values: Mapping[str, Any]) -> Source:
    """`source` itself, or what presents its quantised layers. values: config.json. Closes the source on failure."""
    settings = quantization(values)
    if settings is None:
        return source
    try:
        return _wrap(source, settings)
    except BaseException:
        source.close()
        raise


def _wrap(source: Source, values: Any) -> Source:
    if not isinstance(values, dict):
        raise ModelFileError(f"{source.path}: quantization_config: expected an object, found "
                             f"{json.dumps(values, default=str)[:80]}; fix config.json or fetch the model again")
    method = values.get("quant_method", "compressed-tensors" if "config_groups" in values else None)
    if not isinstance(method, str) or method not in METHODS:
        raise UnsupportedModelError(f"{source.path}: quantization_config: quant_method is {str(method)[:80]!r}; known "
                                    f"are {', '.join(METHODS)}; use a conversion of this model to one of these, or to "
                                    "GGUF")
    linears, warnings = METHODS[method].linears(source, Settings(source.path, values))
    if not linears:
        raise ModelFileError(f"{source.path}: config.json says the weights are quantised ({method}), but no layer has "
                             "the tensors of that; fetch the model again, or remove quantization_config")
    return QuantizedSource(source, linears, warnings)


class QuantizedSource:
    """A Source over another one. idle: stored biases of quantised layers that are zero, which some tools add."""

    def __init__(self, inner: Source, linears: list[Linear], warnings: list[str]):
        self.inner = inner
        self.path, self.kind, self.metadata = inner.path, inner.kind, inner.metadata
        self.warnings = (*inner.warnings, *warnings)
        self._linears = {f"{one.name}.weight": one for one in linears}
        hidden = {part for one in linears for part in one.parts}
        self.tensors = {name: info for name, info in inner.tensors.items() if name not in hidden}
        for name, one in self._linears.items():
            if name in self.tensors:
                raise ModelFileError(f"{self.path}: expected {name} either quantised or not, found both; fetch the "
                                     "model again")
            # What the layer takes in the file, which is what a step has to read.
            nbytes = sum(inner.tensors[part].nbytes for part in one.parts if part in inner.tensors)
            self.tensors[name] = TensorInfo(name, one.shape, one.type, nbytes)
        self.idle = (*inner.idle, *self._zero_biases())
        self._last: tuple[str, np.ndarray] | None = None

    def _zero_biases(self) -> list[str]:
        tensors = Tensors(self.inner)
        names = [f"{one.name}.bias" for one in self._linears.values()]
        kinds = {name: self.inner.tensors[name].type for name in names if name in self.inner.tensors}
        return [name for name, kind in kinds.items() if kind in BLOCKS and not tensors.floats(name).any()]

    def data(self, name: str) -> np.ndarray:
        """See Source. The newest repacked layer is kept: the parts of a fused one are asked for one after the other."""
        one = self._linears.get(name)
        if one is None:
            return self.inner.data(name)
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, _repack(one)
        return self._last[1]

    def raw(self, name: str) -> np.ndarray:
        return self.data(name) if name in self._linears else self.inner.raw(name)

    def release(self, name: str) -> None:
        one = self._linears.get(name)
        for part in (name,) if one is None else one.parts:
            if part in self.inner.tensors:
                self.inner.release(part)

    def close(self) -> None:
        self._last = None
        self.inner.close()

    def __enter__(self) -> QuantizedSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _repack(one: Linear) -> np.ndarray:
    """uint8: all rows of the layer in its type."""
    n, k = one.shape
    out = np.empty((n, stored_bytes(one.type, one.shape) // n), np.uint8)
    step = max(32, _CHUNK // k // 32 * 32)

    def fill(first: int) -> None:
        last = min(first + step, n)
        out[first:last] = pack_rows(one.type, *one.rows(first, last), one.group_of)

    with ThreadPoolExecutor(config.usable_cpus()) as pool:
        list(pool.map(fill, range(0, n, step)))
    flat = out.reshape(-1)
    flat.flags.writeable = False
    return flat
