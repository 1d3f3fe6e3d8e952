"""DDPM, DDIM and LCM: from the predicted picture and its noise straight to the next of the steps."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import numpy as np

from forwardpass.decoding.noise.betas import level
from forwardpass.decoding.noise.method import (
    THRESHOLDING,
    NoiseSchedule,
    Stepper,
    Trajectory,
    clean_of,
    clipped,
    first_of,
    noise_in,
    read_clip,
)
from forwardpass.errors import ParameterError
from forwardpass.models.fields import Fields

_VARIANCES = ("fixed_small", "fixed_small_log", "fixed_large")


class _Kept(NoiseSchedule):
    """A method that needs what is kept at each step of the walk, and after the last."""

    refused: ClassVar = THRESHOLDING
    clip = True
    last = 1.0

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.limit = read_clip(fields, self.clip)

    def _levels(self, steps: np.ndarray) -> list[float]:
        return [*(float(kept) for kept in self.kept[steps.astype(np.int64)]), self.last]


class DDPM(_Kept):
    """DDPMScheduler: Ho et al., arXiv:2006.11239, equations 7 and 15."""

    name = "DDPMScheduler"

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.variance = fields.text("variance_type", "fixed_small")
        if self.variance not in _VARIANCES:
            fields.unsupported("variance_type", f"a variance other than {', '.join(_VARIANCES)}")

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        self._no_eta(eta)
        steps = self._steps(count)[first_of(count, strength):]
        levels = self._levels(steps)
        return Trajectory(steps.astype(np.float32), 1.0, level(levels[0]), partial(_DDPMSteps, self, steps, levels))


class _DDPMSteps(Stepper):
    def __init__(self, schedule: DDPM, steps: np.ndarray, levels: list[float]) -> None:
        self.schedule, self.steps, self.levels = schedule, steps, levels

    def step(self, i, model_output, sample, noise_of):
        now, after = self.levels[i], self.levels[i + 1]
        clean = clean_of(self.schedule.prediction, model_output, sample, *level(now))
        clean = clipped(clean, self.schedule.limit)
        alpha = now / after
        mean = (math.sqrt(after) * (1 - alpha) / (1 - now)) * clean
        mean = mean + (math.sqrt(alpha) * (1 - after) / (1 - now)) * sample
        if self.steps[i] == 0:
            return mean
        large = self.schedule.variance == "fixed_large"
        variance = 1 - alpha if large else max((1 - after) / (1 - now) * (1 - alpha), 1e-20)
        return mean + math.sqrt(variance) * noise_of(i)


class DDIM(_Kept):
    """DDIMScheduler: Song et al., arXiv:2010.02502, equation 12; eta = 0 is free of new noise.

    The noise that is added back is the model's own, also where the picture was clipped.
    """

    name = "DDIMScheduler"

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.last = 1.0 if fields.flag("set_alpha_to_one", True) else float(self.kept[0])

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        steps = self._steps(count)[first_of(count, strength):]
        levels = self._levels(steps)
        return Trajectory(steps.astype(np.float32), 1.0, level(levels[0]), partial(_DDIMSteps, self, levels, eta))


class _DDIMSteps(Stepper):
    def __init__(self, schedule: DDIM, levels: list[float], eta: float) -> None:
        self.schedule, self.levels, self.eta = schedule, levels, eta

    def step(self, i, model_output, sample, noise_of):
        now, after = self.levels[i], self.levels[i + 1]
        at = level(now)
        clean = clipped(clean_of(self.schedule.prediction, model_output, sample, *at), self.schedule.limit)
        noise = noise_in(self.schedule.prediction, model_output, sample, *at)
        fresh = self.eta * math.sqrt(max((1 - after) / (1 - now) * (1 - now / after), 0.0))
        result = math.sqrt(after) * clean + math.sqrt(max(1 - after - fresh**2, 0.0)) * noise
        return result + fresh * noise_of(i) if self.eta else result


class LCM(_Kept):
    """LCMScheduler: Luo et al., arXiv:2310.04378: each step predicts the picture and adds new noise, but the last.

    With a strength below 1 all steps are taken, from the last int(original_inference_steps * strength) of the steps
    that the model was distilled with.
    """

    name = "LCMScheduler"
    betas = (0.00085, 0.012, "scaled_linear")
    clip = False

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.original = fields.integer("original_inference_steps", default=50, high=self.total)
        self.scaling = fields.number("timestep_scaling", default=10.0, low=1e-6, high=1e6)

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        self._no_eta(eta)
        known = np.arange(1, int(self.original * strength) + 1) * (self.total // self.original) - 1
        if count > len(known):
            raise ParameterError(f"num_inference_steps = {count} with strength {strength:g}: this model was distilled "
                                 f"for {self.original} steps, of which {len(known)} are open; take at most that many")
        steps = known[::-1][np.floor(np.linspace(0, len(known), count, endpoint=False)).astype(np.int64)]
        levels = self._levels(steps)
        return Trajectory(steps.astype(np.float32), 1.0, level(levels[0]), partial(_LCMSteps, self, steps, levels))


class _LCMSteps(Stepper):
    def __init__(self, schedule: LCM, steps: np.ndarray, levels: list[float]) -> None:
        self.schedule, self.steps, self.levels = schedule, steps, levels

    def step(self, i, model_output, sample, noise_of):
        clean = clean_of(self.schedule.prediction, model_output, sample, *level(self.levels[i]))
        clean = clipped(clean, self.schedule.limit)
        scaled, spread = float(self.steps[i]) * self.schedule.scaling, 0.5  # spread: the data's standard deviation
        whole = scaled**2 + spread**2
        result = (scaled / math.sqrt(whole)) * clean + (spread**2 / whole) * sample
        if i == len(self.steps) - 1:
            return result
        signal, share = level(self.levels[i + 1])
        return signal * result + share * noise_of(i)
