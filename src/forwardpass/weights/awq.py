"""AWQ checkpoints in the "gemm" layout: qweight, qzeros and scales of each linear, packed along the outputs.

qweight int32 [in, out / 8], qzeros int32 [in / group_size, out / 8], scales [in / group_size, out]. The eight nibbles
of a word are columns 0 2 4 6 1 3 5 7 of its eight outputs. weight = (q - z) * scale.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from forwardpass.weights.linear import FLOATS, Linear, Rows, Settings, Tensors, check_groups, columns, modules_with
from forwardpass.weights.repack import row_type, unpack
from forwardpass.weights.source import Source

NIBBLE_OF = [0, 4, 1, 5, 2, 6, 3, 7]
"""Which nibble of a word holds each of its eight outputs: the inverse of 0 2 4 6 1 3 5 7."""


def linears(source: Source, settings: Settings) -> tuple[list[Linear], list[str]]:
    """(the quantised layers, warnings). Raises ModelFileError or UnsupportedModelError."""
    settings.choice("bits", (4,), 4)
    settings.choice("version", ("gemm",), "gemm")
    tensors, size = Tensors(source), settings.group_size(128)
    return [_linear(tensors, name, size) for name in modules_with(source, "qweight")], []


def _linear(tensors: Tensors, name: str, size: int) -> Linear:
    k, words = tensors.need(f"{name}.qweight", ("I32",), (None, None))
    groups = check_groups(tensors, f"{name}.qweight", size, k)
    tensors.need(f"{name}.scales", FLOATS, (groups, words * 8))
    tensors.need(f"{name}.qzeros", ("I32",), (groups, words))
    group_of = columns(size, k)
    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales"))
    return Linear(name, (words * 8, k), row_type(4, group_of, None), group_of, partial(_rows, tensors, name), parts)


def _rows(tensors: Tensors, name: str, first: int, last: int) -> Rows:
    def outputs(part: str) -> np.ndarray:
        words = tensors.integers(f"{name}.{part}")[:, first // 8 : last // 8]
        nibbles = unpack(words, 4).reshape(*words.shape, 8)[..., NIBBLE_OF]
        return np.ascontiguousarray(nibbles.reshape(len(words), -1).T)

    scales = np.ascontiguousarray(tensors.floats(f"{name}.scales")[:, first:last].T)
    return outputs("qweight"), scales, outputs("qzeros").astype(np.int32)
