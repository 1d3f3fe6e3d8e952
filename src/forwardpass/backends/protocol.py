"""What the model code needs of a backend: packed matrices, programs recorded once and run often, and KV memory.

A program is a list of fused operations over named row buffers, float32 [rows, width]. It does not know how many rows
or sequences a run will bring. `models/blocks.py` records one program a stage; a run is one call.

A buffer lies in a space, which says how many rows it has in a run:
    0            level 0, the rows of the run: tokens, or the pixels of images, row by row, one image after the other
    1, 2, ...    level l, images halved l times: ceil(height / 2^l) * ceil(width / 2^l) rows each
    IMAGES       one row for each sequence
    CONTEXT      rows of other texts, those of each sequence side by side, any number (also 0)
A sequence is a text or an image. Channels of a pixel are the columns of its row. An operation works on the rows of its
`out`; other buffers lie in the same space unless it says otherwise. No row depends on other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm ready to run. weight, bias: float32 [width], or None for 1 and 0.

    kind: "rms"; "layer"; "scale", x * weight + bias without any statistics.
    """

    kind: str
    eps: float
    weight: np.ndarray | None
    bias: np.ndarray | None = None


IMAGES = -1
"""The space of buffers with one row for each sequence."""
CONTEXT = -2
"""The space of buffers that hold rows of contexts, which images attend to."""

Linear = tuple[Any, np.ndarray | None]
"""A packed matrix and its bias."""


class Program(Protocol):
    """Operations append themselves in order. Buffers are named by the ints that `buffer` returns.

    label: what a report calls the operation; operations with the same label are added up.
    """

    def buffer(self, width: int, space: int = 0) -> int: ...

    def embed(self, out: int, table: Any, *, scale: float = 1.0, label: str) -> None:
        """out[row] = scale * table[token id of the row]."""

    def positions(self, out: int, table: Any, *, offset: int = 0, label: str) -> None:
        """out[row] += table[position of the row + offset]."""

    def types(self, out: int, table: Any, *, label: str) -> None:
        """out[row] += table[token type of the row]."""

    def norm(self, source: int, out: int, norm: NormWeights | None, *, label: str) -> None:
        """out = norm(source); source may be out. Without a norm it is a copy."""

    def add_normed(self, source: int, out: int, norm: NormWeights | None, *, scale: float = 1.0, label: str) -> None:
        """out += scale * norm(source)."""

    def head_norm(self, buffer: int, *, column: int, heads: int, head_dim: int, norm: NormWeights, each: bool,
                  label: str) -> None:
        """In place, a norm of each of `heads` segments of head_dim columns. each: every segment has its own weights,
        which then are [heads * head_dim]."""

    def clip(self, buffer: int, *, column: int, width: int, limit: float, label: str) -> None:
        """In place, columns [column, column + width) cut to [-limit, limit]."""

    def cap(self, buffer: int, *, scale: float, softcap: float, label: str) -> None:
        """In place, y = softcap * tanh(y * scale / softcap), or y * scale where softcap is 0."""

    def gather(self, source: int, out: int, *, label: str) -> None:
        """out[i] = source[wanted[i]]. Both of level 0."""

    def modulate(self, source: int, out: int, norm: NormWeights | None, *, by: int, shift: int, scale: int,
                 label: str) -> None:
        """out = norm(source) * (1 + by[s, scale : scale + width]) + by[s, shift : shift + width], s the row's sequence.

        by: a buffer of IMAGES; shift, scale: where in it the columns begin. out: of any level; source may be out.
        """

    def add_gated(self, source: int, out: int, *, by: int, gate: int, label: str) -> None:
        """out += by[s, gate : gate + width] * source, s the row's sequence. by: a buffer of IMAGES."""

    def add_rows(self, out: int, *, by: int, column: int, label: str) -> None:
        """out += by[s, column : column + width], s the row's sequence. by: a buffer of IMAGES."""

    def activate(self, source: int, out: int, activation: str, *, label: str) -> None:
        """out = activation(source), element by element; source may be out."""

    def copy(self, source: int, out: int, *, column: int = 0, add: np.ndarray | None = None, label: str) -> None:
        """out[:, column : column + width of source] = source + add, float32 [width of source]; no other column changes.

        Several of them put channels side by side.
        """

    def conv(self, source: int, out: int, linear: Linear, *, size: int, stride: int = 1, upsample: bool = False,
             padding: str = "same", mode: str = "store", activation: str | None = None, label: str) -> None:
        """A convolution of images, size * size pixels (1, 3, 5 or 7), zeros outside.

        linear: ([out width, size * size * source width], bias): columns are [y][x][channel] of the window.
        stride: 1, or 2 where `out` lies one level below `source` (its number is one more).
        padding: "same": size // 2 pixels on all sides; "end" (stride 2): none before, size - 2 after.
        upsample: source lies one level below `out`, whose pixel (y, x) then is source's (y // 2, x // 2); the
        convolution follows, with stride 1.
        mode "store": out = act(y);  "add": out += y.
        """

    def group_norm(self, source: int, out: int, *, groups: int, norm: NormWeights, activation: str | None = None,
                   label: str) -> None:
        """out = act(norm(source)): mean and variance over all pixels of an image and the channels of a group.

        norm: kind "layer"; weight and bias are those of each channel. out: of any level; source may be out.
        """

    def linear(self, source: int, out: int, parts: Sequence[Linear], *, norm: NormWeights | None,
               mode: str = "store", activation: str | None = None, label: str) -> None:
        """Norm, then the product with each (matrix, bias) of parts, whose outputs lie side by side in `out`.

        mode "store": out = act(y);  "add": out += y.
        """

    def gated(self, source: int, out: int, gate: Linear, up: Linear, *, norm: NormWeights | None, activation: str,
              label: str) -> None:
        """out = act(gate(norm(x))) * up(norm(x))."""

    def experts(self, source: int, out: int, *, norm: NormWeights | None, router: Linear,
                experts: Sequence[tuple[Linear, Linear, Linear]], shared: tuple[Linear, Linear, Linear] | None = None,
                shared_gate: Linear | None = None, chosen: int, normalise: bool, activation: str, mode: str = "add",
                scale: float = 1.0, label: str) -> None:
        """A mixture of gated MLPs, each (gate, up, down), over x = norm(source).

        Scores are the softmax of router(x). The `chosen` greatest (the lowest number first among equals) answer, by
        rank: sum of score * expert(x), the scores divided by their sum if `normalise`; then sigmoid(shared_gate(x)) *
        shared(x) is added, or shared(x). out += scale * that ("add") or out = scale * that ("store").
        """

    def attention(self, qkv: int, out: int, *, layer: int, num_heads: int, num_kv_heads: int, head_dim: int,
                  scale: float, window: int, kv_dtype: str, rotary: Any | None,
                  alibi: Sequence[float] | None = None, softcap: float = 0.0,
                  relative_bias: np.ndarray | None = None, group: int = 0, causal: bool = True, own: bool = False,
                  disentangled: tuple[np.ndarray | None, np.ndarray | None, np.ndarray] | None = None,
                  label: str) -> None:
        """Rotate q and k, append k and v to the cache, attend causally to what each row may see.

        qkv: rows [num_heads + 2 * num_kv_heads, head_dim] of queries, keys and values;  window: what a row sees, itself
        included, 0 = all.
        Keys and values lie in the memory of `group`, the layer-th of its layers. Groups are numbered from 0.
        causal=False: a row sees all of its text, or with a window what is less than `window` away on either side.
        Nothing is kept, so `layer` and `group` mean nothing, and the arithmetic is that of a cache of kv_dtype.
        But "int8" without causality, window, rotary encoding or changes of scores multiplies bytes: faster and coarser,
        since queries are bytes too; values have a scale for each dimension over the text, and sums are exact.
        own=True: nothing is kept either, and with causal=True each row sees itself and the rows of its text before it.
        Buffers may be of any level where nothing is kept; a rotary table wants level 0.

        Scores change in this order. disentangled: (keys, queries, index), without causality and with as many heads of
        keys as of queries. index: int32 [2 n + 1], the number of the vectors for each distance, the key's position -
        the query's, from -n to n; further away the first or last.  keys, queries: float32 [num_heads, vectors,
        head_dim]; scale * (query . that vector of keys + key . that vector of queries) is added. One may be None.
        softcap: to softcap * tanh(score / softcap), 0 = not;  alibi: by slope * (key's
        position - query's), a slope for each query head;  relative_bias: by what float32 [num_heads, 2 n + 1] has for
        the key's position - the query's, from -n to n; further away by the first or last.
        """

    def store(self, kv: int, *, layer: int, group: int, num_kv_heads: int, head_dim: int, kv_dtype: str,
              label: str) -> None:
        """Append rows [2 * num_kv_heads, head_dim], keys and then values, to the cache of the group, as they are."""

    def cross_attention(self, q: int, out: int, *, layer: int, group: int, num_heads: int, num_kv_heads: int,
                        head_dim: int, scale: float, kv_dtype: str, label: str) -> None:
        """Rows [num_heads, head_dim] of queries attend to what `store` put into the group: all `sources` tokens of the
        sequence's source. A group is one of sources in all operations of a program, or in none."""

    def context_attention(self, q: int, kv: int, out: int, *, column: int, num_heads: int, head_dim: int, scale: float,
                          kv_dtype: str, label: str) -> None:
        """Rows [num_heads, head_dim] of queries, of any level, attend to all context rows of their sequence; a sequence
        without any gets zeros.

        kv: a buffer of CONTEXT: keys [num_heads, head_dim] from `column` on, values behind them. The arithmetic is that
        of attention without causality.
        """

    def run(self, rows: int, *, ids: np.ndarray | None = None, positions: np.ndarray | None = None,
            wanted: np.ndarray | None = None, starts: np.ndarray | None = None, past: np.ndarray | None = None,
            tables: np.ndarray | None = None, memory: Sequence[Any] = (),
            bound: Sequence[tuple[int, np.ndarray]] = (), regime: np.ndarray | None = None,
            lengths: np.ndarray | None = None, types: np.ndarray | None = None,
            sources: np.ndarray | None = None, sizes: np.ndarray | None = None,
            context_starts: np.ndarray | None = None) -> None:
        """rows: of level 0.  bound: (buffer, float32 [rows of its space, width]) pairs that the caller owns.

        Index arrays are int32.

        types: token types, 0 if absent.
        starts: [sequences + 1], where each sequence begins, and the number of rows; for every attention, and for
        programs that use another space than level 0. With sizes it may be left out.
        sizes: [sequences, 2], height and width of each sequence at level 0; for programs that use other levels, and for
        convolutions.
        context_starts: [sequences + 1], where each sequence's context rows begin, and their number.
        memory, past, tables: for programs that have groups. memory: the KV memory of each group;  past: [sequences],
        tokens that are cached already;  tables: int32 [groups, sequences, blocks], block numbers in order of position.
        Those that no row can see any more may be -1: they are not read. Sequences may share blocks, but not those that
        they write.
        sources: for cross-attention, tokens of each sequence's source (0: it sees nothing, and its rows become 0).
        regime: for each sequence 0 (also if absent) or 1, the rotary encoding's long frequencies.  lengths: for each
        sequence the length that dynamic frequencies follow, at least what it has after this run; 0 (also if absent) =
        the plain ones.
        """

    def moments(self) -> Sequence[int]:
        """When all is recorded: for each operation, in order, the number of the moment in which it runs.

        Threads meet between moments. Within one a thread may be at another operation than the rest, so that what one of
        its operations reads must not lie where another writes, even if it comes later.
        """

    def passed(self) -> Sequence[int]:
        """Buffers that only carry rows from one operation to another of the same moment, mostly in memory of the thread
        that treats these rows: to bind them costs time."""

    def timings(self) -> dict[str, float]:
        """Seconds by label since the last call of `reset_timings`; only counted while backend.timed is True."""

    def reset_timings(self) -> None: ...


class Backend(Protocol):
    """Makes programs and packs matrices. timed: count the seconds of each operation."""

    timed: bool

    def program(self) -> Program: ...

    def table(self, values: np.ndarray) -> Any:
        """A packed matrix of float32 [rows, width] as they are: for tables that are computed."""

    def rotary(self, inv_freq: Sequence[float], factor: float, *, long_inv_freq: Sequence[float] = (),
               ntk: tuple[float, float, int] | None = None) -> Any:
        """cos and sin of position * inv_freq, times factor, for `Program.attention`.

        long_inv_freq: what sequences with regime 1 use.  ntk: (base, factor, trained) of frequencies that follow a
        sequence's length; its keys are then cached unrotated, so that a later step may rotate them otherwise.
        """

    def kv_memory(self, kv_dtype: str, layers: int, num_kv_heads: int, head_dim: int, blocks: int) -> Any:
        """Address space for cache blocks of so many layers; has blocks, block_bytes, clear(block), copy(from, to) and
        release(block), which gives a block's memory back to the system: clear it before it is used again."""

    def greedy_steps(self, stages: Sequence[Any], ids: np.ndarray, positions: np.ndarray, past: np.ndarray,
                     tables: np.ndarray, memory: Sequence[Any], steps: int, vocab_size: int,
                     ends: Sequence[np.ndarray], regime: np.ndarray | None = None,
                     lengths: np.ndarray | None = None,
                     sources: np.ndarray | None = None) -> tuple[np.ndarray, Sequence[float]]:
        """Up to `steps` decode steps of the likeliest of the first vocab_size tokens, for all sequences together.

        stages: the recorded embed, layers and project;  ids, positions, past: int32 [sequences];  tables, memory: as
        `Program.run` takes them, with blocks for all steps;  ends: each sequence's end tokens;  regime, lengths,
        sources: as `Program.run` takes them, for the first step. Lengths grow by one a step, a regime stays: the caller
        must not ask for steps beyond its switch. Stops after a step with an end token and before one whose logits are
        not numbers. Returns int32 [steps done, sequences] and the seconds of the three stages.
        """
