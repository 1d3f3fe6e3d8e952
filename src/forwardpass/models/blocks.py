"""The forward pass, the only place it is written down: a spec and its weights become three recorded programs.

Stage 2 looks tokens up; stage 3 runs every layer (attention and MLP, each reading the normalised residual stream and
adding to it) and the final norm; stage 4 projects the wanted rows onto the vocabulary. Everything that differs
between families is data in the spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forwardpass.backends.protocol import NormWeights, Program
from forwardpass.models.spec import LayerSpec, ModelSpec, NormSpec


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

    def norm(self, name: str, spec: NormSpec) -> NormWeights:
        bias = self.vectors[name + ".bias"] if spec.bias else None
        return NormWeights(spec.kind, spec.eps, self.vectors[name + ".weight"], bias)


def record_embed(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    program = backend.program()
    hidden = program.buffer(spec.hidden_size)
    program.embed(hidden, weights.matrices["embed.tokens.weight"], label="embed")
    if spec.learned_positions:
        program.positions(hidden, weights.matrices["embed.positions.weight"], label="embed")
    return Recorded(program, hidden, hidden)


def record_layers(backend, spec: ModelSpec, weights: Weights, kv_dtype: str) -> Recorded:
    program = backend.program()
    hidden, out = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    buffers: dict[tuple[str, int], int] = {}
    rotaries: dict[Any, Any] = {}

    def buffer(kind: str, width: int) -> int:
        """One buffer for each kind and width, shared by all layers."""
        if (kind, width) not in buffers:
            buffers[kind, width] = program.buffer(width)
        return buffers[kind, width]

    def rotary(spec):
        if spec is not None and spec not in rotaries:
            rotaries[spec] = backend.rotary(spec.inv_freq, spec.attention_factor)
        return rotaries.get(spec)

    for i, layer in enumerate(spec.layers):
        _attention(program, hidden, i, layer, weights, kv_dtype, buffer, rotary(layer.attention.rotary))
        _mlp(program, hidden, f"layers.{i}", layer, weights, buffer)
    program.norm(hidden, out, weights.norm("final_norm", spec.final_norm), label="norm")
    return Recorded(program, hidden, out)


def _attention(program: Program, hidden: int, i: int, layer: LayerSpec, weights: Weights, kv_dtype: str, buffer,
               rotary) -> None:
    a, name = layer.attention, f"layers.{i}.attention"
    qkv = buffer("qkv", (a.num_heads + 2 * a.num_kv_heads) * a.head_dim)
    mixed = buffer("mixed", a.num_heads * a.head_dim)
    parts = [weights.linear(f"{name}.{one}") for one in "qkv"]
    norm = weights.norm(f"layers.{i}.attention_norm", layer.attention_norm)
    program.linear(hidden, qkv, parts, norm=norm, label="qkv")
    program.attention(qkv, mixed, layer=i, num_heads=a.num_heads, num_kv_heads=a.num_kv_heads, head_dim=a.head_dim,
                      scale=a.scale, window=a.window, kv_dtype=kv_dtype, rotary=rotary, label="attention")
    program.linear(mixed, hidden, [weights.linear(f"{name}.out")], norm=None, mode="add", label="out")


def _mlp(program: Program, hidden: int, name: str, layer: LayerSpec, weights: Weights, buffer) -> None:
    m = layer.mlp
    inner = buffer("inner", m.intermediate_size)
    norm = weights.norm(f"{name}.mlp_norm", layer.mlp_norm)
    up = weights.linear(f"{name}.mlp.up")
    if m.kind == "gated":
        program.gated(hidden, inner, weights.linear(f"{name}.mlp.gate"), up, norm=norm, activation=m.activation,
                      label="gate_up")
    else:
        program.linear(hidden, inner, [up], norm=norm, activation=m.activation, label="gate_up")
    program.linear(inner, hidden, [weights.linear(f"{name}.mlp.down")], norm=None, mode="add", label="down")


def record_project(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    program = backend.program()
    hidden, rows = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
    logits = program.buffer(spec.vocab_size)
    head = "embed.tokens.weight" if spec.tied else "head.weight"
    program.gather(hidden, rows, label="head")
    program.linear(rows, logits, [(weights.matrices[head], weights.vectors.get("head.bias"))], norm=None, label="head")
    return Recorded(program, hidden, logits)
