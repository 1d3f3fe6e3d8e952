#!/usr/bin/env python3
"""How fast are sentence embeddings, and how exact? Our engine in several dtypes, torch and OpenVINO in two.

    python benchmarks/encode.py
    python benchmarks/encode.py --peer torch --peer openvino --peer-python /path/to/peers/bin/python

sentences_s: sentences a second, from texts to normalised vectors, 512 sentences of real text (FORWARDPASS_TEXT, else
the standard library's docstrings). query_ms: one short query, from text to vector, median of 100. cosine: mean to the
float32 vectors of torch, or our own where that peer does not run. top5: share of 50 sentences whose nearest five among
200 others are, as a set, those of float32.

ratio.bf16_accuracy: our fastest dtype whose mean cosine is 0.9995 or more, over the fastest peer in bfloat16;
ratio.int8: our int8 over the same;  ratio.query: OpenVINO's time (the quicker of its dtypes) over ours.
of_limit: the products' and attention's operations a second over the int8 matrix rate measured in this run.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from statistics import median

import _common
import numpy as np
from _common import Engine

DTYPES = ("float32", "bfloat16", "w8a16", "int8")
QUERY = "how do I read a file line by line"
ACCURATE = 0.9995
_common.PEERS |= {
    name: {f"{name}-{dtype}": ("_engine_encode_peers.py", {"engine": name, "dtype": dtype})
           for dtype in ("float32", "bfloat16")} for name in ("torch", "openvino")
}


def main() -> int:
    parser = _common.parser(__doc__, ("torch", "openvino"), rounds=3)
    parser.set_defaults(model="minilm-l6")
    parser.add_argument("--sentences", type=int, default=512, help="default %(default)s")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="of ours; repeatable (default: all)")
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    count, rounds = (24, 1) if options.quick else (options.sentences, options.rounds)
    texts = sentences(count)
    ours = {dtype: Engine(dtype, "_engine_encode_ours.py", model=path, threads=threads, dtype=dtype)
            for dtype in options.dtype or (DTYPES[-2:] if options.quick else DTYPES)}
    peers, missing = _common.open_peers(options, path, threads)
    engines = {**ours, **peers}
    limits = []
    any_of_ours = next(iter(ours.values())).workers[0]
    for _ in range(rounds):
        limits.append(any_of_ours("matrix_limit", seconds=0.1 if options.quick else 0.5))
        for engine in engines.values():
            engine.measure("encode", "sentences_s", "encode", texts=texts)
            engine.measure("encode", "query", "query", text=QUERY, times=5 if options.quick else 100)
    tokens, products, attention = any_of_ours("operations", texts=texts)
    quality = qualities(engines, texts[: 24 if options.quick else 250])
    figures = {name: {"sentences_s": engine.rate("encode", "sentences_s"),
                      "query_ms": 1000 / engine.rate("encode", "query"), **quality[name]}
               for name, engine in engines.items()}
    limit = median(limits)
    of_limit = {name: figures[name]["sentences_s"] / count * (products + attention) / limit for name in ours}
    _common.print_table(["engine", "sentences/s", "one query, ms", "cosine", "same top 5", "of the int8 limit"],
                        [[name, _common.number(one["sentences_s"]), _common.number(one["query_ms"]),
                          f"{one['cosine']:.5f}", f"{one['top5']:.0%}",
                          f"{of_limit[name]:.0%}" if name in of_limit else ""] for name, one in figures.items()])
    print(f"\n{count} sentences, {tokens / count:.1f} tokens each; int8 matrix limit {limit / 1e12:.2f} TOPS")
    for name, engine in engines.items():
        engine.close()
        if engine.best_ways():
            print(f"{name}: {engine.best_ways()}")
    result = {
        "bench": "encode", "model": options.model, "sentences": count, "tokens": tokens,
        "machine": {**any_of_ours.facts["machine"], "matrix_tops": limit / 1e12},
        "ours": {name: figures[name] for name in ours}, "peers": {name: figures[name] for name in peers},
        "versions": {name: engine.workers[0].facts["version"] for name, engine in peers.items()}, "missing": missing,
        "ratio": ratios({name: figures[name] for name in ours}, {name: figures[name] for name in peers}),
        "of_limit": of_limit,
    }
    above = [f"{name} is {share:.2f} of the limit" for name, share in of_limit.items() if share > 1]
    return _common.finish(result, options.json, above)


def sentences(count: int) -> list[str]:
    """Whole sentences of 40 to 400 characters, in the text's order, each once."""
    found = re.findall(r"[A-Z][^.!?]{38,398}[.!?](?=\s)", re.sub(r"\s+", " ", _common.documentation()))
    found = list(dict.fromkeys(found))
    if len(found) < count:
        raise SystemExit(f"the text has {len(found)} sentences, {count} are needed: name a longer one in "
                         "FORWARDPASS_TEXT")
    return found[:: len(found) // count][:count]


def qualities(engines: dict[str, Engine], texts: list[str]) -> dict[str, dict[str, float]]:
    """Mean cosine to the reference's vectors, and how often the nearest five are the same."""
    vectors = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, engine in engines.items():
            file = str(Path(folder) / "vectors.npy")
            engine.workers[0]("vectors", texts=texts, file=file)
            vectors[name] = np.load(file)
    reference = vectors.get("torch-float32", vectors.get("float32", next(iter(vectors.values()))))
    asked = max(1, len(texts) // 5)

    def nearest(array):
        return [set(np.argsort(-row)[:5]) for row in array[:asked] @ array[asked:].T]

    return {name: {"cosine": float((array * reference).sum(1).mean()),
                   "top5": float(np.mean([a == b for a, b in zip(nearest(array), nearest(reference), strict=True)]))}
            for name, array in vectors.items()}


def ratios(ours: dict, peers: dict) -> dict:
    fast = [one["sentences_s"] for name, one in peers.items() if name.endswith("bfloat16")]
    quick = [one["query_ms"] for name, one in peers.items() if name.startswith("openvino")]
    found = {}
    exact = [one["sentences_s"] for one in ours.values() if one["cosine"] >= ACCURATE]
    if fast and exact:
        found["bf16_accuracy"] = max(exact) / max(fast)
    if fast and "int8" in ours:
        found["int8"] = ours["int8"]["sentences_s"] / max(fast)
    if quick:
        found["query"] = min(quick) / min(one["query_ms"] for one in ours.values())
    return found


if __name__ == "__main__":
    sys.exit(main())
