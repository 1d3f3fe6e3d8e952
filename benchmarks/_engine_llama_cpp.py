"""llama.cpp through its Python package's low-level API, run by `_worker` in the environment that has the package.

Ways to run it: flash attention on and off, each with and without the repacked weights that its AMX kernels need
(without them it takes the plain kernels, which are slower at prompts and can be faster elsewhere). Batches are decoded
as its server does: one `llama_batch` with a row of every sequence.

`python _engine_llama_cpp.py once MODEL THREADS NEW PROMPT [--raw]` prints an answer as a process of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import _worker

BATCH = 2048  # rows a call takes; llama.cpp computes them 512 at a time, its default


class LlamaCpp:
    """model: a GGUF file."""

    def __init__(self, model: str, threads: int):
        import llama_cpp
        import numpy

        if not os.path.isfile(model):
            raise _worker.Missing("llama.cpp reads GGUF files only")
        self.api, self.numpy, self.threads = llama_cpp, numpy, threads
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, None)
        llama_cpp.llama_backend_init()
        self.models, loaded = {}, {}
        for repacked in (True, False):
            settings = llama_cpp.llama_model_default_params()
            settings.use_extra_bufts = repacked
            start = time.perf_counter()
            self.models[repacked] = llama_cpp.llama_model_load_from_file(model.encode(), settings)
            loaded[repacked] = time.perf_counter() - start
            if not self.models[repacked]:
                raise RuntimeError(f"llama.cpp cannot load {model}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.models[True]))
        self.contexts: dict[tuple, Context] = {}
        features = llama_cpp.llama_print_system_info().decode()
        self.facts = {
            "ways": [f"flash attention {flash}, {weights}" for weights in ("repacked (AMX)", "not repacked")
                     for flash in ("on", "off")],
            "spins_s": 0.25,  # OpenMP's, 0.2 by default
            "load_s": loaded[True],
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "features": " ".join(part.strip() for part in features.split("|") if "= 1" in part),
        }
        for way in self.facts["ways"]:
            self.context(way, 64).answer(list(range(10, 40)), 4)

    def context(self, way: str, positions: int, sequences: int = 1, purpose: str = "") -> Context:
        """positions: for each sequence. Contexts are kept: making one is not part of any figure."""
        key = way, positions, sequences, purpose
        if key not in self.contexts:
            self.contexts[key] = Context(self, "not repacked" not in way, "attention on" in way, positions, sequences)
        return self.contexts[key]

    def prefill(self, ids: list[int], way: str) -> list[float]:
        context = self.context(way, len(ids) + 64)
        context.keep(0)
        start = time.perf_counter()
        context.extend(ids)
        return [len(ids), time.perf_counter() - start]

    def decode(self, ids: list[int], new: int, way: str) -> list[float]:
        """The prompt stays in the context for the next round: only the decoding is measured."""
        context = self.context(way, len(ids) + new + 64, purpose="decode")
        token = context.resume(ids)
        start = time.perf_counter()
        for _ in range(new - 1):
            token = context.extend([token])
        return [new - 1, time.perf_counter() - start]

    def batch(self, prompts: list[list[int]], new: int, way: str) -> list[float]:
        length = max(map(len, prompts)) + new
        context = self.context(way, length, len(prompts), "batch")
        context.keep(0)
        start = time.perf_counter()
        tokens = context.step(prompts)
        for _ in range(new - 1):
            tokens = context.step([[token] for token in tokens])
        return [new * len(prompts), time.perf_counter() - start]


    def perplexity(self, ids: list[int], window: int, way: str) -> float:
        """Of the text cut into windows that do not see one another, the first token of each unscored."""
        context, loss, scored = self.context(way, window, purpose="perplexity"), 0.0, 0
        for at in range(0, len(ids) - 1, window):
            part = ids[at : at + window]
            for row, target in zip(context.logits(part[:-1]), part[1:], strict=True):
                row = row.astype(self.numpy.float64)
                loss += row.max() + self.numpy.log(self.numpy.exp(row - row.max()).sum()) - row[target]
                scored += 1
        return float(self.numpy.exp(loss / scored))


class Context:
    """Some sequences of one model. ids: what the first one holds."""

    def __init__(self, owner: LlamaCpp, repacked: bool, flash: bool, positions: int, sequences: int):
        api = owner.api
        settings = api.llama_context_default_params()
        settings.n_ctx = -(-positions // 256) * 256 * sequences
        settings.n_batch = BATCH
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = owner.threads
        settings.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.api, self.numpy, self.vocabulary = api, owner.numpy, owner.vocabulary
        self.pointer = api.llama_init_from_model(owner.models[repacked], settings)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp cannot make a context of {settings.n_ctx} positions")
        self.rows = api.llama_batch_init(BATCH, 0, 1)
        self.ids: list[int] = []
        self.lengths = [0] * sequences

    def keep(self, positions: int) -> None:
        """Forget everything after the first positions of the first sequence, and all of the others."""
        memory = self.api.llama_get_memory(self.pointer)
        for sequence in range(len(self.lengths)):
            first = positions if sequence == 0 else 0
            self.api.llama_memory_seq_rm(memory, sequence, first, -1)
            self.lengths[sequence] = first
        self.ids = self.ids[:positions]

    def resume(self, ids: list[int]) -> int:
        """The token after `ids`, of which nothing is computed again but the last one."""
        same = len(ids) - 1 if self.ids[: len(ids) - 1] == ids[:-1] else 0
        self.keep(same)
        return self.extend(ids[same:])

    def extend(self, ids: list[int]) -> int:
        self.ids += ids
        return self.step([ids])[0]

    def answer(self, ids: list[int], new: int) -> None:
        self.keep(0)
        token = self.extend(ids)
        for _ in range(new - 1):
            token = self.extend([token])

    def logits(self, ids: list[int]):
        """The logits after each token of a text that is at most BATCH long, row by row."""
        self.keep(0)
        rows = self.rows
        rows.n_tokens = len(ids)
        for i, token in enumerate(ids):
            rows.token[i], rows.pos[i], rows.logits[i] = token, i, True
            rows.n_seq_id[i], rows.seq_id[i][0] = 1, 0
        if self.api.llama_decode(self.pointer, rows):
            raise RuntimeError("llama_decode failed")
        for i in range(len(ids)):
            pointer = ctypes.cast(self.api.llama_get_logits_ith(self.pointer, i), ctypes.POINTER(ctypes.c_float))
            yield self.numpy.ctypeslib.as_array(pointer, (self.vocabulary,))

    def step(self, added: list[list[int]]) -> list[int]:
        """Append tokens to each sequence; the likeliest next token of each."""
        last, rows, wanted, chosen = self.lengths, self.rows, [], {}
        work = [(sequence, token, last[sequence] + i, i == len(ids) - 1)
                for sequence, ids in enumerate(added) for i, token in enumerate(ids)]
        for at in range(0, len(work), BATCH):
            part = work[at : at + BATCH]
            rows.n_tokens, wanted = len(part), []
            for i, (sequence, token, position, final) in enumerate(part):
                rows.token[i], rows.pos[i], rows.logits[i] = token, position, final
                rows.n_seq_id[i], rows.seq_id[i][0] = 1, sequence
                if final:
                    wanted.append((i, sequence))
            if self.api.llama_decode(self.pointer, rows):
                raise RuntimeError("llama_decode failed")
            for i, sequence in wanted:
                pointer = ctypes.cast(self.api.llama_get_logits_ith(self.pointer, i), ctypes.POINTER(ctypes.c_float))
                chosen[sequence] = int(self.numpy.ctypeslib.as_array(pointer, (self.vocabulary,)).argmax())
        for sequence, ids in enumerate(added):
            last[sequence] += len(ids)
        return [chosen[sequence] for sequence in range(len(added))]


def once(model: str, threads: str, new: str, prompt: str, raw: str = "") -> None:
    import llama_cpp

    llama = llama_cpp.Llama(model, n_ctx=512, n_threads=int(threads), n_threads_batch=int(threads), verbose=False)
    if raw:
        for part in llama.create_completion(prompt, max_tokens=int(new), temperature=0, stream=True):
            sys.stdout.write(part["choices"][0]["text"])
            sys.stdout.flush()
        return
    messages = [{"role": "user", "content": prompt}]
    for part in llama.create_chat_completion(messages, max_tokens=int(new), temperature=0, stream=True):
        sys.stdout.write(part["choices"][0]["delta"].get("content", ""))
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(*sys.argv[2:])
    else:
        _worker.serve(LlamaCpp)
