"""Kernels on arrays: packing of random tensors of every stored type, and a call for each entry of the kernel table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forwardpass import _native
from forwardpass.backends.native import FORMATS

ISAS = [*_native.testing.isas(), *_native.isas()]
"""Tables to test, "scalar" last; those of `_native.testing` no user can choose."""
OTHER_ISAS = [isa for isa in ISAS if isa != "scalar"]
MODES = ("store", "add", "gate")
ACTIVATIONS = ("none", "silu", "gelu_tanh", "gelu_erf", "relu", "quick_gelu")
GROUPED = {"Q4_0": (1, 0, 16), "Q4_1": (2, 0, 16), "Q5_0": (1, 4, 16), "Q5_1": (2, 4, 16), "Q8_0": (1, 0, 32)}
"""Stored type -> halves (d, m), bytes of fifth bits, bytes of quants: one group of 32 weights."""
PAIRS = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q4": "Q4_1", "Q8": "Q8_0", "Q8M": "Q5_1", "Q8C": "F32"}
"""Format -> a stored type it is packed from."""

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
    halves, fifths, quants = GROUPED[type]
    groups = n * k // 32
    out = np.empty((groups, 2 * halves + fifths + quants), np.uint8)
    levels = 127 if type == "Q8_0" else 16
    scale = (rng.standard_normal((groups, 1)) * 2 * size / levels).astype(np.float16)
    parts = [scale, (rng.standard_normal((groups, 1)) * size).astype(np.float16)][:halves]
    out[:, : 2 * halves] = np.concatenate(parts, 1).view(np.uint8)
    out[:, 2 * halves :] = rng.integers(0, 256, (groups, fifths + quants))
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

    def rows(self, isa: str = "scalar") -> np.ndarray:
        """float32 [n, k] by the look-up kernel."""
        out = np.empty((self.n, self.k), np.float32)
        for row in range(self.n):
            _native.testing.lookup(isa, FORMATS.index(self.format), self.n, self.k, self.data, row, out[row])
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


def random_packed(format: str, n: int, k: int, rng: np.random.Generator) -> Packed:
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
    """(planes uint8, sums int32 [2, rows_pad, groups], scale float32 [rows_pad]) of rows of x."""
    return _native.testing.prepare(isa, FORMATS.index(format), x, NORMS.index(norm), eps, weight, bias)


def int15_values(planes: np.ndarray, rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 (hi, lo), each [rows, k_pad], out of the tiles of an integer format's activations."""
    height, k_pad = min(rows, 16), -(-k // 64) * 64
    tiles = planes.view(np.int8).reshape(-(-rows // 16), k_pad // 64, 2, height, 64).astype(np.int64)
    hi, lo = (tiles[:, :, p].transpose(0, 2, 1, 3).reshape(-1, k_pad)[:rows] for p in (0, 1))
    return hi, lo


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, NaN where the other is NaN."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
