"""Which tensors a model needs, where a checkpoint keeps them, and how they are turned into the engine's order.

A `WeightRow` is one line of that table. `targets` derives the needed tensors from the spec alone; a family only
says what the checkpoint calls them. `match` is strict both ways and reports every problem at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.models.spec import ModelSpec
from forwardpass.weights.source import Source, TensorInfo

MAX_PROBLEMS = 20
"""Problems that are listed in full; the rest are counted."""

HEAD, EMBEDDING = "head.weight", "embed.tokens.weight"


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One needed tensor. shape: as the engine wants it, outputs first.

    sources: names in the checkpoint, the first one present wins.
    transform: "none"; "transpose", stored as [in, out]; "rotary_rows", stored with each head's two halves
        interleaved: row i of the result is stored row row_order(rows, heads)[i].
    rows: a slice of the source's rows (after the transform), of `total` rows in all; None = the whole source.
    optional: may be absent from the checkpoint.
    """

    target: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    transform: str = "none"
    heads: int = 0
    rows: slice | None = None
    total: int = 0
    optional: bool = False

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        shape = (self.total, *self.shape[1:]) if self.rows else self.shape
        return shape[::-1] if self.transform == "transpose" else shape


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A row and the stored tensor that fills it."""

    row: WeightRow
    info: TensorInfo

    @property
    def target(self) -> str:
        return self.row.target

    @property
    def nbytes(self) -> int:
        """Stored bytes of this row: its share of a fused source."""
        return self.info.nbytes * math.prod(self.row.shape) // math.prod(self.row.source_shape)


def row_order(rows: int, heads: int) -> np.ndarray:
    """int32 [rows]: `stored[row_order(rows, heads)]` turns interleaved rotary pairs into two halves a head.

    GGUF stores dimension pair (j, j + D/2) of a head of size D as neighbours: stored row 2j + t is our row
    t * D/2 + j. Example, D = 8: our rows 0..7 are stored rows 0 2 4 6 1 3 5 7.
    """
    if rows < 1 or heads < 1 or rows % heads or rows // heads % 2:
        raise ModelFileError(f"rotary rows: expected {heads} heads of even size, found {rows} rows")
    order = np.arange(rows, dtype=np.int32).reshape(heads, rows // heads // 2, 2)
    return np.ascontiguousarray(order.transpose(0, 2, 1)).reshape(-1)


def targets(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the spec asks for with its shape, the head last (tied models do without it)."""
    width = spec.hidden_size
    out: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, width)}
    if spec.learned_positions:
        out["embed.positions.weight"] = (spec.learned_positions, width)

    def add(name: str, shape: tuple[int, ...], bias: bool) -> None:
        out[name + ".weight"] = shape
        if bias:
            out[name + ".bias"] = shape[:1]

    for i, layer in enumerate(spec.layers):
        a, m, at = layer.attention, layer.mlp, f"layers.{i}."
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        add(at + "attention_norm", (width,), layer.attention_norm.bias)
        add(at + "attention.q", (queries, width), a.qkv_bias)
        add(at + "attention.k", (keys, width), a.qkv_bias)
        add(at + "attention.v", (keys, width), a.qkv_bias)
        add(at + "attention.out", (width, queries), a.out_bias)
        add(at + "mlp_norm", (width,), layer.mlp_norm.bias)
        if m.kind == "gated":
            add(at + "mlp.gate", (m.intermediate_size, width), m.bias)
        add(at + "mlp.up", (m.intermediate_size, width), m.bias)
        add(at + "mlp.down", (width, m.intermediate_size), m.bias)
    add("final_norm", (width,), spec.final_norm.bias)
    add("head", (spec.vocab_size, width), spec.head_bias)
    return out


def named_rows(spec: ModelSpec, names: Mapping[str, tuple[str, ...]]) -> list[WeightRow]:
    """A row for every target. names: target without layer number and suffix ("attention.q") -> source names
    without suffix, "{i}" for the layer ("blk.{i}.attn_q"). The head is optional (see `resolve_head`)."""
    rows = []
    for target, shape in targets(spec).items():
        stem, _, suffix = target.rpartition(".")
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", stem)
        number, stem = (layer[1], layer[2]) if layer else ("", stem)
        sources = tuple(f"{name.format(i=number)}.{suffix}" for name in names[stem])
        rows.append(WeightRow(target, sources, shape, optional=target == HEAD))
    return rows


def match(rows: Iterable[WeightRow], source: Source, ignored: Iterable[str] = ()) -> list[BoundRow]:
    """Find each row's tensor. ignored: regular expressions of stored names that carry no weights.

    Strict both ways: a missing tensor, a wrong shape and a stored tensor that no row uses are problems, and all of
    them are reported together in one ModelFileError.
    """
    tensors = source.tensors
    bound: list[BoundRow] = []
    used: set[str] = set()
    problems: list[str] = []
    for row in rows:
        name = next((name for name in row.sources if name in tensors), None)
        if name is None:
            if not row.optional:
                problems.append(f"missing: expected {' or '.join(row.sources)} {list(row.source_shape)}")
            continue
        used.add(name)
        info = tensors[name]
        if tuple(info.shape) == row.source_shape:
            bound.append(BoundRow(row, info))
        else:
            problems.append(f"wrong shape: {name}: expected {list(row.source_shape)}, found {list(info.shape)}")
    patterns = [re.compile(pattern) for pattern in ignored]
    for name, info in tensors.items():
        if name not in used and not any(pattern.fullmatch(name) for pattern in patterns):
            problems.append(f"unexpected: {name[:200]} {list(info.shape)} has no place in this model")
    problems = list(dict.fromkeys(problems))  # the three rows of one fused tensor say the same thing
    if problems:
        more = len(problems) - MAX_PROBLEMS
        listed = problems[:MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
        raise ModelFileError(f"{source.path}: the weights do not fit the model's config "
                             f"({len(problems)} problem{'s' if len(problems) > 1 else ''}):\n  " + "\n  ".join(listed)
                             + "\nfetch the model again, or use the config that belongs to these weights")
    return bound


def resolve_head(spec: ModelSpec, bound: list[BoundRow], source: Source) -> tuple[ModelSpec, list[BoundRow], list[str]]:
    """Decide whether the head is the embedding table: (spec with the true `tied`, rows, warnings).

    flag / head in the file: tied/absent and tied/equal copy -> tie; tied/different -> use the head, warn;
    untied/absent -> tie, warn; untied/present -> use it. There is never a head without weights.
    """
    rows = {one.target: one for one in bound}
    if HEAD not in rows:
        warnings = [] if spec.tied else [
            f"{source.path}: the config asks for a separate output head but the file has none; "
            "using the token embedding as the head"]
        return replace(spec, tied=True), bound, warnings
    if not spec.tied:
        return spec, bound, []
    if same_values(rows[HEAD].info, rows[EMBEDDING].info, source):
        return spec, [one for one in bound if one.target != HEAD], []
    return replace(spec, tied=False), bound, [
        f"{source.path}: the config ties the output head to the token embedding but the file holds a different "
        f"{rows[HEAD].info.name}; using the one in the file"]


def same_values(a: TensorInfo, b: TensorInfo, source: Source) -> bool:
    """True if two stored tensors hold the same bytes of the same type. Reads in pieces, keeps nothing in memory."""
    if (a.type, tuple(a.shape), a.nbytes) != (b.type, tuple(b.shape), b.nbytes):
        return False
    left, right, piece = source.data(a.name), source.data(b.name), 1 << 22
    same = all(np.array_equal(left[at:at + piece], right[at:at + piece]) for at in range(0, a.nbytes, piece))
    source.release(a.name)
    source.release(b.name)
    return same
