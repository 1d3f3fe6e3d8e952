"""Names of weights in diffusers' checkpoints: what their transformer layers call things, and tables of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from forwardpass.models.weight_rows import WeightRow

LAYER = {f"{ours}.{part}": f"{theirs}.{name}" for ours, theirs in (("attention", "attn1"), ("cross", "attn2"))
         for part, name in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("out", "to_out.0"))} | {
    "mlp.up": "ff.net.0.proj", "mlp.gate": "ff.net.0.proj", "mlp.down": "ff.net.2"}
"""Target within a layer -> the name within a transformer block of diffusers. Norms differ from model to model."""

ACTIVATIONS = {"gelu": ("plain", "gelu_erf"), "gelu-approximate": ("plain", "gelu_tanh"),
               "geglu": ("gated", "gelu_erf"), "geglu-approximate": ("plain", "quick_gelu"),
               "swiglu": ("gated", "silu"), "linear-silu": ("plain", "silu")}
"""activation_fn of a transformer block -> (kind, activation) of its MLP."""


def named(targets: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> list[WeightRow]:
    """A row for every target. names: target without suffix, numbers of layers as "{i}" -> name in the checkpoint."""
    rows = []
    for target, shape in targets.items():
        stem, _, suffix = target.rpartition(".")
        number = re.search(r"\d+", stem)
        i = number[0] if number else ""
        name = names[re.sub(r"\d+", "{i}", stem, count=1)].replace("{i}", i)
        rows.append(WeightRow(target, (f"{name}.{suffix}",), shape))
    return rows


def gated(rows: Iterable[WeightRow]) -> list[WeightRow]:
    """The same where an MLP's up and gate may be one tensor, up first."""
    rows = list(rows)
    gates = {row.target.replace(".gate.", ".up.") for row in rows if ".mlp.gate." in row.target}
    for n, row in enumerate(rows):
        size, gate = row.shape[0], ".mlp.gate." in row.target
        if gate or row.target in gates:
            rows[n] = replace(row, rows=slice(size, 2 * size) if gate else slice(0, size), total=2 * size)
    return rows
