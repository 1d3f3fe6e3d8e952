#!/usr/bin/env python3
"""How fast is each operation? Every op, instruction set and shape: first compared with `scalar`, then timed.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --op linear --isa amx --format Q4

Ops run as models run them, through a recorded program of one operation, with all threads. Each result must equal the
scalar kernels' bit for bit (==): a sample of rows, computed alone, which also shows that a row does not depend on the
others. Columns: microseconds a call (a few of them Python's), GB/s of weights or cache read, GFLOP/s, and the larger
of both as a share of what this machine reaches: read bandwidth at that size, the instruction set's matrix rate. Scalar
itself is not timed unless asked for by --isa scalar. Shapes are a small chat model's (SmolLM2-135M) and ragged ones.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import _common
import numpy as np
from _common import number

OPS = ("linear", "gated", "embed", "norm", "attention")
SHAPES = {"qkv": (960, 576), "out": (576, 576), "gate_up": (1536, 576), "down": (576, 1536), "head": (49152, 576),
          "odd": (100, 96), "ragged": (37, 80)}
ROWS = (1, 4, 32, 512)
STORED = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q4": "Q4_1", "Q4H": "Q4_1", "Q5": "Q5_0", "Q5M": "Q5_1",
          "Q6": "Q5_0", "Q8": "Q8_0", "Q8A": "F32", "Q8C": "F32", "Q16": "F32"}
"""Format -> a stored type it can be packed from."""
GROUP_BYTES = {"Q4_1": (2, 16), "Q5_0": (1, 20), "Q5_1": (2, 20), "Q8_0": (1, 32)}
"""Stored type -> half-precision scales, other bytes of one group of 32 weights."""
QUICK_CONTEXTS = ((1, 0), (1, 255), (32, 64))
CONTEXTS = ((1, 0), (1, 1023), (1, 4095), (32, 1024), (512, 0), (512, 1536))
"""New rows, and positions in the cache before them."""
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
PAGE = 64


@dataclass
class Case:
    """One op on one shape. record(backend) -> run(rows chosen) -> output; read, flops: of one call with all rows."""

    op: str
    label: str
    rows: int
    read: int
    flops: int
    record: object
    products: str


def stored_rows(type: str, n: int, k: int, rng) -> np.ndarray:
    """Random weights [n, k] as a checkpoint stores them."""
    if type in GROUP_BYTES:
        scales, others = GROUP_BYTES[type]
        groups = np.empty((n * k // 32, 2 * scales + others), np.uint8)
        values = rng.standard_normal((len(groups), scales)) * 0.01
        groups[:, : 2 * scales] = values.astype(np.float16).view(np.uint8)
        groups[:, 2 * scales :] = rng.integers(0, 256, (len(groups), others))
        return groups.reshape(-1)
    values = (rng.standard_normal((n, k)) * 0.1).astype(np.float32)
    if type == "BF16":
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif type == "F16":
        values = values.astype(np.float16)
    return values.reshape(-1).view(np.uint8)


def packed(backend, format: str, n: int, k: int, rng):
    """A packed random matrix."""
    from forwardpass import _native
    from forwardpass.backends import native

    nbytes = native.matrix_bytes(format, n, k)
    memory = _native.Region(max(nbytes, 64)).view(0, nbytes)
    backend.pack(format, (n, k), STORED[format], stored_rows(STORED[format], n, k, rng), None, memory)
    return native.matrix(format, n, k, memory)


def products(format: str) -> str:
    return {"F32": "float32", "F16": "float32", "BF16": "bfloat16"}.get(format, "int8")


def linear_cases(backend, rng, formats, rows_wanted, op: str):
    from forwardpass.backends.protocol import NormWeights

    for format in formats:
        for name, (n, k) in SHAPES.items():
            if (k % 32 and STORED[format] in GROUP_BYTES) or (op == "gated") != (name == "gate_up"):
                continue
            matrices = [packed(backend, format, n, k, rng) for _ in range(1 + (op == "gated"))]
            norm = NormWeights("rms", 1e-5, np.ones(k, np.float32), None)
            for rows in rows_wanted:
                if rows > 32 and name == "head":
                    continue  # nobody projects hundreds of rows at once
                x = rng.standard_normal((rows, k)).astype(np.float32)

                def record(backend, n=n, k=k, x=x, matrices=matrices, norm=norm):
                    program = backend.program()
                    source, out = program.buffer(k), program.buffer(n)
                    if op == "gated":
                        gate, up = ((one, None) for one in matrices)
                        program.gated(source, out, gate, up, norm=norm, activation="silu", label=op)
                    else:
                        program.linear(source, out, [(matrices[0], None)], norm=norm, label=op)

                    def run(chosen):
                        given, result = x[chosen], np.empty((len(chosen), n), np.float32)
                        return lambda: program.run(len(given), bound=[(source, given), (out, result)]), result

                    return run

                read = sum(one.nbytes for one in matrices)
                yield Case(op, f"{format} {name} {n}x{k}", rows, read, 2 * len(matrices) * rows * n * k, record,
                           products(format))


def embed_cases(backend, rng, formats, rows_wanted):
    n, k = SHAPES["head"]
    for format in formats:
        if format in ("Q8A", "Q8C", "Q16"):
            n = 4096  # quantising a large float table takes longer than this op is worth
        table = packed(backend, format, n, k, rng)
        for rows in rows_wanted:
            ids = rng.integers(0, n, rows).astype(np.int32)
            positions = np.zeros(rows, np.int32)

            def record(backend, k=k, ids=ids, positions=positions, table=table):
                program = backend.program()
                out = program.buffer(k)
                program.embed(out, table, label="embed")

                def run(chosen):
                    result = np.empty((len(chosen), k), np.float32)
                    given, places = ids[chosen], positions[chosen]
                    return lambda: program.run(len(given), ids=given, positions=places, bound=[(out, result)]), result

                return run

            yield Case("embed", f"{format} {n}x{k}", rows, rows * table.nbytes // n, 0, record, "float32")


def norm_cases(backend, rng, rows_wanted):
    from forwardpass.backends.protocol import NormWeights

    for kind in ("rms", "layer"):
        for k in (576, 80):
            norm = NormWeights(kind, 1e-5, *(rng.standard_normal(k).astype(np.float32) for _ in range(2)))
            for rows in rows_wanted:
                x = rng.standard_normal((rows, k)).astype(np.float32)

                def record(backend, k=k, x=x, norm=norm):
                    program = backend.program()
                    source, out = program.buffer(k), program.buffer(k)
                    program.norm(source, out, norm, label="norm")

                    def run(chosen):
                        given, result = x[chosen], np.empty((len(chosen), k), np.float32)
                        return lambda: program.run(len(given), bound=[(source, given), (out, result)]), result

                    return run

                yield Case("norm", f"{kind} {k}", rows, rows * k * 4, 6 * rows * k, record, "float32")


def attention_cases(rng, kv_dtypes, contexts):
    """Rows after a cache that holds random keys and values, written by the op itself."""
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    for kv_dtype in kv_dtypes:
        for new, past in contexts:
            x = rng.standard_normal((past + new, width)).astype(np.float32)

            def record(backend, new=new, past=past, x=x, kv_dtype=kv_dtype):
                rotary = backend.rotary(1e4 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM), 1.0)

                def program_of(window):
                    program = backend.program()
                    qkv, out = program.buffer(width), program.buffer(HEADS * HEAD_DIM)
                    program.attention(qkv, out, layer=0, group=0, num_heads=HEADS, num_kv_heads=KV_HEADS,
                                      head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5, window=window, kv_dtype=kv_dtype,
                                      rotary=rotary, label="attention")
                    return program, qkv, out

                blocks = -(-(past + new) // PAGE)
                memory = backend.kv_memory(kv_dtype, 1, KV_HEADS, HEAD_DIM, blocks)
                tables = np.arange(blocks, dtype=np.int32)[None, None]

                def step(recorded, first, count, result):
                    program, qkv, out = recorded
                    given = x[first : first + count]
                    positions = np.arange(first, first + count, dtype=np.int32)
                    starts, before = np.array([0, count], np.int32), np.array([first], np.int32)
                    return lambda: program.run(count, positions=positions, starts=starts, past=before, tables=tables,
                                               memory=[memory], bound=[(qkv, given), (out, result)])

                filling = program_of(window=1)  # stores the same keys and values, and attends to almost nothing
                for first in range(0, past, 512):
                    count = min(512, past - first)
                    step(filling, first, count, np.empty((count, HEADS * HEAD_DIM), np.float32))()
                measured = program_of(window=0)

                def run(chosen):
                    """All rows, or the first ones of the sample: later rows need the earlier ones in the cache."""
                    result = np.empty((len(chosen), HEADS * HEAD_DIM), np.float32)
                    return step(measured, past, len(chosen), result), result

                return run

            element = {"float32": 4, "bfloat16": 2, "int8": 1}[kv_dtype]
            read = (past + new) * 2 * KV_HEADS * (HEAD_DIM * element + 4 * (kv_dtype == "int8"))
            seen = new * past + new * (new + 1) // 2
            kind = "float32" if kv_dtype == "float32" else "bfloat16"
            yield Case("attention", f"{kv_dtype} after {past}", new, read, 4 * HEADS * HEAD_DIM * seen, record, kind)


def sample(case: Case) -> np.ndarray:
    """Rows to compare: few enough for scalar. Attention's must be the first, whose past is the same in any chunk."""
    if case.rows <= 8:
        return np.arange(case.rows)
    return np.arange(8) if case.op == "attention" else np.unique(np.linspace(0, case.rows - 1, 8).astype(int))


def main() -> int:
    parser = _common.parser(__doc__)
    parser.add_argument("--op", action="append", choices=OPS, help="repeatable (default: all)")
    parser.add_argument("--isa", action="append", help="repeatable (default: all that work here, without scalar)")
    parser.add_argument("--format", action="append", choices=list(STORED), help="repeatable (default: all)")
    options = parser.parse_args()
    from forwardpass import _native
    from forwardpass.backends.native import KV_DTYPES, NativeBackend
    from forwardpass.errors import ForwardpassError
    from forwardpass.tasks.model import thread_count

    try:
        threads = thread_count(options.threads)
    except ForwardpassError as error:
        parser.error(str(error))
    isas = options.isa or [isa for isa in _native.isas() if isa != "scalar"] or ["scalar"]
    if unknown := set(isas) - set(_native.isas()):
        parser.error(f"{', '.join(sorted(unknown))} does not work here; this machine has {', '.join(_native.isas())}")
    backends = {isa: NativeBackend(threads, isa) for isa in {*isas, "scalar"}}
    rng = np.random.default_rng(0)
    ops, formats = options.op or OPS, options.format or list(STORED)
    rows = (1, 32) if options.quick else ROWS
    if options.quick:
        for name in ("head", "down", "out"):
            SHAPES.pop(name) if name != "head" else SHAPES.update(head=(512, 576))
    base = backends["scalar"]
    cases = []
    for op in ops:
        if op in ("linear", "gated"):
            cases += linear_cases(base, rng, formats, rows, op)
        elif op == "embed":
            cases += embed_cases(base, rng, formats, rows[:1])
        elif op == "norm":
            cases += norm_cases(base, rng, rows)
        else:
            cases += attention_cases(rng, KV_DTYPES, QUICK_CONTEXTS if options.quick else CONTEXTS)
    limits = Limits(backends, 0.005 if options.quick else 0.05)
    rounds, results, wrong, table = 1 if options.quick else options.rounds, {}, [], []
    done: list[tuple[str, Case, str, float]] = []
    for case in cases:
        chosen = sample(case)
        call, expected = case.record(base)(chosen)
        call()
        for isa in isas:
            name = f"{case.op} {case.label} rows={case.rows} {isa}"
            run = case.record(backends[isa])
            call, got = run(np.arange(case.rows))
            call()
            if not np.array_equal(got[chosen], expected):
                differ = int((got[chosen] != expected).sum())
                wrong.append(f"{name}: {differ} of {expected.size} values differ from scalar")
                continue
            seconds = timed(call, rounds, 0.01 if options.quick else 0.05)
            limits.measure(isa, case)
            done.append((name, case, isa, seconds))
    equal = len(done)
    for name, case, isa, seconds in done:
        read, flops = case.read / seconds, case.flops / seconds
        share = limits.share(isa, case, read, flops)
        results[name] = {"us": seconds * 1e6, "gb_s": read / 1e9, "gflop_s": flops / 1e9, "of_limit": share}
        table.append([case.op, case.label, str(case.rows), isa, number(seconds * 1e6), number(read / 1e9),
                      number(flops / 1e9), number(share)])
        if share > 1 and not options.quick:
            wrong.append(f"{name} is {share:.2f} of the limit: nothing can be above it")
    machine = _common.machine(backends[isas[0]])
    print(f"{machine['date']}, {machine['cpu']}, {threads} threads; equal to scalar: {equal} of "
          f"{len(cases) * len(isas)}\n")
    _common.print_table(["op", "shape", "rows", "isa", "us", "GB/s", "GFLOP/s", "of the limit"], table)
    print()
    result = {"bench": "kernels", "quick": options.quick, "rounds": rounds,
              "machine": {**machine, "isas": isas, **limits.found()}, "ours": results, "peers": {}, "ratio": {},
              "of_limit": {name: one["of_limit"] for name, one in results.items()}}
    return _common.finish(result, options.json, wrong)


def timed(call, rounds: int, least: float) -> float:
    """Median over rounds of the mean seconds a call, each round as long as `least`."""
    start = perf_counter()
    call()
    repeats = max(1, int(least / max(perf_counter() - start, 1e-7)))
    means = []
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(repeats):
            call()
        means.append((perf_counter() - start) / repeats)
    return median(means)


class Limits:
    """The machine's, measured after every case; the best ever seen counts: by size of what is read (powers of two), by
    kind of product."""

    def __init__(self, backends, seconds: float):
        self.pool, self.seconds = backends["scalar"].pool, seconds
        self.reads: dict[int, float] = {}
        self.rates: dict[tuple[str, str], float] = {}

    def measure(self, isa: str, case: Case) -> None:
        from forwardpass import _native

        size, kind = self._keys(isa, case)
        self.reads[size] = max(self.reads.get(size, 0.0), _native.read_bandwidth(self.pool, size, self.seconds))
        rate = _native.matrix_rate(self.pool, kind[0], kind[1] == "int8", self.seconds)
        self.rates[kind] = max(self.rates.get(kind, 0.0), rate)

    def share(self, isa: str, case: Case, read: float, flops: float) -> float:
        size, kind = self._keys(isa, case)
        return max(read / self.reads[size], flops / self.rates[kind])

    @staticmethod
    def _keys(isa: str, case: Case) -> tuple[int, tuple[str, str]]:
        unit = "avx512" if isa == "amx" and case.products == "float32" else isa  # tiles don't multiply float32
        products = case.products
        if unit != "amx" and products == "bfloat16":
            products = "float32"  # converted, and multiplied as such
        return 1 << max(16, case.read.bit_length() - 1), (unit, products)

    def found(self) -> dict:
        return {"read_gb_s": {str(size): rate / 1e9 for size, rate in sorted(self.reads.items())},
                "matrix_gflop_s": {" ".join(key): rate / 1e9 for key, rate in self.rates.items()}}


if __name__ == "__main__":
    sys.exit(main())
