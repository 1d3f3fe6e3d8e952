"""Our side of quality.py, run by `_worker`: a model in float32, the reference, beside itself in other dtypes."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict

import _common
import _worker


class OurQuality:
    """model: a path.  The reference has float32 weights, activations and cache."""

    def __init__(self, model: str, threads: int):
        import forwardpass

        self.path, self.threads = model, threads
        self.reference = forwardpass.load(model, dtype="float32", threads=threads)
        self.facts = {"ways": [""], "machine": _common.machine(self.reference.network.backend)}

    def ids(self, limit: int, text: str | None) -> list[int]:
        """The first tokens of the text that every engine reads."""
        from forwardpass.tasks import quality

        return quality.text_ids(self.reference, quality.measuring_text(text), limit)

    def compare(self, ids: list[int], variants: list[list[str]]) -> dict:
        """Perplexity, divergence and agreement of each (dtype, kv_dtype), "float32/float32" among them."""
        import forwardpass
        from forwardpass.tasks import quality

        with contextlib.ExitStack() as stack:
            models = {}
            for dtype, kv_dtype in variants:
                model = forwardpass.load(self.path, dtype=dtype, kv_dtype=kv_dtype, threads=self.threads)
                models[f"{dtype}/{kv_dtype}"] = stack.enter_context(model)
            reference, others, scored = quality.compare(
                self.reference, models, ids,
                lambda done, total: print(f"  {done} of {total} tokens", file=sys.stderr, flush=True))
        named = {"float32/float32": reference} | others
        return {"scored_tokens": scored, "window": quality.WINDOW,
                "quality": {name: asdict(one) for name, one in named.items()}}


if __name__ == "__main__":
    _worker.serve(OurQuality)
