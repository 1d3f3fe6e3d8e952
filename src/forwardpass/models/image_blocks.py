"""What only models that read images have of the forward pass: patches become rows, and one query pools all of them.

Their layers are those of blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from forwardpass.backends.protocol import CONTEXT
from forwardpass.models.blocks import Recorded, Weights
from forwardpass.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class RecordedPatches(Recorded):
    """source: the pixels of each row;  places: what is added to it (models/patches.py)."""

    places: int


@dataclass(frozen=True, slots=True)
class RecordedPool(Recorded):
    """source: the rows of images, a context each;  probe: the learned query, once for each image."""

    probe: int


def record_patches(backend, spec: ModelSpec, weights: Weights) -> RecordedPatches:
    """Stage 2 of images. A row before the patches has no pixels: its zeros become what its place adds."""
    program, p = backend.program(), spec.patches
    pixels, hidden = program.buffer(p.channels * p.size * p.size), program.buffer(spec.hidden_size)
    added = program.buffer(spec.hidden_size)
    matrix, _ = weights.linear("embed.patches")
    program.linear(pixels, hidden, [(matrix, None)], norm=None, label="embed")
    program.add_normed(added, hidden, None, label="embed")
    if spec.embed_norm:
        program.norm(hidden, hidden, weights.norm("embed.norm", spec.embed_norm), label="embed")
    return RecordedPatches(program, pixels, hidden, added)


def record_teacher(backend, spec: ModelSpec, weights: Weights) -> Recorded:
    """Stage 4 of a classifier with a second head, for the rows that this one reads."""
    program = backend.program()
    rows, out = program.buffer(spec.hidden_size), program.buffer(spec.head.outputs)
    program.linear(rows, out, [weights.linear("head.teacher")], norm=None, label="head")
    return Recorded(program, rows, out)


def record_attention_pool(backend, spec: ModelSpec, weights: Weights, kv_dtype: str) -> RecordedPool:
    """Before a head: one query attends to all rows of an image, whose keys and values are those of a context."""
    program, pool, width = backend.program(), spec.head.attention, spec.hidden_size
    heads, part = pool.num_heads, weights.linear
    rows, kv = program.buffer(width, CONTEXT), program.buffer(2 * width, CONTEXT)
    probe, q, mixed, out = (program.buffer(width) for _ in range(4))
    inner = program.buffer(pool.intermediate_size)
    program.linear(rows, kv, [part("head.pool.k"), part("head.pool.v")], norm=None, label="head")
    program.linear(probe, q, [part("head.pool.q")], norm=None, label="head")
    program.context_attention(q, kv, mixed, column=0, num_heads=heads, head_dim=width // heads,
                              scale=(width // heads) ** -0.5, kv_dtype=kv_dtype, label="head")
    program.linear(mixed, out, [part("head.pool.out")], norm=None, label="head")
    program.linear(out, inner, [part("head.pool.up")], norm=weights.norm("head.pool.norm", pool.norm),
                   activation=pool.activation, label="head")
    program.linear(inner, out, [part("head.pool.down")], norm=None, mode="add", label="head")
    return RecordedPool(program, rows, out, probe)
