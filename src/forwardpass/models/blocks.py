"""The forward pass, the only place it is written down: a spec and its weights become three recorded programs.

Stage 2 looks tokens up; stage 3 runs every layer (attention and MLP, each reading the residual stream and adding to it)
and the final norm; stage 4 projects the wanted rows onto the vocabulary, or onto labels. An encoder-decoder has stages
2 and 3 twice: its encoder's stage 3 ends with the keys and values that every layer of the decoder will look at, and
stores them in the cache. Everything that differs between families is data in the spec. An operation that a spec does
not ask for is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forwardpass.backends.protocol import NormWeights, Program
from forwardpass.models import relative_bias, sinusoids
from forwardpass.models.cache_groups import cache_groups, cross_group, places
from forwardpass.models.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec, RotarySpec
from forwardpass.models.weight_rows import (
    EMBEDDING,
    ENCODER,
    HEAD,
    RELATIVE_BIAS,
    mlp_widths,
    pooled_width,
    projects_out,
    weights_of,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program and the buffers through which its caller passes rows in and out."""

    program: Program
    source: int
    out: int


class Weights:
    """By target name (see models/weight_rows.py): packed matrices, and float32 arrays: vectors, and the tables of
    relative biases."""

    def __init__(self, matrices: Mapping[str, Any], vectors: Mapping[str, Any]):
        self.matrices = matrices
        self.vectors = vectors

    def linear(self, name: str) -> tuple[Any, Any]:
        """(matrix, bias or None) of a linear layer."""
        return self.matrices[name + ".weight"], self.vectors.get(name + ".bias")

    def norm(self, name: str, spec: NormSpec | None) -> NormWeights | None:
        if spec is None:
            return None
        bias = self.vectors[name + ".bias"] if spec.bias else None
        return NormWeights(spec.kind, spec.eps, self.vectors[name + ".weight"] if spec.weight else None, bias)

    def encoder(self) -> Weights:
        """Those of an encoder-decoder's encoder; its token table may be the decoder's."""
        inner = self.under(ENCODER)
        return Weights({EMBEDDING: self.matrices[EMBEDDING]} | inner.matrices, inner.vectors)

    def under(self, prefix: str) -> Weights:
        """Those whose names begin with a prefix, without it."""
        return Weights(*({name.removeprefix(prefix): one for name, one in all.items() if name.startswith(prefix)}
                         for all in (self.matrices, self.vectors)))


def record_embed(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    program = backend.program()
    hidden = program.buffer(spec.hidden_size)
    tokens = program.buffer(spec.embed_size) if spec.embed_size else hidden
    program.embed(tokens, weights.matrices[EMBEDDING], scale=spec.embed_scale, label="embed")

    def widen():
        if spec.embed_size:
            program.linear(tokens, hidden, [weights.linear("embed.project_in")], norm=None, label="embed")

    if not spec.project_last:
        widen()
    rows = tokens if spec.project_last else hidden
    if spec.token_types:
        program.types(rows, weights.matrices["embed.types.weight"], label="embed")
    if spec.learned_positions:
        table = weights.matrices["embed.positions.weight"]
        program.positions(rows, table, offset=spec.position_offset, label="embed")
    if spec.sinusoids:
        table = backend.table(sinusoids.table(spec.sinusoids, spec.max_position_embeddings + spec.position_offset))
        program.positions(rows, table, offset=spec.position_offset, label="embed")
    if spec.embed_norm:
        program.norm(rows, rows, weights.norm("embed.norm", spec.embed_norm), label="embed")
    if spec.project_last:
        widen()
    return Recorded(program, hidden, hidden)


def record_layers(backend, spec: ModelSpec, weights: Weights, kv_dtype: str) -> Recorded:
    program = backend.program()
    hidden, out = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    layers = Layers(backend, program, hidden, spec, weights, kv_dtype)
    for i in range(len(spec.layers)):
        layers.record(i)
    program.norm(hidden, out, weights.norm("final_norm", spec.final_norm), label="norm")
    return Recorded(program, hidden, out)


def record_sources(layers: Recorded, spec: ModelSpec, weights: Weights, kv_dtype: str) -> None:
    """After the layers of an encoder: the keys and values that its decoder sees of each text, into the cache.

    layers: the encoder's;  spec, weights: of the whole pair.
    """
    program, group = layers.program, cross_group(spec)
    kv = program.buffer(2 * group.num_kv_heads * group.head_dim)
    for number, i in enumerate(group.layers):
        at = f"layers.{weights_of(spec, i)}.cross."
        parts = [weights.linear(at + "k"), weights.linear(at + "v")]
        program.linear(layers.out, kv, parts, norm=None, label="cross_kv")
        program.store(kv, layer=number, group=0, num_kv_heads=group.num_kv_heads, head_dim=group.head_dim,
                      kv_dtype=kv_dtype, label="cross_kv")


class Layers:
    """Records layer after layer onto `program`. hidden: the residual stream's buffer.

    space: of all buffers of rows;  modulation: of modulated layers, layer -> (buffer of IMAGES, first of its 6 * width
    columns);  context: of layers that attend to contexts, (buffer of CONTEXT with keys and values, layer -> column).
    """

    def __init__(self, backend, program: Program, hidden: int, spec: ModelSpec, weights: Weights, kv_dtype: str, *,
                 space: int = 0, modulation: Mapping[int, tuple[int, int]] | None = None,
                 context: tuple[int, Mapping[int, int]] | None = None):
        self.backend, self.program, self.hidden, self.width = backend, program, hidden, spec.hidden_size
        self.spec, self.weights, self.kv_dtype = spec, weights, kv_dtype
        self.space, self.modulation, self.context = space, modulation or {}, context
        self.groups = cache_groups(spec)
        self.places = places(self.groups)
        self._buffers: dict[tuple[str, int], int] = {}
        self._rotaries: dict[RotarySpec, Any] = {}
        self._relative: dict[tuple[str, int], np.ndarray] = {}

    def record(self, i: int) -> None:
        """Layer i of the model."""
        layer, at = self.spec.layers[i], f"layers.{weights_of(self.spec, i)}."
        pre = layer.order == "pre"
        first = self.weights.norm(at + "attention_norm", layer.attention_norm)
        second = self.weights.norm(at + "mlp_norm", layer.mlp_norm)
        qkv = self._qkv(at, layer.attention, *self._read(i, 0, first if pre else None, "qkv"))
        if layer.parallel:  # what reads x must do so before anything is added to it
            inner = self._inner(at, layer, self.hidden, second or first)
        mixed = self._attention(at, layer.attention, i, qkv)
        self._join(mixed, at + "attention.out", layer, at + "post_attention_norm", layer.post_attention_norm, "out",
                   self._gate(i, 0))
        if first and not pre:
            self.program.norm(self.hidden, self.hidden, first, label="out")
        if layer.cross:
            self._cross(at, layer, i)
        if not layer.parallel:
            inner = self._inner(at, layer, *self._read(i, 1, second if pre else None, "gate_up"))
        self._finish_mlp(at, layer, inner, self._gate(i, 1))
        if second and not pre:
            self.program.norm(self.hidden, self.hidden, second, label="experts" if layer.mlp.experts else "down")

    def _read(self, i: int, half: int, norm: NormWeights | None, label: str) -> tuple[int, NormWeights | None]:
        """(buffer, norm that is still to come) of what attention (0) or MLP (1) of a layer reads."""
        if i not in self.modulation:
            return self.hidden, norm
        by, column = self.modulation[i]
        branch, shift = self._buffer("branch", self.width), column + 3 * half * self.width
        self.program.modulate(self.hidden, branch, norm, by=by, shift=shift, scale=shift + self.width, label=label)
        return branch, None

    def _gate(self, i: int, half: int) -> tuple[int, int] | None:
        """(buffer, column) of what a modulated layer's branch is multiplied by."""
        if i not in self.modulation:
            return None
        by, column = self.modulation[i]
        return by, column + (3 * half + 2) * self.width

    def _buffer(self, kind: str, width: int) -> int:
        """One buffer for each kind and width, shared by all layers."""
        if (kind, width) not in self._buffers:
            self._buffers[kind, width] = self.program.buffer(width, self.space)
        return self._buffers[kind, width]

    def _rotary(self, spec: RotarySpec | None) -> Any:
        if spec is not None and spec not in self._rotaries:
            ntk = spec.ntk and (spec.ntk.base, spec.ntk.factor, spec.ntk.trained)
            self._rotaries[spec] = self.backend.rotary(spec.inv_freq, spec.attention_factor,
                                                       long_inv_freq=spec.long_inv_freq, ntk=ntk)
        return self._rotaries.get(spec)

    def _qkv(self, at: str, a: AttentionSpec, source: int, norm: NormWeights | None) -> int:
        """Queries, keys and values side by side, ready to be rotated."""
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        qkv = self._buffer("qkv", queries + 2 * keys)
        parts = [self.weights.linear(f"{at}attention.{one}") for one in "qkv"]
        self.program.linear(source, qkv, parts, norm=norm, label="qkv")
        if a.clip_qkv:
            self.program.clip(qkv, column=0, width=queries + 2 * keys, limit=a.clip_qkv, label="qkv")
        if a.qk_norm:
            for one, column, heads in (("q", 0, a.num_heads), ("k", queries, a.num_kv_heads)):
                heads, width = (1, heads * a.head_dim) if a.qk_norm_shape == "all" else (heads, a.head_dim)
                self.program.head_norm(qkv, column=column, heads=heads, head_dim=width,
                                       norm=self.weights.norm(f"{at}attention.{one}_norm", a.qk_norm),
                                       each=a.qk_norm_shape == "heads", label="qkv")
        return qkv

    def _attention(self, at: str, a: AttentionSpec, i: int, qkv: int) -> int:
        """Without causality there is no cache, and so no place in one."""
        mixed = self._buffer("mixed", a.num_heads * a.head_dim)
        group, number = self.places.get(i, (0, 0))
        self.program.attention(qkv, mixed, layer=number, group=group, num_heads=a.num_heads,
                               num_kv_heads=a.num_kv_heads, head_dim=a.head_dim, scale=a.scale, window=a.window,
                               kv_dtype=self.kv_dtype, rotary=self._rotary(a.rotary), alibi=a.alibi or None,
                               softcap=a.softcap, relative_bias=self._bias(a), **self._both_ways(at, a),
                               label="attention")
        return mixed

    def _bias(self, a: AttentionSpec) -> np.ndarray | None:
        """What a relative bias adds, by distance. Layers that use one table share the array."""
        r = a.relative
        if r is None:
            return None
        name = f"layers.{weights_of(self.spec, r.layer)}.{RELATIVE_BIAS}.weight"
        if (name, 0) not in self._relative:
            self._relative[name, 0] = relative_bias.by_distance(self.weights.vectors[name], r.bidirectional,
                                                                r.max_distance)
        return self._relative[name, 0]

    def _both_ways(self, at: str, a: AttentionSpec) -> dict[str, Any]:
        """What attention that also looks ahead may have: (keys, queries, index) of relative positions. That is what the
        model's table of them becomes in this layer's matrices; no text is in it, so it is computed once, here."""
        d = a.disentangled
        if d is None:
            return ({"own": True} if self.spec.whole else {}) if a.causal else {"causal": False}
        query, key = ("attention.q", "attention.k") if d.shared else ("attention.position_q", "attention.position_k")
        return {"causal": False, "disentangled": (
            self._positions(at + key, a) if d.c2p else None, self._positions(at + query, a) if d.p2c else None,
            relative_bias.disentangled_rows(d.span, d.buckets, d.max_distance))}

    def _positions(self, matrix: str, a: AttentionSpec) -> np.ndarray:
        """float32 [heads, 2 * span, head_dim]"""
        d, heads = a.disentangled, a.num_heads
        if (matrix, heads) not in self._relative:
            program, rows = self.backend.program(), 2 * d.span
            table, out = program.buffer(self.width), program.buffer(heads * a.head_dim)
            program.embed(table, self.weights.matrices["embed.relative.weight"], label="relative")
            norm = self.weights.norm("embed.relative_norm", d.norm)
            program.linear(table, out, [self.weights.linear(matrix)], norm=norm, label="relative")
            values = np.empty((rows, heads * a.head_dim), np.float32)
            program.run(rows, ids=np.arange(rows, dtype=np.int32), bound=[(out, values)])
            self._relative[matrix, heads] = np.ascontiguousarray(
                values.reshape(rows, heads, a.head_dim).transpose(1, 0, 2))
        return self._relative[matrix, heads]

    def _cross(self, at: str, layer: LayerSpec, i: int) -> None:
        """Attention to a context, or to what the encoder stored: its group is the last."""
        a, pre = layer.cross, layer.order == "pre"
        width, norm = a.num_heads * a.head_dim, self.weights.norm(at + "cross_norm", layer.cross_norm)
        q, mixed = self._buffer("cross_q", width), self._buffer("mixed", width)
        self.program.linear(self.hidden, q, [self.weights.linear(at + "cross.q")], norm=norm if pre else None,
                            label="cross_q")
        facts = dict(num_heads=a.num_heads, head_dim=a.head_dim, scale=a.scale, kv_dtype=self.kv_dtype, label="cross")
        if self.context:
            kv, columns = self.context
            self.program.context_attention(q, kv, mixed, column=columns[i], **facts)
        else:
            self.program.cross_attention(q, mixed, layer=i, group=len(self.groups) - 1, num_kv_heads=a.num_kv_heads,
                                         **facts)
        self._join(mixed, at + "cross.out", layer, "", None, "cross_out")
        if norm and not pre:
            self.program.norm(self.hidden, self.hidden, norm, label="cross_out")

    def _inner(self, at: str, layer: LayerSpec, source: int, norm: NormWeights | None) -> int:
        """The first half of an MLP: the activations between its products. Of a mixture it is all: the answer, which
        may already be added to the residual stream."""
        m = layer.mlp
        if m.experts:
            return self._experts(at, layer, norm)
        inner = self._buffer("inner", m.intermediate_size)
        up = self.weights.linear(at + "mlp.up")
        if m.kind == "gated":
            self.program.gated(source, inner, self.weights.linear(at + "mlp.gate"), up, norm=norm,
                               activation=m.activation, label="gate_up")
        else:
            self.program.linear(source, inner, [up], norm=norm, activation=m.activation, label="gate_up")
        return inner

    def _finish_mlp(self, at: str, layer: LayerSpec, inner: int, gate: tuple[int, int] | None) -> None:
        name, norm = at + "post_mlp_norm", layer.post_mlp_norm
        if not layer.mlp.experts:
            self._join(inner, at + "mlp.down", layer, name, norm, "down", gate)
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

    def _join(self, source: int, matrix: str, layer: LayerSpec, name: str, norm: NormSpec | None, label: str,
              gate: tuple[int, int] | None = None) -> None:
        """Add residual_scale * norm(product of source) to the residual stream, or the product times a gate."""
        parts = [self.weights.linear(matrix)]
        if norm is None and layer.residual_scale == 1.0 and gate is None:
            self.program.linear(source, self.hidden, parts, norm=None, mode="add", label=label)
            return
        branch = self._buffer("branch", self.width)
        self.program.linear(source, branch, parts, norm=None, label=label)
        if gate:
            self.program.add_gated(branch, self.hidden, by=gate[0], gate=gate[1], label=label)
            return
        self.program.add_normed(branch, self.hidden, self.weights.norm(name, norm), scale=layer.residual_scale,
                                label=label)


def record_project(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    """Stage 4 of a language model: logits of the wanted rows."""
    program = backend.program()
    hidden, rows = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    program.gather(hidden, rows, label="head")
    return Recorded(program, hidden, _record_head(program, spec, weights, rows))


def record_head(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    """Stage 4 of a classifier, its labels' scores for each given row, or of a model that makes vectors."""
    program = backend.program()
    rows = program.buffer(pooled_width(spec))
    return Recorded(program, rows, _record_head(program, spec, weights, rows))


def _record_head(program: Program, spec: ModelSpec, weights: Weights, rows: int) -> int:
    head = spec.head
    if head.task == "vector" and not head.outputs:
        out = program.buffer(pooled_width(spec))
        program.norm(rows, out, weights.norm("head.norm", head.norm), label="head")
        return out
    if head.norm:
        raw, rows = rows, program.buffer(pooled_width(spec))
        program.norm(raw, rows, weights.norm("head.norm", head.norm), label="head")
    out = program.buffer(spec.vocab_size if head.task == "lm" else head.outputs)
    norm = None
    if head.dense:
        wide, rows = rows, program.buffer(head.dense)
        program.linear(wide, rows, [weights.linear("head.dense")], norm=None, activation=head.activation, label="head")
        norm = weights.norm("head.dense_norm", head.dense_norm)
    elif projects_out(spec):
        wide, rows = rows, program.buffer(spec.embed_size)
        program.linear(wide, rows, [weights.linear("embed.project_out")], norm=None, label="head")
    matrix = weights.matrices[EMBEDDING if spec.tied else HEAD]
    program.linear(rows, out, [(matrix, weights.vectors.get("head.bias"))], norm=norm, label="head")
    if spec.logit_scale != 1.0 or spec.logit_softcap:
        program.cap(out, scale=spec.logit_scale, softcap=spec.logit_softcap, label="head")
    return out
