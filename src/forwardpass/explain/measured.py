"""The machine's measured limits, kept in the cache folder: measuring takes seconds and changes little."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

from ..config import cache_dir, isa, threads, usable_cpus

MAX_AGE_S = 30 * 24 * 3600


def measured(progress=None, again: bool = False) -> dict:
    """What `machine.measure` found here, from the cache unless it is a month old or of another machine.

    A cache that cannot be read or written costs a measurement, never an error.
    """
    path = cache_dir() / "machine.json"
    key = identity()
    if not again and (limits := _read(path, key)) is not None:
        return limits
    from .machine import measure

    limits = measure(progress)
    _write(path, {"identity": key, "time": time.time(), "limits": limits})
    return limits


def identity() -> dict:
    """What a measurement depends on: the CPU, the CPUs this process may use and the forced instruction set."""
    return {
        "cpu": cpu_name(),
        "cpus": usable_cpus(),
        "threads": threads(),
        "forced_isa": isa(),
    }


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _read(path: Path, key: dict) -> dict | None:
    try:
        kept = json.loads(path.read_bytes())
        fresh = kept["identity"] == key and 0 <= time.time() - kept["time"] < MAX_AGE_S
        return kept["limits"] if fresh and isinstance(kept["limits"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, record: dict) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(json.dumps(record), "utf-8")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError:
        pass
