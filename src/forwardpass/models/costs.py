"""What a forward pass must do: operations and bytes, by stage and kind of op. Explain and benchmarks share it.

Counted are the bytes that a step cannot avoid: each matrix once in its stored format however many rows share it,
one row of the embedding table a token, the keys and values each sequence sees once, and those it appends.
Activations stay in the processor's caches and don't count. Operations are multiplications and additions of the
matrix products, attention and norms; a multiply-add is two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forwardpass.models.cache_groups import cache_groups
from forwardpass.models.spec import LayerSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import EMBEDDING, HEAD, BoundRow, targets

KV_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
STAGES = {
    "embed": ("embed",),
    "decode": ("norm", "qkv", "attention", "out", "gate_up", "down", "experts"),
    "project": ("head",),
}
"""Stage -> its kinds of op; a model need not have all. "gate_up" is also the single up matrix of a plain MLP, "experts"
all of a mixture: router, the experts' MLPs and what they share."""

_OPS = {"embed.project_in": "embed", "embed.norm": "embed", "embed.project_out": "head", "head": "head",
        "final_norm": "norm", "attention.q": "qkv", "attention.k": "qkv", "attention.v": "qkv",
        "attention.q_norm": "qkv", "attention.k_norm": "qkv", "attention.out": "out",
        "mlp.gate": "gate_up", "mlp.up": "gate_up", "mlp.down": "down",
        "mlp.router": "experts", "mlp.shared_gate": "experts", "mlp.experts": "experts", "mlp.shared": "experts"}
"""What reads a target. The norms of a layer are in `_norm_ops`; what embedding looks up is counted by itself."""


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
    """Bytes of keys and values that one position takes in all layers."""
    return kv_text_bytes(spec, kv_dtype, 1)


def kv_text_bytes(spec: ModelSpec, kv_dtype: str, positions: int) -> int:
    """Bytes of keys and values that a text of so many positions keeps: all of them, or those of a layer's window."""
    return sum(len(group.layers) * _kv_layer_bytes(group.num_kv_heads, group.head_dim, kv_dtype)
               * (min(positions, group.window) if group.window else positions) for group in cache_groups(spec))


def _kv_layer_bytes(num_kv_heads: int, head_dim: int, kv_dtype: str) -> int:
    """Bytes of one position's key and value in one layer. int8 keeps a float32 scale a token and head."""
    scale = 4 if kv_dtype == "int8" else 0
    return 2 * num_kv_heads * (head_dim * KV_BYTES[kv_dtype] + scale)


def stage_costs(spec: ModelSpec, nbytes: Mapping[str, int], rows: Sequence[int], contexts: Sequence[int],
                kv_dtype: str = "bfloat16", wanted: int | None = None) -> dict[str, dict[str, Cost]]:
    """Costs of one step: stage -> op kind -> Cost, with the keys of STAGES.

    nbytes: target -> stored bytes (`stored_bytes`). For each sequence, rows: new tokens in this step, contexts:
    tokens already in the cache. wanted: rows that are projected to logits (default: one a sequence).
    """
    wanted = len(rows) if wanted is None else wanted
    tokens = sum(rows)
    costs = {op: Cost() for ops in STAGES.values() for op in ops}
    costs["embed"] = _embed(spec, nbytes, tokens)
    for name, shape in targets(spec).items():
        op = _op(spec, name)
        if op is None or (op == "head" and not wanted) or not tokens:
            continue
        read = nbytes[EMBEDDING if name == HEAD and spec.tied else name]
        uses: float = wanted if op == "head" else tokens
        stem, _, suffix = name.rpartition(".")
        if ".mlp.experts." in name:  # each row uses some; a step reads at most as many as its rows have chosen
            experts = spec.layers[int(name.split(".")[1])].mlp.experts
            read = read * min(experts.count, tokens * experts.chosen) / experts.count
            uses = uses * experts.chosen / experts.count
        # a bias is one addition an output, a matrix one multiply-add an element; norms are counted below
        flops = 0 if stem.endswith("norm") else uses * (shape[0] if suffix == "bias" else 2 * math.prod(shape))
        costs[op] += Cost(flops, read)
    for op, width in _normed(spec):
        costs[op] += Cost(tokens * width)
    costs["attention"] = _attention(spec, rows, contexts, kv_dtype)
    # shares of experts are fractions, their sums over all experts are whole
    whole = {op: Cost(round(cost.flops), round(cost.read), cost.written) for op, cost in costs.items()}
    return {stage: {op: whole[op] for op in ops} for stage, ops in STAGES.items()}


def _op(spec: ModelSpec, name: str) -> str | None:
    """The kind of op that reads a target."""
    stem = name.rpartition(".")[0]
    if not stem.startswith("layers."):
        return _OPS.get(stem)
    _, layer, stem = stem.split(".", 2)
    if stem.endswith("norm") and stem not in _OPS:
        return _norm_ops(spec.layers[int(layer)])[stem]
    return _OPS.get(stem) or _OPS[".".join(stem.split(".")[:2])]  # mlp.experts.7.up


def _norm_ops(layer: LayerSpec) -> dict[str, str]:
    """A layer's norms run with the product that reads them, or with the one whose result they normalise."""
    first, second = ("experts", "experts") if layer.mlp.experts else ("gate_up", "down")
    pre = layer.order == "pre"
    return {"attention_norm": "qkv" if pre else "out", "mlp_norm": first if pre else second,
            "post_attention_norm": "out", "post_mlp_norm": second}


def _normed(spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """(kind of op, operations a token) of every norm."""
    norms = [("embed", spec.hidden_size, spec.embed_norm), ("norm", spec.hidden_size, spec.final_norm)]
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
    """One table row a token, and one of the learned positions and their sum if there are any."""
    cost = Cost(0, tokens * (nbytes[EMBEDDING] // spec.vocab_size))
    if spec.learned_positions:
        row = nbytes["embed.positions.weight"] // spec.learned_positions
        cost += Cost(tokens * spec.hidden_size, tokens * row)
    return cost


def _norm_flops(norm: NormSpec) -> int:
    """Operations an element: squares and their sum, scale, weight; layer norm also its mean and the difference."""
    return (4 if norm.kind == "rms" else 6) + norm.bias


def _attention(spec: ModelSpec, rows: Sequence[int], contexts: Sequence[int], kv_dtype: str) -> Cost:
    """Scores and weighted values of the keys each row sees (itself and those before, `window` at most)."""
    flops = read = 0
    distinct: dict[tuple[int, int, int], int] = {}  # layers of equal heads and window cost the same
    for layer in spec.layers:
        a = layer.attention
        key = a.num_heads * a.head_dim, _kv_layer_bytes(a.num_kv_heads, a.head_dim, kv_dtype), a.window
        distinct[key] = distinct.get(key, 0) + 1
    for (width, per_layer, window), layers in distinct.items():
        for new, past in zip(rows, contexts, strict=True):
            reach = min(past + new, window + new - 1) if window else past + new
            read += layers * (reach if new else 0) * per_layer
            flops += layers * 4 * width * _seen(new, past, window)
    return Cost(flops, read, sum(rows) * kv_position_bytes(spec, kv_dtype))


def _seen(new: int, past: int, window: int) -> int:
    """Keys seen by `new` rows after `past` positions: the sum of min(past + i + 1, window). 3, 2, 0 give 3 + 4 + 5."""
    if not window:
        return new * past + new * (new + 1) // 2
    growing = min(new, max(0, window - past))  # rows that still see everything
    return growing * past + growing * (growing + 1) // 2 + (new - growing) * window
