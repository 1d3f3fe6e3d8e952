"""The plain meaning of a spec in NumPy, float64, one text: what every program is compared with."""

from __future__ import annotations

import numpy as np

from forwardpass.models.spec import LayerSpec, ModelSpec
from forwardpass.models.weight_rows import HEAD, targets


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Target -> float32 array, large enough that every one of them is felt in the logits."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in targets(spec).items():
        if spec.tied and name == HEAD:
            continue
        around, size = (1.0, 0.3) if "norm." in name and name.endswith("weight") else (0.0, 0.3)
        size = 1.5 * shape[-1] ** -0.5 if len(shape) == 2 and not name.startswith("embed") else size
        out[name] = (around + size * rng.standard_normal(shape)).astype(np.float32)
    return out


def numpy_logits(spec: ModelSpec, weights: dict[str, np.ndarray], ids, positions=None) -> np.ndarray:
    """float64 [tokens, vocab]. positions: of each token, from 0 on if not given."""
    positions = np.arange(len(ids)) if positions is None else positions
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["embed.tokens.weight"][ids] * spec.embed_scale
    if spec.embed_size:
        x = _linear(w, "embed.project_in", x)
    if spec.learned_positions:
        x = x + w["embed.positions.weight"][spec.position_offset + positions]
    x = _norm(spec.embed_norm, w, "embed.norm", x)
    for i, layer in enumerate(spec.layers):
        x = _layer(layer, w, f"layers.{i}.", x, positions)
    x = _norm(spec.final_norm, w, "final_norm", x)
    if spec.embed_size:
        x = _linear(w, "embed.project_out", x)
    logits = x @ w["embed.tokens.weight" if spec.tied else "head.weight"].T + w.get("head.bias", 0)
    return _cap(logits * spec.logit_scale, spec.logit_softcap)


def _layer(layer: LayerSpec, w, at: str, x, positions):
    def attention(x):
        return layer.residual_scale * _norm(layer.post_attention_norm, w, at + "post_attention_norm",
                                            _attention(layer.attention, w, at, x, positions))

    def mlp(x):
        answer = _experts(layer.mlp, w, at, x) if layer.mlp.experts else _mlp(layer.mlp, w, at + "mlp", x)
        return layer.residual_scale * _norm(layer.post_mlp_norm, w, at + "post_mlp_norm", answer)

    def first(x):
        return _norm(layer.attention_norm, w, at + "attention_norm", x)

    def second(x):
        return _norm(layer.mlp_norm, w, at + "mlp_norm", x)

    if layer.order == "post":
        x = first(x + attention(x))
        return second(x + mlp(x))
    if layer.parallel:
        return x + attention(first(x)) + mlp(second(x) if layer.mlp_norm else first(x))
    x = x + attention(first(x))
    return x + mlp(second(x))


def _norm(spec, w, name, x, weight=None, bias=None):
    if spec is None:
        return x
    if spec.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.eps)
    y = y * (w[name + ".weight"] if weight is None else weight)
    return y + (w[name + ".bias"] if bias is None else bias) if spec.bias else y


def _linear(w, name, x):
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)


def _cap(x, softcap):
    return softcap * np.tanh(x / softcap) if softcap else x


def _act(kind, x):
    from math import erf

    return {"silu": lambda: x / (1 + np.exp(-x)), "quick_gelu": lambda: x / (1 + np.exp(-1.702 * x)),
            "relu": lambda: np.maximum(x, 0), "tanh": lambda: np.tanh(x),
            "gelu_erf": lambda: 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5)),
            "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))}[kind]()


def _mlp(m, w, name, x):
    up = _linear(w, name + ".up", x)
    inner = _act(m.activation, _linear(w, name + ".gate", x)) * up if m.kind == "gated" else _act(m.activation, up)
    return _linear(w, name + ".down", inner)


def _experts(m, w, at, x):
    e, scores = m.experts, _linear(w, at + "mlp.router", x)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for r, row in enumerate(x):
        best = np.argsort(-scores[r], kind="stable")[: e.chosen]
        share = scores[r][best] / (scores[r][best].sum() if e.normalise else 1)
        out[r] = sum(p * _mlp(m, w, f"{at}mlp.experts.{one}", row[None])[0] for one, p in zip(best, share, strict=True))
    if e.shared_size:
        gate = 1 / (1 + np.exp(-_linear(w, at + "mlp.shared_gate", x))) if e.shared_gate else 1
        out = out + gate * _mlp(m, w, at + "mlp.shared", x)
    return out


def _attention(a, w, at, x, positions):
    n = len(x)
    q, k, v = (_linear(w, f"{at}attention.{part}", x).reshape(n, -1, a.head_dim) for part in "qkv")
    if a.clip_qkv:
        q, k, v = (np.clip(part, -a.clip_qkv, a.clip_qkv) for part in (q, k, v))
    if a.qk_norm:
        q, k = (_head_norm(a, w, f"{at}attention.{name}_norm", part) for name, part in (("q", q), ("k", k)))
    if a.rotary:
        q, k = _rotate(a.rotary, q, positions), _rotate(a.rotary, k, positions)
    k, v = (np.repeat(part, a.num_heads // a.num_kv_heads, 1) for part in (k, v))
    scores = _cap(np.einsum("qhd,khd->hqk", q, k) * a.scale, a.softcap)
    distance = np.arange(n)[:, None] - np.arange(n)
    if a.alibi:
        scores = scores - np.array(a.alibi)[:, None, None] * distance
    hidden = (distance < 0) | ((distance >= a.window) if a.window else False)
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
    return _linear(w, at + "attention.out", mixed)


def _head_norm(a, w, name, x):
    if a.qk_norm_shape == "all":
        return _norm(a.qk_norm, w, name, x.reshape(len(x), -1)).reshape(x.shape)
    shape = (1 if a.qk_norm_shape == "head" else x.shape[1], a.head_dim)
    bias = w[name + ".bias"].reshape(shape) if a.qk_norm.bias else None
    return _norm(a.qk_norm, w, name, x, w[name + ".weight"].reshape(shape), bias)


def _rotate(spec, x, positions):
    n, frequencies = len(x), np.array(spec.inv_freq)
    if spec.long_inv_freq and n > spec.switch:
        frequencies = np.array(spec.long_inv_freq)
    if spec.ntk and n > spec.ntk.trained:
        grown = spec.ntk.factor * n / spec.ntk.trained - (spec.ntk.factor - 1)
        base = spec.ntk.base * grown ** (spec.dim / (spec.dim - 2))
        frequencies = base ** (-np.arange(0, spec.dim, 2) / spec.dim)
    angle = positions[:, None, None] * frequencies
    cos, sin = np.cos(angle) * spec.attention_factor, np.sin(angle) * spec.attention_factor
    half = spec.dim // 2
    a, b, rest = x[..., :half], x[..., half : spec.dim], x[..., spec.dim :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
