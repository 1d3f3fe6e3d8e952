"""Our side of encode.py; run by `_worker`. One worker a dtype."""

from __future__ import annotations

import time
from statistics import median

import _common
import _worker
import numpy as np


class Ours:
    def __init__(self, model: str, threads: int, dtype: str):
        import forwardpass

        start = time.perf_counter()
        self.model = forwardpass.load(model, dtype=dtype, threads=threads)
        load_s = time.perf_counter() - start
        network = self.model.network
        self.facts = {"ways": [""], "load_s": load_s, "machine": _common.machine(network.backend)}

    def encode(self, texts: list[str], way: str = "") -> list[float]:
        start = time.perf_counter()
        vectors = self.model.embed(texts)
        return [len(vectors), time.perf_counter() - start]

    def query(self, text: str, times: int, way: str = "") -> list[float]:
        """[1, median seconds of so many]."""
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            self.model.embed([text])
            seconds.append(time.perf_counter() - start)
        return [1, median(seconds)]

    def vectors(self, texts: list[str], file: str) -> None:
        np.save(file, self.model.embed(texts))

    def operations(self, texts: list[str]) -> list[float]:
        """[tokens, multiplications and additions of all matrix products, and of attention]."""
        from forwardpass.models import costs

        lengths = [len(self.model.tokenizer.encode(text, add_special_tokens=True, parse_special=False))
                   for text in texts]
        each = costs.stage_costs(self.model.spec, self.model.stored_bytes, lengths, [0] * len(lengths), wanted=0)
        ops = each["decode"]
        products = sum(ops[name].flops for name in ("qkv", "out", "gate_up", "down"))
        return [sum(lengths), products, ops["attention"].flops]

    def matrix_limit(self, seconds: float) -> float:
        """Operations a second of the int8 matrix instructions."""
        from forwardpass import _native

        backend = self.model.network.backend
        return _native.matrix_rate(backend.pool, backend.isa, True, seconds)


if __name__ == "__main__":
    _worker.serve(Ours)
