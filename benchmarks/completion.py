#!/usr/bin/env python3
"""How well and how fast does a code model fill holes? And what does a long file cost?

    python benchmarks/completion.py
    python benchmarks/completion.py --long 16384 --holes 0

Holes are cut into functions of Python's standard library, always the same ones: single lines, and runs of two to five
whole statements. Each is filled twice, from the text before and after it, and left to right from the text before
alone. exact: the answer is the text that was cut out, blanks at line ends aside; parses: the file is valid Python with
the answer in it; first_token_s: median time to the first token.

Left to right nothing tells where a hole ends, so that side is told: its answer is cut to as many lines as the hole has.

--long: so many tokens of source as one prompt. Time and KV memory are compared with what the cost model says of
half and a quarter of it: growth is seconds (or bytes) against those of the quarter, counted is the cost model's.
"""

from __future__ import annotations

import ast
import random
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import _common

CONTEXT = 512  # tokens of the file around the hole
MOST_NEW = {"single": 48, "multi": 128}


@dataclass(frozen=True)
class Hole:
    kind: str
    prefix: str
    middle: str
    suffix: str


def main() -> int:
    parser = _common.parser(__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b",
                        help="a path or a catalogue name (default %(default)s)")
    parser.add_argument("--holes", type=int, default=50, help="of each kind (default %(default)s)")
    parser.add_argument("--long", type=int, default=0, metavar="TOKENS", help="also measure a prompt of this length")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    import forwardpass
    from forwardpass.errors import ForwardpassError

    try:
        with forwardpass.load(options.model, dtype=options.dtype, threads=options.threads) as model:
            return run(options, model)
    except ForwardpassError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(options, model) -> int:
    count = min(options.holes, 2) if options.quick else options.holes
    result = {"bench": "completion", "model": model.path.name, "quick": options.quick, "holes": count,
              "machine": _common.machine(model.network.backend), "ours": {},
              "peers": {}, "ratio": {}, "of_limit": {}}
    failures = []
    if count:
        found = holes(count)
        result["ours"] = {kind: {way: fill(model, [one for one in found if one.kind == kind], way)
                                 for way in ("middle", "left_to_right")} for kind in ("single", "multi")}
        rows = [[kind, way.replace("_", " "), f"{f['exact']:.0%}", f"{f['parses']:.0%}", f"{f['first_token_s']:.3f}"]
                for kind, ways in result["ours"].items() for way, f in ways.items()]
        _common.print_table(["holes", "filled", "exact", "parses", "first token, s"], rows)
        for kind, ways in result["ours"].items():
            if not options.quick and ways["middle"]["exact"] <= ways["left_to_right"]["exact"]:
                failures.append(f"{kind}: the suffix does not help")
    if options.long:
        result["long"] = long_prompt(model, min(options.long, 512) if options.quick else options.long)
        rows = [[str(n), f"{f['seconds']:.2f}", f"{f['growth_seconds']:.2f}", f"{f['counted_seconds']:.2f}",
                 f"{f['kv_bytes'] / 1e6:.1f}", f"{f['counted_kv_bytes'] / 1e6:.1f}"] for n, f in result["long"].items()]
        print()
        _common.print_table(["tokens", "seconds", "growth", "growth of operations", "KV, MB", "counted KV, MB"], rows)
    return _common.finish(result, options.json, failures)


def holes(count: int) -> list[Hole]:
    """`count` holes of each kind, from files of moderate size, no two in one function."""
    chance = random.Random(20)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chance.shuffle(files)
    found: list[Hole] = []
    for file in files:
        text = file.read_text("utf-8", "replace")
        if not 4_000 < len(text) < 120_000:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and len(node.body) >= 4]
        for kind in ("single", "multi"):
            if functions and sum(one.kind == kind for one in found) < count:
                hole = cut(text, functions.pop(chance.randrange(len(functions))), kind, chance)
                if hole:
                    found.append(hole)
        if len(found) == 2 * count:
            return found
    raise SystemExit(f"the standard library gave {len(found)} holes, {2 * count} are needed")


def cut(text: str, function: ast.FunctionDef, kind: str, chance: random.Random) -> Hole | None:
    lines = text.splitlines(keepends=True)
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if kind == "single":
        kinds = (ast.Assign, ast.Return, ast.Expr, ast.AugAssign)
        simple = [node for node in ast.walk(function) if isinstance(node, kinds)
                  and node.lineno == node.end_lineno and node.lineno > body[0].lineno
                  and len(ast.get_source_segment(text, node) or "") >= 12]
        if not simple:
            return None
        first = last = chance.choice(sorted(simple, key=lambda node: node.lineno)).lineno
    else:
        runs = [(body[i].lineno, body[j].end_lineno) for i in range(1, len(body)) for j in range(i, len(body))
                if 2 <= body[j].end_lineno - body[i].lineno + 1 <= 5]
        if not runs:
            return None
        first, last = chance.choice(runs)
    middle = "".join(lines[first - 1 : last])
    indent = len(middle) - len(middle.lstrip())
    before = "".join(lines[: first - 1]) + middle[:indent]
    # The cursor stands behind the indentation, and the line's end belongs to what follows.
    return Hole(kind, before, middle[indent:].rstrip("\n"), "\n" + "".join(lines[last:]))


def fill(model, holes: list[Hole], way: str) -> dict[str, float]:
    exact = parses = 0
    first = []
    for number, hole in enumerate(holes, 1):
        print(f"\r  {hole.kind} {way}: {number} of {len(holes)} ", end="", file=sys.stderr, flush=True)
        stop = ["\n"] if hole.kind == "single" else []
        model.engine.prefixes.clear()  # nobody gains by coming second
        done = model.complete(hole.prefix, hole.suffix if way == "middle" else None, stop=stop, do_sample=False,
                              max_new_tokens=MOST_NEW[hole.kind], context_tokens=CONTEXT)
        lines = done.text.split("\n")
        answer = "\n".join(lines if way == "middle" else lines[: hole.middle.count("\n") + 1])
        exact += [line.rstrip() for line in answer.rstrip().split("\n")] == \
            [line.rstrip() for line in hole.middle.rstrip().split("\n")]
        parses += is_python(hole.prefix + answer + hole.suffix)
        first.append(done.timings["first_token"])
    print(file=sys.stderr)
    return {"exact": exact / len(holes), "parses": parses / len(holes), "first_token_s": median(first)}


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def long_prompt(model, tokens: int) -> dict[str, dict[str, float]]:
    from forwardpass.models import costs

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(file.read_text("utf-8", "replace") for file in files)[: 12 * tokens]
    ids = model.tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    sizes = [size for size in (tokens // 4, tokens // 2, tokens) if size]
    found: dict[str, dict[str, float]] = {}
    for size in sizes:
        model.engine.prefixes.clear()
        start = time.perf_counter()
        with model.stream(ids[:size], max_new_tokens=1, do_sample=False, eos_token_id=[]) as stream:
            next(stream)
            seconds = time.perf_counter() - start
        counted = costs.total(costs.stage_costs(model.spec, model.stored_bytes, [size], [0], model.kv_dtype)).flops
        found[str(size)] = {"seconds": seconds, "flops": counted, "kv_bytes": kept_bytes(model),
                            "counted_kv_bytes": size * costs.kv_position_bytes(model.spec, model.kv_dtype)}
        least = found[str(sizes[0])]
        found[str(size)] |= {"growth_seconds": seconds / least["seconds"],
                             "counted_seconds": counted / least["flops"]}
    return found


def kept_bytes(model) -> int:
    """KV memory that the finished prompt still holds for a next one that begins the same way."""
    cache = model.engine.cache
    return cache.size - cache.free


if __name__ == "__main__":
    sys.exit(main())
