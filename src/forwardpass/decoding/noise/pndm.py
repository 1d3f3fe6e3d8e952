"""PNDM without its Runge-Kutta start (PLMS): Liu et al., arXiv:2202.09778."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from forwardpass.decoding.noise.betas import level
from forwardpass.decoding.noise.method import NoiseSchedule, Stepper, Trajectory, first_of, noise_in
from forwardpass.models.fields import Fields

# Adams-Bashforth: the factors of the newest output and of those before it.
_FACTORS = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))


class PNDM(NoiseSchedule):
    """PNDMScheduler with skip_prk_steps. The first step is taken twice, the second time with the mean of both ends'
    outputs, so n steps ask the model n + 1 times."""

    name = "PNDMScheduler"
    zero_end = False

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        if self.prediction == "sample":
            fields.unsupported("prediction_type", "PNDMScheduler of a model that predicts the picture itself")
        if not fields.flag("skip_prk_steps", False):
            fields.unsupported("skip_prk_steps", "PNDMScheduler's start with Runge-Kutta steps (give "
                               'scheduler="DDIMScheduler" or another to draw without it)')
        self.last = 1.0 if fields.flag("set_alpha_to_one", False) else float(self.kept[0])

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        self._no_eta(eta)
        steps = self._steps(count)[first_of(count, strength):]
        levels = [*(float(kept) for kept in self.kept[steps.astype(np.int64)]), self.last]
        if len(steps) > 1:  # t0, t1, t1, t2, ...
            steps = np.concatenate([steps[:2], steps[1:]])
        return Trajectory(steps.astype(np.float32), 1.0, level(levels[0]), partial(_PLMS, self, levels))


class _PLMS(Stepper):
    def __init__(self, schedule: PNDM, levels: list[float]) -> None:
        self.schedule, self.levels = schedule, levels
        self.outputs: list[np.ndarray] = []  # the newest first
        self.begun: np.ndarray | None = None  # the sample before the step that is taken twice

    def step(self, i, model_output, sample, noise_of):
        if i == 1:
            output = (model_output + self.outputs[0]) / 2
            sample, place = self.begun, 0
        else:
            self.outputs = [model_output, *self.outputs[:3]]
            factors = _FACTORS[len(self.outputs) - 1]
            output = factors[0] * model_output
            for factor, older in zip(factors[1:], self.outputs[1:], strict=True):
                output = output + factor * older
            place = max(i - 1, 0)
        self.begun = sample if i == 0 else None
        now, after = self.levels[place], self.levels[place + 1]
        noise = noise_in(self.schedule.prediction, output, sample, *level(now))
        below = now * math.sqrt(1 - after) + math.sqrt(now * (1 - now) * after)
        return math.sqrt(after / now) * sample - ((after - now) / below) * noise
