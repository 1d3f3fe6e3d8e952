"""Reading schedulers' configs, the walks of steps by hand, and single steps by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forwardpass.decoding.noise.betas import walked
from forwardpass.decoding.noise.schedule import METHODS, read_schedule
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError

SHORT = {"num_train_timesteps": 4, "trained_betas": [0.2, 0.25, 0.5, 0.5], "clip_sample": False}
# kept: 0.8, 0.6, 0.3, 0.15


def schedule(name, **config):
    return read_schedule({"_class_name": name, "skip_prk_steps": True, **config})


def no_noise(i):
    raise AssertionError("this step has no use for noise")


def one(value):
    return np.array([value], np.float32)


WALKS = [
    ("trailing", 7, 0, [999, 856, 713, 570, 428, 285, 142]),
    ("linspace", 7, 0, [999, 832, 666, 500, 333, 166, 0]),  # 832.5, 499.5 and 166.5 go to the even neighbour
    ("leading", 7, 1, [853, 711, 569, 427, 285, 143, 1]),
    ("trailing", 3, 0, [999, 666, 332]),
    ("leading", 3, 0, [666, 333, 0]),
    ("linspace", 1, 0, [0]),
]


@pytest.mark.parametrize(("spacing", "count", "offset", "expected"), WALKS)
def test_the_walk_of_1000_training_steps(spacing, count, offset, expected):
    ours = schedule("DDIMScheduler", timestep_spacing=spacing, steps_offset=offset).trajectory(count)
    assert ours.timesteps.dtype == np.float32 and ours.timesteps.tolist() == expected


@pytest.mark.parametrize("spacing", ["trailing", "linspace", "leading"])
def test_every_count_of_steps_is_met_exactly(spacing):
    """A float range from 1000 down by 1000 / n has n + 1 entries for 62 counts, of which 61 is the first."""
    for count in range(1, 1001):
        steps = np.round(walked(spacing, count, 1000, 0))
        assert len(steps) == count and steps[0] <= 999 and steps[-1] >= 0 and np.all(np.diff(steps) < 0)


@pytest.mark.parametrize("spacing", ["trailing", "linspace", "leading"])
@pytest.mark.parametrize("name", ["DDIMScheduler", "DDPMScheduler"])
def test_each_step_arrives_where_the_next_begins(name, spacing):
    """With a model that knows the picture and its noise, every step lands exactly on the level of the next one of the
    list, and the last on the picture. Counts that don't divide 1000 are where a formula with 1000 / n goes wrong."""
    ours = schedule(name, timestep_spacing=spacing, clip_sample=False, steps_offset=int(spacing == "leading"))
    clean, noise = one(0.5), one(-1.25)
    for count in (1, 2, 3, 7, 19, 46):
        walk = ours.trajectory(count)
        stepper, sample = walk.stepper(), walk.add_noise(clean, noise)
        for i, step in enumerate(walk.timesteps.astype(int)):
            kept = float(ours.kept[step])
            expected = math.sqrt(kept) * clean + math.sqrt(1 - kept) * noise
            if name == "DDPMScheduler":  # keeps less of the old noise: only the picture's share is checked
                share = noise_share(sample, clean, kept)
                assert share <= 1 + 1e-4
            else:
                np.testing.assert_allclose(sample, expected, atol=2e-5)
            output = (sample - math.sqrt(kept) * clean) / math.sqrt(1 - kept)
            sample = stepper.step(i, output.astype(np.float32), sample, lambda i: np.zeros(1, np.float32))
        np.testing.assert_allclose(sample, clean, atol=1e-4)


def noise_share(sample, clean, kept):
    return abs(float((sample - math.sqrt(kept) * clean)[0])) / (1.25 * math.sqrt(1 - kept))


def test_short_tables_by_hand():
    ours = schedule("DDIMScheduler", **SHORT)
    np.testing.assert_allclose(ours.kept, [0.8, 0.6, 0.3, 0.15], rtol=1e-6)
    walk = ours.trajectory(2)
    assert walk.timesteps.tolist() == [2, 0] and walk.init_noise_sigma == 1
    assert walk.begin == pytest.approx((math.sqrt(0.3), math.sqrt(0.7)))
    euler = schedule("EulerDiscreteScheduler", **SHORT).trajectory(2)  # linspace: 3, 0
    assert euler.timesteps.tolist() == [3, 0]
    assert euler.init_noise_sigma == pytest.approx(math.sqrt(0.85 / 0.15), rel=1e-6)
    half = schedule("EulerDiscreteScheduler", **SHORT).trajectory(3)  # 3, 1.5, 0: between two steps' sigmas
    assert half.timesteps.tolist() == [3, 1.5, 0]
    between = (math.sqrt(0.4 / 0.6) + math.sqrt(0.7 / 0.3)) / 2
    assert half.stepper().scale_input(1, one(1.0))[0] == pytest.approx(1 / math.sqrt(between**2 + 1), rel=1e-6)
    solver = schedule("DPMSolverMultistepScheduler", **SHORT).trajectory(2)  # 3 steps' places without the last
    assert solver.timesteps.tolist() == [3, 2] and solver.init_noise_sigma == 1


def test_scaled_and_cosine_betas_by_hand():
    betas = {"beta_start": 0.04, "beta_end": 0.16, "beta_schedule": "scaled_linear"}
    scaled = schedule("DDIMScheduler", num_train_timesteps=3, **betas)
    np.testing.assert_allclose(scaled.kept, np.cumprod([0.96, 0.91, 0.84]), rtol=1e-6)
    cosine = schedule("DDIMScheduler", num_train_timesteps=2, beta_schedule="squaredcos_cap_v2")
    left = [math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2 for t in (0, 0.5)]
    np.testing.assert_allclose(cosine.kept, [left[1] / left[0], left[1] / left[0] * 0.001], rtol=1e-4)


def test_pure_noise_at_the_end_by_hand():
    """sqrt(kept) 0.8944, 0.7746, 0.5477, 0.3873 become 0.8944 times (1, 0.764, 0.316, 0)."""
    ours = schedule("DDIMScheduler", **SHORT, rescale_betas_zero_snr=True, prediction_type="v_prediction")
    roots = np.sqrt([0.8, 0.6, 0.3, 0.15])
    expected = ((roots - roots[3]) * roots[0] / (roots[0] - roots[3])) ** 2
    np.testing.assert_allclose(ours.kept, expected, rtol=1e-5, atol=1e-7)
    assert ours.kept[-1] == 0
    for name in ("DDIMScheduler", "DDPMScheduler", "LCMScheduler", "PNDMScheduler", "EulerDiscreteScheduler"):
        with pytest.raises(UnsupportedModelError, match="rescale_betas_zero_snr"):
            schedule(name, rescale_betas_zero_snr=True, prediction_type="epsilon")


def test_one_step_of_each_method_by_hand():
    x, out = one(2.0), one(0.5)
    # DDIM from kept 0.3 to 0.8: picture (2 - sqrt(.7) .5) / sqrt(.3), then sqrt(.8) picture + sqrt(.2) .5
    picture = (2 - math.sqrt(0.7) * 0.5) / math.sqrt(0.3)
    got = schedule("DDIMScheduler", **SHORT).trajectory(2).stepper().step(0, out, x, no_noise)
    assert got[0] == pytest.approx(math.sqrt(0.8) * picture + math.sqrt(0.2) * 0.5, rel=1e-6)
    # with eta 1: variance (.2 / .7) (1 - .3 / .8)
    variance = 0.2 / 0.7 * (1 - 0.3 / 0.8)
    got = schedule("DDIMScheduler", **SHORT).trajectory(2, eta=1).stepper().step(0, out, x, lambda i: one(3.0))
    expected = math.sqrt(0.8) * picture + math.sqrt(0.2 - variance) * 0.5 + math.sqrt(variance) * 3
    assert got[0] == pytest.approx(expected, rel=1e-6)
    # Euler from sigma sqrt(.85/.15) to sqrt(.2/.8), in terms of sigma
    high, low = math.sqrt(0.85 / 0.15), math.sqrt(0.25)
    got = schedule("EulerDiscreteScheduler", **SHORT).trajectory(2).stepper().step(0, out, x, no_noise)
    assert got[0] == pytest.approx(2 + (low - high) * 0.5, rel=1e-6)
    # ancestral: up^2 = low^2 (high^2 - low^2) / high^2
    up = math.sqrt(low**2 * (high**2 - low**2) / high**2)
    walk = schedule("EulerAncestralDiscreteScheduler", **SHORT).trajectory(2)
    got = walk.stepper().step(0, out, x, lambda i: one(-1.0))
    assert got[0] == pytest.approx(2 + (math.sqrt(low**2 - up**2) - high) * 0.5 - up, rel=1e-6)
    # a model that predicts the picture: half the noise, half the way to the picture
    walk = schedule("EulerDiscreteScheduler", **SHORT, prediction_type="sample").trajectory(2)
    got = walk.stepper().step(0, out, x, no_noise)
    assert got[0] == pytest.approx(0.5 + low / high * 1.5, rel=1e-6)


def test_a_picture_that_is_always_the_same_is_reached_by_every_order():
    """The second order continues the line through the last two predictions: here it has nothing to add."""
    walks = [schedule("DPMSolverMultistepScheduler", solver_order=order, solver_type=kind).trajectory(20)
             for order, kind in ((1, "midpoint"), (2, "midpoint"), (2, "heun"))]
    ends = []
    for walk in walks:
        stepper, sample = walk.stepper(), one(1.0)
        for i in range(20):
            signal, share = stepper_levels(stepper, i)
            output = (sample - signal * np.float32(0.25)) / share  # the picture is 0.25, always
            sample = stepper.step(i, output.astype(np.float32), sample, no_noise)
        ends.append(float(sample[0]))
    assert ends == pytest.approx([0.25] * 3, abs=1e-4)


def stepper_levels(stepper, i):
    sigma = stepper.levels[i]
    return np.float32(1 / math.sqrt(sigma**2 + 1)), np.float32(sigma / math.sqrt(sigma**2 + 1))


def test_noise_is_asked_for_by_the_index_of_the_step():
    asked = []

    def noise_of(i):
        asked.append(i)
        return one(0.5)

    for name, expected in (("DDPMScheduler", [0, 1, 2]), ("LCMScheduler", [0, 1, 2]), ("DDIMScheduler", []),
                           ("EulerAncestralDiscreteScheduler", [0, 1, 2]), ("DPMSolverMultistepScheduler", [])):
        asked.clear()
        stepper, sample = schedule(name).trajectory(4).stepper(), one(1.0)
        for i in range(4):
            sample = stepper.step(i, one(0.1), sample, noise_of)
        assert asked == expected, name


def test_steppers_share_nothing():
    walk = schedule("PNDMScheduler").trajectory(5)
    alone, first, second = walk.stepper(), walk.stepper(), walk.stepper()
    a = b = c = one(1.0)
    for i in range(len(walk.timesteps)):
        a = alone.step(i, a * 0.5, a, no_noise)
        b, c = first.step(i, b * 0.5, b, no_noise), second.step(i, c * -2, c, no_noise)
    assert a == b != c


def test_pndm_image_to_image_takes_its_first_step_twice_as_always():
    walk = schedule("PNDMScheduler").trajectory(10, 0.3)
    assert walk.timesteps.tolist() == [200, 100, 100, 0]


@pytest.mark.parametrize("name", METHODS)
def test_one_step_works(name):
    walk = schedule(name).trajectory(1)
    stepper, sample = walk.stepper(), one(1.0) * np.float32(walk.init_noise_sigma)
    shown = stepper.scale_input(0, sample)
    got = stepper.step(0, shown * 0.5, sample, lambda i: one(0.0))
    assert len(walk.timesteps) == 1 and np.isfinite(got).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), r"num_inference_steps must be an integer in \[1, 1000\] \(the model's training steps\); got 0"),
        ((1001,), r"num_inference_steps must be .* got 1001"),
        ((-3,), "got -3"),
        ((2.0,), "got 2.0"),
        ((True,), "got True"),
        (("20",), "got '20'"),
        ((10, 0), r"strength must be a finite number in \(0, 1\]; got 0"),
        ((10, 1.01), "strength must be"),
        ((10, math.nan), "strength must be"),
        ((10, 0.09), r"strength = 0.09 of 10 steps leaves no step; take at least 0.1"),
    ],
)
def test_wrong_walks(arguments, message):
    with pytest.raises(ParameterError, match=message):
        schedule("DDIMScheduler").trajectory(*arguments)


def test_walks_that_do_not_fit():
    with pytest.raises(ParameterError, match=r"num_inference_steps = 1000 does not fit .* steps_offset 1"):
        schedule("DDIMScheduler", steps_offset=1).trajectory(1000)
    for spacing in ("linspace", "leading"):
        with pytest.raises(ParameterError, match="num_inference_steps = 1000 does not fit"):
            schedule("DPMSolverMultistepScheduler", timestep_spacing=spacing).trajectory(1000)
    with pytest.raises(ParameterError, match=r"was distilled for 50 steps, of which 25 are open"):
        schedule("LCMScheduler").trajectory(26, 0.5)
    with pytest.raises(ParameterError, match="only DDIMScheduler takes it"):
        schedule("EulerDiscreteScheduler").trajectory(10, eta=0.5)
    with pytest.raises(ParameterError, match=r"eta must be a finite number in \[0, 1\]"):
        schedule("DDIMScheduler").trajectory(10, eta=2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prediction_type": "flow_prediction"}, "prediction_type"),
        ({"beta_schedule": "sigmoid"}, "beta_schedule"),
        ({"thresholding": True}, "dynamic thresholding"),
        ({"algorithm_type": "sde-dpmsolver++"}, "algorithm_type"),
        ({"solver_order": 3}, "an order above 2"),
        ({"solver_type": "euler"}, "solver_type"),
        ({"use_lu_lambdas": True}, "use_lu_lambdas"),
        ({"use_flow_sigmas": True}, "flow matching"),
        ({"use_exponential_sigmas": True}, "use_exponential_sigmas"),
        ({"lambda_min_clipped": -4.0}, "leaving out the noisiest"),
        ({"_class_name": "DDPMScheduler", "variance_type": "learned_range"}, "variance_type"),
        ({"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"}, "timestep_type"),
        ({"_class_name": "PNDMScheduler"}, r'Runge-Kutta.*scheduler="DDIMScheduler"'),
        ({"_class_name": "PNDMScheduler", "skip_prk_steps": True, "prediction_type": "sample"}, "prediction_type"),
        ({"_class_name": "UniPCMultistepScheduler"}, r"UniPC.*supported are DDPMScheduler, .*scheduler="),
    ],
)
def test_what_is_not_implemented_is_named(config, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_schedule({"_class_name": "DPMSolverMultistepScheduler", **config})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_train_timesteps": 0}, "num_train_timesteps: expected a whole number from 1 to 100000, found 0"),
        ({"num_train_timesteps": 10**9}, "num_train_timesteps"),
        ({"beta_start": -0.1}, "beta_start"),
        ({"beta_end": "0.02"}, "beta_end"),
        ({"beta_end": math.nan}, "beta_end"),
        ({"beta_start": 0.0, "beta_end": 0.0}, "expected betas above 0 and below 1"),
        ({"beta_end": 1.0}, "expected betas above 0 and below 1"),
        ({"trained_betas": [0.1, 0.2]}, "trained_betas: expected 1000 numbers between 0 and 1"),
        ({"trained_betas": [1.5] * 1000}, "trained_betas"),
        ({"timestep_spacing": "even"}, "expected one of leading, linspace, trailing, found 'even'"),
        ({"steps_offset": -1}, "steps_offset"),
        ({"prediction_type": 7}, "prediction_type"),
        ({"rescale_betas_zero_snr": "yes"}, "rescale_betas_zero_snr: expected true or false"),
        ({"num_train_timesteps": 1, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}, "over 1 steps"),
        ({"solver_order": 0}, "solver_order"),
        ({"final_sigmas_type": "one"}, "final_sigmas_type"),
        ({"lambda_min_clipped": "low"}, "lambda_min_clipped"),
        ({"_class_name": "EulerDiscreteScheduler", "sigma_min": 5.0, "sigma_max": 2.0}, "sigma_min"),
        ({"_class_name": None}, "_class_name is missing"),
        ({"_class_name": 3}, "_class_name"),
    ],
)
def test_damaged_configs(config, message):
    with pytest.raises(ModelFileError, match=message):
        read_schedule({"_class_name": "DPMSolverMultistepScheduler", **config})
    with pytest.raises(ModelFileError, match="names with values"):
        read_schedule([config])


def test_another_method_by_name():
    config = {"_class_name": "UniPCMultistepScheduler", "solver_type": "bh2", "prediction_type": "v_prediction",
              "lambda_min_clipped": -math.inf, "thresholding": False}
    ours = read_schedule(config, "DPMSolverMultistepScheduler")
    assert ours.name == "DPMSolverMultistepScheduler" and ours.prediction == "v_prediction" and not ours.heun
    for wrong in ("UniPCMultistepScheduler", "", "ddim", 5):
        with pytest.raises(ParameterError, match="scheduler: expected one of DDPMScheduler, DDIMScheduler"):
            read_schedule(config, wrong)
