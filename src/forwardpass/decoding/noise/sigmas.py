"""Euler, Euler ancestral and DPM-Solver++: differential equations in sigma, the noise per unit of picture."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from forwardpass.decoding.noise.betas import check_walk, walked
from forwardpass.decoding.noise.method import (
    THRESHOLDING,
    NoiseSchedule,
    Stepper,
    Trajectory,
    clean_of,
    first_of,
)
from forwardpass.errors import ParameterError
from forwardpass.models.fields import Fields

_RHO = 7.0
_OTHER_SIGMAS = {
    "use_exponential_sigmas": ((False,), "exponentially spaced sigmas"),
    "use_beta_sigmas": ((False,), "sigmas spaced by a beta distribution"),
}


def _factors(sigma: float) -> tuple[float, float]:
    """Factors of picture and noise whose squares sum up to 1."""
    signal = 1 / math.sqrt(sigma**2 + 1)
    return signal, sigma * signal


def _karras(low: float, high: float, count: int) -> np.ndarray:
    """Karras et al., arXiv:2206.00364, equation 5: falling from high to low, float64 [count]."""
    top, bottom = high ** (1 / _RHO), low ** (1 / _RHO)
    return (top + np.linspace(0, 1, count) * (bottom - top)) ** _RHO


class _Sigmas(NoiseSchedule):
    """A method that knows its steps by their sigmas."""

    spacing = "linspace"

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        if self.kept[-1] == 0:  # pure noise has no finite sigma: 2 ** 12 stands for it
            self.kept = np.concatenate([self.kept[:-1], np.float32([2.0**-24])])
        self.table = np.sqrt((1 - self.kept) / self.kept)  # float32, rising
        self.karras = fields.flag("use_karras_sigmas", False)
        last = fields.text("final_sigmas_type", "zero")
        if last not in ("zero", "sigma_min"):
            fields.wrong("final_sigmas_type", "zero or sigma_min", last)
        self.last = 0.0 if last == "zero" else float(self.table[0])

    def _between(self, steps: np.ndarray) -> np.ndarray:
        return np.interp(steps, np.arange(self.total), self.table)

    def _steps_of(self, sigmas: np.ndarray) -> np.ndarray:
        """Training steps of sigmas, between two of them by the logarithm."""
        return np.interp(np.log(np.maximum(sigmas, 1e-10)), np.log(self.table), np.arange(self.total))

    def _with_last(self, sigmas: np.ndarray, count: int) -> list[float]:
        found = [float(sigma) for sigma in np.append(sigmas, self.last).astype(np.float32)]
        if any(b >= a for a, b in pairwise(found[:-1])):
            raise ParameterError(f"num_inference_steps = {count} is too many for this schedule: two steps would have "
                                 "the same noise; take fewer")
        return found


class Euler(_Sigmas):
    """EulerDiscreteScheduler: algorithm 2 of arXiv:2206.00364 without churn and without the second order."""

    name = "EulerDiscreteScheduler"
    refused: ClassVar = {
        **_OTHER_SIGMAS,
        "interpolation_type": (("linear",), "another interpolation of sigmas"),
        "timestep_type": (("discrete",), "telling the model sigmas instead of timesteps"),
    }

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.low = fields.number("sigma_min", default=None, low=1e-6, high=1e6)
        self.high = fields.number("sigma_max", default=None, low=1e-6, high=1e6)
        low = float(self.table[0]) if self.low is None else self.low
        if not low < (float(self.table[-1]) if self.high is None else self.high):
            fields.wrong("sigma_min", "a number below sigma_max and below the schedule's last sigma", low)

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        self._no_eta(eta)
        steps = self._steps(count, whole=False)
        sigmas = self._between(steps)
        if self.karras:
            low = float(sigmas[-1]) if self.low is None else self.low
            sigmas = _karras(low, float(sigmas[0]) if self.high is None else self.high, count)
            steps = self._steps_of(sigmas)
        levels = self._with_last(sigmas, count)
        top = levels[0] if self.spacing != "leading" else math.sqrt(levels[0] ** 2 + 1)
        levels = levels[first_of(count, strength):]
        steps = steps[1 - len(levels):].astype(np.float32)
        return Trajectory(steps, top, (1.0, levels[0]), partial(self._stepper, levels))

    def _stepper(self, levels: list[float]) -> Stepper:
        return _EulerSteps(self, levels)


class EulerAncestral(Euler):
    """EulerAncestralDiscreteScheduler: goes below the next sigma and comes back with new noise."""

    name = "EulerAncestralDiscreteScheduler"
    refused: ClassVar = {}

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.karras, self.last = False, 0.0  # diffusers' class has neither

    def _stepper(self, levels: list[float]) -> Stepper:
        return _AncestralSteps(self, levels)


class _EulerSteps(Stepper):
    """Samples here are picture + sigma * noise, of a variance that the model never saw: it is shown scaled ones."""

    def __init__(self, schedule: Euler, levels: list[float]) -> None:
        self.schedule, self.levels = schedule, levels

    def scale_input(self, i, sample):
        return sample * _factors(self.levels[i])[0]

    def step(self, i, model_output, sample, noise_of):
        return self._towards(i, model_output, sample, self.levels[i + 1])

    def _towards(self, i: int, output: np.ndarray, sample: np.ndarray, target: float) -> np.ndarray:
        sigma, prediction = self.levels[i], self.schedule.prediction
        if prediction == "epsilon":
            return sample + (target - sigma) * output
        clean = output
        if prediction == "v_prediction":
            signal, share = _factors(sigma)
            clean = (signal**2) * sample - share * output
        rest = target / sigma  # not sample + (target - sigma) * slope: the large terms would cancel each other
        return (1 - rest) * clean + rest * sample


class _AncestralSteps(_EulerSteps):
    def step(self, i, model_output, sample, noise_of):
        now, after = self.levels[i], self.levels[i + 1]
        up = math.sqrt(after**2 * (now**2 - after**2) / now**2)
        result = self._towards(i, model_output, sample, math.sqrt(after**2 - up**2))
        return result + up * noise_of(i) if up else result


class DPMSolver(_Sigmas):
    """DPMSolverMultistepScheduler with algorithm_type dpmsolver++: Lu et al., arXiv:2211.01095, of order 1 or 2."""

    name = "DPMSolverMultistepScheduler"
    refused: ClassVar = {
        **THRESHOLDING,
        **_OTHER_SIGMAS,
        "use_lu_lambdas": ((False,), "uniformly spaced logarithms of the signal-to-noise ratio"),
        "use_flow_sigmas": ((False,), "flow matching"),
        "use_dynamic_shifting": ((False,), "shifted timesteps"),
    }

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.order = fields.integer("solver_order", default=2, high=3)
        if self.order > 2:
            fields.unsupported("solver_order", "DPM-Solver++ of an order above 2")
        if fields.text("algorithm_type", "dpmsolver++") not in ("dpmsolver++", "deis"):
            fields.unsupported("algorithm_type", "a variant of DPM-Solver other than dpmsolver++")
        # Configs of DEIS and UniPC name their own solvers; diffusers takes the midpoint where they stand here.
        self.heun = fields.text("solver_type", "midpoint") == "heun"
        if not self.heun and fields.text("solver_type", "midpoint") not in ("midpoint", "logrho", "bh1", "bh2"):
            fields.unsupported("solver_type", "a solver other than midpoint and heun")
        self.lower_order_final = fields.flag("lower_order_final", True)
        self.euler_at_final = fields.flag("euler_at_final", False)
        self.rounded = fields.text("beta_schedule", "linear") != "squaredcos_cap_v2"
        lowest = fields.get("lambda_min_clipped")
        if lowest is not None and lowest != -math.inf:
            lowest = fields.number("lambda_min_clipped", low=-1e3, high=1e3)
            if -math.log(float(self.table[-1])) < lowest:
                fields.unsupported("lambda_min_clipped", "leaving out the noisiest training steps")

    def _walk(self, count: int, strength: float, eta: float) -> Trajectory:
        self._no_eta(eta)
        if self.karras:
            sigmas = _karras(float(self.table[0]), float(self.table[-1]), count)
            steps = self._steps_of(sigmas)
            steps = np.trunc(np.round(steps) if self.rounded else steps)
        else:
            steps = self._whole_steps(count)
            sigmas = self._between(steps)
        levels, begin = self._with_last(sigmas, count), first_of(count, strength)
        orders = [self._order_of(i, begin, count) for i in range(begin, count)]
        levels, steps = levels[begin:], steps[begin:].astype(np.float32)
        return Trajectory(steps, 1.0, _factors(levels[0]), partial(_DPMSteps, self, levels, orders))

    def _whole_steps(self, count: int) -> np.ndarray:
        """As of one step more, without the last: t = 0 is where the final step arrives. Not so when trailing."""
        if self.spacing == "trailing":
            return self._steps(count)
        steps = np.round(walked(self.spacing, count + 1, self.total, self.offset)[:-1])
        return check_walk(steps, count, self.total, self.offset)

    def _order_of(self, i: int, begin: int, count: int) -> int:
        if self.order == 1 or i == begin:
            return 1
        final = self.euler_at_final or (self.lower_order_final and count < 15) or self.last == 0
        return 1 if i == count - 1 and final else 2


class _DPMSteps(Stepper):
    """Works on the predicted pictures; the second order continues the line through the last two of them."""

    def __init__(self, schedule: DPMSolver, levels: list[float], orders: list[int]) -> None:
        self.schedule, self.levels, self.orders = schedule, levels, orders
        self.older: np.ndarray | None = None

    def step(self, i, model_output, sample, noise_of):
        now, after = self.levels[i], self.levels[i + 1]
        picture = clean_of(self.schedule.prediction, model_output, sample, *_factors(now))
        older, self.older = self.older, picture
        signal, share = _factors(after)
        # With lambda = -log sigma and h = its growth, exp(-h) is after / now.
        shrink = after / now - 1
        result = (share / _factors(now)[1]) * sample - (signal * shrink) * picture
        if self.orders[i] == 1 or after == now:
            return result
        h, before = math.log(now / after), math.log(self.levels[i - 1] / now)
        turn = (h / before) * (picture - older)
        if self.schedule.heun:
            return result + (signal * (shrink / h + 1)) * turn
        return result - (0.5 * signal * shrink) * turn
