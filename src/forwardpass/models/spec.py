"""A model as data: what each layer is made of. Families produce these; blocks.py alone interprets them.

Specs are per layer, so windows, biases and norms may differ from layer to layer. Everything is frozen and
validated once by `ModelSpec.check`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forwardpass.errors import ModelFileError, UnsupportedModelError

MAX_SIZE = 2**24
"""Largest width, vocabulary or context that is believed: beyond it a file is corrupt, not big."""
MAX_LAYERS = 4096
MAX_HEAD_DIM = 1024
"""The attention kernels keep a head of this size on their stack."""
ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf", "relu", "quick_gelu")


@dataclass(frozen=True, slots=True)
class NormSpec:
    """kind "rms": x / rms(x) * w;  kind "layer": (x - mean) / std * w + b."""

    kind: str
    eps: float
    bias: bool = False


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Rotary position encoding (Su et al. 2021). inv_freq has dim / 2 entries; dimension pairs are (j, j + dim/2)."""

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rotary: RotarySpec | None = None
    window: int = 0
    qkv_bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """kind "gated": down(act(gate(x)) * up(x));  kind "plain": down(act(up(x))).  activation: one of ACTIVATIONS."""

    kind: str
    intermediate_size: int
    activation: str
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention_norm: NormSpec
    attention: AttentionSpec
    mlp_norm: NormSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """learned_positions: rows of the learned position table, 0 = no such table."""

    family: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    tied: bool
    learned_positions: int = 0
    head_bias: bool = False

    def check(self) -> ModelSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        sizes = {"hidden_size": self.hidden_size, "vocab_size": self.vocab_size}
        sizes |= {"max_position_embeddings": self.max_position_embeddings}
        _sizes(sizes)
        _require(1 <= len(self.layers) <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", len(self.layers))
        _require(self.learned_positions in (0, self.max_position_embeddings),
                 f"a position table of {self.max_position_embeddings} rows, the context length", self.learned_positions)
        for layer in {id(one): one for one in self.layers}.values():  # layers that share an object are checked once
            _check_layer(layer)
        _check_norm(self.final_norm)
        return self


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ModelFileError(f"the model contradicts itself: expected {expected}, found {found}; "
                             "fix its config or fetch the model again")


def _sizes(sizes: dict[str, int]) -> None:
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and 1 <= value <= MAX_SIZE, f"{name} from 1 to {MAX_SIZE}", value)


def _check_layer(layer: LayerSpec) -> None:
    a, m = layer.attention, layer.mlp
    _sizes({"num_heads": a.num_heads, "num_kv_heads": a.num_kv_heads, "head_dim": a.head_dim,
            "num_heads * head_dim": a.num_heads * a.head_dim, "intermediate_size": m.intermediate_size})
    if a.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(f"attention heads of {a.head_dim} dimensions are not supported, at most "
                                    f"{MAX_HEAD_DIM} are; use another model")
    _require(a.num_heads % a.num_kv_heads == 0,
             f"attention heads ({a.num_heads}) to be a multiple of key-value heads", a.num_kv_heads)
    _require(math.isfinite(a.scale) and a.scale > 0, "a positive attention scale", a.scale)
    _require(0 <= a.window <= MAX_SIZE, f"a window from 0 (none) to {MAX_SIZE}", a.window)
    if a.rotary:
        _require(a.rotary.dim % 2 == 0 and 2 <= a.rotary.dim <= a.head_dim,
                 f"an even rotary dimension from 2 to head_dim ({a.head_dim})", a.rotary.dim)
        _require(len(a.rotary.inv_freq) == a.rotary.dim // 2, f"{a.rotary.dim // 2} rotary frequencies",
                 len(a.rotary.inv_freq))
        _require(all(math.isfinite(f) for f in a.rotary.inv_freq), "finite rotary frequencies", "one that is not")
    _require(m.kind in ("gated", "plain"), "an MLP that is gated or plain", m.kind)
    _require(m.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", m.activation)
    _check_norm(layer.attention_norm)
    _check_norm(layer.mlp_norm)


def _check_norm(norm: NormSpec) -> None:
    _require(norm.kind in ("rms", "layer"), "a norm of kind rms or layer", norm.kind)
    _require(0 < norm.eps < 1, "a norm epsilon between 0 and 1", norm.eps)
