"""What a forward pass must do: operations and bytes, by stage and kind of op. Explain and benchmarks share it.

Counted are the bytes that a step cannot avoid: each matrix once in its stored format however many rows and layers
share it, one row of the embedding table a token, the cached keys and values each sequence sees once, and those it
appends. Activations stay in the processor's caches and don't count; so attention that is not causal reads nothing.
Operations are multiplications and additions of the matrix products, attention and norms; a multiply-add is two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forwardpass.models.cache_groups import cache_groups
from forwardpass.models.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import EMBEDDING, ENCODER, HEAD, VISION, BoundRow, pooled_width, targets, weights_of

KV_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
_LAYERS = ("norm", "qkv", "attention", "out", "gate_up", "down", "experts")
STAGES = {
    "encode": ("embed", *_LAYERS, "cross_kv"),
    "embed": ("embed",),
    "decode": (*_LAYERS, "cross_q", "cross", "cross_out"),
    "project": ("head",),
    "see": ("embed", *_LAYERS),
}
"""Stage -> its kinds of op; a model need not have all. "encode" is what an encoder-decoder's encoder does in stages 2
and 3, "cross_kv" the keys and values that it leaves to the decoder; "see" is what a vision tower does in them.
"gate_up" is also the single up matrix of a plain MLP, "experts" all of a mixture: router, the experts' MLPs and what
they share."""

_OPS = {"embed.project_in": "embed", "embed.norm": "embed", "embed.project_out": "head", "head": "head",
        "head.dense": "head", "head.dense_norm": "head", "head.norm": "head", "head.teacher": "head",
        "head.pool.q": "head", "head.pool.out": "head", "head.pool.norm": "head", "head.pool.up": "head",
        "head.pool.down": "head", "final_norm": "norm", "embed.patches": "embed",
        "attention.q": "qkv", "attention.k": "qkv", "attention.v": "qkv",
        "attention.q_norm": "qkv", "attention.k_norm": "qkv", "attention.out": "out",
        "cross.q": "cross_q", "cross.out": "cross_out",
        "mlp.gate": "gate_up", "mlp.up": "gate_up", "mlp.down": "down",
        "mlp.router": "experts", "mlp.shared_gate": "experts", "mlp.experts": "experts", "mlp.shared": "experts"}
"""What reads a target. The norms of a layer are in `_norm_ops`. What embedding looks up is counted by itself, and so
are the matrices that only an encoder's pass reads; tables of relative positions are read when a model is loaded."""


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: operations; read, written: bytes. Only attention writes: the keys and values it appends."""

    flops: int = 0
    read: int = 0
    written: int = 0

    @property
    def bytes(self) -> int:
        return self.read + self.written

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.read + other.read, self.written + other.written)


def stored_bytes(weights: Iterable[BoundRow]) -> dict[str, int]:
    """Target -> bytes in the checkpoint's own format."""
    out: dict[str, int] = {}
    for one in weights:
        out[one.target] = out.get(one.target, 0) + one.nbytes
    return out


def parameters(spec: ModelSpec) -> int:
    """Number of weights; a tied head counts once."""
    shapes = targets(spec)
    return sum(math.prod(shape) for name, shape in shapes.items() if not (spec.tied and name == HEAD))


def kv_position_bytes(spec: ModelSpec, kv_dtype: str) -> int:
    """Bytes of keys and values that one position of the text takes in all layers."""
    return kv_text_bytes(spec, kv_dtype, 1)


def kv_text_bytes(spec: ModelSpec, kv_dtype: str, positions: int, source: int = 0) -> int:
    """Bytes of keys and values that a text of so many positions keeps: all of them, or those of a layer's window.
    source: tokens of the text that an encoder read for it."""
    total = 0
    for group in cache_groups(spec):
        kept = source if group.cross else min(positions, group.window) if group.window else positions
        total += kept * len(group.layers) * _kv_layer_bytes(group.num_kv_heads, group.head_dim, kv_dtype)
    return total


def _kv_layer_bytes(num_kv_heads: int, head_dim: int, kv_dtype: str) -> int:
    """Bytes of one position's key and value in one layer. int8 keeps a float32 scale a token and head."""
    scale = 4 if kv_dtype == "int8" else 0
    return 2 * num_kv_heads * (head_dim * KV_BYTES[kv_dtype] + scale)


def stage_costs(spec: ModelSpec, nbytes: Mapping[str, int], rows: Sequence[int], contexts: Sequence[int],
                kv_dtype: str = "bfloat16", wanted: int | None = None, sources: Sequence[int] | None = None,
                encoded: Sequence[int] = (), images: Sequence[int] = ()) -> dict[str, dict[str, Cost]]:
    """Costs of one step: stage -> op kind -> Cost, with the keys of STAGES.

    nbytes: target -> stored bytes (`stored_bytes`). For each sequence, rows: new tokens in this step, contexts:
    tokens already in the cache. wanted: rows that are projected (default: one a sequence, all for tags).

    Of encoder-decoders, sources: tokens of each sequence's source;  encoded: of each source that this step encodes.
    images: the rows of each image that a vision tower reads, beside the texts.
    """
    if wanted is None:
        wanted = sum(rows) if spec.head.task == "tags" else len(rows)
    costs = {stage: dict.fromkeys(ops, Cost()) for stage, ops in STAGES.items() if stage != "see" or images}
    if encoded:
        inner, part = spec.encoder, _encoder_bytes(spec, nbytes)
        costs["encode"] |= _matrices(inner, part, sum(encoded), 0) | {
            "attention": _attention(inner, encoded, [0] * len(encoded), kv_dtype), "cross_kv": _sources(
                spec, nbytes, sum(encoded), kv_dtype)}
    if images:
        seen = _matrices(spec.vision, _inside(VISION, nbytes), sum(images), 0)
        seen["attention"] = _attention(spec.vision, images, [0] * len(images), kv_dtype)
        costs["see"] |= {op: seen[op] for op in STAGES["see"] if op in seen}
    step = _matrices(spec, nbytes, sum(rows), wanted)
    step["attention"] = _attention(spec, rows, contexts, kv_dtype)
    if spec.head.attention and wanted:
        step["head"] += _attention_pool(spec, nbytes, sum(rows))
    if spec.encoder and sum(rows):
        step["cross"] = _cross(spec, rows, sources, kv_dtype)
    for stage, ops in STAGES.items():
        if stage not in ("encode", "see"):
            costs[stage] |= {op: step[op] for op in ops if op in step}
    return costs


def _matrices(spec: ModelSpec, nbytes: Mapping[str, int], tokens: int, wanted: int) -> dict[str, Cost]:
    """Everything but attention, by kind of op."""
    costs = {"embed": _embed(spec, nbytes, tokens)}

    def add(op: str, cost: Cost) -> None:
        costs[op] = costs.get(op, Cost()) + cost

    layers = Counter(weights_of(spec, i) for i in range(len(spec.layers)))
    for name, shape in targets(spec).items():
        op = _op(spec, name)
        if op is None or (op == "head" and not wanted) or not tokens:
            continue
        read = nbytes[EMBEDDING if name == HEAD and spec.tied else name]
        uses: float = wanted if op == "head" else tokens
        stem, _, suffix = name.rpartition(".")
        if stem.startswith("layers."):
            uses *= layers[int(name.split(".")[1])]
        if ".mlp.experts." in name:  # each row uses some; a step reads at most as many as its rows have chosen
            experts = spec.layers[int(name.split(".")[1])].mlp.experts
            read = read * min(experts.count, tokens * experts.chosen) / experts.count
            uses = uses * experts.chosen / experts.count
        # a bias is one addition an output, a matrix one multiply-add an element; norms are counted below
        flops = 0 if stem.endswith("norm") else uses * (shape[0] if suffix == "bias" else 2 * math.prod(shape))
        add(op, Cost(flops, read))
    for op, width in _normed(spec):
        add(op, Cost((wanted if op == "head" else tokens) * width))
    # shares of experts are fractions, their sums over all experts are whole
    return {op: Cost(round(cost.flops), round(cost.read), cost.written) for op, cost in costs.items()}


def _encoder_bytes(spec: ModelSpec, nbytes: Mapping[str, int]) -> dict[str, int]:
    return {EMBEDDING: nbytes[EMBEDDING]} | _inside(ENCODER, nbytes)


def _inside(prefix: str, nbytes: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(prefix): size for name, size in nbytes.items() if name.startswith(prefix)}


def _sources(spec: ModelSpec, nbytes: Mapping[str, int], tokens: int, kv_dtype: str) -> Cost:
    """The keys and values that the decoder's layers will see of an encoder's texts."""
    cost = Cost(written=kv_text_bytes(spec, kv_dtype, 0, tokens))
    layers = Counter(weights_of(spec, i) for i in range(len(spec.layers)))
    for name, shape in targets(spec).items():
        if name.startswith("layers.") and ".cross." in name and _op(spec, name) is None:
            uses = tokens * layers[int(name.split(".")[1])]
            cost += Cost(uses * math.prod(shape) * (2 if len(shape) == 2 else 1), nbytes[name])
    return cost


def _op(spec: ModelSpec, name: str) -> str | None:
    """The kind of op that reads a target in a step, if one does."""
    stem = name.rpartition(".")[0]
    if not stem.startswith("layers."):
        return _OPS.get(stem)
    _, layer, stem = stem.split(".", 2)
    if stem.endswith("norm") and stem not in _OPS:
        return _norm_ops(spec.layers[int(layer)])[stem]
    return _OPS.get(stem) or _OPS.get(".".join(stem.split(".")[:2]))  # mlp.experts.7.up


def _norm_ops(layer: LayerSpec) -> dict[str, str]:
    """A layer's norms run with the product that reads them, or with the one whose result they normalise."""
    first, second = ("experts", "experts") if layer.mlp.experts else ("gate_up", "down")
    pre = layer.order == "pre"
    return {"attention_norm": "qkv" if pre else "out", "mlp_norm": first if pre else second,
            "post_attention_norm": "out", "post_mlp_norm": second, "cross_norm": "cross_q" if pre else "cross_out"}


def _normed(spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """(kind of op, operations a token) of every norm."""
    narrow = spec.embed_size if spec.project_last else spec.hidden_size
    norms = [("embed", narrow, spec.embed_norm), ("norm", spec.hidden_size, spec.final_norm),
             ("head", spec.head.dense, spec.head.dense_norm), ("head", pooled_width(spec), spec.head.norm)]
    for layer in spec.layers:
        a = layer.attention
        norms += [(op, spec.hidden_size, getattr(layer, name)) for name, op in _norm_ops(layer).items()]
        norms.append(("qkv", (a.num_heads + a.num_kv_heads) * a.head_dim, a.qk_norm))
    for op, columns, norm in norms:
        if norm:
            yield op, columns * _norm_flops(norm)


def total(costs: Mapping[str, Mapping[str, Cost]]) -> Cost:
    """Sum of all stages and kinds."""
    return sum((cost for ops in costs.values() for cost in ops.values()), Cost())


def _embed(spec: ModelSpec, nbytes: Mapping[str, int], tokens: int) -> Cost:
    """One table row a token, and one of each table that is added to it. Of an image, what is added to each row."""
    if spec.patches:
        return Cost(tokens * spec.hidden_size, tokens * spec.hidden_size * 4)
    width = spec.embed_size if spec.project_last else spec.hidden_size
    cost = Cost(0, tokens * (nbytes[EMBEDDING] // spec.vocab_size))
    for name, rows in (("embed.types.weight", spec.token_types), ("embed.positions.weight", spec.learned_positions)):
        if rows:
            cost += Cost(tokens * width, tokens * (nbytes[name] // rows))
    return cost + (Cost(tokens * width, tokens * width * 4) if spec.sinusoids else Cost())


def _norm_flops(norm: NormSpec) -> int:
    """Operations an element: squares and their sum, scale, weight; layer norm also its mean and the difference; a scale
    its weight alone."""
    return {"rms": 3, "layer": 5, "scale": 0}[norm.kind] + norm.weight + norm.bias


def _attention(spec: ModelSpec, rows: Sequence[int], contexts: Sequence[int], kv_dtype: str) -> Cost:
    """Scores and weighted values of the keys each row sees (itself and those before, `window` at most; without
    causality also those after it)."""
    total = Cost(written=sum(rows) * kv_position_bytes(spec, kv_dtype))
    # layers of equal heads and window cost the same
    for attention, layers in Counter(replace(layer.attention, rotary=None) for layer in spec.layers).items():
        a, width, window = attention, attention.num_heads * attention.head_dim, attention.window
        for new, past in zip(rows, contexts, strict=True):
            if spec.whole:
                total += Cost(layers * 4 * width * _seen(new, 0, window))
            elif not a.causal:
                total += Cost(layers * (4 * width * _seen_both_ways(new, window) + _disentangled(a, new)))
            elif new:
                reach = min(past + new, window + new - 1) if window else past + new
                total += Cost(layers * 4 * width * _seen(new, past, window),
                              layers * reach * _kv_layer_bytes(a.num_kv_heads, a.head_dim, kv_dtype))
    return total


def _attention_pool(spec: ModelSpec, nbytes: Mapping[str, int], tokens: int) -> Cost:
    """Keys and values of all rows, and the one query of each image that sees them."""
    cost = Cost(4 * spec.hidden_size * tokens)
    for name, shape in targets(spec).items():
        if name.startswith(("head.pool.k.", "head.pool.v.")):
            cost += Cost(tokens * math.prod(shape) * (2 if len(shape) == 2 else 1), nbytes[name])
    return cost


def _disentangled(a: AttentionSpec, new: int) -> int:
    """Products of each row with the positions that are told apart in its text."""
    d = a.disentangled
    return (d.c2p + d.p2c) * new * min(2 * d.span, 2 * new - 1) * 2 * a.num_heads * a.head_dim if d and new else 0


def _cross(spec: ModelSpec, rows: Sequence[int], sources: Sequence[int], kv_dtype: str) -> Cost:
    """Every row sees its whole source."""
    total = Cost()
    for layer in spec.layers:
        a = layer.cross
        for new, source in zip(rows, sources, strict=True):
            read = source * _kv_layer_bytes(a.num_kv_heads, a.head_dim, kv_dtype) if new else 0
            total += Cost(4 * a.num_heads * a.head_dim * new * source, read)
    return total


def _seen(new: int, past: int, window: int) -> int:
    """Keys seen by `new` rows after `past` positions: the sum of min(past + i + 1, window). 3, 2, 0 give 3 + 4 + 5."""
    if not window:
        return new * past + new * (new + 1) // 2
    growing = min(new, max(0, window - past))  # rows that still see everything
    return growing * past + growing * (growing + 1) // 2 + (new - growing) * window


def _seen_both_ways(new: int, window: int) -> int:
    """Keys seen by the rows of a text that look both ways. 4, 2 give 2 + 3 + 3 + 2."""
    return 2 * _seen(new, 0, window) - new
