#!/usr/bin/env python3
"""How fast does an encoder-decoder translate, greedily and with four beams, one sentence at a time and 32 together?

    python benchmarks/translate.py
    python benchmarks/translate.py --peer ctranslate2 --peer-python /path/to/peers/bin/python

64 sentences of real text (FORWARDPASS_TEXT, else the standard library's docstrings), English to German. Figures are
output tokens a second, sources included; every engine counts the tokens of its own answers, end tokens too. bleu, chrf:
of the four-beam texts against those of CTranslate2 in float32, which says how much a number format changes.

of_limit: greedy_1, the bytes of weights, keys and values that its steps read over the read rate measured in this run at
that size; beam_32, its decoding steps' operations over the int8 matrix rate (sources and search are in the time).
"""

from __future__ import annotations

import sys
import tempfile
from statistics import median

import _common
from _common import Engine
from _engine_translate_ours import float_copy
from encode import sentences

FIGURES = {"greedy_1": (1, 1), "greedy_32": (1, 32), "beam4_1": (4, 1), "beam4_32": (4, 32)}
MOST = 128
_common.PEERS |= {"ctranslate2": {f"ctranslate2-{compute}": ("_engine_ctranslate2.py", {"compute": compute})
                                  for compute in ("int8", "float32")}}


def main() -> int:
    parser = _common.parser(__doc__, ("ctranslate2",), rounds=3)
    parser.set_defaults(model="flan-t5-small")
    parser.add_argument("--sentences", type=int, default=64, help="default %(default)s")
    parser.add_argument("--prefix", default="translate English to German: ", help="what the model wants to be told")
    parser.add_argument("--dtype", default="auto", help="of ours (default %(default)s)")
    return _common.run_on_model(parser, run)


def run(options, path: str, threads: int) -> int:
    count, rounds, most = (4, 1, 8) if options.quick else (options.sentences, options.rounds, MOST)
    texts = [options.prefix + text for text in sentences(count)]
    with tempfile.TemporaryDirectory() as folder:
        if options.peer:
            float_copy(path, folder)
        ours = Engine("ours", "_engine_translate_ours.py", model=path, threads=threads, dtype=options.dtype)
        peers, missing = _common.open_peers(options, folder, threads)
        engines = {"ours": ours, **peers}
        us = ours.workers[0]
        nbytes, _ = us("step", rows=1)
        limits: list[list[float]] = []
        for _ in range(rounds):
            limits.append(us("limits", size=nbytes, seconds=0.1 if options.quick else 0.5))
            for key, (beams, batch) in FIGURES.items():
                for engine in engines.values():
                    engine.measure("tok_s", key, "translate", texts=texts, beams=beams, batch=batch, most=most)
        quality = qualities(engines, texts, most)
        figures = {name: {key: engine.rate("tok_s", key) for key in FIGURES} | quality.get(name, {})
                   for name, engine in engines.items()}
        read, matrix = (median(one[i] for one in limits) for i in range(2))
        of_limit = {"greedy_1": figures["ours"]["greedy_1"] * nbytes / read,
                    "beam4_32": figures["ours"]["beam4_32"] * us("step", rows=128)[1] / 32 / matrix}
        names = [*FIGURES, "bleu", "chrf"]
        _common.print_table(["engine", *names],
                            [[name, *(_common.number(one.get(key)) for key in names)] for name, one in figures.items()])
        for name, engine in engines.items():
            engine.close()
            if engine.best_ways():
                print(f"{name}: {engine.best_ways()}")
    print(f"\n{count} sentences; greedy one at a time at {of_limit['greedy_1']:.0%} of the read limit "
          f"({read / 1e9:.1f} GB/s), four beams of 32 at {of_limit['beam4_32']:.0%} of the int8 limit "
          f"({matrix / 1e12:.2f} TOPS)")
    theirs = {name: figures[name] for name in peers}
    result = {
        "bench": "translate", "model": options.model, "sentences": count,
        "machine": {**us.facts["machine"], "read_gb_s": read / 1e9, "matrix_tops": matrix / 1e12},
        "ours": figures["ours"], "peers": theirs,
        "versions": {name: engine.workers[0].facts["version"] for name, engine in peers.items()}, "missing": missing,
        "ratio": {name: {key: figures["ours"][key] / one[key] for key in FIGURES} for name, one in theirs.items()},
        "of_limit": of_limit,
    }
    above = [f"{name} is {share:.2f} of the limit" for name, share in of_limit.items() if share > 1]
    return _common.finish(result, options.json, above)


def qualities(engines: dict[str, Engine], texts: list[str], most: int) -> dict[str, dict[str, float]]:
    """BLEU and chrF of four-beam texts against those of CTranslate2 in float32; nothing without that peer."""
    judge = engines.get("ctranslate2-float32")
    if judge is None:
        return {}
    answers = {}
    for name, engine in engines.items():
        answers[name] = engine.workers[0]("texts", texts=texts, beams=4, batch=32, most=most,
                                          way=engine.workers[0].facts["ways"][0])
    reference = answers.pop("ctranslate2-float32")
    try:
        return {name: judge.workers[0]("compare", texts=one, reference=reference) for name, one in answers.items()}
    except _common.Missing as problem:
        print(f"no BLEU: {problem}", file=sys.stderr)
        return {}


if __name__ == "__main__":
    sys.exit(main())
