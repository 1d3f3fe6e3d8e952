"""CPU time of a server that runs on this machine, its children included, from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from forwardpass.errors import ParameterError

PROC = Path("/proc")


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Seconds of CPU that a process and its descendants have used, those that ended and were waited for included.

    ParameterError if there is no such process, or no /proc.
    """
    times, children = _processes(proc)
    if pid not in times:
        raise ParameterError(f"--pid {pid}: expected a process that runs on this machine, found none")
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += times[one]
        waiting += children.get(one, ())
    return total / os.sysconf("SC_CLK_TCK")


def _processes(proc: Path) -> tuple[dict[int, int], Mapping[int, list[int]]]:
    """(ticks of each process, the children of each)."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text("utf-8", "replace")
        except OSError:  # it ended meanwhile
            continue
        # The name stands in brackets and may hold blanks and brackets itself. Behind it: state, parent, ..., and as
        # fields 14 to 17 of the line the ticks of the process and of the children it has waited for.
        fields = text.rpartition(")")[2].split()
        pid = int(folder.name)
        times[pid] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(pid)
    return times, children
