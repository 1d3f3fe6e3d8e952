#!/usr/bin/env python3
"""How fast does a model read and write? Prompts, decoding at three depths, many requests at once, start, memory.

    python benchmarks/decode.py
    python benchmarks/decode.py --peer llama.cpp --peer transformers --peer plain --peer-python peers/bin/python
    python benchmarks/decode.py --model qwen2.5-coder-0.5b --short --peer llama.cpp --peer-python peers/bin/python

prefill_tok_s: prompt tokens a second, to the first token.  decode_tok_s: new tokens a second after a prompt of that
many tokens, the prompt not counted.  batch_tok_s: output tokens a second of that many requests at once, 128 tokens in
and 64 out, prompts included.  first_token_s: from starting the process to its first byte of output.  load_s: the load
call in a running process.  peak_rss_mb: greatest resident memory of one run of 64 + 128 tokens, without the weights.
python_overhead: share of a decode step outside of native code.

of_limit.decode: bytes a step must read x steps a second / the read bandwidth of this machine at that size;
of_limit.prefill: operations a second / the rate of its matrix instructions. Both limits are measured between the
figures. A figure above its limit means a wrong measurement, and fails the run.
"""

from __future__ import annotations

import datetime
import sys
from statistics import median

import _common
from _common import Engine, Ids, number

QUESTION = "Why is the sky blue?"
GROUPS = {"prefill_tok_s": "prefill, {} tokens", "decode_tok_s": "decode at depth {}",
          "batch_tok_s": "{} requests at once, output"}
SINGLE = {"first_token_s": "start to first token, s", "load_s": "load, s", "peak_rss_mb": "peak memory, MB"}


class Sizes:
    """What is measured. --quick keeps the keys and shrinks the work, so its figures mean nothing; --short leaves out
    what takes a slow peer minutes."""

    def __init__(self, quick: bool, short: bool, longest: int):
        self.new = 4 if quick else 64
        self.batch_in, self.batch_out = (8, 4) if quick else (128, 64)
        self.limit_s = 0.02 if quick else 0.25
        self.starts = 1 if quick else 5
        scale = 16 if quick else 1
        self.prefill = {str(n): n // scale for n in ((512,) if short else (512, 2048)) if n + 1 <= longest}
        # nothing before the first token is not possible: depth 0 is a prompt of one token
        depths = (0,) if short else (0, 1024, 4096)
        self.depths = {str(n): max(1, n // scale) for n in depths if n + self.new <= longest}
        self.batches = {} if short else {str(n): n for n in (1, 8, 32)}
        self.plain = 16 if quick else 256
        self.rss_in, self.rss_new = (8, 8) if quick else (64, 128)


def main() -> int:
    parser = _common.parser(__doc__, _common.PEERS)
    parser.add_argument("--short", action="store_true",
                        help="only prompts of 512 tokens, decoding at depth 0, start and memory")
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    ours = Engine("forwardpass", "_engine_ours.py", model=path, threads=threads)
    us = ours.workers[0]
    sizes = Sizes(options.quick, options.short, us.facts["max_positions"])
    rounds = 1 if options.quick else options.rounds
    peers, missing = _common.open_peers(options, path, threads)
    if "plain" in peers:
        sizes.depths.setdefault("256", sizes.plain)
    text = Ids(us("ids", limit=150_000))
    prompts = {key: text.take(size) for key, size in sizes.depths.items()}
    limits: dict[str, list[float]] = {}
    overheads: list[float] = []
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        engines = [ours, *peers.values()]
        if turn % 2:
            engines.reverse()
        for key, size in sizes.prefill.items():
            take_limit(limits, us, f"matrix {key}", "matrix_limit", seconds=sizes.limit_s)
            for engine in engines:
                if engine.name != "plain":
                    engine.measure("prefill_tok_s", key, "prefill", ids=text.take(size))
        for key, ids in prompts.items():
            take_limit(limits, us, f"read {key}", "read_limit", size=step_bytes(us, sizes, key), seconds=sizes.limit_s)
            for engine in engines:
                if engine.name != "plain":
                    engine.measure("decode_tok_s", key, "decode", ids=ids, new=sizes.new)
                elif key == "256":
                    engine.measure("decode_tok_s", key, "whole_text", ids=ids, new=1 if options.quick else 3)
        overheads.append(us("overhead", ids=prompts["0"], new=sizes.new))
        for key, count in sizes.batches.items():
            for engine in engines:
                if engine.name != "plain":
                    requests = [text.take(sizes.batch_in) for _ in range(count)]
                    engine.measure("batch_tok_s", key, "batch", prompts=requests, new=sizes.batch_out)
    singles = {name: {"load_s": engine.workers[0].facts["load_s"]} for name, engine in {"ours": ours, **peers}.items()
               if name != "plain"}
    rss_text = us("raw_prompt", ids=text.take(sizes.rss_in))
    facts = {"ours": us.facts, **{name: engine.workers[0].facts for name, engine in peers.items()}}
    costs = {key: us("cost", rows=1, context=context(sizes, key)) for key in sizes.depths}
    costs["512"] = us("cost", rows=sizes.prefill["512"], context=0) if "512" in sizes.prefill else None
    for engine in (ours, *peers.values()):
        engine.close()
    start_and_memory(options, path, threads, sizes, singles, facts, rss_text)

    singles["ours"]["python_overhead"] = median(overheads)
    figures = {name: {**figures_of(engine), **singles.get(name, {})}
               for name, engine in {"ours": ours, **peers}.items()}
    limit = {name: median(values) for name, values in limits.items()}
    of_limit = shares(ours, sizes, costs, limit)
    print_result(us.facts, figures, of_limit, peers, facts, missing)
    failures = [f"{name} is {share:.2f} of the limit: nothing can be above it" for name, share in
                [("decode", of_limit.get("decode", 0)), ("prefill", of_limit.get("prefill", 0)),
                 *((f"decode at depth {k}", v) for k, v in of_limit["decode_depth"].items())] if share > 1]
    result = {
        "bench": "decode",
        "model": path.rpartition("/")[2],
        "quick": options.quick,
        "rounds": rounds,
        "machine": {**us.facts["machine"],
                    "read_gb_s": {key: limit[f"read {key}"] / 1e9 for key in sizes.depths},
                    "matrix_tops": limit.get("matrix 512", 0.0) / 1e12},
        "ours": figures.pop("ours"),
        "peers": {name: {**one, **describe(peers[name], facts[name])} for name, one in figures.items()},
        "missing": missing,
    }
    result["ratio"] = {name: ratios(result["ours"], one) for name, one in result["peers"].items()}
    result["of_limit"] = of_limit
    return _common.finish(result, options.json, failures if not options.quick else ())


def context(sizes: Sizes, key: str) -> int:
    """Mean number of tokens in the cache while the tokens that count are made."""
    return sizes.depths[key] * (key != "0") + (sizes.new - 1) // 2


def step_bytes(us, sizes: Sizes, key: str) -> int:
    return us("cost", rows=1, context=context(sizes, key))[1]


def take_limit(limits: dict, us, name: str, call: str, **arguments) -> None:
    limits.setdefault(name, []).append(us(call, **arguments))


def start_and_memory(options, path, threads, sizes, singles, facts, rss_text) -> None:
    """The figures of whole processes, one engine after the other in each round."""
    run_ours = [*_common.our_command(), "run", "--model", path, "--threads", str(threads)]
    raw = [] if facts["ours"]["chats"] else ["--raw"]  # a model without a chat template continues the question
    commands = {"ours": ([*run_ours, *raw, "--max-new-tokens", "1", QUESTION],
                         [*run_ours, "--raw", "--ignore-eos", "--max-new-tokens", str(sizes.rss_new), rss_text])}
    for name, script, count in (("llama.cpp", "_engine_llama_cpp.py", sizes.starts),
                                ("transformers-bfloat16", "_engine_transformers.py", 1)):
        if name in facts:
            python = _common.pythons(options, name.partition("-")[0])[0]
            once = [python, str(_common.Path(__file__).with_name(script)), "once", path, str(threads)]
            commands[name] = [*once, "1", QUESTION, *raw], [*once, str(sizes.rss_new), rss_text, *raw], count
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(sizes.starts):
        for name, (command, *rest) in commands.items():
            if len(rest) < 2 or turn < rest[1]:
                seconds[name].append(_common.first_byte_s(command))
    for name, (_, command, *_) in commands.items():
        singles[name]["first_token_s"] = median(seconds[name])
        weights = facts["ours"]["packed_bytes"] if name == "ours" else 0
        if name == "llama.cpp":
            weights = _common.Path(path).stat().st_size
        singles[name]["peak_rss_mb"] = (_common.peak_rss_bytes(command) - weights) / 1e6


def figures_of(engine: Engine) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for group, key in sorted(engine.rates, key=lambda one: (list(GROUPS).index(one[0]), int(one[1]))):
        found.setdefault(group, {})[key] = engine.rate(group, key)
    return found


def ratios(ours: dict, peer: dict) -> dict:
    """How many times better we are: more tokens a second, fewer seconds or bytes."""
    found: dict = {}
    for group in GROUPS:
        both = {key: ours[group][key] / value for key, value in peer.get(group, {}).items()}
        if both:
            found[group] = both
    for name in ("first_token_s", "load_s", "peak_rss_mb"):
        if peer.get(name) and ours.get(name):
            found[name] = peer[name] / ours[name]
    return found


def shares(ours: Engine, sizes: Sizes, costs: dict, limit: dict[str, float]) -> dict:
    """Of the measured limits; see the module for what is counted."""
    depth = {key: ours.rate("decode_tok_s", key) * costs[key][1] / limit[f"read {key}"] for key in sizes.depths}
    found: dict = {"decode": depth["0"], "decode_depth": depth}
    if costs["512"]:
        seconds = sizes.prefill["512"] / ours.rate("prefill_tok_s", "512")
        found["prefill"] = costs["512"][0] / seconds / limit["matrix 512"]
    return found


def describe(engine: Engine, facts: dict) -> dict:
    best = engine.best_ways()
    kept = {name: facts[name] for name in ("version", "features") if name in facts}
    return {**kept, **({"best": best} if best else {})}


def print_result(our_facts: dict, figures: dict, of_limit: dict, peers: dict, facts: dict, missing: dict) -> None:
    machine = our_facts["machine"]
    print(f"{datetime.date.today()}, {machine['cpu']}, {machine['threads']} threads, {machine['isa']}\n")
    rows = []

    def row(label: str, get, share: str = "") -> None:
        mine = get(figures["ours"])
        cells = []
        for name in peers:
            other = get(figures[name])
            better = None if not other or not mine else (other / mine if label in SINGLE.values() else mine / other)
            cells.append(f"{number(other)} ({number(better)}x)" if better else "")
        rows.append([label, number(mine), share, *cells])

    for group, label in GROUPS.items():
        for key in sorted(figures["ours"].get(group, {}), key=int):
            share = of_limit["decode_depth"].get(key) if group == "decode_tok_s" else None
            if group == "prefill_tok_s" and key == "512":
                share = of_limit.get("prefill")
            row(label.format(key) + ", tok/s", lambda f, g=group, k=key: f.get(g, {}).get(k), number(share))
    for name, label in SINGLE.items():
        row(label, lambda f, n=name: f.get(n))
    overhead = f"{figures['ours']['python_overhead']:.1%}"
    rows.append(["Python's share of a decode step", overhead, "", *[""] * len(peers)])
    _common.print_table(["figure", "forwardpass", "of the limit", *(f"{name} (ours is)" for name in peers)], rows)
    for name, engine in peers.items():
        print(f"\n{name}: {facts[name].get('version', '')} {facts[name].get('features', '')}")
        for figure, way in engine.best_ways().items():
            print(f"  {figure}: {way}")
    for name, reason in missing.items():
        print(f"\n{name}: missing, {reason}")
    print()


if __name__ == "__main__":
    sys.exit(main())
