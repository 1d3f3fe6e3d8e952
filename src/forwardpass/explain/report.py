"""Runs one request with every operation timed and sets the times against the machine's limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from forwardpass.contracts import Completion
from forwardpass.explain import measured
from forwardpass.explain.machine import read_limit
from forwardpass.explain.verdict import Line, verdict
from forwardpass.models.costs import Cost, stage_costs


@dataclass(frozen=True)
class Report:
    """lines: one for each phase, stage and operation;  verdict: one sentence;  limits: as explain.machine measured."""

    completion: Completion
    lines: tuple[Line, ...]
    limits: dict
    verdict: str

    def to_dict(self) -> dict:
        return {
            "lines": [{**asdict(line), "of_limit": line.of_limit} for line in self.lines],
            "limits": self.limits,
            "verdict": self.verdict,
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
        return "\n".join([line.rstrip() for line in text] + ["", self.verdict])


def explain(model, prompt: Any, params: dict[str, Any]) -> Report:
    """Answer `prompt` (text, token ids or messages), timed. Other requests that share its steps are counted with it."""
    engine, network = model.engine, model.network  # a closed model says so before anything is measured
    limits = measured.measured()
    start = perf_counter()
    messages = isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict)
    stream = model.chat(prompt, stream=True, **params) if messages else model.stream(prompt, **params)
    lines = [Line("prompt", "preprocess", "tokenise", perf_counter() - start)]
    network.backend.timed = True
    network.reset_timings()
    try:
        watch = _Watch(engine, stream)
        for phase in ("prompt", "answer"):
            lines += _phase(phase, watch, model, limits)
    finally:
        network.backend.timed = False
        stream.close()
    if watch.request.error is not None:
        raise watch.request.error
    return Report(stream.completion, tuple(lines), limits, verdict(lines))


class _Watch:
    """Steps the engine for one stream and notes what each step computed."""

    def __init__(self, engine, stream):
        self.engine = engine
        self.request = stream._request

    def run(self, first: bool) -> tuple[list[tuple[list[tuple[int, int]], int]], float]:
        """Until the first token, or to the end: (what Engine.last says of each step, seconds)."""
        steps, start = [], perf_counter()
        while not self.request.done and not (first and self.request.first_token is not None):
            self.engine.step()
            steps += self.engine.last
        return steps, perf_counter() - start


def _phase(phase: str, watch: _Watch, model, limits: dict) -> list[Line]:
    network = model.network
    before = dict(watch.request.seconds)
    steps, wall = watch.run(first=phase == "prompt")
    if not steps:
        return []
    costs: dict[tuple[str, str], Cost] = {}
    for sequences, wanted in steps:
        rows, contexts = zip(*sequences, strict=True)
        for stage, ops in stage_costs(model.spec, model.stored_bytes, rows, contexts, network.kv_dtype, wanted).items():
            for op, cost in ops.items():
                costs[stage, op] = costs.get((stage, op), Cost()) + cost
    read = read_limit(limits, sum(cost.bytes for cost in costs.values()) // len(steps))
    rate = limits["matrix_ops_s"]
    weights = rate[model.arithmetic]
    attention = rate["float32" if network.kv_dtype == "float32" else "bfloat16"]
    lines = []
    timings = network.timings()
    network.reset_timings()
    for stage, ops in timings.items():
        for op, seconds in ops.items():
            cost = costs.get((stage, op), Cost())
            compute = cost.flops / (attention if op == "attention" else weights)
            lines.append(Line(phase, stage, op, seconds, cost.bytes, cost.flops, cost.bytes / read, compute))
    after = watch.request.seconds["postprocess"] - before["postprocess"]
    lines.append(Line(phase, "postprocess", "choose", after))
    inside = sum(line.seconds for line in lines)
    lines.append(Line(phase, "engine", "python", max(0.0, wall - inside)))
    return lines
