"""Recorded attention on arrays: its cache, its cuts, and the same in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forwardpass import _native
from forwardpass.backends.native import KV_DTYPES, padded_bias
from forwardpass.contracts import PAGE
from forwardpass.models.alibi import alibi_slopes
from kernel_tools import from_bf16, to_bf16


@dataclass(frozen=True)
class Heads:
    heads: int
    kv_heads: int
    dim: int
    rotary: int = 0  # rotated dimensions

    @property
    def width(self):
        return (self.heads + 2 * self.kv_heads) * self.dim


@dataclass(frozen=True)
class Changes:
    """What happens to scores. alibi: ALiBi's slopes;  reach: a random bias for relative positions up to so far."""

    softcap: float = 0.0
    alibi: bool = False
    reach: int = 0

    def slopes(self, heads):
        return np.array(alibi_slopes(heads.heads), np.float32) if self.alibi else None

    def bias(self, heads):
        if not self.reach:
            return None
        return np.random.default_rng(heads.heads).standard_normal((heads.heads, 2 * self.reach + 1)).astype(np.float32)


NONE = Changes()
HEADS = [Heads(1, 1, 8), Heads(4, 2, 16, 16), Heads(9, 3, 64, 64), Heads(6, 2, 20, 20), Heads(8, 1, 80, 32),
         Heads(2, 2, 128), Heads(40, 1, 16, 16), Heads(3, 1, 256, 64), Heads(12, 4, 96, 2)]
THETA = 10000.0


def rotary_table(heads):
    frequencies = [float(np.float32(THETA ** (-2 * i / heads.rotary))) for i in range(heads.rotary // 2)]
    return _native.RotaryTable(frequencies, 1.0) if heads.rotary else None


class Cache:
    """A cache of one more layer than is used, its blocks handed out in a scrambled order."""

    def __init__(self, heads, kv_dtype, blocks=40):
        self.memory = _native.KvMemory(KV_DTYPES.index(kv_dtype), 2, heads.kv_heads, heads.dim, blocks)
        self.free = list(np.random.default_rng(0).permutation(blocks))

    def table(self, positions):
        return [int(self.free.pop()) for _ in range(-(-positions // PAGE))]


class Runner:
    """One recorded attention of layer 1, or (causal=False or own=True) one that keeps nothing."""

    def __init__(self, isa, heads, kv_dtype, window=0, threads=1, changes=NONE, rotary=None, causal=True, own=False):
        self.heads = heads
        self.program = _native.Program(_native.Pool(threads), isa)
        self.qkv, self.out = self.program.buffer(heads.width), self.program.buffer(heads.heads * heads.dim)
        self.program.attention(self.qkv, self.out, 1, heads.heads, heads.kv_heads, heads.dim, heads.dim**-0.5, window,
                               KV_DTYPES.index(kv_dtype), rotary or rotary_table(heads), changes.slopes(heads),
                               changes.softcap, padded_bias(changes.bias(heads)) if changes.reach else None,
                               "attention", 0, causal, own=own)

    def both_ways(self, rows, positions=None):
        """rows of each text -> output rows of each, without a cache."""
        starts = np.concatenate([[0], np.cumsum([len(one) for one in rows])]).astype(np.int32)
        if positions is None:
            positions = np.concatenate([np.arange(len(one)) for one in rows]).astype(np.int32)
        qkv = np.concatenate(rows)
        out = np.full((len(qkv), self.heads.heads * self.heads.dim), np.nan, np.float32)
        self.program.run(len(qkv), None, positions, None, starts, None, None, [], [(self.qkv, qkv), (self.out, out)],
                         False)
        return np.split(out, starts[1:-1])

    def __call__(self, cache, parts, regime=None, lengths=None):
        """parts: (qkv rows, past, block table) of each sequence -> output rows of each."""
        counts = [len(rows) for rows, _, _ in parts]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        past = np.array([past for _, past, _ in parts], np.int32)
        tables = np.full((len(parts), max(len(table) for _, _, table in parts)), -1, np.int32)
        for row, (_, _, table) in zip(tables, parts, strict=True):
            row[: len(table)] = table
        positions = np.concatenate([np.arange(p, p + n) for p, n in zip(past, counts, strict=True)]).astype(np.int32)
        qkv = np.concatenate([rows for rows, _, _ in parts])
        out = np.full((len(qkv), self.heads.heads * self.heads.dim), np.nan, np.float32)
        self.program.run(len(qkv), None, positions, None, starts, past, tables[None], [cache.memory],
                         [(self.qkv, qkv), (self.out, out)], False, *(None if a is None else np.array(a, np.int32)
                                                                      for a in (regime, lengths)))
        return np.split(out, starts[1:-1])


def texts(heads, lengths, seed=1, size=1.0):
    rng = np.random.default_rng([seed, *lengths])
    return [(rng.standard_normal((n, heads.width)) * size).astype(np.float32) for n in lengths]


def in_steps(run, cache, rows, counts):
    """One text, so many rows of it at a time."""
    table, past, out = cache.table(len(rows)), 0, []
    for count in counts:
        out += run(cache, [(rows[past : past + count], past, table)])
        past += count
    return np.concatenate(out)


_computed = {}


def whole(isa, heads, kv_dtype, rows, window=0, changes=NONE, causal=True):
    """Every text alone, in one piece and by one thread; computed once a session."""
    run, cache = Runner(isa, heads, kv_dtype, window, changes=changes, causal=causal), Cache(heads, kv_dtype)
    out = []
    for one in rows:
        key = isa, heads, kv_dtype, window, changes, causal, one.tobytes()
        if key not in _computed:
            _computed[key] = (run(cache, [(one, 0, cache.table(len(one)))]) if causal else run.both_ways([one]))[0]
        out.append(_computed[key])
    return out


# ---------------------------------------------------------------- float64

def rotate(x, heads, frequencies=None):
    if not heads.rotary:
        return x
    half = heads.rotary // 2
    if frequencies is None:
        frequencies = [THETA ** (-2 * i / heads.rotary) for i in range(half)]
    frequencies = np.array(frequencies, np.float32)
    angle = (np.arange(len(x), dtype=np.float32)[:, None] * frequencies).astype(np.float64)[:, None]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle),
                           x[..., 2 * half :]], -1)


def as_cached(x, kv_dtype):
    """What the cache keeps of keys or values [rows, heads, dim]: float32, bfloat16, or bytes with a scale a head."""
    x = x.astype(np.float32)
    if kv_dtype == "bfloat16":
        return from_bf16(to_bf16(x)).astype(np.float64)
    if kv_dtype == "int8":
        step = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        return np.rint(x / np.where(step > 0, step, 1)).astype(np.float64) * step
    return x.astype(np.float64)


def exact(rows, heads, kv_dtype, window, changes=NONE, dynamic=None, causal=True):
    """dynamic: frequencies with which keys are rotated after they were cached."""
    n, h, d = len(rows), heads.heads, heads.dim
    split = rows.astype(np.float64).reshape(n, -1, d)
    q, k, v = split[:, :h], split[:, h : h + heads.kv_heads], split[:, h + heads.kv_heads :]
    q, v = rotate(q, heads, dynamic), as_cached(v, kv_dtype)
    k = as_cached(rotate(k if dynamic is None else as_cached(k, kv_dtype), heads, dynamic), kv_dtype)
    k, v = np.repeat(k, h // heads.kv_heads, 1), np.repeat(v, h // heads.kv_heads, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * d**-0.5
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    if changes.softcap:
        scores = changes.softcap * np.tanh(scores / changes.softcap)
    if changes.alibi:
        scores = scores - changes.slopes(heads)[:, None, None].astype(np.float64) * distance
    if changes.reach:
        scores = scores + changes.bias(heads)[:, np.clip(-distance, -changes.reach, changes.reach) + changes.reach]
    hidden = ((distance < 0) & causal) | ((np.abs(distance) >= window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
