"""Our side of the benchmarks, run by `_worker`: what a user gets from `forwardpass.load` without options."""

from __future__ import annotations

import time
from statistics import median

import _common
import _worker

PLAIN = {"do_sample": False, "eos_token_id": []}


class Ours:
    """model: a path;  dtype, threads: as for forwardpass.load.  facts: what does not depend on a measurement."""

    def __init__(self, model: str, threads: int | None = None, dtype: str = "auto"):
        import forwardpass
        from forwardpass import config
        from forwardpass.weights import packed
        from forwardpass.weights.folder import folder_files
        from forwardpass.weights.gguf_parts import gguf_files

        def load():
            start = time.perf_counter()
            return forwardpass.load(model, dtype=dtype, threads=threads), time.perf_counter() - start

        load()[0].close()  # packs the weights if that was never done
        seconds = []
        for _ in range(3):
            self.model, taken = load()
            seconds.append(taken)
            if len(seconds) < 3:
                self.model.close()
        files = self.model.path
        files = gguf_files(files) if files.is_file() else folder_files(files)
        self.backend = self.model.network.backend
        self.facts = {
            "ways": [""],
            "load_s": median(seconds),
            "packed_bytes": packed.packed_bytes(config.cache_dir(), packed.source_key(files, dtype)),
            "stored_bits": self._stored_bits(),
            "max_positions": self.model.spec.max_position_embeddings,
            "chats": self.model.tokenizer.facts.chat_template is not None,
            "products": self._products(),
            "machine": _common.machine(self.backend),
        }
        self.decode([1] * 64, 8)

    def _stored_bits(self) -> float:
        """Bits a weight, as the checkpoint stores them."""
        from forwardpass.models import costs

        return 8 * sum(self.model.stored_bytes.values()) / costs.parameters(self.model.spec)

    def _products(self) -> str:
        """What most products are of: "int8", "bfloat16" or "float32"."""
        dtype, bits = self.model.dtype, self._stored_bits()
        if dtype in ("int8", "int4") or (dtype == "auto" and bits < 15):
            return "int8"
        return dtype if dtype != "auto" else "bfloat16" if bits < 24 else "float32"

    def ids(self, limit: int) -> list[int]:
        """Token ids of the text that everybody is measured on."""
        text = _common.documentation()[: 6 * limit]
        return self.model.tokenizer.encode(text, add_special_tokens=False, parse_special=False)[:limit]

    def chat_ids(self, question: str) -> list[int]:
        from forwardpass.stages.template import chat_ids

        return chat_ids(self.model.tokenizer, [{"role": "user", "content": question}])

    def raw_prompt(self, ids: list[int]) -> str:
        """A text of about as many tokens as these."""
        return self.model.tokenizer.decode(ids)

    # ---- figures: [units, seconds]

    def prefill(self, ids: list[int], way: str = "") -> list[float]:
        """From the call to the first token."""
        start = time.perf_counter()
        with self.model.stream(ids, max_new_tokens=1, **PLAIN) as stream:
            next(stream)
            return [len(ids), time.perf_counter() - start]

    def decode(self, ids: list[int], new: int, way: str = "") -> list[float]:
        """From the first token to the last."""
        with self.model.stream(ids, max_new_tokens=new, **PLAIN) as stream:
            next(stream)
            start = time.perf_counter()
            steps = sum(1 for _ in stream)
            return [steps, time.perf_counter() - start]

    def batch(self, prompts: list[list[int]], new: int, way: str = "") -> list[float]:
        """All requests at once, prompts included."""
        start = time.perf_counter()
        done = self.model.generate(prompts, max_new_tokens=new, **PLAIN)
        seconds = time.perf_counter() - start
        return [sum(len(one.token_ids) for one in done), seconds]

    def answer(self, ids: list[int], new: int) -> float:
        """Seconds of a whole answer, nothing of it known before."""
        self.model.engine.prefixes.clear()
        start = time.perf_counter()
        self.model.generate(ids, max_new_tokens=new, **PLAIN)
        return time.perf_counter() - start

    def answer_without_cache(self, ids: list[int], new: int) -> float:
        """The same, each token by a forward pass over the whole text, as a loop without a cache does it."""
        ids = list(ids)
        start = time.perf_counter()
        for _ in range(new):
            ids.append(int(self.model.logits(ids)[-1].argmax()))
        return time.perf_counter() - start

    def overhead(self, ids: list[int], new: int) -> float:
        """Share of a decode step's wall time that is spent outside of native code."""
        from forwardpass import _native

        native = 0.0

        def counted(function):
            def call(*arguments, **named):
                nonlocal native
                start = time.perf_counter()
                result = function(*arguments, **named)
                native += time.perf_counter() - start
                return result

            return call

        network, greedy_steps = self.model.network, _native.greedy_steps
        programs = [stage.program for stage in (network._embed, network._layers, network._project)]
        _native.greedy_steps = counted(greedy_steps)
        for program in programs:
            program.run = counted(program.run)
        try:
            with self.model.stream(ids, max_new_tokens=new, **PLAIN) as stream:
                next(stream)
                before, start = native, time.perf_counter()
                for _ in stream:
                    pass
                wall = time.perf_counter() - start
        finally:
            _native.greedy_steps = greedy_steps
            for program in programs:
                del program.run
        return 1 - (native - before) / wall

    # ---- what the figures are held against

    def cost(self, rows: int, context: int) -> list[int]:
        """[operations, bytes that must be read] of one step of one sequence."""
        from forwardpass.models import costs

        model = self.model
        whole = costs.total(costs.stage_costs(model.spec, model.stored_bytes, [rows], [context], model.kv_dtype))
        return [whole.flops, whole.read]

    def read_limit(self, size: int, seconds: float) -> float:
        """Bytes a second that this machine reads from memory of this size, all our threads together."""
        from forwardpass import _native

        return _native.read_bandwidth(self.backend.pool, size, seconds)

    def matrix_limit(self, seconds: float) -> float:
        """Operations a second of the matrix instructions that this model's weights call for."""
        from forwardpass import _native

        products, isa = self.facts["products"], self.backend.isa
        isa = "avx512" if products == "float32" and isa == "amx" else isa  # tiles don't multiply float32
        return _native.matrix_rate(self.backend.pool, isa, products == "int8", seconds)


if __name__ == "__main__":
    _worker.serve(Ours)
