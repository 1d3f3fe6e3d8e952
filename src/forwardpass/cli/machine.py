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
        *([name, shown(name, value)] for name, value in flat(limits) if name != "isa"),
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


def shown(name: str, value) -> str:
    """A rate in billions a second, which is how people quote them."""
    if "bytes_s" in name:
        return f"{value / 1e9:.1f} GB/s"
    if "ops_s" in name:
        return f"{value / 1e9:.0f} Gop/s"
    return str(value)
