"""draw() over a denoiser in plain NumPy: arguments checked before anything is computed, seeds, guidance, images to
begin with, steps told, and the life of the model."""

import asyncio
import threading
import time

import numpy as np
import pytest
from PIL import Image

import forwardpass
from forwardpass.errors import CapacityError, DeadlineError, ForwardpassError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.terms import Terms
from forwardpass.tasks.drawing import DrawingModel
from script_pictures import CHANNELS, idle, opened

STEPS = {"num_inference_steps": 3}


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    with DrawingModel(opened(tmp_path_factory.mktemp("labels"))) as model:
        yield model


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    with DrawingModel(opened(tmp_path_factory.mktemp("texts"), text=True)) as model:
        yield model


@pytest.fixture
def passes(labels, texts):
    """How many halves each pass over a denoiser had."""
    labels.denoiser.passes.clear()
    texts.denoiser.passes.clear()
    return labels.denoiser.passes, texts.denoiser.passes


def pixels(drawing):
    return [np.asarray(image) for image in drawing.images]


def same(one, other):
    return all((a == b).all() for a, b in zip(one, other, strict=True))


# ---- what comes of it


def test_pictures_in_the_order_of_prompts(labels):
    made = labels.draw(["owl", 0], num_images_per_prompt=2, seed=10, **STEPS)
    assert made.prompts == ["owl", "owl", "cat", "cat"] and made.seeds == [10, 11, 10, 11]
    assert [image.size for image in made.images] == [(32, 32)] * 4 and made.images[0].mode == "RGB"
    assert made.timings["steps"] == 12 and {"total", "denoise", "decode"} <= made.timings.keys()
    assert made.timings["total"] >= made.timings["denoise"] > 0 and made.warnings == ()
    assert made.parameters == {"model": labels.path.name, "dtype": "float32", "scheduler": "DDIMScheduler",
                               "num_inference_steps": 3, "guidance_scale": 4.0, "height": 32, "width": 32}
    for i, (prompt, seed) in enumerate(zip(made.prompts, made.seeds, strict=True)):
        alone = labels.draw(prompt, seed=seed, **STEPS)
        assert same(pixels(alone), pixels(made)[i : i + 1])
    assert len({one.tobytes() for one in pixels(made)}) == 4


def test_seeds(labels):
    listed = labels.draw(["owl", "cat"], seed=[5, 2**64 - 1], **STEPS)
    assert listed.seeds == [5, 2**64 - 1]
    assert same(pixels(listed)[1:], pixels(labels.draw("cat", seed=2**64 - 1, **STEPS)))
    assert labels.draw("cat", seed=2**64 - 1, num_images_per_prompt=2, **STEPS).seeds == [2**64 - 1, 0]
    one, other = labels.draw(["cat", "cat"], **STEPS), labels.draw(["cat", "cat"], **STEPS)
    assert len({*one.seeds, *other.seeds}) == 4
    assert same(pixels(labels.draw("cat", seed=one.seeds[0], **STEPS)), pixels(one)[:1])


def test_names_of_labels(labels):
    for given, number in ((2, 2), ("fox", 2), (" FOX ", 2), ("Grey Fox", 1), ("4", 4), (np.int64(3), 3)):
        made = labels.draw(given, seed=1, **STEPS)
        assert same(pixels(made), pixels(labels.draw(number, seed=1, **STEPS)))
    assert labels.draw(4, **STEPS).prompts == ["4"] and labels.draw("GREY FOX", **STEPS).prompts == ["grey fox"]


def test_guidance_passes_and_what_is_not_used(texts, passes):
    made = {}
    for scale in (0, 1, 1.5, 8):
        made[scale] = pixels(texts.draw("paris", guidance_scale=scale, seed=1, **STEPS))
    assert passes[1] == [1] * 6 + [2] * 6
    assert same(made[0], made[1]) and not same(made[1], made[1.5]) and not same(made[1.5], made[8])
    plain = texts.draw("paris", seed=1, **STEPS)
    assert same(pixels(plain), pixels(texts.draw("paris", negative_prompt="", guidance_scale=7.5, seed=1, **STEPS)))
    away = texts.draw(["paris", "w1"], negative_prompt="w2 w3", seed=1, **STEPS)
    assert same(pixels(away), pixels(texts.draw(["paris", "w1"], negative_prompt=["w2 w3"] * 2, seed=1, **STEPS)))
    assert same(pixels(away), pixels(texts.draw(["paris", "w1"], negative_prompt=["w2 w3"], seed=1, **STEPS)))
    assert not same(pixels(away)[:1], pixels(plain)) and away.parameters["negative_prompt"] == "w2 w3"
    with pytest.warns(UserWarning, match="negative_prompt is not used: guidance_scale is at most 1") as told:
        unused = texts.draw("paris", negative_prompt="w2", guidance_scale=1, seed=1, **STEPS)
    assert told[0].filename == __file__ and len(unused.warnings) == 1
    assert same(pixels(unused), made[1]) and "negative_prompt" not in unused.parameters


def test_a_network_that_follows_the_scale_itself(tmp_path):
    with DrawingModel(opened(tmp_path, text=True, guided=True)) as model:
        model.draw("paris", guidance_scale=6, **STEPS)
        assert model.denoiser.told == [6.0] and set(model.denoiser.passes) == {1}
        with pytest.warns(UserWarning, match="this model follows guidance_scale without it"):
            model.draw("paris", negative_prompt="w1", **STEPS)


@pytest.mark.parametrize(("how", "read"), [("clip", [8, 8]), ("t5", [6, 2])])
def test_prompts_as_the_text_encoder_reads_them(tmp_path, how, read):
    with DrawingModel(opened(tmp_path, text=True, how=how)) as model:
        model.draw(["Paris is w1 w2", "Paris is w1 w2"], num_images_per_prompt=2, **STEPS)
        assert model.text.network.read == [read]  # each once, though there are four pictures
        with pytest.warns(UserWarning, match=r"w1.* is longer than the 8 tokens .* the last 3 were left out"):
            made = model.draw("w1 w2 w3 w4 w5 w6 w7 w8 w9", seed=1, **STEPS)
        assert len(made.warnings) == 1 and "longer than the 8 tokens" in made.warnings[0]
        assert same(pixels(made), pixels(model.draw("w1 w2 w3 w4 w5 w6", seed=1, **STEPS)))


def test_latents_of_the_callers_own(labels):
    rng = np.random.default_rng(3)
    given = rng.normal(0, 1, (2, CHANNELS, 4, 6))
    made = labels.draw("owl", num_images_per_prompt=2, latents=given, seed=0, **STEPS)
    assert [image.size for image in made.images] == [(24, 16)] * 2
    assert same(pixels(labels.draw("owl", latents=given[1:].tolist(), seed=9, **STEPS)), pixels(made)[1:])
    for wrong in (given[:1], given[:, :1], given[0], "noise", [[1], [1, 2]], given[..., :0], given * np.nan,
                  given * 1e300):
        with pytest.raises(ParameterError, match=r"latents must be (numbers \[2, 2, height, width\]|finite)"):
            labels.draw("owl", num_images_per_prompt=2, latents=wrong)
    with pytest.raises(ParameterError, match="latents of 4x6 make pictures of 16x24 pixels; asked for are 32x24"):
        labels.draw("owl", num_images_per_prompt=2, latents=given, height=32)


def test_other_schedules_by_name(labels):
    made = {name: pixels(labels.draw("owl", seed=1, scheduler=name, num_inference_steps=4))
            for name in (None, "DDIMScheduler", "EulerAncestralDiscreteScheduler", "DPMSolverMultistepScheduler")}
    assert same(made[None], made["DDIMScheduler"])
    assert len({one[0].tobytes() for one in made.values()}) == 3
    assert labels.draw("owl", scheduler="DPMSolverMultistepScheduler").parameters["num_inference_steps"] == 20
    with pytest.raises(ParameterError, match=r"scheduler.*DDIMScheduler.*Karras"):
        labels.draw("owl", scheduler="KarrasVeScheduler")
    with pytest.raises(ParameterError, match="name of a diffusers scheduler, not 3"):
        labels.draw("owl", scheduler=3)


def test_a_schedule_that_is_not_implemented_can_be_replaced(tmp_path):
    with DrawingModel(opened(tmp_path, schedule={"_class_name": "UniPCMultistepScheduler"})) as model:
        with pytest.raises(UnsupportedModelError, match=r"UniPCMultistepScheduler.*scheduler="):
            model.draw("owl")
        assert model.draw("owl", scheduler="DDIMScheduler", **STEPS).parameters["scheduler"] == "DDIMScheduler"


def test_image_to_image(labels, passes):
    begin = Image.fromarray(np.random.default_rng(1).integers(0, 256, (33, 21, 3), np.uint8))
    made = labels.draw("owl", image=begin, num_inference_steps=10, strength=0.3, seed=2)
    assert made.images[0].size == (16, 32) and passes[0] == [2] * 3  # rounded down to multiples of 8
    assert made.parameters["strength"] == 0.3
    assert same(pixels(made), pixels(labels.draw("owl", image=np.asarray(begin), num_inference_steps=10, strength=0.3,
                                                 seed=2)))
    other = labels.draw("owl", image=begin.rotate(180), num_inference_steps=10, strength=0.3, seed=2)
    assert not same(pixels(made), pixels(other))
    both = labels.draw(["owl", "owl"], image=[begin, begin.rotate(180)], num_inference_steps=10, strength=0.3, seed=2)
    assert same(pixels(both), [*pixels(made), *pixels(other)])
    grey = labels.draw("owl", image=begin.convert("L"), height=8, width=24, seed=2, **STEPS)
    assert grey.images[0].size == (24, 8)
    for strength in (0, -1, 1.01, float("nan"), None, True, "1"):
        with pytest.raises(ParameterError, match=r"strength must be .*\(0, 1\]"):
            labels.draw("owl", image=begin, strength=strength)
    with pytest.raises(ParameterError, match=r"strength = 0\.05 of 10 steps leaves no step"):
        labels.draw("owl", image=begin, strength=0.05, num_inference_steps=10)
    with pytest.raises(ParameterError, match=r"image: there are 3"):
        labels.draw(["owl", "cat"], image=[begin] * 3)
    with pytest.raises(ParameterError, match=r"missing\.png"):
        labels.draw("owl", image="missing.png")


def test_models_of_pixels(tmp_path):
    with pytest.raises(UnsupportedModelError, match="1 or 3 channels; this model's have 2"):
        DrawingModel(opened(tmp_path, pixels=True))
    made = opened(tmp_path, pixels=True)
    made.denoiser.latent_channels = made.denoiser.out_channels = 1
    with DrawingModel(made) as model:
        drawing = model.draw("owl", image=Image.new("RGB", (9, 8), (200, 0, 0)), strength=1.0, **STEPS)
        assert drawing.images[0].mode == "L" and drawing.images[0].size == (8, 8)
        looks = []
        last = model.draw("owl", callback_on_step_end=lambda *four: looks.append(four[3].preview()), seed=1, **STEPS)
        assert (np.asarray(looks[-1]) == pixels(last)[0]).all()


# ---- steps told


def test_steps_are_told_as_they_come(labels):
    told, more = [], []
    made = labels.draw(["owl", "cat"], seed=7, callback_on_step_end=lambda *three: told.append(three), **STEPS)
    assert len(told) == 6 and all(len(one) == 4 for one in told)
    plain = []

    def three(step, timestep, latents):
        plain.append((step, timestep, latents))

    def four(step, timestep, latents, picture):
        more.append(picture)
        assert (picture.step, picture.timestep) == (step, timestep) and picture.latents is latents

    labels.draw(["owl", "cat"], seed=7, callback_on_step_end=three, **STEPS)
    assert same(pixels(labels.draw(["owl", "cat"], seed=7, callback_on_step_end=four, **STEPS)), pixels(made))
    assert sorted(step for step, _, _ in plain) == [0, 0, 1, 1, 2, 2]
    assert plain[0][2].shape == (CHANNELS, 8, 8) and plain[0][2].dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        plain[0][2][:] = 0
    assert {(one.picture, one.seed, one.steps) for one in more} == {(0, 7, 3), (1, 7, 3)}
    last = [one for one in more if one.picture == 1][-1]
    assert (np.asarray(last.preview()) == pixels(made)[1]).all()
    assert (np.asarray(more[0].preview()) != pixels(made)[0]).any()


def test_an_error_in_a_callback_ends_the_drawing(labels):
    def stop(step, timestep, latents):
        if step == 1:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        labels.draw("owl", callback_on_step_end=stop, num_inference_steps=50)
    assert idle(labels.engine)
    for wrong in (3, "print"):
        with pytest.raises(ParameterError, match="callback_on_step_end must be a function"):
            labels.draw("owl", callback_on_step_end=wrong)


# ---- arguments, before anything is computed


@pytest.mark.parametrize(("given", "message"), [
    ({"height": 30}, r"height must be a multiple of 8 .* got 30: take 24 or 32"),
    ({"width": 4}, r"width must be a multiple of 8 .* got 4: take 8"),
    ({"width": 0}, "width must be an integer"), ({"height": -8}, "height"), ({"height": 8.0}, "height"),
    ({"height": 80000}, "latents of 20000x8"),
    ({"num_inference_steps": 0}, r"num_inference_steps must be an integer in \[1, 100\].*got 0"),
    ({"num_inference_steps": 101}, r"\[1, 100\].*got 101"), ({"num_inference_steps": 2.0}, "num_inference_steps"),
    ({"num_inference_steps": True}, "num_inference_steps"),
    ({"guidance_scale": float("nan")}, "guidance_scale must be a finite number"),
    ({"guidance_scale": -1}, "guidance_scale"), ({"guidance_scale": float("inf")}, "guidance_scale"),
    ({"guidance_scale": "7"}, "guidance_scale"), ({"guidance_scale": 1e9}, "guidance_scale"),
    ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"), ({"seed": 1.5}, "seed"), ({"seed": [1, 2]}, "there are 2 for 1"),
    ({"seed": ["a"]}, "seed"), ({"seed": True}, "seed"), ({"num_images_per_prompt": 0}, "num_images_per_prompt"),
    ({"num_images_per_prompt": 10**6}, r"\[1, 4096\].*4096 pictures in one call"),
    ({"num_images_per_prompt": 1.0}, "num_images_per_prompt"), ({"negative_prompt": "dog"}, "takes labels"),
    ({"strength": 0}, "strength"),
])
def test_wrong_arguments(labels, passes, given, message):
    with pytest.raises(ParameterError, match=message):
        labels.draw("owl", **given)
    assert not passes[0] and idle(labels.engine)


@pytest.mark.parametrize(("prompt", "message"), [
    ("owls", "there is no label 'owls'; there are: owl, cat, grey fox, Fox$"),
    ("zebra", "there are: cat, grey fox, Fox, owl$"), (5, "there is no label 5: they are numbered from 0 to 4"),
    (-1, "no label -1"), ("5", "no label '5'"), ([], "at least one"), (None, "prompt 0 must be a label or its number"),
    (1.0, "prompt 0"), (True, "prompt 0"), (["owl", b"cat"], "prompt 1"), ({"owl": 1}, "prompt 0"), ("", "no label ''"),
    (["owl"] * 5000, "there are 5000; 4096 pictures"),
])
def test_wrong_labels(labels, passes, prompt, message):
    with pytest.raises(ParameterError, match=message):
        labels.draw(prompt)
    assert not passes[0]


def test_labels_without_names_and_many_of_them(tmp_path):
    with DrawingModel(opened(tmp_path, labels={})) as model:
        with pytest.raises(ParameterError, match="files name none; give a number from 0 to 4"):
            model.draw("owl")
        assert model.draw("3", **STEPS).prompts == ["3"]
    with DrawingModel(opened(tmp_path, labels={f"kind {i}": i % 5 for i in range(900)})) as model:
        with pytest.raises(ParameterError, match=r"there are: kind 7\d\d, .*, ... \(900 in all\)") as error:
            model.draw("kind 7777")
        assert len(str(error.value)) < 900


@pytest.mark.parametrize(("prompt", "given", "message"), [
    (3, {}, "prompt 0 must be a text"), (["paris", None], {}, "prompt 1 must be a text"),
    ("paris", {"negative_prompt": 3}, "negative_prompt must be a text"),
    (["paris", "w1"], {"negative_prompt": ["a", "b", "w1"]}, "there are 3 for 2 prompts"),
    ("paris", {"negative_prompt": [None]}, "negative_prompt must be"),
    ("paris", {"negative_prompt": []}, "negative_prompt: there are 0 for 1"),
])
def test_wrong_texts(texts, passes, prompt, given, message):
    with pytest.raises(ParameterError, match=message):
        texts.draw(prompt, **given)
    assert not passes[1] and idle(texts.engine)


def test_pictures_that_do_not_fit_into_memory(labels, monkeypatch):
    monkeypatch.setattr("forwardpass.config.available_memory", lambda: 10_000)
    with pytest.raises(CapacityError, match="16x16 pixels need"):
        labels.draw("owl", height=16, width=16)


# ---- life


def test_other_tasks_say_what_it_can_do(labels, tiny):
    for task in (labels.generate, labels.embed, labels.chat, labels.logits, labels.hidden_states, labels.begin_stream):
        with pytest.raises(UnsupportedModelError, match=r"needs .*; this model can draw, explain|can explain, draw"):
            task("a text")
    with pytest.raises(UnsupportedModelError, match="cannot draw, which needs a diffusion pipeline"):
        tiny.draw("owl")


def test_terms_cancel_and_end_it(labels):
    with Terms(deadline=0.0), pytest.raises(DeadlineError):
        labels.draw("owl")
    terms = Terms()

    def leave(step, timestep, latents):
        terms.cancel("the client has gone")

    with terms, pytest.raises(ForwardpassError, match="the client has gone"):
        labels.draw("owl", callback_on_step_end=leave, num_inference_steps=60)
    assert idle(labels.engine)


def test_from_threads_and_event_loops(labels):
    expected = [pixels(labels.draw("owl", seed=seed, **STEPS)) for seed in range(4)]
    found = {}

    def draw(seed):
        found[seed] = pixels(labels.draw("owl", seed=seed, **STEPS))

    running = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join(30)
    assert all(same(found[seed], expected[seed]) for seed in range(4))

    async def loop():
        async with forwardpass.AsyncModel(labels) as model:
            made = await asyncio.gather(*(model.draw("owl", seed=seed, **STEPS) for seed in range(4)))
            told = []
            await model.draw("owl", seed=0, callback_on_step_end=lambda *three: told.append(three), **STEPS)
            task = asyncio.create_task(model.draw("owl", num_inference_steps=100, num_images_per_prompt=500))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(UnsupportedModelError, match=r"cannot embed_image, which .* can explain, draw"):
                await model.embed_image("a.png")
            with pytest.raises(UnsupportedModelError, match="cannot embed"):
                await model.embed("a text")
            with pytest.raises(UnsupportedModelError, match="cannot generate"):
                await model.generate("a text")
        return [pixels(one) for one in made], told

    made, told = asyncio.run(loop())
    assert all(same(one, other) for one, other in zip(made, expected, strict=True)) and len(told) == 3
    assert idle(labels.engine)


def test_a_closed_model_says_so(tmp_path):
    model = DrawingModel(opened(tmp_path))
    repr(model)
    model.close()
    model.close()
    with pytest.raises(ParameterError, match="the model is closed"):
        model.draw("owl")


def test_closing_ends_what_is_being_drawn(tmp_path):
    """With an error that says why, wherever in a call the model is closed, and never half a picture."""
    model = DrawingModel(opened(tmp_path))
    seen = []

    def close(step, timestep, latents, about):
        seen.append(step)
        model.close()
        with pytest.raises(ParameterError, match="closed"):
            about.preview()

    with pytest.raises(ParameterError, match="closed before all pictures were drawn"):
        model.draw("owl", callback_on_step_end=close, **STEPS)
    assert seen == [0]
    for delay in range(6):
        model, begun, errors = DrawingModel(opened(tmp_path)), threading.Barrier(4), []

        def draw(model=model, begun=begun, errors=errors):
            begun.wait()
            try:
                while True:
                    model.draw("owl", num_inference_steps=2)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for one in threads:
            one.start()
        begun.wait()
        time.sleep(delay * 0.003)
        model.close()
        for one in threads:
            one.join(30)
        assert len(errors) == 3 and all(type(one) is ParameterError and "closed" in str(one) for one in errors), errors


def test_prompts_of_any_length_and_arrays_without_axes(labels):
    for prompt in ("7" * 5000, "o" * 500_000, "\u0663" * 4400):
        with pytest.raises(ParameterError, match="there is no label"):
            labels.draw(prompt)
    one = labels.draw(np.array(1), seed=np.array(6), **STEPS)
    assert one.seeds == [6] and same(pixels(one), pixels(labels.draw(1, seed=6, **STEPS)))
    with pytest.raises(ParameterError, match="seed must be a whole number"):
        labels.draw(1, seed=np.array(6.0))


def test_load_and_host_tell_pipelines_by_their_index(tmp_path, monkeypatch, tiny_folder):
    folder = tmp_path / "owls"
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    monkeypatch.setattr("forwardpass.tasks.pipeline.open_pipeline", lambda path, *given: opened(path))
    with forwardpass.load(folder) as model:
        alone = pixels(model.draw("owl", seed=1, **STEPS))
        assert model.tasks == ("explain", "draw")
    with forwardpass.Host({"owls": folder, "text": tiny_folder()}, kv_memory="1MiB") as host:
        assert same(pixels(host.find("owls").draw("owl", seed=1, **STEPS)), alone)
        assert host.find("text").generate("a", max_new_tokens=2).token_ids
        assert any("owls" in line and "pictures of 32x32" in line for line in host.plan.lines())
    with pytest.raises(ParameterError, match="closed"):
        host.models["owls"].draw("owl")
