"""The plain meaning of a spec in NumPy, float64, one text: what every program is compared with."""

from __future__ import annotations

import numpy as np

from forwardpass.models.patches import resized
from forwardpass.models.relative_bias import buckets
from forwardpass.models.spec import LayerSpec, ModelSpec
from forwardpass.models.weight_rows import HEAD, targets


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Target -> float32 array, large enough that every one of them is felt in the answer."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in targets(spec).items():
        if spec.tied and name == HEAD:
            continue
        around, size = (1.0, 0.3) if "norm." in name and name.endswith("weight") else (0.0, 0.3)
        size = 1.5 * shape[-1] ** -0.5 if len(shape) == 2 and "embed." not in name else size
        out[name] = (around + size * rng.standard_normal(shape)).astype(np.float32)
    return out


def numpy_logits(spec: ModelSpec, weights: dict[str, np.ndarray], ids, positions=None, types=None, source=None
                 ) -> np.ndarray:
    """float64 [tokens, vocab]. The arguments are those of `numpy_hidden`."""
    return numpy_head(spec, weights, numpy_hidden(spec, weights, ids, positions, types, source))


def numpy_hidden(spec: ModelSpec, weights: dict[str, np.ndarray], ids, positions=None, types=None, source=None
                 ) -> np.ndarray:
    """float64 [tokens, hidden] after the final norm.

    positions: of each token, from 0 on if not given;  types: of each token, 0 if not given;  source: the token ids that
    an encoder-decoder's encoder reads.
    """
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    memory = None
    if spec.encoder:
        inside = {name.removeprefix("encoder."): array for name, array in w.items() if name.startswith("encoder.")}
        if spec.shared_embedding:
            inside["embed.tokens.weight"] = w["embed.tokens.weight"]
        memory = _hidden(spec.encoder, inside, source, np.arange(len(source)), None, None)
    positions = np.arange(len(ids)) if positions is None else np.asarray(positions)
    return _hidden(spec, w, ids, positions, types, memory)


def numpy_image(spec: ModelSpec, weights: dict[str, np.ndarray], pixels) -> np.ndarray:
    """The same of an image, float [height, width, channels], for a model that reads them."""
    w, p = {name: np.asarray(array, np.float64) for name, array in weights.items()}, spec.patches
    lines, columns = p.grid(*pixels.shape[:2])
    squares = [pixels[y * p.size : (y + 1) * p.size, x * p.size : (x + 1) * p.size].reshape(-1)
               for y in range(lines) for x in range(columns)]
    x = _linear(w, "embed.patches", np.array(squares))
    first = np.array([w[f"embed.class.{i}.weight"] for i in range(p.classes)]).reshape(-1, spec.hidden_size)
    if p.positions == "learned":
        table = w["embed.places.weight"]
        first, rest, own = first + table[: p.classes], table[p.classes :], p.grid(*p.image)
        x = x + (rest if own == (lines, columns) else resized(rest, own, (lines, columns), p.resize == "antialiased"))
    registers = w["embed.registers.weight"] if p.registers else first[:0]
    x = _norm(spec.embed_norm, w, "embed.norm", np.concatenate([first, registers, x]))
    return _layers(spec, w, x, np.arange(len(x)), None)


def numpy_head(spec: ModelSpec, weights: dict[str, np.ndarray], hidden, ids=()) -> np.ndarray:
    """What the head makes of one text's final hidden states, or an image's: logits float64 [tokens, vocab], tags
    [tokens, outputs], labels or a vector [outputs]. ids: of the text, where its end is looked for."""
    head, first = spec.head, spec.patches.first if spec.patches else 0
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    x = {"each": lambda: hidden, "first": lambda: hidden[0], "last": lambda: hidden[-1],
         "mean": lambda: hidden.mean(0), "patches": lambda: hidden[first:].mean(0),
         "first+patches": lambda: np.concatenate([hidden[0], hidden[first:].mean(0)]), "both": lambda: hidden[0],
         "end": lambda: hidden[list(ids).index(head.end)], "greatest": lambda: hidden[list(ids).index(max(ids))],
         "attention": lambda: _pooled(head.attention, w, hidden)}[head.pool]()
    x = _norm(head.norm, w, "head.norm", x)
    if head.task == "vector" and not head.outputs:
        return x
    if head.dense:
        x = _act(head.activation, _linear(w, "head.dense", x))
        x = _norm(head.dense_norm, w, "head.dense_norm", x)
    elif spec.embed_size and head.task == "lm":
        x = _linear(w, "embed.project_out", x)
    x = x @ w["embed.tokens.weight" if spec.tied else "head.weight"].T + w.get("head.bias", 0)
    if head.pool == "both":
        x = (x + _linear(w, "head.teacher", hidden[1])) / 2
    return _cap(x * spec.logit_scale, spec.logit_softcap)


def _hidden(spec, w, ids, positions, types, memory):
    x = w["embed.tokens.weight"][np.asarray(ids)] * spec.embed_scale
    if spec.embed_size and not spec.project_last:
        x = _linear(w, "embed.project_in", x)
    if spec.token_types:
        x = x + w["embed.types.weight"][np.zeros(len(ids), int) if types is None else np.asarray(types)]
    if spec.learned_positions:
        x = x + w["embed.positions.weight"][spec.position_offset + positions]
    if spec.sinusoids:
        angle = (spec.position_offset + positions[:, None]) * np.array(spec.sinusoids)
        x = x + np.concatenate([np.sin(angle), np.cos(angle)], -1)
    x = _norm(spec.embed_norm, w, "embed.norm", x)
    if spec.embed_size and spec.project_last:
        x = _linear(w, "embed.project_in", x)
    return _layers(spec, w, x, positions, memory)


def _pooled(pool, w, hidden):
    part = [_linear(w, f"head.pool.{name}", rows).reshape(len(rows), pool.num_heads, -1) for name, rows in (
        ("q", w["head.pool.probe.weight"][None]), ("k", hidden), ("v", hidden))]
    mixed = _mixed(np.einsum("qhd,khd->hqk", part[0], part[1]) * part[0].shape[-1] ** -0.5, part[2])
    x = _linear(w, "head.pool.out", mixed)
    inner = _act(pool.activation, _linear(w, "head.pool.up", _norm(pool.norm, w, "head.pool.norm", x)))
    return (x + _linear(w, "head.pool.down", inner))[0]


def _layers(spec, w, x, positions, memory):
    for i, layer in enumerate(spec.layers):
        x = _layer(layer, w, f"layers.{spec.layer_weights[i] if spec.layer_weights else i}.", x, positions, memory)
    return _norm(spec.final_norm, w, "final_norm", x)


def _layer(layer: LayerSpec, w, at: str, x, positions, memory):
    def attention(x):
        return layer.residual_scale * _norm(layer.post_attention_norm, w, at + "post_attention_norm",
                                            _attention(layer.attention, w, at, x, positions))

    def cross(x):
        return layer.residual_scale * _cross(layer.cross, w, at, x, memory)

    def mlp(x):
        answer = _experts(layer.mlp, w, at, x) if layer.mlp.experts else _mlp(layer.mlp, w, at + "mlp", x)
        return layer.residual_scale * _norm(layer.post_mlp_norm, w, at + "post_mlp_norm", answer)

    def first(x):
        return _norm(layer.attention_norm, w, at + "attention_norm", x)

    def between(x):
        return _norm(layer.cross_norm, w, at + "cross_norm", x)

    def second(x):
        return _norm(layer.mlp_norm, w, at + "mlp_norm", x)

    if layer.order == "post":
        x = first(x + attention(x))
        if layer.cross:
            x = between(x + cross(x))
        return second(x + mlp(x))
    if layer.parallel:
        return x + attention(first(x)) + mlp(second(x) if layer.mlp_norm else first(x))
    x = x + attention(first(x))
    if layer.cross:
        x = x + cross(between(x))
    return x + mlp(second(x))


def _norm(spec, w, name, x, weight=None, bias=None):
    if spec is None:
        return x
    if spec.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    y = x if spec.kind == "scale" else x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.eps)
    if spec.weight:
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
    scores = np.einsum("qhd,khd->hqk", q, k)
    distance = np.arange(n)[:, None] - np.arange(n)  # query - key
    if a.disentangled:
        scores = scores + _between(a, w, at, q, k, distance)
    scores = _cap(scores * a.scale, a.softcap)
    if a.alibi:
        scores = scores - np.array(a.alibi)[:, None, None] * distance
    if a.relative:
        r = a.relative
        table = w[f"layers.{r.layer}.attention.relative_bias.weight"]
        scores = scores + table[buckets(-distance, r.buckets, r.bidirectional, r.max_distance)].transpose(2, 0, 1)
    hidden = distance < 0 if a.causal else np.zeros((n, n), bool)
    if a.window:
        hidden = hidden | (abs(distance) >= a.window)
    scores = np.where(hidden, -np.inf, scores)
    return _linear(w, at + "attention.out", _mixed(scores, v))


def _cross(a, w, at, x, memory):
    q = _linear(w, at + "cross.q", x).reshape(len(x), -1, a.head_dim)
    k, v = (_linear(w, f"{at}cross.{part}", memory).reshape(len(memory), -1, a.head_dim) for part in "kv")
    k, v = (np.repeat(part, a.num_heads // a.num_kv_heads, 1) for part in (k, v))
    return _linear(w, at + "cross.out", _mixed(np.einsum("qhd,khd->hqk", q, k) * a.scale, v))


def _mixed(scores, v):
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(scores.shape[1], -1)


def _between(a, w, at, q, k, distance):
    """Terms of disentangled attention: a content with a relative position. [heads, queries, keys]"""
    d, table = a.disentangled, w["embed.relative.weight"]
    table = _norm(d.norm, w, "embed.relative_norm", table)
    names = ("attention.q", "attention.k") if d.shared else ("attention.position_q", "attention.position_k")
    if d.buckets:  # of what is further than half the span, logarithms (the numbers are float32 in transformers)
        half = d.span // 2
        far = np.log(np.maximum(abs(distance), half).astype(np.float32) / np.float32(half))
        far = far / np.log(np.float32((d.max_distance - 1) / half)) * np.float32(half - 1)
        distance = np.where(abs(distance) <= half, distance, np.sign(distance) * (np.ceil(far) + half)).astype(int)
    row = np.clip(distance + d.span, 0, 2 * d.span - 1)
    scores = 0.0
    if d.c2p:
        keys = _linear(w, at + names[1], table).reshape(len(table), -1, a.head_dim)
        scores = scores + np.einsum("qhd,qkhd->hqk", q, keys[row])
    if d.p2c:
        queries = _linear(w, at + names[0], table).reshape(len(table), -1, a.head_dim)
        scores = scores + np.einsum("khd,qkhd->hqk", k, queries[row])
    return scores


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
