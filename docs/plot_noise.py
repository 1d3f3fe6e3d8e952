"""Draws the picture of diffusion.md from the engine's own schedules: `python docs/plot_noise.py`.

Needs matplotlib (the extra "docs"). The picture carries a hash of the numbers it shows, which a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from forwardpass.decoding.noise.schedule import NoiseSchedule, read_schedule

sys.path.insert(0, str(Path(__file__).parent))
import plot_positions

Data = dict[str, np.ndarray]
SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
BETAS = {
    "linear (DDPM, DiT)": {},
    "scaled_linear (Stable Diffusion)": SD,
    "the same, rescaled to zero": {**SD, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"},
    "squaredcos_cap_v2 (tiny-dit)": {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
}
STEPS = 10
WALKS = {
    "leading, offset 1": {"timestep_spacing": "leading", "steps_offset": 1},
    "linspace": {"timestep_spacing": "linspace"},
    "trailing": {"timestep_spacing": "trailing"},
    "Karras": {"use_karras_sigmas": True},
}


def schedule(config: dict) -> NoiseSchedule:
    return read_schedule({"_class_name": "EulerDiscreteScheduler", "num_train_timesteps": 1000, **config})


def numbers() -> Data:
    """Betas -> share of the picture at every tenth training step and the last; walk -> its training steps."""
    places = [*range(0, 1000, 10), 999]
    kept = {name: np.sqrt(read_schedule({"_class_name": "DDIMScheduler", **config}).kept[places])
            for name, config in BETAS.items()}
    return kept | {name: schedule({**SD, **config}).trajectory(STEPS).timesteps for name, config in WALKS.items()}


def draw(figure, data: Data) -> None:
    left, right = figure.subplots(1, 2)
    for name, style in zip(BETAS, ("-", "-", "--", "-."), strict=True):
        left.plot([*range(0, 1000, 10), 999], data[name], style, label=name)
    left.set(xlabel="training step", ylabel="factor of the picture, sqrt(kept)", title="How the picture goes under")
    left.legend(fontsize=8)
    for row, name in enumerate(WALKS):
        right.plot(data[name], np.full(STEPS, -row), "o", markersize=5)
    right.set(yticks=range(0, -len(WALKS), -1), yticklabels=WALKS, xlim=(1040, -40), ylim=(0.5 - len(WALKS), 0.5),
              xlabel="training step (time runs to the right)", title=f"Which of them {STEPS} steps visit")


PICTURES = {"noise-schedules.png": (numbers, draw, (10, 3.8))}


if __name__ == "__main__":
    plot_positions.save(PICTURES)
