"""Measures what this machine can do at most: reading memory, and multiplying matrices."""

from __future__ import annotations

from collections.abc import Callable

from forwardpass import _native, config
from forwardpass.backends.native import chosen_isa

READ_SIZES = {"1MiB": 1 << 20, "16MiB": 16 << 20, "96MiB": 96 << 20, "512MiB": 512 << 20}
SECONDS = 0.4


def measure(progress: Callable[[str], None] | None = None) -> dict:
    """{"isa", "threads", "read_bytes_s": {size: bytes/s}, "matrix_ops_s": {"int8", "bfloat16", "float32": ops/s}}.

    All threads together; medians of many passes.
    """
    isa, threads = chosen_isa(), config.threads() or config.usable_cpus()
    pool = _native.Pool(min(threads, config.usable_cpus()))
    vector_isa = "avx512" if isa == "amx" else isa
    read = {}
    for name, size in READ_SIZES.items():
        if progress:
            progress(f"reading {name}")
        read[name] = _native.read_bandwidth(pool, size, SECONDS)
    if progress:
        progress("matrix products")
    rates = {
        "int8": _native.matrix_rate(pool, isa, True, SECONDS),
        "bfloat16": _native.matrix_rate(pool, isa, False, SECONDS),
        "float32": _native.matrix_rate(pool, vector_isa, False, SECONDS),
    }
    return {"isa": isa, "threads": pool.threads, "read_bytes_s": read, "matrix_ops_s": rates}


def read_limit(limits: dict, working_set: int) -> float:
    """Bytes a second for a step that reads `working_set` bytes: of the measured sizes, the nearest."""
    nearest = min(READ_SIZES, key=lambda name: abs(READ_SIZES[name].bit_length() - int(working_set).bit_length()))
    return limits["read_bytes_s"][nearest]
