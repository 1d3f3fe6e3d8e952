"""What all methods of taking noise away share: a schedule makes trajectories, a trajectory makes steppers.

A schedule is read once from a scheduler's config. A trajectory is the walk of a number of steps, the same for all
pictures that take it; a stepper takes one picture along it. All arithmetic is float32, element by element, so a
picture's bits depend on nothing but its own model outputs and noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from forwardpass.decoding import _checks
from forwardpass.decoding.noise.betas import check_walk, read_kept, read_spacing, walked
from forwardpass.errors import ParameterError
from forwardpass.models.fields import Fields

PREDICTIONS = ("epsilon", "sample", "v_prediction")
_STRENGTH = _checks.number(0, 1, open_low=True)
_ETA = _checks.number(0, 1)


class Stepper(ABC):
    """Takes one picture through its trajectory, step 0, 1, 2, ...; `i` counts the steps of the trajectory.

    Arrays are float32 of one shape (any, for instance [height, width, channels]) and are never changed in place.
    """

    def scale_input(self, i: int, sample: np.ndarray) -> np.ndarray:
        """What the model is shown in step i."""
        return sample

    @abstractmethod
    def step(
        self, i: int, model_output: np.ndarray, sample: np.ndarray, noise_of: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        """The sample after step i. noise_of(i): normal numbers of the sample's shape, asked for only if needed."""


@dataclass(frozen=True)
class Trajectory:
    """timesteps: float32 [steps], what the model is told in each;  init_noise_sigma: standard deviation of the noise
    that a picture begins with;  begin: factors of picture and noise where an image-to-image run begins;  stepper():
    a new Stepper, for one picture."""

    timesteps: np.ndarray
    init_noise_sigma: float
    begin: tuple[float, float]
    stepper: Callable[[], Stepper]

    def add_noise(self, clean: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """A clean picture as it looks before the first of these steps."""
        return self.begin[0] * clean + self.begin[1] * noise


class NoiseSchedule(ABC):
    """One method with its values. name: the diffusers class that it equals;  kept: float32 [training steps]."""

    name: str
    spacing = "leading"  # where the config names none
    betas = (0.0001, 0.02, "linear")
    refused: ClassVar[dict[str, tuple[tuple, str]]] = {}
    zero_end = True  # copes with rescale_betas_zero_snr

    def __init__(self, fields: Fields) -> None:
        self.kept = read_kept(fields, *self.betas)
        self.total = len(self.kept)
        self.spacing, self.offset = read_spacing(fields, self.spacing)
        self.prediction = fields.text("prediction_type", "epsilon")
        if self.prediction not in PREDICTIONS:
            fields.unsupported("prediction_type", f"a prediction other than {', '.join(PREDICTIONS)}")
        if self.kept[-1] == 0 and (not self.zero_end or self.prediction == "epsilon"):
            # The model's first step sees pure noise: nothing about the picture follows from it.
            fields.unsupported("rescale_betas_zero_snr", f"{self.name} of a model with prediction_type "
                               f"{self.prediction} whose last training step is pure noise")
        fields.refuse_unread(self.refused)

    def trajectory(self, num_inference_steps: int, strength: float = 1.0, *, eta: float = 0.0) -> Trajectory:
        """The walk of this many steps: 1 .. number of training steps.

        strength: of image-to-image, in (0, 1]; of the steps the last int(steps * strength) are taken.  eta: DDIM's
        share of new noise, 0 .. 1. ParameterError for values outside, and where no step would be left.
        """
        count = _checks.integer(1, self.total, note="the model's training steps")(
            "num_inference_steps", num_inference_steps)
        share, eta = _STRENGTH("strength", strength), _ETA("eta", eta)
        return self._walk(count, share, eta)

    @abstractmethod
    def _walk(self, count: int, strength: float, eta: float) -> Trajectory: ...

    def _steps(self, count: int, *, whole: bool = True) -> np.ndarray:
        steps = walked(self.spacing, count, self.total, self.offset)
        return check_walk(np.round(steps) if whole else steps, count, self.total, self.offset)

    def _no_eta(self, eta: float) -> None:
        if eta:
            raise ParameterError(f"eta = {eta} has no meaning for {self.name}; only DDIMScheduler takes it")


def first_of(count: int, strength: float) -> int:
    """Index of the first step that an image-to-image run of this strength takes."""
    taken = min(int(count * strength), count)
    if not taken:
        raise ParameterError(f"strength = {strength} of {count} steps leaves no step; take at least {1 / count:.3g}")
    return count - taken


def clean_of(prediction: str, output: np.ndarray, sample: np.ndarray, signal: float, share: float) -> np.ndarray:
    """The picture that a model's output speaks of, with sample = signal * picture + share * noise."""
    if prediction == "epsilon":
        return (sample - share * output) / signal
    if prediction == "v_prediction":  # v = signal * noise - share * picture (arXiv:2202.00512)
        return signal * sample - share * output
    return output


def noise_in(prediction: str, output: np.ndarray, sample: np.ndarray, signal: float, share: float) -> np.ndarray:
    """The noise that a model's output speaks of."""
    if prediction == "epsilon":
        return output
    if prediction == "v_prediction":
        return signal * output + share * sample
    return (sample - signal * output) / share


def read_clip(fields: Fields, default: bool) -> float | None:
    """The limit of a predicted picture's values, or None."""
    limit: Any = fields.number("clip_sample_range", default=1.0, low=0, high=1e6)
    return limit if fields.flag("clip_sample", default) else None


def clipped(picture: np.ndarray, limit: float | None) -> np.ndarray:
    return picture if limit is None else np.clip(picture, -limit, limit)


THRESHOLDING = {"thresholding": ((False,), "dynamic thresholding")}
