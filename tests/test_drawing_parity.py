"""Whole pipelines, step by step equal to diffusers' from the same noise, and to themselves in any company."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from functools import lru_cache

import numpy as np
import pytest
import torch
from PIL import Image

import forwardpass
import tiny_pipelines
import tiny_unets
from driver_tools import driven
from forwardpass.decoding.noise.normal import normals
from forwardpass.scheduler.pictures import NOISE, SAMPLE, STEPS

CAT = {"seed": 3, "num_inference_steps": 5}


def write(name, path):
    """A pipeline's directory."""
    if name == "dit":
        # The reference takes class 1000 for no class, however many there are.
        tiny_unets.autoencoder(1).save_pretrained(path / "vae")
        model, names = tiny_pipelines.dit(num_embeds_ada_norm=1000, shared=True), {i: f"kind {i}" for i in range(1000)}
        tiny_pipelines.write_dit(path, model, vae=("diffusers", "AutoencoderKL"), id2label=names)
    elif name == "pixart":
        tiny_pipelines.write_pixart(path)
    elif name == "sd":
        tiny_pipelines.write_stable_diffusion(path)
        tiny_pipelines.write_scheduler(path, skip_prk_steps=True)
    else:
        tiny_pipelines.write_stable_diffusion(path, kind="LatentConsistencyModelPipeline", unet={
            "time_cond_proj_dim": 32}, scheduler=("diffusers", "LCMScheduler"))
        tiny_pipelines.write_scheduler(path, _class_name="LCMScheduler", beta_schedule="scaled_linear",
                                       original_inference_steps=50)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """folders(name) -> a pipeline's directory."""
    return lru_cache(lambda name: write(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def models(folders):
    """models(name) -> the pipeline loaded here, in float32."""
    def load(name):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*safety checker")
            return opened.enter_context(forwardpass.load(folders(name), dtype="float32", threads=2))

    with ExitStack() as opened:
        yield lru_cache(load)


def theirs(path, kind, scheduler=None):
    """The pipeline loaded by diffusers."""
    import diffusers

    torch.set_num_threads(1)
    diffusers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = getattr(diffusers, kind).from_pretrained(path)
        if scheduler:
            pipeline.scheduler = getattr(diffusers, scheduler).from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def followed(model, prompt, **given):
    """(latents after each step, float32 [steps, channels, height, width]; pixels) of one picture drawn here."""
    steps = []
    made = model.draw(prompt, callback_on_step_end=lambda step, t, latents: steps.append(latents.copy()), **given)
    return np.stack(steps), np.asarray(made.images[0])


def traced(pipeline, monkeypatch, seed, call):
    """The same of diffusers' pipeline: `call` runs it, and all of its random numbers are those of our seed."""
    import diffusers

    def drawn(stream):
        def randn(shape, *args, **given):
            batch, channels, height, width = shape
            one = normals(seed, next(stream), (height, width, channels)).transpose(2, 0, 1)
            return torch.from_numpy(np.ascontiguousarray(one))[None].repeat(batch, 1, 1, 1)

        return randn

    steps, step = [], pipeline.scheduler.step

    def kept(*args, **given):
        out = step(*args, **given)
        steps.append((out[0] if isinstance(out, tuple) else out.prev_sample)[0].numpy().copy())
        return out

    monkeypatch.setattr(pipeline.scheduler, "step", kept)
    module = __import__(type(pipeline).__module__, fromlist=["randn_tensor"])
    if hasattr(module, "randn_tensor"):
        monkeypatch.setattr(module, "randn_tensor", drawn(iter([NOISE])))
    monkeypatch.setattr(diffusers.models.autoencoders.vae, "randn_tensor", drawn(iter([SAMPLE])))
    scheduling = __import__(type(pipeline.scheduler).__module__, fromlist=["randn_tensor"])
    if hasattr(scheduling, "randn_tensor"):
        monkeypatch.setattr(scheduling, "randn_tensor", drawn(iter(range(STEPS, 1000))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = call(pipeline).images
    return np.stack(steps), np.rint(images[0] * 255)


def agree(ours, other):
    (steps, pixels), (their_steps, their_pixels) = ours, other
    assert steps.shape == their_steps.shape
    for step, their in zip(steps, their_steps, strict=True):
        assert np.abs(step - their).max() <= 1e-4 * max(1.0, np.abs(their).max())
    assert np.abs(pixels.astype(int) - their_pixels).max() <= 1 and pixels.std() > 1


# ---- step by step


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_dit(folders, models, monkeypatch, guidance):
    pipeline = theirs(folders("dit"), "DiTPipeline")
    other = traced(pipeline, monkeypatch, 3, lambda one: one([417], guidance_scale=guidance, num_inference_steps=5,
                                                             output_type="np"))
    agree(followed(models("dit"), "kind 417", guidance_scale=guidance, **CAT), other)


@pytest.mark.parametrize(("scheduler", "guidance", "negative"), [
    (None, 7.5, "a dog"), (None, 7.5, None), (None, 1.0, None), ("DPMSolverMultistepScheduler", 3.0, "on"),
    ("EulerAncestralDiscreteScheduler", 5.0, ""), ("PNDMScheduler", 5.0, None)])
def test_stable_diffusion(folders, models, monkeypatch, scheduler, guidance, negative):
    pipeline = theirs(folders("sd"), "StableDiffusionPipeline", scheduler)
    given = {"guidance_scale": guidance, "negative_prompt": negative, "height": 24, "width": 32}
    other = traced(pipeline, monkeypatch, 3, lambda one: one("a cat on a mat", num_inference_steps=5, output_type="np",
                                                             **given))
    agree(followed(models("sd"), "a cat on a mat", scheduler=scheduler, **given, **CAT), other)


@pytest.mark.parametrize("scheduler", [None, "EulerDiscreteScheduler"])
def test_an_image_to_begin_with(folders, models, monkeypatch, scheduler):
    begin = Image.fromarray(np.random.default_rng(2).integers(0, 256, (33, 29, 3), np.uint8))
    pipeline = theirs(folders("sd"), "StableDiffusionImg2ImgPipeline", scheduler)
    monkeypatch.setattr(pipeline, "image_processor", type(pipeline.image_processor)(vae_scale_factor=2))
    other = traced(pipeline, monkeypatch, 3, lambda one: one("a dog", begin.resize((28, 32), Image.Resampling.LANCZOS),
                                                             0.6, num_inference_steps=5, output_type="np"))
    ours = followed(models("sd"), "a dog", image=begin, strength=0.6, scheduler=scheduler, **CAT)
    assert len(ours[0]) == 3
    agree(ours, other)


def test_latent_consistency(folders, models, monkeypatch):
    pipeline = theirs(folders("lcm"), "LatentConsistencyModelPipeline")
    other = traced(pipeline, monkeypatch, 3, lambda one: one("a cat", num_inference_steps=4, guidance_scale=6.0,
                                                             height=32, width=32, output_type="np"))
    agree(followed(models("lcm"), "a cat", seed=3, guidance_scale=6.0), other)


@pytest.mark.parametrize("negative", [None, "a dog"])
def test_pixart(folders, models, monkeypatch, negative):
    pipeline = theirs(folders("pixart"), "PixArtAlphaPipeline")
    other = traced(pipeline, monkeypatch, 3, lambda one: one(
        "A Cat on a mat ", negative or "", num_inference_steps=5, height=16, width=16, output_type="np",
        clean_caption=False, use_resolution_binning=False))
    agree(followed(models("pixart"), "A Cat on a mat ", negative_prompt=negative, **CAT), other)


# ---- exact


REQUESTS = {
    "dit": [("kind 1", {}), (5, {"height": 8, "width": 24}), (1, {"guidance_scale": 1, "num_inference_steps": 2})],
    "sd": [("a cat", {}), ("a dog on a mat", {"negative_prompt": "a cat", "height": 16, "width": 24}),
           ("", {"guidance_scale": 1, "scheduler": "EulerAncestralDiscreteScheduler"}),
           ("a cat", {"num_inference_steps": 9, "image": Image.new("RGB", (16, 16), (90, 20, 200))})],
    "pixart": [("a cat", {}), ("a dog on a mat", {"height": 8, "width": 24})],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_picture_does_not_depend_on_its_company(models, name):
    """One by one, all together while others are cancelled in the middle, and by a driver: the same bits."""
    model = models(name)
    asked = [(prompt, {"num_inference_steps": 3, "seed": 7, **given}) for prompt, given in REQUESTS[name]]
    alone = [np.asarray(model.draw(prompt, **given).images[0]) for prompt, given in asked]

    def begun(prompt, given):
        pictures, *_ = model._wanted([], prompt, **{
            "negative_prompt": None, "guidance_scale": None, "height": None, "width": None, "num_images_per_prompt": 2,
            "image": None, "strength": 0.8, "scheduler": None, "latents": None, **given})
        return model.engine.add(pictures)

    def all_at_once():
        drawings = []
        for number, (prompt, given) in enumerate(asked):
            drawings.append(begun(prompt, given))
            left = begun(prompt, given | {"seed": 99})
            if model.engine.driver is None:
                for _ in range(number + 1):
                    model.engine.step()
            model.engine.cancel(left)
        model.engine.run(drawings)
        for drawing, expected in zip(drawings, alone, strict=True):
            found = drawing.pictures[0].pixels
            assert (found.reshape(expected.shape) == expected).all()
            assert (drawing.pictures[1].pixels != found).any()

    all_at_once()
    with driven(model.engine):
        all_at_once()
