"""Tiny models saved by transformers, and the real SmolLM2 file."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tiny_models
from forwardpass import catalog
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.models.weight_rows import row_order
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.safetensors import open_safetensors
from forwardpass.weights.source import TensorInfo
from numpy_model import numpy_logits


class FakeSource:
    """A checkpoint in memory: arrays by name, all stored as float32."""

    def __init__(self, kind, arrays, metadata=None):
        self.kind, self.path, self.metadata, self.arrays = kind, "a test's checkpoint", metadata or {}, arrays
        self.warnings = self.idle = ()
        self.tensors = {name: TensorInfo(name, a.shape, "F32", a.nbytes) for name, a in arrays.items()}

    def data(self, name):
        return np.ascontiguousarray(self.arrays[name], dtype=np.float32).reshape(-1).view(np.uint8)

    def release(self, name):
        pass


def load_rows(checkpoint, source):
    """Target -> float32 array in the engine's order, by the definition of each transform."""
    out = {}
    for bound in checkpoint.weights:
        row, info = bound.row, bound.info
        array = dequantize(info.type, source.data(info.name), tuple(info.shape))
        if row.stack:
            array = array.reshape(-1, *array.shape[2:])
        if row.transform == "pixels":
            array = array.transpose(0, 2, 3, 1)
        if row.transform == "transpose":
            array = array.T
        if row.rows:
            period = row.period or row.total
            array = np.concatenate([array[at:][row.rows] for at in range(0, row.total, period)])
        if row.transform == "rotary_rows":
            array = array[row_order(len(array), row.heads, row.rotary_dim)]
        array = array.reshape(row.shape) + np.float32(row.add)
        out[row.target] = np.concatenate([out[row.target], array]) if row.target in out else array
    return out


@pytest.fixture(scope="session")
def tools():
    return SimpleNamespace(FakeSource=FakeSource, load_rows=load_rows, numpy_logits=numpy_logits)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(family, **config changes) -> model (transformers; two layers, width 48, vocabulary 64 unless changed),
    directory, config, source, checkpoint."""
    opened = []

    def make(name, **changes):
        positions = {"n_positions" if name == "gpt2" else "max_position_embeddings": 128}
        model = tiny_models.make(name, **{"vocab_size": 64} | positions | changes)
        directory = tmp_path_factory.mktemp(name)
        model.save_pretrained(directory)
        config, source = read_config(directory), open_safetensors(directory)
        opened.append(source)
        checkpoint = registry.read(source, config.values)
        return SimpleNamespace(model=model, directory=directory, config=config, source=source, checkpoint=checkpoint)

    yield make
    for source in opened:
        source.close()


@pytest.fixture(scope="session")
def smollm2():
    """The real SmolLM2-135M Q4_1 file, opened."""
    with open_gguf(catalog.resolve("smollm2-135m")) as source:
        yield source
