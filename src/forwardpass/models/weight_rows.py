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
from forwardpass.models.spec import MlpSpec, ModelSpec, NormSpec
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import Source, TensorInfo

MAX_PROBLEMS = 20
"""Problems that are listed in full; the rest are counted."""

HEAD, EMBEDDING = "head.weight", "embed.tokens.weight"


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One needed tensor. shape: as the engine wants it, outputs first.

    sources: names in the checkpoint, the first one present wins.
    transform: "none"; "transpose", stored as [in, out]; "rotary_rows", stored with rotary pairs interleaved in each
        head: row i of the result is picked row row_order(rows, heads, rotary_dim)[i].
    rows: a slice of the source's rows (after "transpose"), of `total` rows in all; None = the whole source.
    period: the slice is taken out of every `period` rows. Example: keys in a matrix of [heads, 3, head_dim] rows are
        rows=slice(head_dim, 2 * head_dim), period=3 * head_dim.
    stack: the stored tensor is [stack, total / stack, k], and rows are counted over its first two axes together; not
        with "transpose".
    add: is added to a vector's values. Example: 1 where a norm is stored as w and 1 + w is meant.
    optional: may be absent from the checkpoint.

    A vector that a checkpoint keeps in parts has a row for each, of the same target, in order.
    """

    target: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    transform: str = "none"
    heads: int = 0
    rotary_dim: int = 0
    rows: slice | None = None
    total: int = 0
    period: int = 0
    stack: int = 0
    add: float = 0.0
    optional: bool = False

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        shape = (self.total, *self.shape[1:]) if self.rows else self.shape
        if self.stack:
            shape = (self.stack, shape[0] // self.stack, *shape[1:])
        return shape[::-1] if self.transform == "transpose" else shape

    def pick(self, stored: np.ndarray) -> np.ndarray:
        """The rows of this target out of all stored ones [total, ...], before `order`. A view unless period asks for
        more than one run."""
        if self.rows is None:
            return stored
        period = self.period or self.total
        runs = stored.reshape(self.total // period, period, *stored.shape[1:])[:, self.rows]
        return runs.reshape(-1, *stored.shape[1:])

    @property
    def order(self) -> np.ndarray | None:
        """int32 [rows]: the picked row that each row of the target is; None = they stand as they should."""
        if self.transform != "rotary_rows":
            return None
        return row_order(self.shape[0], self.heads, self.rotary_dim)


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


def row_order(rows: int, heads: int, rotary_dim: int = 0) -> np.ndarray:
    """int32 [rows]: `stored[row_order(rows, heads)]` turns interleaved rotary pairs into two halves a head.

    Interleaved, dimension pair (j, j + D/2) of a head of size D are neighbours: stored row 2j + t is our row
    t * D/2 + j. Example, D = 8: our rows 0..7 are stored rows 0 2 4 6 1 3 5 7. rotary_dim: only so many dimensions of
    each head are rotated (0 = all), the others stay. Example, 4 of 8: stored rows 0 2 1 3 4 5 6 7.
    """
    size = rows // heads if heads > 0 and rows > 0 and rows % heads == 0 else 0
    turned = rotary_dim or size
    if not size or turned % 2 or not 2 <= turned <= size:
        raise ModelFileError(f"rotary rows: expected {heads} heads of an even number of rotated dimensions, found "
                             f"{rows} rows" + (f", {rotary_dim} dimensions rotated" if rotary_dim else ""))
    order = np.arange(rows, dtype=np.int32).reshape(heads, size)
    pairs = order[:, :turned].reshape(heads, turned // 2, 2)
    order[:, :turned] = pairs.transpose(0, 2, 1).reshape(heads, turned).copy()
    return order.reshape(-1)


def targets(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the spec asks for with its shape, the head last (tied models do without it)."""
    width, narrow = spec.hidden_size, spec.embed_size or spec.hidden_size
    out: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, narrow)}

    def add(name: str, shape: tuple[int, ...], bias: bool = False) -> None:
        out[name + ".weight"] = shape
        if bias:
            out[name + ".bias"] = shape[:1]

    def norm(name: str, size: int, norm: NormSpec | None) -> None:
        if norm:
            add(name, (size,), norm.bias)

    if spec.embed_size:
        add("embed.project_in", (width, narrow))
    if spec.learned_positions:
        add("embed.positions", (spec.learned_positions, width))
    norm("embed.norm", width, spec.embed_norm)
    for i, layer in enumerate(spec.layers):
        a, m, at = layer.attention, layer.mlp, f"layers.{i}."
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        norm(at + "attention_norm", width, layer.attention_norm)
        add(at + "attention.q", (queries, width), a.qkv_bias)
        add(at + "attention.k", (keys, width), a.qkv_bias)
        add(at + "attention.v", (keys, width), a.qkv_bias)
        norm(at + "attention.q_norm", a.head_dim if a.qk_norm_shape == "head" else queries, a.qk_norm)
        norm(at + "attention.k_norm", a.head_dim if a.qk_norm_shape == "head" else keys, a.qk_norm)
        add(at + "attention.out", (width, queries), a.out_bias)
        norm(at + "post_attention_norm", width, layer.post_attention_norm)
        norm(at + "mlp_norm", width, layer.mlp_norm)
        for name, size in mlp_widths(m).items():
            if m.kind == "gated":
                add(f"{at}{name}.gate", (size, width), m.bias)
            add(f"{at}{name}.up", (size, width), m.bias)
            add(f"{at}{name}.down", (width, size), m.bias)
        if m.experts:
            add(at + "mlp.router", (m.experts.count, width))
            if m.experts.shared_gate:
                add(at + "mlp.shared_gate", (1, width))
        norm(at + "post_mlp_norm", width, layer.post_mlp_norm)
    norm("final_norm", width, spec.final_norm)
    if spec.embed_size:
        add("embed.project_out", (narrow, width))
    add("head", (spec.vocab_size, narrow), spec.head_bias)
    return out


def mlp_widths(m: MlpSpec) -> dict[str, int]:
    """Target -> inner width of every MLP of a layer: one, or the experts and what they share."""
    if not m.experts:
        return {"mlp": m.intermediate_size}
    shared = {"mlp.shared": m.experts.shared_size} if m.experts.shared_size else {}
    return {f"mlp.experts.{e}": m.intermediate_size for e in range(m.experts.count)} | shared


def named_rows(spec: ModelSpec, names: Mapping[str, tuple[str, ...]]) -> list[WeightRow]:
    """A row for every target. names: target without layer, expert number and suffix ("attention.q",
    "mlp.experts.up") -> source names without suffix, "{i}" for the layer and "{e}" for the expert ("blk.{i}.attn_q").
    An expert's name without "{e}" is one tensor that stacks all experts. The head is optional (see `resolve_head`)."""
    rows = []
    for target, shape in targets(spec).items():
        stem, _, suffix = target.rpartition(".")
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", stem)
        number, stem = (layer[1], layer[2]) if layer else ("", stem)
        expert = re.fullmatch(r"(mlp\.experts\.)(\d+)\.(.+)", stem)
        e, stem = (expert[2], expert[1] + expert[3]) if expert else ("", stem)
        sources = tuple(f"{name.format(i=number, e=e)}.{suffix}" for name in names[stem])
        row = WeightRow(target, sources, shape, optional=target == HEAD)
        if expert and not any("{e}" in name for name in names[stem]):
            count, at = spec.layers[int(number)].mlp.experts.count, int(e) * shape[0]
            row = replace(row, rows=slice(at, at + shape[0]), total=count * shape[0], stack=count)
        rows.append(row)
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
        if row.transform == "transpose" and info.type in REPACKED:  # these are always given outputs first
            row = replace(row, transform="none")
        if _squeezed(info.shape) == _squeezed(row.source_shape):
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


def _squeezed(shape: Iterable[int]) -> tuple[int, ...]:
    """Without axes of one: GGUF drops some, and a vector may stand for a matrix of one row."""
    return tuple(size for size in shape if size != 1)


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
    same = all(np.array_equal(left[at:at + piece], right[at:at + piece]) for at in range(0, left.size, piece))
    source.release(a.name)
    source.release(b.name)
    return same
