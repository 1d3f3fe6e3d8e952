#!/usr/bin/env python3
"""The story of an inference tutorial, retold on this machine: what a cache and smaller numbers do to one answer.

    python benchmarks/story.py
    python benchmarks/story.py --peer plain --peer-python peers/bin/python

One question, a greedy answer of 60 tokens, four times: computing the whole text again for every token in float32; with
a KV cache; with weights as int8; with weights as int4 (as stored, if the checkpoint is 4-bit already). Times are whole
answers, prompt included. With --peer plain the first line is also measured as tutorials write it, in torch.
"""

from __future__ import annotations

import sys
from statistics import median

import _common
from _common import Engine, number

QUESTIONS = ("Why is the sky blue?", "How do birds find their way?", "What makes bread rise?", "Why do cats purr?",
             "How does a bicycle stay upright?")
STEPS = (("no_cache_s", "float32, the whole text again for each token", "float32", "answer_without_cache"),
         ("cache_s", "+ KV cache", "float32", "answer"),
         ("int8_s", "+ int8 weights", "int8", "answer"),
         ("int4_s", "+ int4 weights", "int4", "answer"))


def main() -> int:
    parser = _common.parser(__doc__, ["plain"], rounds=3)
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    new, rounds = (4, 1) if options.quick else (60, options.rounds)
    engines = {dtype: Engine(dtype, "_engine_ours.py", model=path, threads=threads, dtype=dtype)
               for dtype in ("float32", "int8")}
    four_bits = engines["int8"].workers[0].facts["stored_bits"] < 6
    engines["int4"] = Engine("int4", "_engine_ours.py", model=path, threads=threads,
                             dtype="auto" if four_bits else "int4")
    peers, missing = _common.open_peers(options, path, threads)
    ours: dict[str, list[float]] = {key: [] for key, *_ in STEPS}
    tutorial: list[float] = []
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        ids = engines["float32"].workers[0]("chat_ids", question=QUESTIONS[turn % len(QUESTIONS)])
        for key, _, dtype, call in STEPS:
            ours[key].append(engines[dtype].workers[0](call, ids=ids, new=new))
        if "plain" in peers:
            tutorial.append(peers["plain"].workers[0]("answer_without_cache", ids=ids, new=new))
    facts = engines["float32"].workers[0].facts
    peer_facts = {name: peer.workers[0].facts for name, peer in peers.items()}
    for engine in (*engines.values(), *peers.values()):
        engine.close()

    seconds: dict[str, float] = {key: median(values) for key, values in ours.items()}
    first = median(tutorial) if tutorial else seconds["no_cache_s"]
    seconds["total_factor"] = first / seconds["int4_s"]
    rows, before = [], None
    lines = [("float32, the whole text again for each token, in torch", first)] if tutorial else []
    lines += [(label, seconds[key]) for key, label, *_ in STEPS]
    for label, value in lines:
        rows.append([label, number(value), f"{number(before / value)}x" if before else "", f"{number(first / value)}x"])
        before = value
    machine = facts["machine"]
    print(f"{machine['date']}, {machine['cpu']}, {machine['threads']} threads, {machine['isa']}; {new} tokens\n")
    _common.print_table(["one answer", "seconds", "by this step", "altogether"], rows)
    for name, reason in missing.items():
        print(f"\n{name}: missing, {reason}")
    print()
    result = {"bench": "story", "model": path.rpartition("/")[2], "quick": options.quick, "rounds": rounds,
              "new_tokens": new, "machine": machine, "ours": seconds, "peers": {}, "missing": missing, "ratio": {},
              "of_limit": {}}
    if tutorial:
        result["peers"]["plain"] = {"no_cache_s": first, "version": peer_facts["plain"]["version"]}
        result["ratio"]["plain"] = {key: first / seconds[key] for key, *_ in STEPS}
    return _common.finish(result, options.json)


if __name__ == "__main__":
    sys.exit(main())
