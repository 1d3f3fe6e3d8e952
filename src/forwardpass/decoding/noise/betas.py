"""How much of the picture and how much noise there is at each training step, and which of these steps are walked.

A noisy picture of training step t is sqrt(kept[t]) * picture + sqrt(1 - kept[t]) * noise, with kept[t] the product of
1 - beta up to t ("alphas_cumprod" in diffusers, alpha-bar in Ho et al., arXiv:2006.11239).
"""

from __future__ import annotations

import math

import numpy as np

from forwardpass.errors import ModelFileError, ParameterError
from forwardpass.models.fields import Fields, show

MAX_TRAINING_STEPS = 100_000
SPACINGS = ("leading", "linspace", "trailing")


def read_kept(fields: Fields, start: float, end: float, curve: str) -> np.ndarray:
    """kept float32 [training steps], falling, from the names that diffusers' configs have; defaults as given."""
    count = fields.integer("num_train_timesteps", default=1000, high=MAX_TRAINING_STEPS)
    betas = _listed(fields, count)
    start = fields.number("beta_start", default=start, low=0, high=1)
    end = fields.number("beta_end", default=end, low=0, high=1)
    curve = fields.text("beta_schedule", curve)
    if betas is not None:
        pass
    elif curve == "linear":
        betas = np.linspace(start, end, count)
    elif curve == "scaled_linear":
        betas = np.linspace(math.sqrt(start), math.sqrt(end), count).astype(np.float32) ** 2
    elif curve == "squaredcos_cap_v2":
        places = (np.arange(count + 1) / count + 0.008) / 1.008
        left = np.cos(places * (np.pi / 2)) ** 2
        betas = np.minimum(1 - left[1:] / left[:-1], 0.999)
    else:
        fields.unsupported("beta_schedule", "a schedule other than linear, scaled_linear and squaredcos_cap_v2")
    alphas = np.float32(1) - betas.astype(np.float32)
    zero_end = fields.flag("rescale_betas_zero_snr", False)
    kept = np.cumprod(alphas, dtype=np.float64).astype(np.float32)
    if zero_end:
        kept = _to_zero(kept) if count > 1 else np.zeros_like(kept)  # which is refused below
    # The solvers divide by differences of neighbouring steps, by what is kept and by what is not.
    falling = kept[0] < 1 and bool(np.all(kept[1:] < kept[:-1])) and (kept[-1] > 0 or (zero_end and count > 1))
    if not falling:
        raise ModelFileError(f"{fields.where}: expected betas above 0 and below 1, so that each training step keeps "
                             f"less of the picture than the one before; found {curve} from {start} to {end} over "
                             f"{count} steps; fix the file or fetch the model again")
    return kept


def _listed(fields: Fields, count: int) -> np.ndarray | None:
    values = fields.get("trained_betas")
    if values is None:
        return None
    good = isinstance(values, list | tuple) and len(values) == count
    if not good or not all(type(value) in (int, float) and 0 < value < 1 for value in values):
        fields.wrong("trained_betas", f"{count} numbers between 0 and 1", values)
    return np.array(values, np.float32)


def _to_zero(kept: np.ndarray) -> np.ndarray:
    """Nothing of the picture is left at the last step, the first keeps its value (Lin et al., arXiv:2305.08891)."""
    root = np.sqrt(kept)
    shifted = root - root[-1]
    shifted *= root[0] / (root[0] - root[-1])
    again = shifted**2
    alphas = np.concatenate([again[:1], again[1:] / again[:-1]])
    alphas = np.float32(1) - (np.float32(1) - alphas)  # diffusers goes by way of betas
    return np.cumprod(alphas, dtype=np.float64).astype(np.float32)


def walked(spacing: str, count: int, total: int, offset: int) -> np.ndarray:
    """The training steps that `count` inference steps visit, falling: float64 [count], of 0 .. total - 1.

    Table 2 of arXiv:2305.08891. Of 1000, in 7 steps: trailing 999, 856, 713, 570, 428, 285, 142; linspace 999, 832.5,
    666, 499.5, 333, 166.5, 0 (whoever needs whole steps rounds them); leading, with an offset of 1, 853, 711, 569,
    427, 285, 143, 1. The step before one of them, in time, is the next of the list: no formula with total / count
    gives it for every spacing.
    """
    if spacing == "linspace":
        steps = np.linspace(0, total - 1, count)[::-1]
    elif spacing == "leading":
        steps = np.arange(count)[::-1] * float(total // count) + offset
    else:  # counted by index: a float range that falls by total / count has one entry too many for some counts
        steps = np.round(total - np.arange(count) * (total / count)) - 1
    return np.ascontiguousarray(steps)


def check_walk(steps: np.ndarray, count: int, total: int, offset: int) -> np.ndarray:
    """`steps` if the model knows all of them, and each is visited once."""
    if steps[0] > total - 1 or (len(steps) > 1 and np.any(steps[1:] >= steps[:-1])):
        raise ParameterError(f"num_inference_steps = {count} does not fit this schedule of {total} training steps with "
                             f"steps_offset {offset}: some would be visited twice or lie beyond the last; take fewer")
    return steps


def level(kept: float) -> tuple[float, float]:
    """The factors of picture and noise, as Python floats (which leave arrays float32)."""
    return math.sqrt(kept), math.sqrt(1 - kept)


def read_spacing(fields: Fields, default: str) -> tuple[str, int]:
    """timestep_spacing and steps_offset."""
    spacing = fields.text("timestep_spacing", default)
    if spacing not in SPACINGS:
        raise ModelFileError(f"{fields.where}: timestep_spacing: expected one of {', '.join(SPACINGS)}, found "
                             f"{show(spacing)}; fix the file or fetch the model again")
    return spacing, fields.integer("steps_offset", default=0, low=0, high=MAX_TRAINING_STEPS)
