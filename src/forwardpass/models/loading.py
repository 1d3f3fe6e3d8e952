"""From an open checkpoint to a network: choose a kernel layout for every matrix, pack them into one arena.

Nothing large is allocated before the spec and every tensor's shape have been checked against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forwardpass import config
from forwardpass.backends import native
from forwardpass.errors import CapacityError, ModelFileError
from forwardpass.models.blocks import Weights
from forwardpass.models.registry import Checkpoint
from forwardpass.models.weight_rows import EMBEDDING, ENCODER, HEAD, PATCHES, VISION, BoundRow, is_matrix
from forwardpass.quant.formats import kernel_format
from forwardpass.weights import packed
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.source import Source

_SHARED_BY_LAYERS = ((".modulation.weight",), (".cross.k.weight", ".cross.v.weight"))
"""What one product reads for all layers of a diffusion transformer, which has a final.out."""
_SHARED_INPUT = ((".attention.q", ".attention.k", ".attention.v"), (".cross.k", ".cross.v"), (".gate", ".up"),
                 (".pool.k", ".pool.v"))
_KEPT = ("embed.positions.weight", "embed.types.weight", "embed.relative.weight", "mlp.router.weight",
         "mlp.shared_gate.weight", "patches.weight", "final.modulation.weight", "final.out.weight",
         "conv_in.weight", "conv_out.weight", "time.guidance.weight", "quant.weight",
         *(f"{name}.{part}.weight" for name in ("time", "resolution", "aspect") for part in ("first", "second")))
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a packed matrix lies in the arena."""

    bound: BoundRow
    format: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Every weight in memory: matrices packed side by side at their places, and vectors (norms, biases, and the tables
    of relative biases) by target."""

    places: list[Place]
    data: np.ndarray
    region: native.Region
    vectors: dict[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + sum(one.nbytes for one in self.vectors.values())

    def weights(self) -> Weights:
        matrices = {}
        for place in self.places:
            memory = self.region.view(place.offset, place.nbytes)
            matrices[place.bound.target] = native.matrix(place.format, *place.bound.row.shape, memory)
        return Weights(matrices, self.vectors)


def load_weights(checkpoint: Checkpoint, source: Source, dtype: str, backend: native.NativeBackend,
                 cache: Path | None = None, key: str = "",
                 progress: Callable[[int, int], None] | None = None) -> Arena:
    """Pack (or read back, with `cache` and `key`) every weight; progress(done bytes, all bytes) is called meanwhile.

    Raises ModelFileError if a weight is NaN or infinite, CapacityError if they don't fit into memory.
    """
    vectors = _vectors(checkpoint, source)
    places, total = plan(checkpoint, dtype)
    region = region_for(source.path, total)
    arena = region.view(0, total)
    keep = cache is not None and total >= packed.MIN_BYTES
    if not (keep and packed.read(cache, key, arena, backend.threads)):
        for place in places:
            _pack(place, source, backend, arena[place.offset : place.offset + place.nbytes])
            if progress:
                progress(place.offset + place.nbytes, total)
        if keep:
            packed.write(cache, key, arena)
    return Arena(places, arena, region, vectors)


def region_for(path: Path, nbytes: int) -> native.Region:
    """Memory for a model's weights. Raises CapacityError where there is too little: it would be filled all the same,
    until the system ends some process."""
    free = config.available_memory()
    if nbytes > free:
        raise CapacityError(f"{path} needs {config.memory_text(nbytes)} for its weights; {config.memory_text(free)} of "
                            "memory are free: free some, try a smaller dtype such as 'int4', or a smaller model")
    return native.Region(max(nbytes, ALIGNMENT))


def plan(checkpoint: Checkpoint, dtype: str) -> tuple[list[Place], int]:
    """A place for every matrix, in the order a forward pass reads them, and the bytes of the whole arena."""
    causal = checkpoint.spec.causal
    formats = {one.target: _format(one, dtype, causal) for one in checkpoint.weights
               if is_matrix(one.target, one.row.shape)}
    agree(formats)
    return lay_out((one, formats[one.target]) for one in checkpoint.weights if one.target in formats)


def lay_out(matrices: Iterable[tuple[BoundRow, str]]) -> tuple[list[Place], int]:
    """Matrices with their formats one after the other: (their places, the bytes of the whole arena)."""
    places, offset = [], 0
    for one, format in matrices:
        nbytes = native.matrix_bytes(format, *one.row.shape)
        places.append(Place(one, format, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places, offset


def _format(one: BoundRow, dtype: str, causal: bool) -> str:
    # Tables of positions and token types are looked up and added, never multiplied with: quantising them would save
    # nothing. Nor would a router's few rows, whose errors choose other experts.
    name = one.target.removeprefix(ENCODER).removeprefix(VISION)
    if one.target.endswith(_KEPT) and dtype in ("int8", "w8a16", "w8a8", "int4"):
        # Pixels have eight bits to begin with, and squares of them many columns.
        dtype = "bfloat16" if name == PATCHES else "auto"
    # Embedding and head are felt in every token: four bits there cost a small model 4% of perplexity, eight bits none.
    if name in (EMBEDDING, HEAD) and dtype == "int4":
        dtype = "w8a16"
    return kernel_format(one.info.type, dtype, causal)


def agree(formats: dict[str, str]) -> None:
    """Matrices that read the same activations must want the same kind of them: where a file mixes kinds, float32."""
    groups = []
    for stems in _SHARED_INPUT:
        for target in [name for name in formats if name.endswith(stems[0] + ".weight")]:
            layer = target.removesuffix(stems[0] + ".weight")
            groups.append([f"{layer}{stem}.weight" for stem in stems])
    if "final.out.weight" in formats:
        layers = [name for name in formats if name.startswith("layers.")]
        groups += [[name for name in layers if name.endswith(ends)] for ends in _SHARED_BY_LAYERS]
    for group in groups:
        if len({native.READS[formats[name]] for name in group}) > 1:
            formats.update(dict.fromkeys(group, "F32"))


def _vectors(checkpoint: Checkpoint, source: Source) -> dict[str, np.ndarray]:
    """Target -> norm weights, a bias or a small table, put together where a checkpoint keeps it in parts."""
    parts: dict[str, list[np.ndarray]] = {}
    for one in checkpoint.weights:
        if not is_matrix(one.target, one.row.shape):
            parts.setdefault(one.target, []).append(_vector(one, source))
    return {target: values[0] if len(values) == 1 else np.concatenate(values) for target, values in parts.items()}


def _vector(one: BoundRow, source: Source) -> np.ndarray:
    """A norm's weight, a bias or a table of relative biases, as float32."""
    row = one.row
    values = dequantize(one.info.type, source.data(one.info.name), one.info.shape)
    if row.transform == "transpose":
        values = values.reshape(row.source_shape).T
    values = row.pick(values.reshape(-1, *row.shape[1:]))
    if row.order is not None:
        values = values[row.order]
    values = np.ascontiguousarray(values + np.float32(row.add), dtype=np.float32)
    if not np.isfinite(values).all():
        raise _not_finite(one, source)
    return values


def _pack(place: Place, source: Source, backend: native.NativeBackend, out: np.ndarray) -> None:
    one, row = place.bound, place.bound.row
    raw = source.data(one.info.name)
    n, k = row.shape
    if row.transform in ("transpose", "pixels"):
        element = {4: np.uint32, 2: np.uint16}[one.info.nbytes // math.prod(one.info.shape)]
        stored = np.frombuffer(raw, element).reshape(row.source_shape)
        stored = stored.T if row.transform == "transpose" else stored.transpose(0, 2, 3, 1)
        raw = np.ascontiguousarray(row.pick(stored)).reshape(-1).view(np.uint8)
    elif row.rows:
        raw = row.pick(raw.reshape(row.total, -1)).reshape(-1)
    finite = backend.pack(place.format, (n, k), one.info.type, raw, row.order, out)
    source.release(one.info.name)
    if not finite:
        raise _not_finite(one, source)


def _not_finite(one: BoundRow, source: Source) -> ModelFileError:
    return ModelFileError(f"{source.path}: tensor {one.info.name} holds NaN or infinite values; every weight must be a "
                          "finite number; fetch or convert the model again")
