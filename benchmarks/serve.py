#!/usr/bin/env python3
"""How does the server do under load? Throughput, first tokens, stalls, prefixes and start, beside other servers.

    python benchmarks/serve.py
    python benchmarks/serve.py --peer llama-server --llama-server llama.cpp/build/bin/llama-server
    python benchmarks/serve.py --peer llama-server --peer vllm --peer-python vllm=peers/vllm/bin/python --plot curve.png

Every server gets the same requests from the load tool of `forwardpass bench serve`, in rounds that alternate, and only
one computes at a time. SmolLM2-135M, prompts of 128 tokens of real text (no two alike, unless a prefix is what is
measured) and answers of 128.

output_tok_s: output tokens / wall time, prompts included, at 1, 8 and 32 requests at once.  ttft_ms: from sending to
the first text, at 8 at once.  greeting_ms: a short greeting in the chat template, answered with 20 tokens, end to end.
prefix: time to the first token behind a system prompt of 1,000 tokens, new (cold_ms) and asked before (hit_ms).
itl_while_long_ms: p99 of the gaps of four running streams while a prompt of 4,000 tokens is read.  ready_s: from exec
to the first 200 of /health.  Percentiles by nearest rank, over all rounds; other figures are medians of rounds.

ours_library: output tokens a second of the library alone, without a server, one prompt of the same length at a time.
of_limit.one_stream: bytes a decode step must read x output tokens a second / read bandwidth;  of_limit.at_32:
operations of all tokens a second / rate of the matrix instructions. Both limits are measured between the rounds.

Peers. llama-server: the same GGUF file, a process for each figure with as many slots as requests at once, flash
attention on and off; both ways are measured in the first round (at 2, 4, 16 and 32 at once only the one that is better
at 8), the best of each figure in the others. What takes longer than 20 s is measured in two rounds only.
vLLM: PYTHON -m vllm.entrypoints.openai.api_server on a bfloat16 copy of the model that transformers writes here
(torch, transformers, gguf and accelerate in this interpreter; or name a ready one with --vllm-model), with
    VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=0-1 HF_HUB_OFFLINE=1
    LD_PRELOAD=libiomp5.so of its environment and the system's libtcmalloc_minimal.so.4, where they are there.
Its start takes minutes, so it is started once and stopped by SIGSTOP while others are measured.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import _common
from _common import number
from _serve_jobs import Job, Sizes, jobs
from _servers import LlamaServer, Ours, Server, Vllm, hugging_face_copy
from _worker import Missing, Worker

from forwardpass.errors import ForwardpassError

PEERS = ("llama-server", "vllm")
LEVELS = (1, 8, 32)
SLOW_S = 20.0  # what takes longer is measured in two rounds at most
JOB_TEXTS = 3000  # numbers of texts that belong to a job, so that none is asked twice; a multiple of 30 (greetings)


class Engine:
    """A server and what was measured of it. rounds: (way, figure) -> what each round gave;  levels: (way, requests at
    once) -> summaries;  ready: seconds of its starts;  seconds, done: of each job, how long it took and how often it
    was measured."""

    def __init__(self, server: Server):
        self.server, self.name = server, server.name
        self.rounds: dict[tuple[str, str], list] = {}
        self.levels: dict[tuple[str, int], list[dict]] = {}
        self.ready: list[float] = []
        self.seconds: dict[str, float] = {}
        self.done: dict[str, int] = {}

    def measure(self, job: Job, texts, first: int) -> None:
        """One more round of a job, in all ways if it is the first, else in the best; slow ones twice at most."""
        if self.seconds.get(job.name, 0.0) > SLOW_S and self.done[job.name] >= 2:
            return
        self.done[job.name] = self.done.get(job.name, 0) + 1
        for way in self.ways(job):
            print(f"  {self.name} {way}: {job.name}".replace(" :", ":"), file=sys.stderr, flush=True)
            with self.server.serving(way, job.slots, job.context) as process:
                if not self.server.starts and not self.ready:
                    self.ready.append(process.ready_s)
                start = time.perf_counter()
                figures, level = job(process, texts, first)
                self.seconds[job.name] = time.perf_counter() - start
            for figure, value in figures.items():
                self.rounds.setdefault((way, figure), []).append(value)
            if level is not None:
                self.levels.setdefault((way, job.slots), []).append(level)

    def ways(self, job: Job) -> list[str]:
        known = next((figure for figure in (job.decides, job.like) if self.known(figure)), None)
        return [self.best(known)] if known else list(self.server.ways)

    def known(self, figure: str) -> bool:
        return any((way, figure) in self.rounds for way in self.server.ways)

    def best(self, figure: str) -> str:
        """The way that did best: most tokens a second, or least time at the 95th percentile."""
        def worth(way: str) -> float:
            rounds = self.rounds[way, figure]
            return -percentile(rounds, 95) if isinstance(rounds[0], list) else median(rounds)

        return max((way for way in self.server.ways if (way, figure) in self.rounds), key=worth)

    def rate(self, figure: str) -> float:
        return median(self.rounds[self.best(figure), figure])

    def ms(self, figure: str, of_hundred: float) -> float:
        """A percentile of all rounds' times."""
        return 1000 * percentile(self.rounds[self.best(figure), figure], of_hundred)

    def curve(self) -> list[dict]:
        """A summary for each number at once: that of the round in the middle."""
        found = []
        for slots in sorted({slots for _, slots in self.levels}):
            several = self.levels[self.best(f"output_tok_s {slots}"), slots]
            found.append(sorted(several, key=lambda one: one["output_tok_s"])[(len(several) - 1) // 2])
        return found

    def figures(self) -> dict:
        found = {
            "output_tok_s": {str(n): self.rate(f"output_tok_s {n}") for n in LEVELS},
            "ttft_ms": {"p50": self.ms("ttft_s 8", 50), "p95": self.ms("ttft_s 8", 95)},
            "itl_ms": {str(n): self.ms(f"itl_s {n}", 95) for n in LEVELS},
            "greeting_ms": self.ms("greeting_s", 50),
            "prefix": {"cold_ms": self.ms("prefix_cold_s", 50), "hit_ms": self.ms("prefix_hit_s", 50)},
            "itl_while_long_ms": {"p50": self.ms("itl_while_long_s", 50), "p99": self.ms("itl_while_long_s", 99)},
            "long_ttft_ms": self.ms("long_ttft_s", 50),
            "ready_s": median(self.ready),
        }
        found["prefix"]["hit_of_cold"] = found["prefix"]["hit_ms"] / found["prefix"]["cold_ms"]
        return found


def percentile(rounds: list[list[float]], of_hundred: float) -> float:
    from forwardpass.bench import statistics

    return statistics.percentile(sorted(time for one in rounds for time in one), of_hundred)


def main() -> int:
    parser = _common.parser(__doc__, PEERS, rounds=3)
    parser.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER", "llama-server"), metavar="PATH",
                        help="the program (default: the environment's LLAMA_SERVER, else llama-server on the PATH)")
    parser.add_argument("--vllm-model", metavar="FOLDER", help="a bfloat16 copy of the model that is there already")
    parser.add_argument("--plot", metavar="FILE", help="draw all engines' latency-throughput curves (PNG); also "
                        "measures 2, 4 and 16 requests at once")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that held servers are ended
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    from forwardpass.bench import curve, texts
    from forwardpass.tasks.opening import open_source, read_tokenizer

    if options.plot:
        curve.library()
    sizes, rounds = Sizes(options.quick), 1 if options.quick else options.rounds
    source, _ = open_source(Path(path))
    with source:
        pieces = texts.from_tokenizer(read_tokenizer(Path(path), source), _common.documentation(), sizes.longest,
                                      most=8_000 if options.quick else texts.MOST_TOKENS)
    library = Worker("_engine_ours.py", model=path, threads=threads)
    us = Library(library, sizes)
    with contextlib.ExitStack() as stack:
        stack.callback(library.close)
        engines, missing = open_engines(options, path, threads, stack)
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
            us.measure()
            order = engines if turn % 2 == 0 else engines[::-1]
            for at, job in enumerate(jobs(sizes)):
                for engine in order:
                    attempt(engine, job, pieces, at * JOB_TEXTS + turn * job.texts, missing)
        if options.plot:
            for at, job in enumerate(jobs(sizes, more_levels=True)):
                if job.name.startswith("at ") and job.slots not in LEVELS:
                    for engine in engines:
                        attempt(engine, job, pieces, (100 + at) * JOB_TEXTS, missing)
        starts(engines, sizes.starts)
        engines = [engine for engine in engines if engine.name not in missing]
        result = report(options, path, us, engines, missing)
    if options.plot:
        curve.draw(options.plot, {engine.name: engine.curve() for engine in engines},
                   f"{Path(path).stem}, {sizes.prompt} tokens in, {sizes.answer} out, requests at once")
    return _common.finish(result, options.json, us.above if not options.quick else ())


def open_engines(options, path: str, threads: int, stack) -> tuple[list[Engine], dict[str, str]]:
    """(ours and the peers that are there, what is missing and why)."""
    found, missing = [Engine(Ours(path, threads))], {}
    stack.callback(found[0].server.close)
    for peer in dict.fromkeys(options.peer):
        try:
            if peer == "llama-server":
                server = LlamaServer(options.llama_server, path, threads)
            else:
                server = Vllm(_common.pythons(options, peer)[0], "", threads)
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                server.model = options.vllm_model or hugging_face_copy(path, folder)
        except Missing as problem:
            missing[peer] = str(problem)
            print(f"missing peer {peer}: {problem}", file=sys.stderr)
            continue
        found.append(Engine(server))
        stack.callback(server.close)
    return found, missing


def attempt(engine: Engine, job: Job, texts, first: int, missing: dict[str, str]) -> None:
    """A peer that cannot do a job is missing from then on; ours has to."""
    if engine.name in missing:
        return
    try:
        engine.measure(job, texts, first)
    except (Missing, RuntimeError, ForwardpassError) as problem:
        if engine.name == "ours":
            raise
        missing[engine.name] = f"{job.name}: {problem}"
        print(f"missing peer {engine.name}: {missing[engine.name]}", file=sys.stderr)
        engine.server.close()


def starts(engines: list[Engine], times: int) -> None:
    for _ in range(times):
        for engine in engines:
            if engine.server.starts:
                process = engine.server.start(engine.server.ways[0], 8, 512)
                engine.ready.append(process.ready_s)
                process.close()


class Library:
    """The library alone in a process of its own, and the limits of the machine. above: figures above a limit."""

    def __init__(self, worker: Worker, sizes: Sizes):
        self._worker, self._sizes = worker, sizes
        self.facts = worker.facts
        self._ids = _common.Ids(worker("ids", limit=20_000))
        self._rates: list[float] = []
        self._limits: dict[str, list[float]] = {"read": [], "matrix": []}
        self._step = worker("cost", rows=1, context=sizes.prompt + sizes.answer // 2)
        self._prompt = worker("cost", rows=sizes.prompt, context=0)
        self.above: list[str] = []

    def measure(self) -> None:
        seconds = 0.02 if self._sizes.prompt < 128 else 0.25
        self._limits["read"].append(self._worker("read_limit", size=self._step[1], seconds=seconds))
        self._limits["matrix"].append(self._worker("matrix_limit", seconds=seconds))
        for _ in range(self._sizes.requests[1]):
            tokens, taken = self._worker("batch", prompts=[self._ids.take(self._sizes.prompt)], new=self._sizes.answer)
            self._rates.append(tokens / taken)

    @property
    def tok_s(self) -> float:
        return median(self._rates)

    def machine(self) -> dict:
        return {**self.facts["machine"], "read_gb_s": median(self._limits["read"]) / 1e9,
                "matrix_tops": median(self._limits["matrix"]) / 1e12}

    def of_limit(self, tok_s: dict[str, float]) -> dict[str, float]:
        operations = self._prompt[0] / self._sizes.answer + self._step[0]  # for each output token
        found = {"one_stream": self._step[1] * tok_s["1"] / median(self._limits["read"]),
                 "at_32": operations * tok_s["32"] / median(self._limits["matrix"])}
        self.above = [f"{name} is {share:.2f} of the limit: nothing can be above it" for name, share in found.items()
                      if share > 1]
        return found


def report(options, path: str, us: Library, engines: list[Engine], missing: dict[str, str]) -> dict:
    figures = {engine.name: engine.figures() for engine in engines}
    ours, peers = figures.pop("ours"), figures
    of_limit = us.of_limit(ours["output_tok_s"])
    result = {
        "bench": "serve", "model": Path(path).name, "quick": options.quick,
        "rounds": 1 if options.quick else options.rounds, "machine": us.machine(), "percentiles": "nearest rank",
        "ours": ours, "ours_library": us.tok_s, "server_of_library": ours["output_tok_s"]["1"] / us.tok_s,
        "peers": peers, "versions": {one.name: one.server.version for one in engines if one.server.version},
        "best": {one.name: {figure: one.best(figure) for figure in dict.fromkeys(figure for _, figure in one.rounds)}
                 for one in engines if len(one.server.ways) > 1},
        "curves": {engine.name: engine.curve() for engine in engines}, "missing": missing,
        "ratio": {name: ratios(ours, peer) for name, peer in peers.items()}, "of_limit": of_limit,
    }
    print_result(result)
    return result


ROWS = (  # (label, path in the figures, whether less is better)
    *((f"output tok/s, {n} at once", ("output_tok_s", str(n)), False) for n in LEVELS),
    ("first token p50 at 8, ms", ("ttft_ms", "p50"), True),
    ("first token p95 at 8, ms", ("ttft_ms", "p95"), True),
    ("between tokens p95 at 32, ms", ("itl_ms", "32"), True),
    ("greeting and 20 tokens, ms", ("greeting_ms",), True),
    ("first token, new prefix of 1,000, ms", ("prefix", "cold_ms"), True),
    ("first token, known prefix, ms", ("prefix", "hit_ms"), True),
    ("known / new", ("prefix", "hit_of_cold"), True),
    ("between tokens p99, 4,000 read, ms", ("itl_while_long_ms", "p99"), True),
    ("first token of those 4,000, ms", ("long_ttft_ms",), True),
    ("start to ready, s", ("ready_s",), True),
)


def value(figures: dict, path: tuple[str, ...]) -> float:
    for name in path:
        figures = figures[name]
    return figures


def ratios(ours: dict, peer: dict) -> dict:
    """How many times better we are: more tokens a second, less time."""
    found: dict = {}
    for _, path, less in ROWS:
        mine, other = value(ours, path), value(peer, path)
        found[".".join(path)] = other / mine if less else mine / other
    return found


def print_result(result: dict) -> None:
    machine = result["machine"]
    print(f"{machine['date']}, {machine['cpu']}, {machine['threads']} threads, {machine['isa']}\n")
    rows = []
    for label, path, _ in ROWS:
        cells = [f"{number(value(peer, path))} ({number(result['ratio'][name]['.'.join(path)])}x)"
                 for name, peer in result["peers"].items()]
        rows.append([label, number(value(result["ours"], path)), *cells])
    _common.print_table(["figure", "forwardpass", *(f"{name} (ours is)" for name in result["peers"])], rows)
    print(f"\nthe library alone: {number(result['ours_library'])} tok/s, one stream through the server is "
          f"{result['server_of_library']:.0%} of it; of the limits: "
          + ", ".join(f"{name} {share:.0%}" for name, share in result["of_limit"].items()))
    for name, version in result["versions"].items():
        print(f"{name}: {version}")
        for way in sorted(set(result["best"].get(name, {}).values())):
            print(f"  {way}: " + ", ".join(figure for figure, best in result["best"][name].items() if best == way))
    for name, reason in result["missing"].items():
        print(f"{name}: missing, {reason}")
    print()


if __name__ == "__main__":
    sys.exit(main())
