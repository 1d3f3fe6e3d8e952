"""Which layers share blocks of the KV cache: those that see equally far and keep keys and values of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forwardpass.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """window: positions that its layers see, 0 = all;  layers: their numbers in the model."""

    window: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[int, ...]


def cache_groups(spec: ModelSpec) -> tuple[CacheGroup, ...]:
    """The groups in order of their first layers. A window that holds the whole context hides nothing: it counts as 0.

    A block of a group is 64 positions of its layers. Groups have blocks of their own so that those of a window can be
    given back while a text grows.
    """
    members: dict[tuple[int, int, int], list[int]] = {}
    for i, layer in enumerate(spec.layers):
        attention = layer.attention
        window = attention.window if attention.window < spec.max_position_embeddings else 0
        members.setdefault((window, attention.num_kv_heads, attention.head_dim), []).append(i)
    return tuple(CacheGroup(*key, tuple(layers)) for key, layers in members.items())


def places(groups: Sequence[CacheGroup]) -> dict[int, tuple[int, int]]:
    """Layer -> (its group, its number within the group)."""
    return {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
