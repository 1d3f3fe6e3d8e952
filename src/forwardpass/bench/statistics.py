"""What a level of load did: percentiles of times, rates, errors, goodput and the bill.

A percentile is by nearest rank: the smallest measured value that at least so many of a hundred values do not exceed.
It is always a value that was measured. Failed requests are in no figure of time; they are counted, by kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from forwardpass.bench.records import Level, Record
from forwardpass.errors import ParameterError

METHOD = "nearest rank"
TARGETS = {"ttft": "first token", "itl": "longest gap between tokens", "tpot": "mean gap between tokens",
           "e2e": "whole answer"}


def percentile(ordered: Sequence[float], of_hundred: float) -> float:
    """Nearest rank in values that are in ascending order and not empty."""
    return ordered[max(0, math.ceil(of_hundred / 100 * len(ordered)) - 1)]


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Milliseconds: mean, p50, p95, p99, max. None without values."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = {"mean": math.fsum(ordered) / len(ordered),
             **{f"p{p}": percentile(ordered, p) for p in (50, 95, 99)}, "max": ordered[-1]}
    return {name: 1000 * value for name, value in found.items()}


def parse_targets(words: Sequence[str]) -> dict[str, float]:
    """Name -> seconds, from words like "ttft:500" (milliseconds)."""
    found: dict[str, float] = {}
    for word in words:
        name, _, number = word.partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in TARGETS or not 0 < value < math.inf or name in found:
            raise ParameterError(f"--goodput: expected {' or '.join(f'{one}:MS' for one in TARGETS)}, each at most "
                                 f"once and above 0, found {word!r}")
        found[name] = value / 1000
    return found


def meets(record: Record, targets: Mapping[str, float]) -> bool:
    """Whether an answer came in time. A failed one never does, and one without tokens has no time that is late."""
    if record.error:
        return False
    gaps = record.gaps()
    values = {"ttft": record.ttft, "itl": max(gaps, default=None), "tpot": record.tpot, "e2e": record.e2e}
    return all(values[name] is None or values[name] <= limit for name, limit in targets.items())


def summary(level: Level, targets: Mapping[str, float] | None = None) -> dict:
    """The figures of one level, ready for JSON. Times in milliseconds, rates a second.

    ttft_ms: from the planned time of sending to the first text;  itl_ms: every gap between two arrivals of text in one
    answer, those of all answers together;  tpot_ms: an answer's mean time a token after its first;  e2e_ms: to the
    end of the answer.  Tokens count when they arrive within the level's window.
    """
    good = [record for record in level.records if not record.error]
    bad = [record for record in level.records if record.error]
    seconds = level.stop - level.start
    output = math.fsum(record.tokens_until(level.stop) for record in good)
    read = sum(record.prompt_tokens for record in good if record.began is not None and record.began <= level.stop)
    found = {
        "load": dict(level.load),
        "requests": len(level.records),
        "ok": len(good),
        "errors": dict(Counter(record.error for record in bad)),
        "error_messages": {record.error: record.message for record in reversed(bad) if record.message},
        "seconds": seconds,
        "ttft_ms": spread([record.ttft for record in good if record.ttft is not None]),
        "itl_ms": spread([gap for record in good for gap in record.gaps()]),
        "tpot_ms": spread([record.tpot for record in good if record.tpot is not None]),
        "e2e_ms": spread([record.e2e for record in good]),
        "late_ms": spread([record.sent - record.planned for record in level.records]),
        "output_tok_s": output / seconds,
        "total_tok_s": (output + read) / seconds,
        "requests_s": sum(record.end <= level.stop for record in good) / seconds,
        "prompt_tokens": _mean([record.prompt_tokens for record in good]),
        "output_tokens": _mean([record.output_tokens for record in good]),
        "cached_tokens": _mean([record.cached_tokens for record in good if record.cached_tokens is not None]),
        "short": sum(record.output_tokens < record.wanted for record in good),
        "client_cpu_s": level.client_cpu_s,
    }
    if targets:
        in_time = [record for record in good if meets(record, targets)]
        found["goodput"] = {
            "targets_ms": {name: 1000 * limit for name, limit in targets.items()},
            "share": len(in_time) / len(level.records) if level.records else 0.0,
            "requests_s": sum(record.end <= level.stop for record in in_time) / seconds,
        }
    if level.server_cpu_s is not None:
        # Over all that was computed, also what came after the window: CPU time cannot be told apart by requests.
        tokens = sum(record.output_tokens for record in good) or sum(record.prompt_tokens for record in good)
        found["server_cpu_s"] = level.server_cpu_s
        found["tokens_per_cpu_hour"] = 3600 * tokens / level.server_cpu_s if level.server_cpu_s else None
    return found


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
