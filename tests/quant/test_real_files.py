"""Every matrix of real files packs, and looks up as what the file says, within the stated bounds."""

from __future__ import annotations

import numpy as np
import pytest

from block_tools import bound
from forwardpass import catalog
from forwardpass.quant.formats import kernel_format
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.gguf import open_gguf
from kernel_tools import pack

CHECKED = 40
"""Rows of each matrix that are compared; all are packed."""


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "gemma3-270m"])
def test_every_matrix_packs(name):
    kinds = set()
    with open_gguf(catalog.resolve(name)) as source:
        for tensor, info in source.tensors.items():
            if len(info.shape) != 2:
                continue
            n, k = info.shape
            layout = kernel_format(info.type, "auto")
            raw = source.data(tensor)
            packed = pack(layout, info.type, n, k, raw)
            assert packed.finite, tensor
            rows = np.linspace(0, n - 1, min(n, CHECKED)).astype(int)
            exact = dequantize(info.type, raw.reshape(n, -1)[rows].reshape(-1), (rows.size, k))
            error = np.abs(packed.rows(only=rows).astype(np.float64) - exact)
            assert (error <= bound(packed, info.type, exact, rows)).all(), tensor
            source.release(tensor)
            kinds.add(info.type)
    assert {"Q4_K", "Q5_0", "Q6_K", "Q8_0"} <= kinds
