"""Products with float32 rows outside of the network: dense layers of a sentence-transformers directory, similarities.

They go through the same kernels as everything else: a row's result does not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forwardpass.backends import native
from forwardpass.models.loading import ALIGNMENT
from forwardpass.models.task_settings import DenseSpec


class Dense:
    """rows float32 [n, inputs] -> [n, outputs]. arrays: "weight", "bias" and "residual" as the spec has them."""

    def __init__(self, backend, spec: DenseSpec, arrays: Mapping[str, np.ndarray]):
        self.outputs = spec.outputs
        self._program = backend.program()
        self._source, self._out = self._program.buffer(spec.inputs), self._program.buffer(spec.outputs)
        self._program.linear(self._source, self._out, [(_packed(backend, arrays["weight"]), arrays.get("bias"))],
                             norm=None, activation=spec.activation, label="dense")
        if spec.residual and "residual" in arrays:
            self._program.linear(self._source, self._out, [(_packed(backend, arrays["residual"]), None)], norm=None,
                                 mode="add", label="dense")
        elif spec.residual:
            self._program.add_normed(self._source, self._out, None, label="dense")

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), self.outputs), np.float32)
        if len(rows):
            self._program.run(len(rows), bound=[(self._source, np.ascontiguousarray(rows)), (self._out, out)])
        return out


def products(backend, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """float32 [n, d] and [m, d] -> [n, m], the sums of products of each with each."""
    count, width = others.shape
    return Dense(backend, DenseSpec("", width, count, False, None), {"weight": others})(rows)


def _packed(backend, weight: np.ndarray):
    weight = np.ascontiguousarray(weight, np.float32)
    nbytes = native.matrix_bytes("F32", *weight.shape)
    memory = native.Region(max(nbytes, ALIGNMENT)).view(0, nbytes)
    backend.pack("F32", weight.shape, "F32", weight.view(np.uint8).reshape(-1), None, memory)
    return native.matrix("F32", *weight.shape, memory)
