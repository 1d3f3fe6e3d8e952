"""A diffusion transformer as recorded programs: what blocks.py does for models of texts, around the same layers.

`record` is a pass over pictures. What does not change from step to step is computed before, by programs of their own:
the row of a class, the keys and values of a text, what is known of a picture's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forwardpass.backends.protocol import CONTEXT, IMAGES, Program
from forwardpass.models.blocks import Layers, Recorded, Weights
from forwardpass.models.dit_spec import DitSpec


@dataclass(frozen=True, slots=True)
class RecordedDit:
    """A pass over pictures.

    patches: buffer of latents, a patch a row;  hidden: holds each patch's position before;  waves: of timesteps, a
    row a picture;  conditions: layer whose embedding it is -> buffer that holds what the picture's condition adds to
    the step, a row a picture;  context: keys and values of texts, None = there are none;  out: as patches.
    """

    program: Program
    patches: int
    hidden: int
    waves: int
    conditions: Mapping[int, int]
    context: int | None
    out: int


def record(backend, spec: DitSpec, weights: Weights, kv_dtype: str) -> RecordedDit:
    program, width, area = backend.program(), spec.hidden_size, spec.patch**2
    patches, hidden = program.buffer(area * spec.latent_channels), program.buffer(width)
    waves, middle = program.buffer(spec.waves, IMAGES), program.buffer(width, IMAGES)
    final = program.buffer(2 * width, IMAGES)
    conditions, modulation = {}, {}
    for e in spec.own_embedders:
        condition, active = program.buffer(width, IMAGES), program.buffer(width, IMAGES)
        name = f"layers.{e}.time" if spec.labels else "time"
        program.linear(waves, middle, [weights.linear(name + ".first")], norm=None, activation="silu", label="time")
        program.linear(middle, condition, [weights.linear(name + ".second")], norm=None, mode="add", label="time")
        program.activate(condition, active, "silu", label="time")
        conditions[e] = condition
        modulation |= _modulate(program, spec, weights, active, [i for i in range(len(spec.layers))
                                                                 if spec.embedder(i) == e])
        if e == 0:
            _modulate_last(program, spec, weights, condition, active, final)
    program.linear(patches, hidden, [weights.linear("patches")], norm=None, mode="add", label="patches")
    context = program.buffer(spec.context_size, CONTEXT) if spec.context_size else None
    layers = Layers(backend, program, hidden, spec, weights, kv_dtype, modulation=modulation,
                    context=None if context is None else (context, spec.context_columns))
    for i in range(len(spec.layers)):
        layers.record(i)
    out = program.buffer(area * spec.out_channels)
    norm = weights.norm("final_norm", spec.final_norm)
    program.modulate(hidden, hidden, norm, by=final, shift=0, scale=width, label="final")
    program.linear(hidden, out, [weights.linear("final.out")], norm=None, label="final")
    return RecordedDit(program, patches, hidden, waves, conditions, context, out)


def _modulate(program: Program, spec: DitSpec, weights: Weights, active: int, layers: list[int]
              ) -> dict[int, tuple[int, int]]:
    """Shifts, scales and gates of layers that share an embedding, side by side in one buffer: layer -> (it, column)."""
    six = 6 * spec.hidden_size
    by = program.buffer(six * len(layers), IMAGES)
    if spec.modulation == "zero":
        parts = [weights.linear(f"layers.{i}.modulation") for i in layers]
        program.linear(active, by, parts, norm=None, label="modulation")
    else:
        shared = program.buffer(six, IMAGES)
        program.linear(active, shared, [weights.linear("time.modulation")], norm=None, label="modulation")
        for n, i in enumerate(layers):
            program.copy(shared, by, column=n * six, add=weights.vectors[f"layers.{i}.modulation.table"],
                         label="modulation")
    return {i: (by, n * six) for n, i in enumerate(layers)}


def _modulate_last(program: Program, spec: DitSpec, weights: Weights, condition: int, active: int, final: int) -> None:
    """Shift and scale of the final norm."""
    if spec.modulation == "zero":
        program.linear(active, final, [weights.linear("final.modulation")], norm=None, label="final")
        return
    for n, table in enumerate(np.split(weights.vectors["final.table"], 2)):
        program.copy(condition, final, column=n * spec.hidden_size, add=table, label="final")


def record_context(backend, spec: DitSpec, weights: Weights) -> Recorded:
    """From a text's states to the keys and values of all layers, those of a layer side by side."""
    program = backend.program()
    source = rows = program.buffer(spec.context_width)
    if spec.caption:
        middle, rows = program.buffer(spec.hidden_size), program.buffer(spec.hidden_size)
        program.linear(source, middle, [weights.linear("caption.first")], norm=None, activation="gelu_tanh",
                       label="caption")
        program.linear(middle, rows, [weights.linear("caption.second")], norm=None, label="caption")
    out = program.buffer(spec.context_size)
    parts = [weights.linear(f"layers.{i}.cross.{one}") for i in spec.context_columns for one in "kv"]
    program.linear(rows, out, parts, norm=None, label="cross_kv")
    return Recorded(program, source, out)


def record_micro(backend, spec: DitSpec, weights: Weights) -> dict[str, Recorded]:
    """"resolution" and "aspect": from the waves of such numbers to what they add to a condition, hidden_size / 3
    columns each."""
    recorded = {}
    for name in ("resolution", "aspect"):
        program, width = backend.program(), spec.hidden_size // 3
        source, middle, out = program.buffer(spec.waves), program.buffer(width), program.buffer(width)
        program.linear(source, middle, [weights.linear(name + ".first")], norm=None, activation="silu", label="size")
        program.linear(middle, out, [weights.linear(name + ".second")], norm=None, label="size")
        recorded[name] = Recorded(program, source, out)
    return recorded
