"""A loaded diffusion transformer: a `Denoiser` (models/denoiser.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forwardpass.errors import ParameterError
from forwardpass.models import dit_blocks, dit_costs, sinusoids
from forwardpass.models.blocks import Recorded, Weights
from forwardpass.models.costs import Cost
from forwardpass.models.denoiser import Condition
from forwardpass.models.dit_spec import DitSpec

MAX_PATCHES = 2**16
"""Of one picture: with patches of two latents and eight pixels a latent, 4096 by 4096 pixels."""
KEPT_GRIDS = 16
"""Sizes of pictures whose positions are kept."""


class Dit:
    """Draws classes (DiT) or what texts say (PixArt). See Denoiser."""

    guided = False

    def __init__(self, spec: DitSpec, weights: Weights, backend, kv_dtype: str):
        self.spec, self.backend, self.kv_dtype = spec, backend, kv_dtype
        self.latent_channels, self.out_channels, self.patch = spec.latent_channels, spec.out_channels, spec.patch
        self.sample_size = (spec.sample_size // spec.patch * spec.patch,) * 2
        self.takes = "label" if spec.labels else "text"
        self.labels, self.context_width = spec.labels, spec.context_width
        self._pass = dit_blocks.record(backend, spec, weights, kv_dtype)
        self._labels = [weights.vectors[f"layers.{e}.labels.weight"] for e in spec.own_embedders] if spec.labels else []
        self._context = dit_blocks.record_context(backend, spec, weights) if spec.context_width else None
        self._micro = dit_blocks.record_micro(backend, spec, weights) if spec.micro else {}
        self._positions: dict[tuple[int, int], np.ndarray] = {}
        self._sizes: dict[tuple[int, int], np.ndarray] = {}

    def of_label(self, label: int | None) -> Condition:
        """See Denoiser. The vector holds the class's row of each embedding, side by side."""
        if not self.labels:
            raise ParameterError("this model draws what a text says and has no classes; give it a text")
        whole = isinstance(label, (int, np.integer)) and not isinstance(label, bool)
        if label is not None and not (whole and 0 <= label < self.labels):
            raise ParameterError(f"a label must be a number from 0 to {self.labels - 1}, or None for no class, not "
                                 f"{label!r}")
        row = self.labels if label is None else label
        return Condition(vector=np.concatenate([table[row] for table in self._labels]))

    def of_text(self, hidden: np.ndarray, guidance: float | None = None) -> Condition:
        """See Denoiser."""
        if self._context is None:
            raise ParameterError(f"this model draws one of {self.labels} classes and reads no text; give it a label")
        if guidance is not None:
            raise ParameterError("guidance: this model was not trained to follow a scale of guidance; leave it out")
        if not (isinstance(hidden, np.ndarray) and hidden.dtype == np.float32 and hidden.ndim == 2
                and hidden.shape[0] > 0 and hidden.shape[1] == self.context_width):
            raise ParameterError(f"a text's states must be float32 [tokens, {self.context_width}], not "
                                 f"{_described(hidden)}")
        return Condition(rows=_run(self._context, np.ascontiguousarray(hidden), self.spec.context_size))

    def check_size(self, height: int, width: int) -> None:
        """See Denoiser."""
        for name, value in (("height", height), ("width", width)):
            if value < 1 or value % self.patch:
                raise ParameterError(f"the {name} of latents must be a multiple of the patch {self.patch}, not {value}")
        patches = height * width // self.patch**2
        if patches > MAX_PATCHES:
            raise ParameterError(f"latents must have at most {MAX_PATCHES} patches; {height} x {width} have {patches}: "
                                 "draw smaller pictures")

    def predict(self, latents: Sequence[np.ndarray], timesteps: np.ndarray,
                conditions: Sequence[Condition]) -> list[np.ndarray]:
        """See Denoiser."""
        timesteps = np.asarray(timesteps, np.float32)
        self._check(latents, timesteps, conditions)
        if not latents:
            return []
        sizes = [one.shape[:2] for one in latents]
        grids = [(height // self.patch, width // self.patch) for height, width in sizes]
        starts = np.cumsum([0, *(height * width for height, width in grids)], dtype=np.int32)
        rows, parts = int(starts[-1]), self._pass
        out = np.empty((rows, self.out_channels * self.patch**2), np.float32)
        bound = [(parts.patches, np.concatenate([self._cut(one) for one in latents])),
                 (parts.hidden, np.concatenate([self._places(grid) for grid in grids])),
                 (parts.waves, self._waves(timesteps)), (parts.out, out)]
        bound += list(zip(parts.conditions.values(), self._vectors(conditions, sizes), strict=True))
        more = {}
        if parts.context is not None:
            tokens = [one.tokens for one in conditions]
            more["context_starts"] = np.cumsum([0, *tokens], dtype=np.int32)
            bound.append((parts.context, np.concatenate([one.rows for one in conditions])))
        parts.program.run(rows, starts=starts, bound=bound, **more)
        return [self._joined(out[first:last], size)
                for first, last, size in zip(starts[:-1], starts[1:], sizes, strict=True)]

    def _check(self, latents: Sequence[np.ndarray], timesteps: np.ndarray, conditions: Sequence[Condition]) -> None:
        if timesteps.shape != (len(latents),) or len(conditions) != len(latents):
            raise ParameterError(f"{len(latents)} latents need as many timesteps and conditions, not timesteps "
                                 f"{list(timesteps.shape)} and {len(conditions)} conditions")
        if not np.isfinite(timesteps).all() or (np.abs(timesteps) > 1e6).any():
            raise ParameterError("timesteps must be finite numbers up to 1e6")
        vector = len(self._labels) * self.spec.hidden_size
        for latent, condition in zip(latents, conditions, strict=True):
            if not (isinstance(latent, np.ndarray) and latent.dtype == np.float32 and latent.ndim == 3
                    and latent.shape[2] == self.latent_channels):
                raise ParameterError(f"latents must be float32 [height, width, {self.latent_channels}], not "
                                     f"{_described(latent)}")
            self.check_size(*latent.shape[:2])
            if self.labels and (condition.vector is None or condition.vector.shape != (vector,)):
                raise ParameterError("a condition of this model comes from of_label; found another")
            if not self.labels and (condition.rows is None or condition.rows.shape[1] != self.spec.context_size):
                raise ParameterError("a condition of this model comes from of_text; found another")

    def _cut(self, latent: np.ndarray) -> np.ndarray:
        """[height, width, channels] -> [patches, patch * patch * channels]."""
        height, width, channels = latent.shape
        p = self.patch
        return latent.reshape(height // p, p, width // p, p, channels).swapaxes(1, 2).reshape(-1, p * p * channels)

    def _joined(self, rows: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """The opposite of _cut, of what is predicted."""
        (height, width), p = size, self.patch
        picture = rows.reshape(height // p, width // p, p, p, self.out_channels).swapaxes(1, 2)
        return np.ascontiguousarray(picture).reshape(height, width, self.out_channels)

    def _places(self, grid: tuple[int, int]) -> np.ndarray:
        """The positions of a picture's patches."""
        return _kept(self._positions, grid, lambda: sinusoids.of_grid(
            *grid, self.spec.hidden_size, self.spec.base, self.spec.scale))

    def _waves(self, numbers: np.ndarray) -> np.ndarray:
        return sinusoids.of_timesteps(numbers, self.spec.waves, flip=True, shift=self.spec.shift)

    def _vectors(self, conditions: Sequence[Condition], sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """What is added to the embedding of the step: float32 [embeddings, pictures, hidden_size]."""
        if self.labels:
            rows = np.stack([one.vector.reshape(len(self._labels), -1) for one in conditions], axis=1)
        elif self.spec.micro:
            rows = np.stack([self._size_vector(size) for size in sizes])[None]
        else:
            rows = np.zeros((1, len(conditions), self.spec.hidden_size), np.float32)
        return np.ascontiguousarray(rows, np.float32)

    def _size_vector(self, size: tuple[int, int]) -> np.ndarray:
        """What a picture's height and width in pixels and its aspect ratio add."""
        def made() -> np.ndarray:
            height, width = (side * self.spec.factor for side in size)
            third = self.spec.hidden_size // 3
            numbers = {"resolution": [height, width], "aspect": [height / width]}
            waves = {name: self._waves(np.array(one, np.float32)) for name, one in numbers.items()}
            return np.concatenate([_run(self._micro[name], one, third).reshape(-1) for name, one in waves.items()])

        return _kept(self._sizes, size, made)

    def timings(self) -> Mapping[str, Mapping[str, float]]:
        """See Denoiser. "denoise" is a pass; "condition" what is computed once a prompt."""
        found = {"denoise": self._pass.program.timings()}
        return found | ({"condition": self._context.program.timings()} if self._context else {})

    def reset_timings(self) -> None:
        self._pass.program.reset_timings()
        if self._context:
            self._context.program.reset_timings()

    def operations(self, height: int, width: int, context: int = 0) -> dict[str, Cost]:
        """See Denoiser."""
        return dit_costs.operations(self.spec, height, width, context)

    def flops(self, height: int, width: int, context: int = 0) -> int:
        """See Denoiser."""
        return dit_costs.flops(self.spec, height, width, context)

    def activation_bytes(self, sizes: Sequence[tuple[int, int]], contexts: Sequence[int] = ()) -> int:
        """See Denoiser."""
        return dit_costs.activation_bytes(self.spec, sizes, contexts)


def _run(stage: Recorded, source: np.ndarray, columns: int) -> np.ndarray:
    out = np.empty((source.shape[0], columns), np.float32)
    stage.program.run(source.shape[0], bound=[(stage.source, source), (stage.out, out)])
    return out


def _kept(cache: dict, key: tuple[int, int], make) -> np.ndarray:
    """What was made for a key, made now if it was not; the newest KEPT_GRIDS stay."""
    if key not in cache:
        while len(cache) >= KEPT_GRIDS:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
