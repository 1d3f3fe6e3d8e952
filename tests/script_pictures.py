"""An engine over a denoiser in plain NumPy whose prediction for a picture depends on all of its latents, its step and
its condition, and on nothing else; an autoencoder and a schedule of noise in the same manner."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import word_tokenizer
from forwardpass.errors import ParameterError
from forwardpass.models.denoiser import Condition
from forwardpass.pictures import PictureEngine
from forwardpass.scheduler.pictures import Picture, Prompt
from forwardpass.tasks.pipeline import OpenedPipeline, TextEncoder
from forwardpass.weights.vocabulary import tokenizer_from_directory
from script_lm import ScriptEncoder

CHANNELS, PATCH = 2, 2


class ScriptDenoiser:
    """labels: 0 = it takes texts;  before: called in every pass;  passes: how many halves each pass had."""

    kv_dtype = "float32"
    latent_channels, patch = CHANNELS, PATCH
    sample_size = (8, 8)
    context_width = 3

    def __init__(self, labels=5, variances=False, guided=False):
        self.labels, self.guided = labels, guided
        self.takes = "label" if labels else "text"
        self.out_channels = CHANNELS * (1 + variances)
        self.spec = SimpleNamespace(hidden_size=6, layers=(None,) * 2, family="script")
        self.before, self.passes, self.told = (lambda: None), [], []

    def of_label(self, label):
        return Condition(vector=np.float32([self.labels if label is None else label]))

    def of_text(self, hidden, guidance=None):
        self.told.append(guidance)
        return Condition(vector=None if guidance is None else np.float32([guidance]), rows=hidden * np.float32(0.5))

    def check_size(self, height, width):
        if height % PATCH or width % PATCH or max(height, width) > 4096:
            raise ParameterError(f"latents of {height}x{width} do not go into patches of {PATCH}")

    def predict(self, latents, timesteps, conditions):
        self.before()
        self.passes.append(len(latents))
        out = []
        for values, t, condition in zip(latents, timesteps, conditions, strict=True):
            assert values.dtype == np.float32 and values.flags.c_contiguous
            x = sum(float(one.sum()) for one in (condition.vector, condition.rows) if one is not None)
            with np.errstate(invalid="ignore"):  # what is no number goes in and comes out, as from kernels
                shape = np.sin(values * (1 + x) + t * np.float32(0.01) + values.mean())
            more = [np.full_like(values, np.nan)] if self.out_channels > CHANNELS else []  # whoever looks notices
            out.append(np.concatenate([shape.astype(np.float32), *more], axis=2))
        return out

    def flops(self, height, width, context=0):
        return 1000 * height * width + context

    def activation_bytes(self, sizes, contexts=()):
        return sum(100 * height * width for height, width in sizes)

    def timings(self):
        return {"denoise": {"products": 0.0}}

    def reset_timings(self):
        pass


class ScriptAutoencoder:
    factor, latent_channels, image_channels, scaling_factor, shift_factor = 4, CHANNELS, 3, 0.5, 0.25

    def __init__(self):
        self.before = lambda: None

    def check_size(self, height, width):
        assert height * width <= 4096**2

    def encode(self, image):
        self.before()
        height, width, _ = image.shape
        blocks = image.reshape(height // 4, 4, width // 4, 4, 3).mean(axis=(1, 3))
        return blocks[..., :CHANNELS].copy(), blocks[..., 1:].copy() - 3

    def decode(self, latents):
        self.before()
        assert latents.dtype == np.float32
        whole = np.repeat(np.repeat(latents, 4, axis=0), 4, axis=1)
        return np.tanh(np.concatenate([whole, whole.sum(axis=2, keepdims=True)], axis=2))

    def activation_bytes(self, height, width):
        return 1000 * height * width

    def flops(self, height, width):
        return 5000 * height * width

    def timings(self):
        return {"decode": {"products": 0.0}}

    def reset_timings(self):
        pass


class ScriptTrajectory:
    """A step looks back at the one before and adds noise of its own, so that whatever pictures have in common shows."""

    init_noise_sigma = 1.5

    def __init__(self, steps):
        self.timesteps = np.linspace(900, 0, steps, dtype=np.float32)

    def add_noise(self, clean, noise):
        return clean * np.float32(0.6) + noise * np.float32(0.8)

    def stepper(self):
        return ScriptStepper()


class ScriptStepper:
    def __init__(self):
        self.before = None

    def scale_input(self, i, sample):
        return sample / np.float32(1 + i)

    def step(self, i, output, sample, noise_of):
        last, self.before = self.before, output
        trend = output if last is None else output * np.float32(1.5) - last * np.float32(0.5)
        return sample - np.float32(0.3) * trend + np.float32(0.05) * noise_of(i)


def make(text=False, pixels=False, budget=None, **kinds):
    """text: it takes texts;  pixels: it has no autoencoder;  kinds: of ScriptDenoiser."""
    denoiser = ScriptDenoiser(labels=0 if text else 5, **kinds)
    return PictureEngine(denoiser, None if pixels else ScriptAutoencoder(), ScriptEncoder() if text else None, budget)


def picture(shown=1, avoided=None, *, size=(4, 6), steps=5, seed=0, guidance=3.0, image=None, **given):
    """shown, avoided: labels, tokens or Prompts, None = no guidance."""
    prompts = tuple(one if isinstance(one, Prompt) else
                    Prompt(condition=ScriptDenoiser().of_label(one)) if isinstance(one, int) else
                    Prompt(np.array(one, np.int32))
                    for one in (shown, avoided) if one is not None)
    rows = size[0] * size[1] // PATCH**2 * len(prompts)
    return Picture(size, rows, prompts, guidance, ScriptTrajectory(steps), seed, CHANNELS, image=image, **given)


def drawn(engine, *pictures, **given):
    """Their pixels."""
    drawing = engine.add(pictures, **given)
    engine.run([drawing])
    return [one.pixels for one in drawing.pictures]


def idle(engine):
    """Nothing is left behind."""
    assert not engine._jobs and not engine.scheduler.pictures
    return True


def opened(path, text=False, pixels=False, schedule=None, labels=None, how="clip", **kinds):
    """An OpenedPipeline as tasks/drawing.py takes it. labels: name -> number;  schedule: of its config."""
    denoiser = ScriptDenoiser(labels=0 if text else 5, **kinds)
    encoder = None
    if text:
        encoder = TextEncoder(ScriptEncoder(), tokenizer_from_directory(word_tokenizer.write(path)), 8, how, 0)
    config = {"_class_name": "DDIMScheduler", "num_train_timesteps": 100, "clip_sample": False, **(schedule or {})}
    names = LABELS if labels is None else labels
    return OpenedPipeline(path, "StableDiffusionPipeline" if text else "DiTPipeline", "float32", denoiser,
                          None if pixels else ScriptAutoencoder(), encoder, config, {} if text else names, (),
                          {}, "float32", 1000)


LABELS = {"cat": 0, "grey fox": 1, "Fox": 2, "owl": 3}
