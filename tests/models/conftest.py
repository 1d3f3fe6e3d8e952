"""Tiny models saved by transformers, the real SmolLM2 file, and a plain NumPy forward pass of a spec."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from forwardpass import catalog
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.models.weight_rows import row_order
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.safetensors import open_safetensors
from forwardpass.weights.source import TensorInfo


class FakeSource:
    """A checkpoint in memory: arrays by name, all stored as float32."""

    def __init__(self, kind, arrays, metadata=None):
        self.kind, self.path, self.metadata, self.arrays = kind, "a test's checkpoint", metadata or {}, arrays
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
        if row.transform == "transpose":
            array = array.T
        if row.rows:
            array = array[row.rows]
        if row.transform == "rotary_rows":
            array = array[row_order(len(array), row.heads)]
        assert array.shape == row.shape
        out[row.target] = array
    return out


def _norm(spec, w, name, x):
    if spec.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.eps) * w[name + ".weight"]
    return y + w[name + ".bias"] if spec.bias else y


def _linear(w, name, x):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def _act(kind, x):
    if kind == "silu":
        return x / (1 + np.exp(-x))
    assert kind == "gelu_tanh"
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _rotate(spec, x):
    half = spec.dim // 2
    angle = np.arange(x.shape[0])[:, None, None] * np.array(spec.inv_freq)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def numpy_logits(spec, weights, ids):
    """float64 [tokens, vocab]: the plain meaning of a spec, one sequence from position 0."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x, n = w["embed.tokens.weight"][ids], len(ids)
    if spec.learned_positions:
        x = x + w["embed.positions.weight"][:n]
    for i, layer in enumerate(spec.layers):
        a, at = layer.attention, f"layers.{i}."
        h = _norm(layer.attention_norm, w, at + "attention_norm", x)
        q, k, v = (_linear(w, at + "attention." + part, h).reshape(n, -1, a.head_dim) for part in "qkv")
        if a.rotary:
            q, k = _rotate(a.rotary, q), _rotate(a.rotary, k)
        k, v = (np.repeat(part, a.num_heads // a.num_kv_heads, 1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * a.scale + np.triu(np.full((n, n), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + _linear(w, at + "attention.out", mixed)
        h = _norm(layer.mlp_norm, w, at + "mlp_norm", x)
        up = _linear(w, at + "mlp.up", h)
        act = layer.mlp.activation
        inner = _act(act, _linear(w, at + "mlp.gate", h)) * up if layer.mlp.kind == "gated" else _act(act, up)
        x = x + _linear(w, at + "mlp.down", inner)
    x = _norm(spec.final_norm, w, "final_norm", x)
    return x @ w["embed.tokens.weight" if spec.tied else "head.weight"].T


@pytest.fixture(scope="session")
def tools():
    return SimpleNamespace(FakeSource=FakeSource, load_rows=load_rows, numpy_logits=numpy_logits)


def tiny_model(name, **changes):
    """A random transformers model of two layers, width 48 and vocabulary 64, with weights large enough to matter."""
    import torch
    import transformers as t

    torch.manual_seed(7)
    kin = dict(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               intermediate_size=80, max_position_embeddings=128, initializer_range=0.2)
    if name == "gpt2":
        config = t.GPT2Config(**dict(vocab_size=64, n_embd=48, n_layer=2, n_head=4, n_positions=128, bos_token_id=0,
                                     eos_token_id=1, initializer_range=0.2) | changes)
        model = t.GPT2LMHeadModel(config)
    elif name == "qwen2":
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**kin | changes))
    else:
        model = t.LlamaForCausalLM(t.LlamaConfig(**kin | changes))
    with torch.no_grad():  # biases start at zero and norms at one, which would hide them
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(family, **config changes) -> model (transformers), directory, config, source, checkpoint."""
    opened = []

    def make(name, **changes):
        model = tiny_model(name, **changes)
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
