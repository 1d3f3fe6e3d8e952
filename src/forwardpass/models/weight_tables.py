"""A family's table of names as weight rows, and what its files do to them: fused tensors, interleaved rotary pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from forwardpass.models.spec import AttentionSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow, named_rows

KINDS = ("safetensors", "gguf")
"""Columns of a family's table: target without layer number and suffix -> (safetensors name, GGUF name)."""

QKV = ("attention.q", "attention.k", "attention.v")
"""The usual order of what one matrix fuses (for `fused`)."""


def table_rows(spec: ModelSpec, table: Mapping[str, tuple[str, str]], kind: str) -> list[WeightRow]:
    """The rows of one kind of checkpoint. A name may give several spellings with "|" between them."""
    column = KINDS.index(kind)
    return named_rows(spec, {target: tuple(names[column].replace("{h}", "{{h}}").split("|"))
                             for target, names in table.items()})


def part_of(row: WeightRow) -> tuple[str, str, str]:
    """("layers.3.", "attention.q", "weight") of a row for layers.3.attention.q.weight, with "encoder." before it in an
    encoder's and "vision." in a vision tower's; outside of layers the first is empty."""
    found = re.fullmatch(r"((?:encoder\.|vision\.)?layers\.\d+\.|)(.+)\.(weight|bias)", row.target)
    return found[1], found[2], found[3]


def attention_of(spec: ModelSpec, layer: str) -> AttentionSpec:
    """The self-attention of a layer that `part_of` named."""
    inner = spec.encoder if layer.startswith("encoder.") else spec.vision if layer.startswith("vision.") else spec
    return inner.layers[int(layer.rsplit(".", 2)[1])].attention


def fused(rows: Iterable[WeightRow], parts: Sequence[str], runs: int = 1) -> list[WeightRow]:
    """Parts of a layer ("attention.q", ...) whose names are one tensor: their rows follow one another in it.

    runs: so many times, each with an equal share of every part. Example: a matrix of [heads, 3, head_dim] rows holds
    queries, keys and values in as many runs as it has heads.
    """
    rows = list(rows)
    sizes = {row.target: row.shape[0] for row in rows}
    for n, row in enumerate(rows):
        layer, part, suffix = part_of(row)
        if part in parts:
            lengths = [sizes[f"{layer}{one}.{suffix}"] // runs for one in parts]
            start, period = sum(lengths[: parts.index(part)]), sum(lengths)
            rows[n] = replace(row, rows=slice(start, start + row.shape[0] // runs), total=period * runs,
                              period=period if runs > 1 else 0)
    return rows


def interleaved(rows: Iterable[WeightRow], spec: ModelSpec) -> list[WeightRow]:
    """Queries and keys (with their biases and their norms over several heads) that are stored with neighbours as rotary
    pairs: such rows are reordered. Layers without rotary positions stay as they are."""
    rows = list(rows)
    for n, row in enumerate(rows):
        layer, part, _ = part_of(row)
        if part not in ("attention.q", "attention.k", "attention.q_norm", "attention.k_norm"):
            continue
        a = attention_of(spec, layer)
        heads = row.shape[0] // a.head_dim
        if a.rotary:
            rows[n] = replace(row, transform="rotary_rows", heads=heads, rotary_dim=a.rotary.dim % a.head_dim)
    return rows


def by_head(rows: Iterable[WeightRow], spec: ModelSpec) -> list[WeightRow]:
    """Norms of queries and keys with weights for each head: stored as [heads, head_dim], or, where a name has "{h}", as
    one tensor a head. (Rows of the same target follow one another in it.)"""
    out = []
    for row in rows:
        layer, part, _ = part_of(row)
        if part not in ("attention.q_norm", "attention.k_norm"):
            out.append(row)
            continue
        width = attention_of(spec, layer).head_dim
        heads = row.shape[0] // width
        if any("{h}" in name for name in row.sources):
            out += [replace(row, sources=tuple(name.replace("{h}", str(h)) for name in row.sources), shape=(width,))
                    for h in range(heads)]
        else:
            out.append(replace(row, stack=heads))
    return out


def added(rows: Iterable[WeightRow], value: float) -> list[WeightRow]:
    """Norms whose stored weight w stands for w + value."""
    return [replace(row, add=value) if "norm" in part_of(row)[1] else row for row in rows]
