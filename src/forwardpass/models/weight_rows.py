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
from forwardpass.models.spec import LayerSpec, MlpSpec, ModelSpec, NormSpec, PatchesSpec
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import Source, TensorInfo

MAX_PROBLEMS = 20
"""Problems that are listed in full; the rest are counted."""

HEAD, EMBEDDING, RELATIVE_BIAS = "head.weight", "embed.tokens.weight", "attention.relative_bias"
PATCHES = "embed.patches.weight"
LABELS = ".labels"
"""A denoiser's table of classes, of which a picture reads one row."""
ENCODER, VISION = "encoder.", "vision."
"""What the names of an encoder-decoder's encoder and of a vision tower begin with."""
TABLES = tuple(name + ".weight" for name in (RELATIVE_BIAS, LABELS, "embed.places", "embed.registers"))
"""Ends of matrices that are looked up and computed with, never multiplied: they stay float32 arrays."""


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One needed tensor. shape: as the engine wants it, outputs first.

    sources: names in the checkpoint, the first one present wins.
    transform: "none"; "transpose", stored as [in, out]; "rotary_rows", stored with rotary pairs interleaved in each
        head: row i of the result is picked row row_order(rows, heads, rotary_dim)[i]; "pixels", the weights of a
        convolution, stored as [out, channels, kernel, kernel], whose columns become [kernel, kernel, channels].
    rows: a slice of the source's rows (after "transpose"), of `total` rows in all; None = the whole source.
    period: the slice is taken out of every `period` rows. Example: keys in a matrix of [heads, 3, head_dim] rows are
        rows=slice(head_dim, 2 * head_dim), period=3 * head_dim.
    kernel: pixels of a side of what "pixels" reorders.
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
    kernel: int = 0
    add: float = 0.0
    optional: bool = False

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        shape = (self.total, *self.shape[1:]) if self.rows else self.shape
        if self.stack:
            shape = (self.stack, shape[0] // self.stack, *shape[1:])
        if self.transform == "pixels":
            return (shape[0], shape[1] // self.kernel**2, self.kernel, self.kernel)
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


def targets(spec: ModelSpec, prefix: str = "", embedding: bool = True) -> dict[str, tuple[int, ...]]:
    """Every tensor the spec asks for with its shape, the head last (tied models do without it).

    An encoder's names begin with "encoder.", a vision tower's with "vision."; they follow the embedding.
    prefix: before all names;  embedding: False = the token table is another model's.
    """
    width, narrow = spec.hidden_size, spec.embed_size or spec.hidden_size
    first = narrow if spec.project_last else width
    out = Targets()
    if spec.patches:
        _patches(out, spec.patches, width)
    elif embedding:
        out.linear(EMBEDDING, (spec.vocab_size, narrow))
    if spec.token_types:
        out.linear("embed.types", (spec.token_types, first))
    if spec.learned_positions:
        out.linear("embed.positions", (spec.learned_positions, first))
    if spec.embed_size:
        out.linear("embed.project_in", (width, narrow), spec.project_bias)
    out.norm("embed.norm", first, spec.embed_norm)
    relative = next((one.attention.disentangled for one in spec.layers if one.attention.disentangled), None)
    if relative:
        out.linear("embed.relative", (2 * relative.span, width))
        out.norm("embed.relative_norm", width, relative.norm)
    if spec.encoder:
        out |= targets(spec.encoder, ENCODER, not spec.shared_embedding)
    if spec.vision:
        out |= targets(spec.vision, VISION)
        out.linear("pair.scale", (1,))
        if spec.contrast == "sigmoid":
            out.linear("pair.bias", (1,))
    biased = {layer.attention.relative.layer for layer in spec.layers if layer.attention.relative}
    for i, layer in enumerate(spec.layers):
        if weights_of(spec, i) == i:
            source = spec.encoder.hidden_size if spec.encoder else 0
            layer_targets(out, f"layers.{i}.", spec.hidden_size, layer, source, i in biased)
    out.norm("final_norm", width, spec.final_norm)
    _head(out, spec, width, narrow)
    return {prefix + name: shape for name, shape in out.items()}


class Targets(dict[str, tuple[int, ...]]):
    """Target -> shape, in the order of adding."""

    def linear(self, name: str, shape: tuple[int, ...], bias: bool = False) -> None:
        self[name.removesuffix(".weight") + ".weight"] = shape
        if bias:
            self[name + ".bias"] = shape[:1]

    def norm(self, name: str, size: int, norm: NormSpec | None) -> None:
        if norm and norm.weight:
            self.linear(name, (size,), norm.bias)


def _patches(out: Targets, p: PatchesSpec, width: int) -> None:
    out.linear("embed.patches", (width, p.size * p.size * p.channels), p.bias)
    for i in range(p.classes):
        out.linear(f"embed.class.{i}", (width,))
    if p.registers:
        out.linear("embed.registers", (p.registers, width))
    if p.positions == "learned":
        out.linear("embed.places", (p.rows(*p.image) - p.registers, width))


def layer_targets(out: Targets, at: str, width: int, layer: LayerSpec, source: int, biased: bool = False) -> None:
    """Those of a layer of this width, with `at` before their names. source: columns of what its cross-attention makes
    keys and values of;  biased: it has a table of relative biases of its own."""
    a, m = layer.attention, layer.mlp
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    out.norm(at + "attention_norm", width, layer.attention_norm)
    out.linear(at + "attention.q", (queries, width), a.qkv_bias)
    out.linear(at + "attention.k", (keys, width), a.qkv_bias)
    out.linear(at + "attention.v", (keys, width), a.qkv_bias)
    out.norm(at + "attention.q_norm", a.head_dim if a.qk_norm_shape == "head" else queries, a.qk_norm)
    out.norm(at + "attention.k_norm", a.head_dim if a.qk_norm_shape == "head" else keys, a.qk_norm)
    if biased:
        out.linear(at + RELATIVE_BIAS, (a.relative.buckets, a.num_heads))
    if a.disentangled and not a.disentangled.shared:  # queries meet the keys of positions, and keys their queries
        if a.disentangled.p2c:
            out.linear(at + "attention.position_q", (queries, width), a.qkv_bias)
        if a.disentangled.c2p:
            out.linear(at + "attention.position_k", (keys, width), a.qkv_bias)
    out.linear(at + "attention.out", (width, queries), a.out_bias)
    out.norm(at + "post_attention_norm", width, layer.post_attention_norm)
    if layer.cross:
        c = layer.cross
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        out.norm(at + "cross_norm", width, layer.cross_norm)
        out.linear(at + "cross.q", (queries, width), c.qkv_bias)
        out.linear(at + "cross.k", (keys, source), c.qkv_bias)
        out.linear(at + "cross.v", (keys, source), c.qkv_bias)
        out.linear(at + "cross.out", (width, queries), c.out_bias)
    out.norm(at + "mlp_norm", width, layer.mlp_norm)
    for name, size in mlp_widths(m).items():
        if m.kind == "gated":
            out.linear(f"{at}{name}.gate", (size, width), m.bias)
        out.linear(f"{at}{name}.up", (size, width), m.bias)
        out.linear(f"{at}{name}.down", (width, size), m.bias)
    if m.experts:
        out.linear(at + "mlp.router", (m.experts.count, width))
        if m.experts.shared_gate:
            out.linear(at + "mlp.shared_gate", (1, width))
    out.norm(at + "post_mlp_norm", width, layer.post_mlp_norm)
    if layer.modulation == "zero":
        out.linear(at + "modulation", (6 * width, width), bias=True)
    elif layer.modulation == "single":
        out[at + "modulation.table"] = (6 * width,)


def _head(out: Targets, spec: ModelSpec, width: int, narrow: int) -> None:
    head = spec.head
    if head.task == "none":
        return
    out.norm("head.norm", pooled_width(spec), head.norm)
    if head.attention:
        out.linear("head.pool.probe", (width,))
        for one in "qkv":
            out.linear(f"head.pool.{one}", (width, width), True)
        out.linear("head.pool.out", (width, width), True)
        out.norm("head.pool.norm", width, head.attention.norm)
        out.linear("head.pool.up", (head.attention.intermediate_size, width), True)
        out.linear("head.pool.down", (width, head.attention.intermediate_size), True)
    if head.task == "vector" and not head.outputs:
        return
    if head.dense:
        out.linear("head.dense", (head.dense, pooled_width(spec)), head.dense_bias)
        out.norm("head.dense_norm", head.dense, head.dense_norm)
    elif projects_out(spec):
        out.linear("embed.project_out", (narrow, width))
    wide = head.dense or (narrow if head.task == "lm" else pooled_width(spec))
    out.linear("head", (spec.vocab_size if head.task == "lm" else head.outputs, wide), spec.head_bias)
    if head.pool == "both":
        out.linear("head.teacher", (head.outputs, wide), spec.head_bias)


def pooled_width(spec: ModelSpec) -> int:
    """Columns of what a head reads of a text or an image."""
    return spec.hidden_size * (2 if spec.head.pool == "first+patches" else 1)


def is_matrix(target: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is packed for the kernels. Others stay float32 arrays."""
    return len(shape) == 2 and not target.endswith(TABLES)


def projects_out(spec: ModelSpec) -> bool:
    """Whether hidden states are brought to the token table's width before the head, by a matrix without bias."""
    return spec.head.task == "lm" and spec.embed_size > 0 and not spec.head.dense


def weights_of(spec: ModelSpec, layer: int) -> int:
    """The layer whose weights a layer uses."""
    return spec.layer_weights[layer] if spec.layer_weights else layer


def mlp_widths(m: MlpSpec) -> dict[str, int]:
    """Target -> inner width of every MLP of a layer: one, or the experts and what they share."""
    if not m.experts:
        return {"mlp": m.intermediate_size}
    shared = {"mlp.shared": m.experts.shared_size} if m.experts.shared_size else {}
    return {f"mlp.experts.{e}": m.intermediate_size for e in range(m.experts.count)} | shared


def named_rows(spec: ModelSpec, names: Mapping[str, tuple[str, ...]]) -> list[WeightRow]:
    """A row for every target. names: target without layer, expert number and suffix ("attention.q",
    "mlp.experts.up", "encoder.attention.q") -> source names without suffix, "{i}" for the layer and "{e}" for the
    expert ("blk.{i}.attn_q"); one that ends with "=" is a whole name ("cls_token="), and one with "_" has no dot before
    its suffix ("in_proj_"). An expert's name without "{e}" is one tensor that stacks all experts. A head that could
    be the token table is optional (see `resolve_head`)."""
    rows, wanted = [], targets(spec)
    for target, shape in wanted.items():
        stem, _, suffix = target.rpartition(".")
        layer = re.fullmatch(r"(encoder\.|vision\.|)layers\.(\d+)\.(.+)", stem)
        half, number, stem = (layer[1], layer[2], layer[3]) if layer else ("", "", stem)
        expert = re.fullmatch(r"(mlp\.experts\.)(\d+)\.(.+)", stem)
        e, stem = (expert[2], expert[1] + expert[3]) if expert else ("", stem)
        spelled = names[half + stem]
        sources = tuple(_stored_name(name.format(i=number, e=e), suffix) for name in spelled)
        row = WeightRow(target, sources, shape, optional=target == HEAD and shape == wanted.get(EMBEDDING))
        if stem.endswith("embed.patches") and suffix == "weight":
            row = replace(row, transform="pixels", kernel=spec.images.patches.size)
        if expert and not any("{e}" in name for name in spelled):
            owner = spec.encoder if half else spec
            count, at = owner.layers[int(number)].mlp.experts.count, int(e) * shape[0]
            row = replace(row, rows=slice(at, at + shape[0]), total=count * shape[0], stack=count)
        rows.append(row)
    return rows


def _stored_name(name: str, suffix: str) -> str:
    if name.endswith("="):
        return name[:-1]
    return name + suffix if name.endswith("_") else f"{name}.{suffix}"


def match(rows: Iterable[WeightRow], source: Source, ignored: Iterable[str] = ()) -> list[BoundRow]:
    """Find each row's tensor. ignored: regular expressions of stored names that carry no weights.

    Strict both ways: a missing tensor, a wrong shape and a stored tensor that no row uses are problems, and all of
    them are reported together in one ModelFileError.
    """
    tensors = source.tensors
    bound: list[BoundRow] = []
    used: set[str] = set()
    problems: list[str] = []
    starts = {name.partition(".")[0] for name in tensors}
    for row in rows:
        name = next((name for name in row.sources if name in tensors), None)
        if name is None:
            if not row.optional:
                likely = [name for name in row.sources if name.partition(".")[0] in starts] or row.sources
                problems.append(f"missing: expected {' or '.join(likely)} {list(row.source_shape)}")
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
    untied/absent -> tie, warn; untied/present -> use it. There is never a head without weights. Heads that are not the
    vocabulary's stay as they are.
    """
    rows = {one.target: one for one in bound}
    if spec.head.task != "lm":
        return spec, bound, []
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
