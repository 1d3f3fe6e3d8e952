"""Which layers share blocks of the KV cache: those that see equally far and keep keys and values of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forwardpass.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """window: positions that its layers see, 0 = all;  layers: their numbers in the model.

    cross: the positions are those of an encoder's text, written once and seen by all rows.
    """

    window: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[int, ...]
    cross: bool = False


def cache_groups(spec: ModelSpec) -> tuple[CacheGroup, ...]:
    """The groups in order of their first layers; that of cross-attention is the last. Layers that are not causal keep
    nothing, nor does a model that reads texts whole. A window that holds the whole context hides nothing: it counts
    as 0.

    A block of a group is 64 positions of its layers. Groups have blocks of their own so that those of a window can be
    given back while a text grows.
    """
    members: dict[tuple[int, int, int], list[int]] = {}
    for i, layer in enumerate(spec.layers):
        attention = layer.attention
        if attention.causal and not spec.whole:
            window = attention.window if attention.window < spec.max_position_embeddings else 0
            members.setdefault((window, attention.num_kv_heads, attention.head_dim), []).append(i)
    own = tuple(CacheGroup(*key, tuple(layers)) for key, layers in members.items())
    return (*own, cross_group(spec)) if spec.encoder else own


def cross_group(spec: ModelSpec) -> CacheGroup:
    """What the layers of a decoder keep of the encoder's text. It is also the encoder's only group."""
    cross = spec.layers[0].cross
    return CacheGroup(0, cross.num_kv_heads, cross.head_dim, tuple(range(len(spec.layers))), cross=True)


def places(groups: Sequence[CacheGroup]) -> dict[int, tuple[int, int]]:
    """Layer -> (the group of its self-attention, its number within the group)."""
    return {layer: (g, i) for g, group in enumerate(groups) if not group.cross for i, layer in enumerate(group.layers)}
