"""Runs one request, or reads one text, with every operation timed and sets the times against the machine's limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from forwardpass.contracts import Completion, Drawing
from forwardpass.explain import measured
from forwardpass.explain.machine import read_limit
from forwardpass.explain.verdict import Line, verdict
from forwardpass.models.costs import Cost, stage_costs

NOTICEABLE = 1e-3
"""Seconds below which a measured time says nothing about a limit."""


@dataclass(frozen=True)
class Report:
    """lines: one for each phase, stage and operation;  verdict: one sentence;  limits: as explain.machine measured;
    completion: the answer, or the pictures; None where the text was only read;  notes: sentences on what was done."""

    completion: Completion | Drawing | None
    lines: tuple[Line, ...]
    limits: dict
    verdict: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict:
        return {
            "lines": [{**asdict(line), "of_limit": line.of_limit} for line in self.lines],
            "limits": self.limits,
            "verdict": self.verdict,
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def __str__(self) -> str:
        total = sum(line.seconds for line in self.lines) or 1.0
        rows = [("phase", "stage", "operation", "ms", "share", "MB", "GFLOP", "GB/s", "GFLOP/s", "of limit")]
        for line in self.lines:
            seconds = line.seconds or float("inf")
            counted = line.bytes or line.flops
            rows.append((
                line.phase, line.stage, line.op, f"{line.seconds * 1e3:.2f}", f"{line.seconds / total:.1%}",
                f"{line.bytes / 1e6:.1f}" if counted else "", f"{line.flops / 1e9:.2f}" if counted else "",
                f"{line.bytes / seconds / 1e9:.1f}" if counted else "",
                f"{line.flops / seconds / 1e9:.0f}" if counted else "",
                f"{line.of_limit:.0%}" if line.of_limit is not None else "",
            ))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        sides = [str.ljust] * 3 + [str.rjust] * (len(widths) - 3)
        text = ["  ".join(side(cell, w) for side, cell, w in zip(sides, row, widths, strict=True)) for row in rows]
        return "\n".join([line.rstrip() for line in text] + ["", *self.notes, self.verdict])


def explain(model, prompt: Any, params: dict[str, Any]) -> Report:
    """Answer `prompt` (text, token ids or messages), timed. Other requests that share its steps are counted with it.

    Models that generate nothing label the text, or make a vector of it; then it may also be a pair of texts. Those that
    read images take one in any form that classify_image does; where texts are read, too, a str is a text.
    """
    engine, network = model.engine, model.network  # a closed model says so before anything is measured
    network.backend.timed, engine.noted = True, []
    network.reset_timings()
    try:
        answers = model.spec.causal and model.spec.head.task == "lm"
        completion, counted = _answer(model, engine, prompt, params) if answers else (
            None, _read(model, engine, prompt, params))
    finally:
        network.backend.timed, engine.noted = False, None
    return reported(model, completion, counted)


def reported(model, answer: Completion | Drawing | None, counted: list[Counted], notes: tuple[str, ...] = (),
             drawing: bool = False) -> Report:
    """What was counted, against the machine's limits. drawing: the advice is for pictures."""
    limits = measured.measured()
    lines = _against(counted, limits, model)
    if any(line.of_limit and line.of_limit > 1 and line.seconds > NOTICEABLE for line in lines):
        # Nothing is faster than possible: the kept limits were measured while the machine was busier.
        limits = measured.measured(again=True)
        lines = _against(counted, limits, model)
    return Report(answer, lines, limits, verdict(lines, drawing), notes)


def _answer(model, engine, prompt: Any, params: dict[str, Any]) -> tuple[Completion, list[Counted]]:
    start = perf_counter()
    messages = isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict)
    stream = model.chat(prompt, stream=True, **params) if messages else model.stream(prompt, **params)
    counted = [Counted("prompt", "preprocess", "tokenise", perf_counter() - start)]
    try:
        watch = _Watch(engine, stream)
        for phase in ("prompt", "answer"):
            counted += _phase(phase, watch, model)
    finally:
        stream.close()
    if watch.request.error is not None:
        raise watch.request.error
    return stream.completion, counted


def _read(model, engine, text: Any, params: dict[str, Any]) -> list[Counted]:
    task, start = model.spec.head.task, perf_counter()
    if model.spec.patches or (model.spec.vision and not isinstance(text, (str, list, tuple))):
        (model.classify_image if task == "labels" else model.embed_image)(text, **params)
        return _counted("image", _costs(model, engine.noted, task != "none"), perf_counter() - start, model)
    if isinstance(text, (list, tuple)) and text and not isinstance(text[0], str):
        model.hidden_states(text, **params)
        task = "none"
    elif task == "labels":
        model.classify([text], **params)
    elif task == "tags":
        model.token_classify(text, **params)
    else:
        model.embed(text, **params)
    labelled = task in ("labels", "tags", "vector")
    return _counted("text", _costs(model, engine.noted, labelled), perf_counter() - start, model)


@dataclass(frozen=True, slots=True)
class Counted:
    """What one operation took, and what it had to do. step_bytes: of the whole step that it belongs to."""

    phase: str
    stage: str
    op: str
    seconds: float
    cost: Cost = Cost()  # noqa: RUF009  frozen
    step_bytes: int = 0


def _against(counted: list[Counted], limits: dict, model) -> tuple[Line, ...]:
    """The same, with the least seconds that this machine needs for it."""
    rate = limits["matrix_ops_s"]
    attention = rate["float32" if model.kv_dtype == "float32" else "bfloat16"]
    lines = []
    for one in counted:
        read = read_limit(limits, one.step_bytes)
        compute = attention if one.op in ("attention", "cross") else rate[model.arithmetic]
        lines.append(Line(one.phase, one.stage, one.op, one.seconds, one.cost.bytes, one.cost.flops,
                          one.cost.bytes / read, one.cost.flops / compute))
    return tuple(lines)


class _Watch:
    """Steps the engine for one stream."""

    def __init__(self, engine, stream):
        self.engine = engine
        self.request = stream._request

    def run(self, first: bool) -> tuple[list, float]:
        """Until the first token, or to the end: (the engine's steps, seconds)."""
        self.engine.noted, start = [], perf_counter()
        while not self.request.done and not (first and self.request.first_token is not None):
            self.engine.step()
        return self.engine.noted, perf_counter() - start


def _phase(phase: str, watch: _Watch, model) -> list[Counted]:
    before = dict(watch.request.seconds)
    steps, wall = watch.run(first=phase == "prompt")
    if not steps:
        return []
    return _counted(phase, _costs(model, steps), wall, model,
                    watch.request.seconds["postprocess"] - before["postprocess"])


def _costs(model, steps: list, labelled: bool = False) -> list[dict[str, dict[str, Cost]]]:
    """What each step had to do. labelled: afterwards the head looked at what they read."""
    spec, found = model.spec, []
    for step in steps:
        rows, contexts = [new for new, _ in step.rows], [past for _, past in step.rows]
        encoded = step.texts
        if spec.encoder is None and (step.texts or step.images):  # the model itself reads whole texts
            rows, contexts, encoded = step.texts, [0] * len(step.texts), []
        wanted = None if labelled and rows else step.wanted
        found.append(stage_costs(spec, model.stored_bytes, rows, contexts, model.network.kv_dtype, wanted, step.sources,
                                 encoded, step.images))
    return found


def _counted(phase: str, steps: list[dict[str, dict[str, Cost]]], wall: float, model,
             choosing: float | None = None) -> list[Counted]:
    """What some steps took and had to do, and what went by around them."""
    costs: dict[tuple[str, str], Cost] = {}
    for step in steps:
        for stage, ops in step.items():
            for op, cost in ops.items():
                costs[stage, op] = costs.get((stage, op), Cost()) + cost
    step_bytes = sum(cost.bytes for cost in costs.values()) // len(steps)
    counted = [Counted(phase, stage, op, seconds, costs.get((stage, op), Cost()), step_bytes)
               for stage, ops in model.network.timings().items() for op, seconds in ops.items()
               if seconds or (stage, op) in costs]  # a source is only read in the first phase
    model.network.reset_timings()
    if choosing is not None:
        counted.append(Counted(phase, "postprocess", "choose", choosing))
    inside = sum(one.seconds for one in counted)
    counted.append(Counted(phase, "engine", "python", max(0.0, wall - inside)))
    return counted
