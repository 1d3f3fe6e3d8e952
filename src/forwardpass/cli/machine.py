"""`forwardpass machine`: cores, instruction set and measured limits."""

from __future__ import annotations

import sys

from .output import print_json, print_table, size


def run(measure, json) -> int:
    from .. import config
    from ..backends.native import chosen_isa
    from ..explain import measured

    def note(*what) -> None:
        if sys.stderr.isatty():
            print("measuring", *what, file=sys.stderr, flush=True)

    limits = measured.measured(note, again=measure)
    memory = measured.memory_bytes()
    facts = {
        "cpu": measured.cpu_name(),
        "cpus": config.usable_cpus(),
        "isa": chosen_isa(),
        "memory_bytes": memory,
        "limits": limits,
    }
    if json:
        print_json(facts)
        return 0
    rows = [
        ["CPU", facts["cpu"]],
        ["CPUs usable", facts["cpus"]],
        ["instruction set", facts["isa"]],
        ["memory", "unknown" if memory is None else size(memory)],
        *([name, shown(value)] for name, value in flat(limits)),
    ]
    print_table(["what", "value"], rows)
    return 0


def flat(values: dict, prefix: str = ""):
    """(name, value) of nested tables, names joined by dots."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
