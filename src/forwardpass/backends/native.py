"""The CPU backend: the protocol over the compiled kernels in `_native`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forwardpass import _native, config
from forwardpass.backends.protocol import NormWeights
from forwardpass.errors import ParameterError

FORMATS: tuple[str, ...] = _native.formats
"""Kernel layouts, described in native/kernels.h."""
READS = {name: _native.activations(number) for number, name in enumerate(FORMATS)}
"""Layout -> the kind of activations that a product with it reads: "float32", "bfloat16", "int15" or "int8"."""
ARITHMETIC = {name: "int8" if kind == "int15" else kind for name, kind in READS.items()}
"""Layout -> "float32", "bfloat16" or "int8": what a product with it multiplies."""
KV_DTYPES = ("float32", "bfloat16", "int8")
_NORMS = {"rms": 1, "layer": 2, "scale": 3}
_MODES = {"store": 0, "add": 1}
_ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2, "gelu_erf": 3, "relu": 4, "quick_gelu": 5, "tanh": 6}

Matrix = _native.Matrix
KvMemory = _native.KvMemory
Region = _native.Region
bounds = _native.bounds  # (least, greatest) of an int32 array


def chosen_isa() -> str:
    """The instruction set to use: FORWARDPASS_ISA if set, else the best that works here."""
    available = _native.isas()
    wanted = config.isa()
    if wanted is None:
        return available[0]
    if wanted not in available:
        raise ParameterError(f"FORWARDPASS_ISA={wanted!r} is not available here; this machine offers "
                             f"{', '.join(available)}; unset it or choose one of these")
    return wanted


class NativeBackend:
    """A pool of threads and an instruction set. timed: count the seconds of each operation."""

    def __init__(self, threads: int, isa: str | None = None):
        self.isa = isa or chosen_isa()
        self.threads = threads
        self.pool = _native.Pool(threads)
        self.timed = False

    def program(self) -> NativeProgram:
        return NativeProgram(self)

    def pack(self, format: str, shape: tuple[int, int], type: str, rows: np.ndarray, order: np.ndarray | None,
             out: np.ndarray) -> bool:
        """Pack stored rows (uint8) of an [n, k] tensor into `out`; False if a weight is NaN or infinite."""
        return _native.pack(self.pool, FORMATS.index(format), *shape, type, rows, order, out)

    def table(self, values: np.ndarray) -> Matrix:
        """See protocol.Backend."""
        memory = np.empty(matrix_bytes("F32", *values.shape) + 64, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :][: memory.size - 64]
        self.pack("F32", values.shape, "F32", values.reshape(-1).view(np.uint8), None, memory)
        return matrix("F32", *values.shape, memory)

    def rotary(self, inv_freq: Sequence[float], factor: float, *, long_inv_freq: Sequence[float] = (),
               ntk: tuple[float, float, int] | None = None) -> _native.RotaryTable:
        return _native.RotaryTable(list(inv_freq), factor, list(long_inv_freq), ntk)

    def greedy_steps(self, stages, ids, positions, past, tables, memory, steps, vocab_size, ends, regime=None,
                     lengths=None, sources=None):
        """See protocol.Backend."""
        buffers = [stages[0].out, stages[1].source, stages[1].out, stages[2].source, stages[2].out]
        programs = [stage.program.native for stage in stages]
        tokens, *seconds = _native.greedy_steps(*programs, buffers, ids, positions, past, tables, memory, steps,
                                                vocab_size, ends, self.timed, regime, lengths, sources)
        return tokens.reshape(-1, ids.size), seconds

    def kv_memory(self, kv_dtype: str, layers: int, num_kv_heads: int, head_dim: int, blocks: int) -> KvMemory:
        return KvMemory(KV_DTYPES.index(kv_dtype), layers, num_kv_heads, head_dim, blocks)


def matrix(format: str, n: int, k: int, memory: np.ndarray) -> Matrix:
    return Matrix(FORMATS.index(format), n, k, memory)


def matrix_bytes(format: str, n: int, k: int) -> int:
    """Bytes that a packed [n, k] matrix takes, padding included."""
    return _native.matrix_bytes(FORMATS.index(format), n, k)


def padded_bias(bias: np.ndarray) -> np.ndarray:
    """[heads, 2 n + 1] -> with fifteen more of the nearest at both ends: kernels read those of sixteen keys at once."""
    return np.pad(np.asarray(bias, np.float32), ((0, 0), (15, 15)), "edge")


class NativeProgram:
    """See protocol.Program."""

    def __init__(self, backend: NativeBackend):
        self._backend = backend
        self.native = _native.Program(backend.pool, backend.isa)
        self.buffer = self.native.buffer
        self.reset_timings = self.native.reset_timings
        self.moments, self.passed = self.native.moments, self.native.passed

    def embed(self, out, table, *, scale=1.0, label):
        self.native.embed(out, table, scale, label)

    def positions(self, out, table, *, offset=0, label):
        self.native.positions(out, table, offset, label)

    def types(self, out, table, *, label):
        self.native.types(out, table, label)

    def norm(self, source, out, norm: NormWeights | None, *, label):
        self.native.norm(source, out, *_norm_arguments(norm), label)

    def add_normed(self, source, out, norm: NormWeights | None, *, scale=1.0, label):
        self.native.add_normed(source, out, *_norm_arguments(norm), scale, label)

    def head_norm(self, buffer, *, column, heads, head_dim, norm: NormWeights, each, label):
        self.native.head_norm(buffer, column, heads, head_dim, *_norm_arguments(norm), each, label)

    def clip(self, buffer, *, column, width, limit, label):
        self.native.clip(buffer, column, width, limit, label)

    def cap(self, buffer, *, scale, softcap, label):
        self.native.cap(buffer, scale, softcap, label)

    def gather(self, source, out, *, label):
        self.native.gather(source, out, label)

    def modulate(self, source, out, norm: NormWeights | None, *, by, shift, scale, label):
        self.native.modulate(source, out, *_norm_arguments(norm), by, shift, scale, label)

    def add_gated(self, source, out, *, by, gate, label):
        self.native.add_gated(source, out, by, gate, label)

    def add_rows(self, out, *, by, column, label):
        self.native.add_rows(out, by, column, label)

    def activate(self, source, out, activation, *, label):
        self.native.activate(source, out, _ACTIVATIONS[activation], label)

    def copy(self, source, out, *, column=0, add=None, label):
        self.native.copy(source, out, column, add, label)

    def linear(self, source, out, parts, *, norm, mode="store", activation=None, label):
        self.native.linear(source, out, *_norm_arguments(norm), list(parts), _MODES[mode], _ACTIVATIONS[activation],
                             False, label)

    def gated(self, source, out, gate, up, *, norm, activation, label):
        self.native.linear(source, out, *_norm_arguments(norm), [gate, up], 0, _ACTIVATIONS[activation], True, label)

    def experts(self, source, out, *, norm, router, experts, shared=None, shared_gate=None, chosen, normalise,
                activation, mode="add", scale=1.0, label):
        self.native.experts(source, out, *_norm_arguments(norm), router, list(experts), shared, shared_gate, chosen,
                            normalise, _ACTIVATIONS[activation], _MODES[mode], scale, label)

    def conv(self, source, out, linear, *, size, stride=1, upsample=False, padding="same", mode="store",
             activation=None, label):
        before = {"same": size // 2, "end": 0}[padding]
        self.native.conv(source, out, linear, size, stride, upsample, before, _MODES[mode], _ACTIVATIONS[activation],
                         label)

    def group_norm(self, source, out, *, groups, norm: NormWeights, activation=None, label):
        self.native.group_norm(source, out, groups, norm.eps, norm.weight, norm.bias, _ACTIVATIONS[activation], label)

    def attention(self, qkv, out, *, layer, num_heads, num_kv_heads, head_dim, scale, window, kv_dtype, rotary,
                  alibi=None, softcap=0.0, relative_bias=None, group=0, causal=True, own=False,
                  disentangled=None, label):
        slopes = None if alibi is None else np.array(alibi, np.float32)
        bias = None if relative_bias is None else padded_bias(relative_bias)
        self.native.attention(qkv, out, layer, num_heads, num_kv_heads, head_dim, scale, window,
                              KV_DTYPES.index(kv_dtype), rotary, slopes, softcap, bias, label, group, causal,
                              *(disentangled or (None, None, None)), own)

    def store(self, kv, *, layer, group, num_kv_heads, head_dim, kv_dtype, label):
        self.native.store(kv, layer, num_kv_heads, head_dim, KV_DTYPES.index(kv_dtype), label, group)

    def cross_attention(self, q, out, *, layer, group, num_heads, num_kv_heads, head_dim, scale, kv_dtype, label):
        self.native.cross_attention(q, out, layer, num_heads, num_kv_heads, head_dim, scale,
                                    KV_DTYPES.index(kv_dtype), label, group)

    def context_attention(self, q, kv, out, *, column, num_heads, head_dim, scale, kv_dtype, label):
        self.native.context_attention(q, kv, out, column, num_heads, head_dim, scale, KV_DTYPES.index(kv_dtype), label)

    def run(self, rows, *, ids=None, positions=None, wanted=None, starts=None, past=None, tables=None, memory=(),
            bound=(), regime=None, lengths=None, types=None, sources=None, sizes=None, context_starts=None):
        self.native.run(rows, ids, positions, wanted, starts, past, tables, memory, bound, self._backend.timed, regime,
                        lengths, types, sources, sizes, context_starts)

    def timings(self):
        seconds: dict[str, float] = {}
        for label, time in self.native.timings():
            seconds[label] = seconds.get(label, 0.0) + time
        return seconds


def _norm_arguments(norm: NormWeights | None) -> tuple:
    if norm is None:
        return 0, 0.0, None, None
    return _NORMS[norm.kind], norm.eps, norm.weight, norm.bias
