"""Draws pictures with every operation timed and sets the times against the machine's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

from forwardpass.config import memory_text as size
from forwardpass.explain.report import Counted, Report, reported
from forwardpass.models.costs import Cost, stage_costs

WIDTH = {"float32": 4, "bfloat16": 2, "int8": 1}
"""Bytes of a weight, by what most are multiplied in."""
_STAGES = {"embed": ("read", "embed"), "decode": ("read", "decode"), "condition": ("read", "condition"),
           "encode_image": ("encode", "encode"), "denoise": ("denoise", "denoise"),
           "decode_image": ("decode", "decode")}
"""Stage of the parts' timings -> phase and stage of a report."""


def explain(model, prompt: Any, params: Mapping[str, Any]) -> Report:
    """Draw, timed. Others' pictures that share its steps are counted with it."""
    engine, denoiser = model.engine, model.denoiser  # a closed model says so before anything is measured
    parts = [part for part in (model.text and model.text.network, denoiser, model.autoencoder) if part]
    for part in parts:
        part.reset_timings()
    denoiser.backend.timed, engine.noted, start = True, [], perf_counter()
    try:
        drawing = model.draw(prompt, **params)
        wall = perf_counter() - start
    finally:
        steps, engine.noted, denoiser.backend.timed = engine.noted, None, False
    costs = _costs(model, steps)
    counted = [Counted("denoise", "preprocess", "inputs", drawing.timings["preprocess"])]
    for part in parts:
        for own, operations in part.timings().items():
            if own not in _STAGES:  # a text encoder's head, which nobody asks here
                continue
            phase, stage = _STAGES[own]
            found = costs.get((phase, stage), {})
            passes = max(1, sum(step.kind == phase for step in steps))
            nbytes = sum(cost.bytes for cost in found.values()) // passes
            counted += [Counted(phase, stage, op, seconds, found.get(op, Cost()), nbytes)
                        for op, seconds in operations.items() if seconds]
    counted.append(Counted("denoise", "postprocess", "schedule", drawing.timings["postprocess"]))
    inside = sum(one.seconds for one in counted)
    counted.append(Counted("denoise", "engine", "python", max(0.0, wall - inside)))
    return reported(model, drawing, counted, _notes(model, steps, drawing), drawing=True)


def _costs(model, steps: Iterable[Any]) -> dict[tuple[str, str], dict[str, Cost]]:
    """Phase and stage -> operation -> what the steps had to do. A pass reads its weights once for all its pictures."""
    width = WIDTH[model.arithmetic]
    found: dict[tuple[str, str], dict[str, Cost]] = {}

    def add(phase: str, stage: str, operations: Mapping[str, Cost]) -> None:
        mine = found.setdefault((phase, stage), {})
        for op, cost in operations.items():
            mine[op] = mine.get(op, Cost()) + cost

    for step in steps:
        if step.kind == "read":
            stored = {target.removeprefix("text_encoder/"): nbytes for target, nbytes in model.stored_bytes.items()
                      if target.startswith("text_encoder/")}
            spec = model.text.network.spec
            for stage, operations in stage_costs(spec, stored, step.contexts, [0] * len(step.contexts),
                                                 model.kv_dtype, 0).items():
                add(step.kind, stage, operations)
        elif step.kind == "denoise":
            for i, ((height, wide), context) in enumerate(zip(step.sizes, step.contexts, strict=True)):
                add(step.kind, "denoise", {op: Cost(cost.flops, 0 if i else cost.read * width) for op, cost in
                                model.denoiser.operations(height, wide, context).items()})
        elif model.autoencoder:
            for height, wide in step.sizes:
                add(step.kind, step.kind, {op: Cost(cost.flops, cost.read * max(2, width)) for op, cost in
                                model.autoencoder.operations(height, wide, step.kind == "encode").items()})
    return found


def _notes(model, steps: list[Any], drawing) -> tuple[str, ...]:
    """What was done, in sentences."""
    seconds: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for step in steps:
        seconds[step.kind] += step.seconds
        times[step.kind] += len(step.contexts) if step.kind == "read" else len(step.sizes)
    passes = [step for step in steps if step.kind == "denoise"]
    told = [f"{drawing.timings['steps']} denoising steps of {len(drawing.images)} picture(s) in {len(passes)} passes "
            f"of {seconds['denoise'] / max(1, len(passes)):.3g} s; {times['denoise'] / max(1, len(passes)):.3g} "
            "latents in each, both halves of guidance counted"]
    told += [f"{what} in {seconds[kind]:.3g} s" for kind, what in (
        ("read", f"{times['read']} prompt(s) read"), ("encode", f"{times['encode']} image(s) encoded"),
        ("decode", f"{times['decode']} picture(s) decoded")) if times[kind]]
    need = max((model.denoiser.activation_bytes(step.sizes, step.contexts) for step in passes), default=0)
    if model.autoencoder:
        need = max([need, *(model.autoencoder.activation_bytes(*one) for step in steps if step.kind == "decode"
                            for one in step.sizes)])
    told.append(f"memory: up to {size(need)} beside the weights' {size(model.weights_bytes)}")
    return tuple(told)
