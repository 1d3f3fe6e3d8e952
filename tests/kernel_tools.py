"""Kernels on arrays: packing of random tensors of every stored type, and a call for each entry of the kernel table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forwardpass import _native
from forwardpass.backends.native import FORMATS
from forwardpass.weights.source import BLOCKS

ISAS = [*_native.testing.isas(), *_native.isas()]
"""Tables to test, "scalar" last; those of `_native.testing` no user can choose."""
OTHER_ISAS = [isa for isa in ISAS if isa != "scalar"]
MODES = ("store", "add", "gate")
ACTIVATIONS = ("none", "silu", "gelu_tanh", "gelu_erf", "relu", "quick_gelu", "tanh")
GROUPED = {"Q4_0": ((0,), 8), "Q4_1": ((0, 2), 8), "Q5_0": ((0,), 16), "Q5_1": ((0, 2), 16), "Q8_0": ((0,), 64),
           "Q2_K": ((80, 82), 12), "Q3_K": ((108,), 32), "Q4_K": ((0, 2), 250), "Q5_K": ((0, 2), 500),
           "Q6_K": ((208,), 1000)}
"""Stored type -> where in a block its half-precision scale (and minimum) stands, how great what it scales typically
is."""
PAIRS = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q4": "Q4_1", "Q8": "Q8_0", "Q8A": "F32", "Q8C": "F32",
         "Q16": "F32"}
"""Format -> a stored type it is packed from in tests of products."""
LEVELS = {"Q4": (4, 32, True), "Q4H": (4, 16, True), "Q5": (5, 32, False), "Q5M": (5, 32, True), "Q6": (6, 16, False)}
"""Format with integer scales -> bits of a level, columns that share a scale, whether there is an M."""
ROW_SCALED = (*LEVELS, "Q8A", "Q8C", "Q16")
MOST_UNITS = 0.999 * (2**31 - 1) / 127
"""What the magnitudes of a row's weights may sum to, in units of its scale: no sum of products can overflow then."""

POOL = _native.Pool(1)


def aligned(nbytes: int) -> np.ndarray:
    """uint8 [nbytes] at a multiple of 64."""
    memory = np.empty(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 bits (uint16), nearest even; finite values only."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(type: str, n: int, k: int, rng: np.random.Generator, size: float = 0.1) -> np.ndarray:
    """Random rows [n, k] of a stored type, as its bytes. size: standard deviation, roughly."""
    if type not in GROUPED:
        values = (rng.standard_normal((n, k)) * size).astype(np.float32)
        if type == "BF16":
            values = to_bf16(values)
        elif type == "F16":
            values = values.astype(np.float16)
        return values.reshape(-1).view(np.uint8)
    places, levels = GROUPED[type]
    values, block_bytes = BLOCKS[type]
    out = rng.integers(0, 256, (n * k // values, block_bytes), dtype=np.uint8)
    for place in places:
        scale = (rng.standard_normal((len(out), 1)) * size / levels).astype(np.float16)
        out[:, place : place + 2] = scale.view(np.uint8)
    return out.reshape(-1)


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed matrix. data: its memory; finite: what the packer said."""

    format: str
    n: int
    k: int
    data: np.ndarray
    finite: bool

    def matrix(self):
        return _native.Matrix(FORMATS.index(self.format), self.n, self.k, self.data)

    def row_scale(self) -> np.ndarray:
        """float32 [n], of the formats that have one."""
        return self.data[-4 * (-(-self.n // 16) * 16) :].view(np.float32)[: self.n]

    def rows(self, isa: str = "scalar", only: np.ndarray | None = None) -> np.ndarray:
        """float32 [n, k] by the look-up kernel. only: numbers of the rows that are wanted."""
        wanted = range(self.n) if only is None else only.tolist()
        out = np.empty((len(wanted), self.k), np.float32)
        for place, row in enumerate(wanted):
            _native.testing.lookup(isa, FORMATS.index(self.format), self.n, self.k, self.data, row, out[place])
        return out


def pack(format: str, type: str, n: int, k: int, raw: np.ndarray, order: np.ndarray | None = None,
         pool=POOL) -> Packed:
    data = aligned(_native.matrix_bytes(FORMATS.index(format), n, k))
    data[:] = 0xA7  # the packer must write every byte
    finite = _native.pack(pool, FORMATS.index(format), n, k, type, raw, order, data)
    return Packed(format, n, k, data, finite)


def pack_floats(format: str, values: np.ndarray) -> Packed:
    values = np.ascontiguousarray(values, np.float32)
    return pack(format, "F32", *values.shape, values.reshape(-1).view(np.uint8))


def encode(format: str, q: np.ndarray, d: np.ndarray, m: np.ndarray | None, row_scale: np.ndarray) -> Packed:
    """A matrix of levels, its bytes written as docs/kernels.md says: the packer and the kernels are tested against it.

    q: [n, k] levels from 0; d, m: int16 [n, scales of a row]; row_scale: float32 [n].
    """
    bits, span, minimum = LEVELS[format]
    (n, k), n_pad, k_pad = q.shape, -(-q.shape[0] // 16) * 16, -(-q.shape[1] // 64) * 64
    levels = np.full((n_pad, k_pad), 1 << (bits - 1), np.int64)
    levels[:n, :k] = q
    scales = np.zeros((2, n_pad, k_pad // span), np.int16)
    scales[0, :n, : d.shape[1]] = d
    if minimum:
        scales[1, :n, : d.shape[1]] = m
    high = bits - 4
    halves = []  # the lines and the scales of each 32 columns of each panel
    for half in range(n_pad // 16 * k_pad // 32):
        panel, at = half // (k_pad // 32), half % (k_pad // 32)
        rows, columns = slice(16 * panel, 16 * panel + 16), slice(32 * at, 32 * at + 32)
        lines = np.zeros((4 + high, 16, 4), np.uint8)
        for c, column in enumerate(levels[rows, columns].T):
            lines[c // 8, :, c % 4] |= ((column & 15) << (4 if c % 8 >= 4 else 0)).astype(np.uint8)
            if high:
                v = c // 4
                lines[4 + high * v // 8, :, c % 4] |= ((column >> 4) << ((high * v + 4) % 8)).astype(np.uint8)
        some = scales[: 1 + minimum, rows, 32 // span * at : 32 // span * (at + 1)]  # [1 or 2, 16, scales]
        halves.append((lines.tobytes(), some.transpose(2, 1, 0).tobytes()))
    body = []
    for (lines, scale), (lines2, scale2) in zip(halves[::2], halves[1::2], strict=True):
        body += [lines, lines2, scale, scale2] if len(scale) % 64 else [lines, scale, lines2, scale2]
    padded = np.zeros(n_pad, np.float32)
    padded[:n] = row_scale
    raw = np.frombuffer(b"".join([*body, padded.tobytes()]), np.uint8)
    data = aligned(raw.size)
    data[:] = raw
    return Packed(format, n, k, data, True)


def integer_weights(format: str, q: np.ndarray, d: np.ndarray, m: np.ndarray | None) -> np.ndarray:
    """int64 [n, k]: what the levels, scales and minimums of `encode` mean, in units of the row."""
    bits, span, _ = LEVELS[format]
    spread = [np.repeat(part.astype(np.int64), span, axis=1)[:, : q.shape[1]] for part in (d, m) if part is not None]
    return spread[0] * (q.astype(np.int64) - (1 << (bits - 1))) + (spread[1] if m is not None else 0)


def random_levels(format: str, n: int, k: int, rng: np.random.Generator):
    """(q, d, m, row_scale) for `encode`, of weights that use all of int16 as far as no sum can overflow."""
    bits, span, minimum = LEVELS[format]
    scales, limit = -(-k // span), min(32700, MOST_UNITS / k)
    q = rng.integers(0, 1 << bits, (n, k))
    d, m = (np.rint(rng.uniform(-1, 1, (n, scales)) * limit * part).astype(np.int16)
            for part in (0.7 / (1 << (bits - 1)), 0.3))
    return q, d, m if minimum else None, (0.1 / limit * np.exp(rng.standard_normal(n))).astype(np.float32)


def random_packed(format: str, n: int, k: int, rng: np.random.Generator) -> Packed:
    if format in LEVELS and format != "Q4":
        return encode(format, *random_levels(format, n, k, rng))
    type = PAIRS[format] if k % 32 == 0 else {"Q4": "F32"}.get(format, PAIRS[format])
    return pack(format, type, n, k, stored(type, n, k, rng))


def matmul(isa: str, w: Packed, x: np.ndarray, *, mode: str = "store", act: str = "none",
           bias: np.ndarray | None = None, out: np.ndarray | None = None, panels: tuple[int, int] | None = None,
           ) -> np.ndarray:
    """float32 [rows, n] of every row of x. out: what the modes "add" and "gate" find there (copied)."""
    out = np.full((x.shape[0], w.n), np.nan, np.float32) if out is None else out.copy()
    p0, p1 = panels or (0, -(-w.n // 16))
    _native.testing.matmul(isa, FORMATS.index(w.format), w.n, w.k, w.data, x, MODES.index(mode),
                           ACTIVATIONS.index(act), bias, out, p0, p1)
    return out


NORMS = ("none", "rms", "layer")


def prepare(isa: str, format: str, x: np.ndarray, norm: str = "none", eps: float = 1e-5, weight=None, bias=None):
    """(planes uint8, sums int32 [2, rows_pad, groups], offsets int32, scale float32 [rows_pad]) of rows of x."""
    return _native.testing.prepare(isa, FORMATS.index(format), x, NORMS.index(norm), eps, weight, bias)


def plane_values(planes: np.ndarray, count: int, rows: int, k: int) -> list[np.ndarray]:
    """The int64 [rows, k_pad] of `count` planes (hi, lo; or the only one), out of the tiles of integer activations."""
    height, k_pad = min(rows, 16), -(-k // 64) * 64
    tiles = planes.view(np.int8).reshape(-(-rows // 16), k_pad // 64, count, height, 64).astype(np.int64)
    return [tiles[:, :, p].transpose(0, 2, 1, 3).reshape(-1, k_pad)[:rows] for p in range(count)]


def int15_values(planes: np.ndarray, rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 (hi, lo), each [rows, k_pad]."""
    hi, lo = plane_values(planes, 2, rows, k)
    return hi, lo


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, NaN where the other is NaN."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
