"""A loaded UNet: a `Denoiser` (models/denoiser.py) that draws what texts say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forwardpass.errors import ParameterError
from forwardpass.models import sinusoids, unet_blocks, unet_costs
from forwardpass.models.blocks import Weights
from forwardpass.models.costs import Cost
from forwardpass.models.denoiser import Condition
from forwardpass.models.unet_spec import UNetSpec

MAX_LATENTS = 2**18
"""Pixels of one picture's latents: 4096 by 4096 of the picture, with eight for each."""


class UNet:
    """See Denoiser."""

    takes, labels = "text", 0

    def __init__(self, spec: UNetSpec, weights: Weights, backend, kv_dtype: str):
        self.spec, self.backend, self.kv_dtype = spec, backend, kv_dtype
        self.latent_channels, self.out_channels, self.sample_size = (spec.latent_channels, spec.out_channels,
                                                                     spec.sample_size)
        self.context_width, self.guided = spec.context_width, spec.time.guidance > 0
        self._pass = unet_blocks.record_unet(backend, spec, weights, kv_dtype)
        self._context = unet_blocks.record_context(backend, spec, weights)
        # Only images whose lower edges get no zeros below them must be halved without a rest.
        cut = any(stage.resample == "halve_end" for stage in spec.down)
        self.patch = 2 ** (self._pass.levels - 1) if cut else 1

    def of_label(self, label: int | None) -> Condition:
        """See Denoiser."""
        raise ParameterError("this model draws what a text says and has no classes; give it a text")

    def of_text(self, hidden: np.ndarray, guidance: float | None = None) -> Condition:
        """See Denoiser. The vector holds the waves of the scale of guidance, as the network was trained with them."""
        if not _is_rows(hidden, 2, self.context_width) or not hidden.shape[0]:
            raise ParameterError(f"a text's states must be float32 [tokens, {self.context_width}], not "
                                 f"{described(hidden)}")
        vector = None
        if self.guided:
            scale = 1.0 if guidance is None else float(guidance)
            if not 0 <= scale <= 1000:
                raise ParameterError(f"guidance must be a number from 0 to 1000, not {guidance!r}")
            steps = np.array([(scale - 1) * 1000], np.float32)
            vector = sinusoids.of_timesteps(steps, self.spec.time.guidance, flip=False, shift=1.0)[0]
        elif guidance is not None:
            raise ParameterError("guidance: this model was not trained to follow a scale of guidance; leave it out")
        _, width = unet_blocks.context_columns(self.spec)
        rows = np.empty((hidden.shape[0], width), np.float32)
        stage = self._context
        stage.program.run(hidden.shape[0], bound=[(stage.source, np.ascontiguousarray(hidden)), (stage.out, rows)])
        return Condition(vector=vector, rows=rows)

    def check_size(self, height: int, width: int) -> None:
        """See Denoiser."""
        for name, value in (("height", height), ("width", width)):
            if value < 1 or value % self.patch:
                raise ParameterError(f"the {name} of latents must be a multiple of {self.patch}, not {value}")
        if height * width > MAX_LATENTS:
            raise ParameterError(f"latents must have at most {MAX_LATENTS} pixels; {height} x {width} are "
                                 f"{height * width}: draw smaller pictures")

    def predict(self, latents: Sequence[np.ndarray], timesteps: np.ndarray,
                conditions: Sequence[Condition]) -> list[np.ndarray]:
        """See Denoiser."""
        timesteps = np.asarray(timesteps, np.float32)
        self._check(latents, timesteps, conditions)
        if not latents:
            return []
        parts, time = self._pass, self.spec.time
        sizes = np.array([one.shape[:2] for one in latents], np.int32)
        rows = np.concatenate([one.reshape(-1, self.latent_channels) for one in latents])
        if self.spec.centred:
            rows = 2 * rows - np.float32(1)
        out = np.empty((len(rows), self.out_channels), np.float32)
        bound = {parts.source: rows, parts.out: out,
                 parts.waves: sinusoids.of_timesteps(timesteps, time.width, time.flip, time.shift)}
        if parts.guidance is not None:
            bound[parts.guidance] = np.stack([one.vector for one in conditions])
        facts = {}
        if parts.context is not None:
            facts["context_starts"] = np.cumsum([0, *(one.tokens for one in conditions)], dtype=np.int32)
            bound[parts.context] = np.concatenate([one.rows for one in conditions])
        parts.planner.run(sizes, parts.levels, bound, **facts)
        ends = np.cumsum(sizes.prod(axis=1))
        return [one.reshape(*size, -1) for one, size in zip(np.split(out, ends[:-1]), sizes, strict=True)]

    def _check(self, latents: Sequence[np.ndarray], timesteps: np.ndarray, conditions: Sequence[Condition]) -> None:
        if timesteps.shape != (len(latents),) or len(conditions) != len(latents):
            raise ParameterError(f"{len(latents)} latents need as many timesteps and conditions, not timesteps "
                                 f"{list(timesteps.shape)} and {len(conditions)} conditions")
        if not (np.abs(timesteps) <= 1e6).all():
            raise ParameterError("timesteps must be finite numbers up to 1e6")
        _, width = unet_blocks.context_columns(self.spec)
        told = (self.spec.time.guidance,) if self.guided else None
        for latent, condition in zip(latents, conditions, strict=True):
            if not _is_rows(latent, 3, self.latent_channels):
                raise ParameterError(f"latents must be float32 [height, width, {self.latent_channels}], not "
                                     f"{described(latent)}")
            self.check_size(*latent.shape[:2])
            vector = None if condition.vector is None else condition.vector.shape
            if not _is_rows(condition.rows, 2, width) or vector != told:
                raise ParameterError("a condition of this model comes from its own of_text; found another")

    def timings(self) -> Mapping[str, Mapping[str, float]]:
        """See Denoiser. "denoise" is a pass; "condition" what is computed once a prompt."""
        return {"condition": self._context.program.timings(), "denoise": self._pass.program.timings()}

    def reset_timings(self) -> None:
        self._context.program.reset_timings()
        self._pass.program.reset_timings()

    def operations(self, height: int, width: int, context: int = 0) -> dict[str, Cost]:
        """See Denoiser."""
        return unet_costs.unet_operations(self.spec, height, width, context)

    def flops(self, height: int, width: int, context: int = 0) -> int:
        """See Denoiser."""
        return sum(unet_costs.unet_flops(self.spec, height, width, context).values())

    def activation_bytes(self, sizes: Sequence[tuple[int, int]], contexts: Sequence[int] = ()) -> int:
        """See Denoiser."""
        _, width = unet_blocks.context_columns(self.spec)
        ends = sum(a * b for a, b in sizes) * (self.latent_channels + self.out_channels) + sum(contexts) * width
        return unet_costs.unet_activations(self.spec, sizes) + 4 * ends


def _is_rows(value: object, axes: int, columns: int) -> bool:
    return (isinstance(value, np.ndarray) and value.dtype == np.float32 and value.ndim == axes
            and value.shape[-1] == columns)


def described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
