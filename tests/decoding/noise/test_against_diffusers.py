"""Every method, step by step, against diffusers' scheduler of the same name: same outputs of the model, same noise."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from forwardpass.decoding.noise.schedule import METHODS, read_schedule

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers with NumPy 2

MODULES = {
    "DDPMScheduler": "ddpm",
    "DDIMScheduler": "ddim",
    "EulerDiscreteScheduler": "euler_discrete",
    "EulerAncestralDiscreteScheduler": "euler_ancestral_discrete",
    "DPMSolverMultistepScheduler": "dpmsolver_multistep",
    "LCMScheduler": "lcm",
    "PNDMScheduler": "pndm",
}
SHAPE = (3, 4, 2)
STABLE_DIFFUSION = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
DRAWN = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction", "timestep_spacing": "trailing"}
ZERO_END = {**STABLE_DIFFUSION, "steps_offset": 0, "prediction_type": "v_prediction", "rescale_betas_zero_snr": True,
            "timestep_spacing": "trailing"}


def theirs_of(name, config):
    return getattr(importlib.import_module(f"diffusers.schedulers.scheduling_{MODULES[name]}"), name)(**config)


def noise_of(i):
    return np.random.default_rng((9, i)).standard_normal(SHAPE).astype(np.float32)


def outputs(count):
    return np.random.default_rng(count).standard_normal((count, *SHAPE)).astype(np.float32)


def walk(monkeypatch, name, config, count, *, strength=1.0, eta=0.0, begin=0, joined=False):
    """Both chains from one noise; `begin`: theirs starts at this index of its list of timesteps; `joined`: each of
    its steps begins where ours does, because what it lost to cancellation in one step shows in the next."""
    theirs = theirs_of(name, config)
    ours = read_schedule({"_class_name": name, **config}).trajectory(count, strength, eta=eta)
    theirs.set_timesteps(count, **({"strength": strength} if name == "LCMScheduler" else {}))
    timesteps = theirs.timesteps[begin:]
    np.testing.assert_allclose(ours.timesteps, timesteps.numpy(), rtol=2e-6, atol=1e-3)
    first = noise_of(999)
    if hasattr(theirs, "set_begin_index"):  # else it searches the first timestep, which Karras sigmas repeat
        theirs.set_begin_index(begin)
    if begin:
        clean = noise_of(998)
        mine = ours.add_noise(clean, first)
        other = theirs.add_noise(torch.tensor(clean)[None], torch.tensor(first)[None], timesteps[:1])[0]
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-5, atol=1e-5)
    else:
        assert ours.init_noise_sigma == pytest.approx(float(theirs.init_noise_sigma), rel=1e-6)
        mine = first * np.float32(ours.init_noise_sigma)
        other = torch.tensor(mine)
    module = importlib.import_module(type(theirs).__module__)
    now = [0]
    if hasattr(module, "randn_tensor"):
        monkeypatch.setattr(module, "randn_tensor", lambda *_, **__: torch.tensor(noise_of(now[0]))[None])
    stepper = ours.stepper()
    other = other[None]
    for i, (timestep, output) in enumerate(zip(timesteps, outputs(len(timesteps)), strict=True)):
        now[0] = i
        shown = stepper.scale_input(i, mine)
        scaled = theirs.scale_model_input(other, timestep)
        np.testing.assert_allclose(shown, scaled[0].numpy(), rtol=1e-5, atol=1e-5 * max(1, np.abs(shown).max()))
        extra = {"eta": eta} if name == "DDIMScheduler" else {}
        other = theirs.step(torch.tensor(output)[None], timestep, other, **extra).prev_sample
        before = mine.copy()
        after = stepper.step(i, output, mine, noise_of)
        assert after.dtype == np.float32 and np.array_equal(mine, before)
        mine = after
        largest = max(1, np.abs(before).max())  # Euler's samples begin at the largest sigma, up to 4096
        np.testing.assert_allclose(mine, other[0].numpy(), rtol=1e-5, atol=1e-5 * largest,
                                   err_msg=f"step {i} of {count}")
        if joined:
            other = torch.tensor(mine)[None]
    return ours


CASES = [
    ("DDPMScheduler", {}, 10, {}),
    ("DDPMScheduler", {"timestep_spacing": "trailing", "clip_sample": False}, 7, {}),
    ("DDPMScheduler", {"timestep_spacing": "linspace", "variance_type": "fixed_large"}, 7, {}),
    ("DDPMScheduler", {**DRAWN, "variance_type": "fixed_small_log"}, 13, {}),
    ("DDPMScheduler", {**ZERO_END, "clip_sample_range": 1.5}, 8, {}),
    ("DDPMScheduler", {"prediction_type": "sample", "num_train_timesteps": 50}, 50, {}),
    ("DDIMScheduler", {}, 7, {}),
    ("DDIMScheduler", {**STABLE_DIFFUSION, "clip_sample": False, "set_alpha_to_one": False}, 30, {}),
    ("DDIMScheduler", {**STABLE_DIFFUSION, "clip_sample": False}, 4, {"eta": 1.0}),
    ("DDIMScheduler", {**DRAWN, "clip_sample": False}, 20, {"eta": 0.4}),
    ("DDIMScheduler", {**ZERO_END, "clip_sample": False}, 10, {}),
    ("DDIMScheduler", {"prediction_type": "sample", "timestep_spacing": "trailing"}, 5, {}),
    ("EulerDiscreteScheduler", STABLE_DIFFUSION, 7, {}),
    ("EulerDiscreteScheduler", {**STABLE_DIFFUSION, "timestep_spacing": "leading"}, 30, {}),
    ("EulerDiscreteScheduler", {"use_karras_sigmas": True, "final_sigmas_type": "sigma_min"}, 9, {}),
    ("EulerDiscreteScheduler", {**DRAWN, "use_karras_sigmas": True, "sigma_min": 0.02, "sigma_max": 80.0}, 9, {}),
    ("EulerDiscreteScheduler", ZERO_END, 5, {"joined": True}),
    ("EulerDiscreteScheduler", {"prediction_type": "sample", "timestep_spacing": "trailing"}, 1, {}),
    ("EulerAncestralDiscreteScheduler", STABLE_DIFFUSION, 7, {}),
    ("EulerAncestralDiscreteScheduler", {**STABLE_DIFFUSION, "timestep_spacing": "leading"}, 20, {}),
    ("EulerAncestralDiscreteScheduler", ZERO_END, 6, {"joined": True}),
    ("DPMSolverMultistepScheduler", {}, 20, {}),
    ("DPMSolverMultistepScheduler", {**STABLE_DIFFUSION, "timestep_spacing": "leading"}, 7, {}),
    ("DPMSolverMultistepScheduler", DRAWN, 20, {}),
    ("DPMSolverMultistepScheduler", {**DRAWN, "solver_type": "heun"}, 5, {}),
    ("DPMSolverMultistepScheduler", {**STABLE_DIFFUSION, "use_karras_sigmas": True}, 12, {}),
    ("DPMSolverMultistepScheduler", {**DRAWN, "use_karras_sigmas": True}, 20, {}),
    ("DPMSolverMultistepScheduler", {"solver_order": 1, "prediction_type": "sample"}, 4, {}),
    ("DPMSolverMultistepScheduler", {"final_sigmas_type": "sigma_min", "euler_at_final": True}, 16, {}),
    ("DPMSolverMultistepScheduler", {"final_sigmas_type": "sigma_min", "lower_order_final": False}, 6, {}),
    ("DPMSolverMultistepScheduler", ZERO_END, 1, {}),
    ("LCMScheduler", {}, 4, {}),
    ("LCMScheduler", {"prediction_type": "v_prediction", "clip_sample": True}, 7, {}),
    ("LCMScheduler", {"original_inference_steps": 20}, 3, {"strength": 0.5}),
    ("PNDMScheduler", {**STABLE_DIFFUSION, "skip_prk_steps": True}, 20, {}),
    ("PNDMScheduler", {"skip_prk_steps": True, "prediction_type": "v_prediction", "set_alpha_to_one": True}, 3, {}),
    ("PNDMScheduler", {**STABLE_DIFFUSION, "skip_prk_steps": True}, 1, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "count", "extra"), CASES)
def test_equal_step_by_step(monkeypatch, name, config, count, extra):
    walk(monkeypatch, name, config, count, **extra)


def test_every_method_is_compared():
    assert {case[0] for case in CASES} == set(METHODS) == set(MODULES)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("LCMScheduler", "PNDMScheduler")])
@pytest.mark.parametrize(("count", "strength", "begin"), [(10, 0.35, 7), (20, 0.8, 4)])
def test_image_to_image_begins_inside_the_walk(monkeypatch, name, count, strength, begin):
    config = {**STABLE_DIFFUSION, "timestep_spacing": "leading"}
    ours = walk(monkeypatch, name, config, count, strength=strength, begin=begin)
    assert len(ours.timesteps) == count - begin


@pytest.mark.parametrize("name", METHODS)
def test_another_method_takes_the_betas_and_the_prediction(name):
    """As from_config does: values that the other method doesn't know are passed over, its own defaults stay."""
    config = {**STABLE_DIFFUSION, "prediction_type": "v_prediction", "skip_prk_steps": True}
    ours = read_schedule({"_class_name": "PNDMScheduler", **config}, name)
    theirs = theirs_of("PNDMScheduler", config)
    theirs = getattr(importlib.import_module(f"diffusers.schedulers.scheduling_{MODULES[name]}"),
                     name).from_config(theirs.config)
    theirs.set_timesteps(6)
    walked = ours.trajectory(6)
    np.testing.assert_allclose(walked.timesteps, theirs.timesteps.numpy(), atol=1e-3)
    np.testing.assert_allclose(ours.kept, theirs.alphas_cumprod.numpy(), rtol=1e-6)
