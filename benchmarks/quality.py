#!/usr/bin/env python3
"""How much does a number format cost? Perplexity and divergence of a model in each dtype against itself in float32.

    python benchmarks/quality.py --model smollm2-135m
    python benchmarks/quality.py --model qwen2.5-coder-0.5b --text wiki.txt --tokens 30000 --peer llama.cpp

perplexity: over windows of 512 tokens, the first token of each unscored, the same token ids for every engine.  kl: mean
Kullback-Leibler divergence from float32, nats a token.  same_top: share of tokens whose likeliest successor is that of
float32.  ratio: our perplexity with default settings / the peer's; below 1 is better.
"""

from __future__ import annotations

import sys

import _common
from _worker import Missing, Worker

VARIANTS = (("auto", "bfloat16"), ("auto", "float32"), ("auto", "int8"), ("bfloat16", "bfloat16"), ("int8", "bfloat16"),
            ("int4", "bfloat16"))
DEFAULT = "auto/bfloat16"


def main() -> int:
    parser = _common.parser(__doc__, ("llama.cpp",))
    parser.add_argument("--text", help="a text file (default: FORWARDPASS_TEXT, else docstrings)")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text (default %(default)s)")
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    tokens = 128 if options.quick else options.tokens
    variants = VARIANTS[:1] if options.quick else VARIANTS
    ours = Worker("_engine_quality.py", model=path, threads=threads)
    ids = ours("ids", limit=tokens, text=options.text)
    found = ours("compare", ids=ids, variants=variants)
    ours.close()
    peers, missing = _peers(options, path, threads, ids, found["window"])
    qualities = found["quality"]
    print(f"\n{options.model}: {found['scored_tokens']} tokens scored, in windows of {found['window']}\n")
    rows = [[name, f"{one['perplexity']:.4f}", f"{one['kl']:.6f}", f"{one['same_top']:.2%}"]
            for name, one in qualities.items()]
    rows += [[name, f"{one['perplexity']:.4f}", "", ""] for name, one in peers.items()]
    _common.print_table(["dtype/kv_dtype", "perplexity", "KL", "same likeliest token"], rows)
    result = {
        "bench": "quality", "machine": ours.facts["machine"], "model": options.model,
        "scored_tokens": found["scored_tokens"], "window": found["window"],
        "ours": {key: {name: one[key] for name, one in qualities.items()} for key in ("perplexity", "kl", "same_top")},
        "peers": peers, "missing": missing,
        "ratio": {name: {"perplexity": qualities[DEFAULT]["perplexity"] / one["perplexity"]}
                  for name, one in peers.items()},
        "of_limit": {},
    }
    return _common.finish(result, options.json)


def _peers(options, path: str, threads: int, ids: list[int], window: int) -> tuple[dict, dict]:
    """({name: figures}, {name: why it is missing}). The first build that runs counts."""
    found, missing = {}, {}
    for peer in dict.fromkeys(options.peer):
        problems = []
        for python in _common.pythons(options, peer):
            try:
                worker = Worker("_engine_llama_cpp.py", python, model=path, threads=threads)
            except Missing as problem:
                problems.append(str(problem))
                continue
            way = worker.facts["ways"][0]  # its default: the others differ in speed
            perplexity = worker("perplexity", ids=ids, window=window, way=way)
            found[peer] = {"perplexity": perplexity, "way": way, "version": worker.facts["version"]}
            worker.close()
            break
        if peer not in found:
            missing[peer] = "; ".join(problems)
            print(f"missing peer {peer}: {missing[peer]}", file=sys.stderr)
    return found, missing


if __name__ == "__main__":
    sys.exit(main())
