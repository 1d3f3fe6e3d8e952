"""The forward pass, the only place it is written down: a spec and its weights become three recorded programs.

Stage 2 looks tokens up; stage 3 runs every layer (attention and MLP, each reading the residual stream and adding to it)
and the final norm; stage 4 projects the wanted rows onto the vocabulary. Everything that differs between families is
data in the spec. An operation that a spec does not ask for is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forwardpass.backends.protocol import NormWeights, Program
from forwardpass.models.cache_groups import cache_groups, places
from forwardpass.models.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec, RotarySpec
from forwardpass.models.weight_rows import mlp_widths


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program and the buffers through which its caller passes rows in and out."""

    program: Program
    source: int
    out: int


class Weights:
    """Packed matrices and float vectors by target name (see models/weight_rows.py)."""

    def __init__(self, matrices: dict[str, Any], vectors: dict[str, Any]):
        self.matrices = matrices
        self.vectors = vectors

    def linear(self, name: str) -> tuple[Any, Any]:
        """(matrix, bias or None) of a linear layer."""
        return self.matrices[name + ".weight"], self.vectors.get(name + ".bias")

    def norm(self, name: str, spec: NormSpec | None) -> NormWeights | None:
        if spec is None:
            return None
        bias = self.vectors[name + ".bias"] if spec.bias else None
        return NormWeights(spec.kind, spec.eps, self.vectors[name + ".weight"], bias)


def record_embed(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    program = backend.program()
    hidden = program.buffer(spec.hidden_size)
    tokens = program.buffer(spec.embed_size) if spec.embed_size else hidden
    program.embed(tokens, weights.matrices["embed.tokens.weight"], scale=spec.embed_scale, label="embed")
    if spec.embed_size:
        program.linear(tokens, hidden, [weights.linear("embed.project_in")], norm=None, label="embed")
    if spec.learned_positions:
        table = weights.matrices["embed.positions.weight"]
        program.positions(hidden, table, offset=spec.position_offset, label="embed")
    if spec.embed_norm:
        program.norm(hidden, hidden, weights.norm("embed.norm", spec.embed_norm), label="embed")
    return Recorded(program, hidden, hidden)


def record_layers(backend, spec: ModelSpec, weights: Weights, kv_dtype: str) -> Recorded:
    program = backend.program()
    hidden, out = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    layers = _Layers(backend, program, hidden, spec.hidden_size, weights, kv_dtype)
    place = places(cache_groups(spec))
    for i, layer in enumerate(spec.layers):
        layers.record(i, layer, *place[i])
    program.norm(hidden, out, weights.norm("final_norm", spec.final_norm), label="norm")
    return Recorded(program, hidden, out)


class _Layers:
    """Records layer after layer onto `program`. hidden, width: the residual stream's buffer and columns."""

    def __init__(self, backend, program: Program, hidden: int, width: int, weights: Weights, kv_dtype: str):
        self.backend, self.program, self.hidden, self.width = backend, program, hidden, width
        self.weights, self.kv_dtype = weights, kv_dtype
        self._buffers: dict[tuple[str, int], int] = {}
        self._rotaries: dict[RotarySpec, Any] = {}

    def record(self, i: int, layer: LayerSpec, group: int, number: int) -> None:
        """Layer i of the model, the number-th of its cache group."""
        at, pre = f"layers.{i}.", layer.order == "pre"
        first = self.weights.norm(at + "attention_norm", layer.attention_norm)
        second = self.weights.norm(at + "mlp_norm", layer.mlp_norm)
        qkv = self._qkv(at, layer.attention, first if pre else None)
        if layer.parallel:  # what reads x must do so before anything is added to it
            inner = self._inner(at, layer, second or first)
        mixed = self._attention(layer.attention, group, number, qkv)
        self._join(mixed, at + "attention.out", layer, at + "post_attention_norm", layer.post_attention_norm, "out")
        if first and not pre:
            self.program.norm(self.hidden, self.hidden, first, label="out")
        if not layer.parallel:
            inner = self._inner(at, layer, second if pre else None)
        self._finish_mlp(at, layer, inner)
        if second and not pre:
            self.program.norm(self.hidden, self.hidden, second, label="experts" if layer.mlp.experts else "down")

    def _buffer(self, kind: str, width: int) -> int:
        """One buffer for each kind and width, shared by all layers."""
        if (kind, width) not in self._buffers:
            self._buffers[kind, width] = self.program.buffer(width)
        return self._buffers[kind, width]

    def _rotary(self, spec: RotarySpec | None) -> Any:
        if spec is not None and spec not in self._rotaries:
            ntk = spec.ntk and (spec.ntk.base, spec.ntk.factor, spec.ntk.trained)
            self._rotaries[spec] = self.backend.rotary(spec.inv_freq, spec.attention_factor,
                                                       long_inv_freq=spec.long_inv_freq, ntk=ntk)
        return self._rotaries.get(spec)

    def _qkv(self, at: str, a: AttentionSpec, norm: NormWeights | None) -> int:
        """Queries, keys and values side by side, ready to be rotated."""
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        qkv = self._buffer("qkv", queries + 2 * keys)
        parts = [self.weights.linear(f"{at}attention.{one}") for one in "qkv"]
        self.program.linear(self.hidden, qkv, parts, norm=norm, label="qkv")
        if a.clip_qkv:
            self.program.clip(qkv, column=0, width=queries + 2 * keys, limit=a.clip_qkv, label="qkv")
        if a.qk_norm:
            for one, column, heads in (("q", 0, a.num_heads), ("k", queries, a.num_kv_heads)):
                heads, width = (1, heads * a.head_dim) if a.qk_norm_shape == "all" else (heads, a.head_dim)
                self.program.head_norm(qkv, column=column, heads=heads, head_dim=width,
                                       norm=self.weights.norm(f"{at}attention.{one}_norm", a.qk_norm),
                                       each=a.qk_norm_shape == "heads", label="qkv")
        return qkv

    def _attention(self, a: AttentionSpec, group: int, number: int, qkv: int) -> int:
        mixed = self._buffer("mixed", a.num_heads * a.head_dim)
        self.program.attention(qkv, mixed, layer=number, group=group, num_heads=a.num_heads,
                               num_kv_heads=a.num_kv_heads, head_dim=a.head_dim, scale=a.scale, window=a.window,
                               kv_dtype=self.kv_dtype, rotary=self._rotary(a.rotary), alibi=a.alibi or None,
                               softcap=a.softcap, label="attention")
        return mixed

    def _inner(self, at: str, layer: LayerSpec, norm: NormWeights | None) -> int:
        """The first half of an MLP: the activations between its products. Of a mixture it is all: the answer, which
        may already be added to the residual stream."""
        m = layer.mlp
        if m.experts:
            return self._experts(at, layer, norm)
        inner = self._buffer("inner", m.intermediate_size)
        up = self.weights.linear(at + "mlp.up")
        if m.kind == "gated":
            self.program.gated(self.hidden, inner, self.weights.linear(at + "mlp.gate"), up, norm=norm,
                               activation=m.activation, label="gate_up")
        else:
            self.program.linear(self.hidden, inner, [up], norm=norm, activation=m.activation, label="gate_up")
        return inner

    def _finish_mlp(self, at: str, layer: LayerSpec, inner: int) -> None:
        name, norm = at + "post_mlp_norm", layer.post_mlp_norm
        if not layer.mlp.experts:
            self._join(inner, at + "mlp.down", layer, name, norm, "down")
        elif inner != self.hidden:
            self.program.add_normed(inner, self.hidden, self.weights.norm(name, norm), scale=layer.residual_scale,
                                    label="experts")

    def _experts(self, at: str, layer: LayerSpec, norm: NormWeights | None) -> int:
        """The whole mixture. Where nothing else has to happen first its answer is added to the residual stream."""
        e, linear = layer.mlp.experts, self.weights.linear
        direct = not layer.parallel and layer.post_mlp_norm is None
        out = self.hidden if direct else self._buffer("answer", self.width)
        mlps = {name: tuple(linear(f"{at}{name}.{part}") for part in ("gate", "up", "down"))
                for name in mlp_widths(layer.mlp)}
        shared = mlps.pop("mlp.shared", None)
        self.program.experts(self.hidden, out, norm=norm, router=linear(at + "mlp.router"),
                             experts=tuple(mlps.values()), shared=shared,
                             shared_gate=linear(at + "mlp.shared_gate") if e.shared_gate else None,
                             chosen=e.chosen, normalise=e.normalise, activation=layer.mlp.activation,
                             mode="add" if direct else "store", scale=layer.residual_scale if direct else 1.0,
                             label="experts")
        return out

    def _join(self, source: int, matrix: str, layer: LayerSpec, name: str, norm: NormSpec | None, label: str) -> None:
        """Add residual_scale * norm(product of source) to the residual stream."""
        parts = [self.weights.linear(matrix)]
        if norm is None and layer.residual_scale == 1.0:
            self.program.linear(source, self.hidden, parts, norm=None, mode="add", label=label)
            return
        branch = self._buffer("branch", self.width)
        self.program.linear(source, branch, parts, norm=None, label=label)
        self.program.add_normed(branch, self.hidden, self.weights.norm(name, norm), scale=layer.residual_scale,
                                label=label)


def record_project(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    program = backend.program()
    hidden, rows = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    logits = program.buffer(spec.vocab_size)
    head = "embed.tokens.weight" if spec.tied else "head.weight"
    program.gather(hidden, rows, label="head")
    if spec.embed_size:
        wide, rows = rows, program.buffer(spec.embed_size)
        program.linear(wide, rows, [weights.linear("embed.project_out")], norm=None, label="head")
    program.linear(rows, logits, [(weights.matrices[head], weights.vectors.get("head.bias"))], norm=None, label="head")
    if spec.logit_scale != 1.0 or spec.logit_softcap:
        program.cap(logits, scale=spec.logit_scale, softcap=spec.logit_softcap, label="head")
    return Recorded(program, hidden, logits)
