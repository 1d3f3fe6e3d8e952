"""A UNet predicts what diffusers predicts, whoever else is in the same call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tiny_unets
from forwardpass.errors import ModelFileError, ParameterError
from forwardpass.models import unet_costs
from forwardpass.models.arena import rows_by_level
from kernel_tools import ISAS

SIZES, LENGTHS, STEPS = ((8, 8), (9, 7), (5, 12)), (7, 1, 11), np.array([999, 1, 500.5], np.float32)
KINDS = {
    "two levels": {},
    "scaled by the step": dict(
        resnet_time_scale_shift="scale_shift", use_linear_projection=True, attention_head_dim=[2, 4],
        center_input_sample=True, mid_block_scale_factor=1.5, flip_sin_to_cos=False, freq_shift=1, norm_eps=1e-4,
        transformer_layers_per_block=[2, 1], layers_per_block=[2, 1], time_embedding_dim=40),
    "three levels": dict(
        block_out_channels=(8, 16, 24), norm_num_groups=4, layers_per_block=2, out_channels=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")),
    "zeros at two edges": dict(downsample_padding=0, conv_in_kernel=1, conv_out_kernel=5, act_fn="gelu",
                               mid_block_type=None),
    "guided": dict(time_cond_proj_dim=10),
}
GUIDANCE = (2.5, 1.0, 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(kind) -> (the model of diffusers, ours in float32)."""
    found = {}

    def make(kind):
        if kind not in found:
            model = tiny_unets.unet(**KINDS[kind])
            found[kind] = model, tiny_unets.load(model, tmp_path_factory.mktemp("unet"))
        return found[kind]

    return make


def inputs(ours, sizes=SIZES):
    """Latents, timesteps, conditions, texts."""
    texts = tiny_unets.texts(1, *LENGTHS)
    told = GUIDANCE if ours.guided else (None,) * 3
    conditions = [ours.of_text(text, scale) for text, scale in zip(texts, told, strict=True)]
    count = len(sizes)
    return tiny_unets.images(2, *sizes), STEPS[:count], conditions[:count], texts[:count]


def reference(model, latent, step, text, number):
    import torch
    from diffusers.models.embeddings import get_timestep_embedding

    more = {}
    if model.config.time_cond_proj_dim:
        scale = torch.tensor([(GUIDANCE[number] - 1) * 1000])
        more["timestep_cond"] = get_timestep_embedding(scale, model.config.time_cond_proj_dim)
    return tiny_unets.predicted(model, latent, float(step), text, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_diffusers_for_images_of_several_sizes_in_one_call(made, kind):
    model, ours = made(kind)
    latents, steps, conditions, texts = inputs(ours, ((8, 8), (4, 12)) if ours.patch > 1 else SIZES)
    before = [latent.copy() for latent in latents]
    found = ours.predict(latents, steps, conditions)
    for number, (latent, step, text, image) in enumerate(zip(latents, steps, texts, found, strict=True)):
        wanted = reference(model, latent, step, text, number)
        assert image.shape == wanted.shape and image.dtype == np.float32
        assert np.abs(image - wanted).max() < 2e-5 * np.abs(wanted).max()
    assert all(np.array_equal(a, b) for a, b in zip(latents, before, strict=True))


@pytest.mark.parametrize("kind", ["two levels", "three levels"])
def test_one_image_of_one_pixel_and_one_that_is_long(made, kind):
    model, ours = made(kind)
    text = tiny_unets.texts(3, 5)[0]
    condition = ours.of_text(text)
    for size in (1, 1), (1, 33), (17, 2):
        latent = tiny_unets.images(4, size)[0]
        wanted = tiny_unets.predicted(model, latent, 20.0, text)
        found, = ours.predict([latent], np.array([20.0]), [condition])
        assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int8")])
def test_no_bit_depends_on_the_others_nor_on_threads_nor_on_the_machine(made, tmp_path, dtype, kv_dtype):
    model, _ = made("two levels")
    ours = tiny_unets.load(model, tmp_path, dtype, kv_dtype, threads=2)
    latents, steps, conditions, texts = inputs(ours, ((6, 4), (5, 3), (3, 6)))
    together = ours.predict(latents, steps, conditions)
    order = [2, 0, 1, 0]
    again = ours.predict([latents[i] for i in order], steps[order], [conditions[i] for i in order])
    for i, found in zip(order, again, strict=True):
        assert np.array_equal(found, together[i])
    for i in range(3):
        assert np.array_equal(ours.predict([latents[i]], steps[i : i + 1], [conditions[i]])[0], together[i])
    others = [tiny_unets.load(model, tmp_path, dtype, kv_dtype, threads=3)]
    others += [tiny_unets.load(model, tmp_path, dtype, kv_dtype, threads=2, isa=isa) for isa in ISAS]
    for other in others:
        told = [other.of_text(text) for text in texts]
        assert all(np.array_equal(a.rows, b.rows) for a, b in zip(told, conditions, strict=True))
        for a, b in zip(other.predict(latents, steps, told), together, strict=True):
            assert np.array_equal(a, b)


def test_an_image_of_nonsense_harms_nobody(made):
    _, ours = made("two levels")
    latents, steps, conditions, _ = inputs(ours)
    alone = ours.predict(latents[:1], steps[:1], conditions[:1])[0]
    latents[1][3, 2] = np.nan
    latents[2][:] = 3e38
    found = ours.predict(latents, steps, conditions)
    assert np.array_equal(found[0], alone) and np.isnan(found[1]).all()


@pytest.mark.parametrize(("dtype", "kv_dtype", "decibels"), [("bfloat16", "bfloat16", 40), ("int8", "bfloat16", 34)])
def test_smaller_types_are_close(made, tmp_path, dtype, kv_dtype, decibels):
    model, ours = made("three levels")
    latents, steps, conditions, texts = inputs(ours)
    small = tiny_unets.load(model, tmp_path, dtype, kv_dtype)
    found = small.predict(latents, steps, [small.of_text(text) for text in texts])
    for a, b in zip(found, ours.predict(latents, steps, conditions), strict=True):
        assert 10 * np.log10(np.ptp(b) ** 2 / np.square(a - b).mean()) > decibels


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_stored_halves_are_read_as_they_are(tmp_path, stored):
    import torch

    model = tiny_unets.unet(seed=5).to(getattr(torch, stored))
    ours = tiny_unets.load(model, tmp_path, "float32")
    latents, steps, conditions, texts = inputs(ours, SIZES[:1])
    wanted = tiny_unets.predicted(model.float(), latents[0], float(steps[0]), texts[0])
    found, = ours.predict(latents, steps, conditions)
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_a_scale_of_guidance_is_part_of_the_condition(made):
    _, ours = made("guided")
    assert ours.guided and ours.of_text(tiny_unets.texts(1, 3)[0]).vector.shape == (10,)
    latents, steps, conditions, texts = inputs(ours)
    other = ours.of_text(texts[0], 8.0)
    assert np.array_equal(other.rows, conditions[0].rows)
    a, b = (ours.predict(latents[:1], steps[:1], [one])[0] for one in (conditions[0], other))
    assert not np.array_equal(a, b)
    with pytest.raises(ParameterError, match="guidance must be a number"):
        ours.of_text(texts[0], float("nan"))


def test_what_it_says_of_itself(made):
    _, ours = made("two levels")
    assert (ours.takes, ours.labels, ours.patch, ours.sample_size) == ("text", 0, 1, (16, 16))
    assert (ours.latent_channels, ours.out_channels, ours.context_width, ours.guided) == (4, 4, 24, False)
    assert ours.flops(16, 16, 7) > 3 * ours.flops(8, 8, 7) > 0
    assert ours.activation_bytes([(8, 8)] * 2, [5, 5]) > ours.activation_bytes([(8, 8)], [5])
    assert made("zeros at two edges")[1].patch == 2 and made("three levels")[1].out_channels == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_its_buffers_take_a_fifth_more_than_must_be_alive_at_most(made, tmp_path, dtype):
    model, _ = made("three levels")
    ours = tiny_unets.load(model, tmp_path, dtype)
    for sizes in [(64, 64)], [(40, 31), (64, 64), (9, 100)]:
        alive = unet_costs.unet_activations(ours.spec, sizes)
        assert alive <= ours._pass.planner.bytes(rows_by_level(sizes, ours._pass.levels)) <= 1.2 * alive


def test_times_are_counted_by_operation(made):
    _, ours = made("two levels")
    latents, steps, _, texts = inputs(ours)
    ours.reset_timings()
    ours.backend.timed = True
    try:
        ours.predict(latents, steps, [ours.of_text(text) for text in texts])
    finally:
        ours.backend.timed = False
    found = ours.timings()
    counted = {"conv", "group_norm", "time", "qkv", "attention", "cross", "gate_up", "resample", "conv_in", "conv_out"}
    assert counted <= {name for name, seconds in found["denoise"].items() if seconds > 0}
    assert found["condition"]["cross_kv"] > 0
    ours.reset_timings()
    assert not any(ours.timings()["denoise"].values())


def test_bad_input_stops_before_anything_is_computed(made):
    _, ours = made("two levels")
    latents, _, conditions, texts = inputs(ours)
    latent, condition = latents[0], conditions[0]
    for bad, words in (
        (([latent], [1, 2], [condition]), "as many timesteps"), (([latent], [1], []), "0 conditions"),
        (([latent], [np.nan], [condition]), "finite"), (([latent], [1e30], [condition]), "finite"),
        (([latent.astype(np.float64)], [1], [condition]), "float64"),
        (([latent[..., :3]], [1], [condition]), r"\[8, 8, 3\]"),
        (([latent[0]], [1], [condition]), r"\[8, 4\]"), (([None], [1], [condition]), "NoneType"),
        (([latent[:0]], [1], [condition]), "height"), ((["x"], [1], [condition]), "a str"),
        (([latent], [1], [replace(condition, rows=None)]), "of_text"),
        (([latent], [1], [replace(condition, rows=condition.rows[:, :-1])]), "of_text"),
        (([latent], [1], [replace(condition, vector=np.zeros(10, np.float32))]), "of_text"),
        (([np.zeros((1, 2**18 + 1, 4), np.float32)], [1], [condition]), str(2**18)),
    ):
        with pytest.raises(ParameterError, match=words):
            ours.predict(bad[0], np.array(bad[1], np.float32), bad[2])
    for bad in (texts[0][:, :5], texts[0][:0], texts[0].astype(np.float16), texts[0][0], None):
        with pytest.raises(ParameterError, match="states"):
            ours.of_text(bad)
    with pytest.raises(ParameterError, match="guidance"):
        ours.of_text(texts[0], 3.0)
    with pytest.raises(ParameterError, match="text"):
        ours.of_label(3)
    with pytest.raises(ParameterError, match="multiple of 2"):
        made("zeros at two edges")[1].check_size(7, 8)
    assert ours.predict([], np.zeros(0, np.float32), []) == []


def test_weights_that_do_not_fit_are_named_together(made, tmp_path):
    from safetensors.numpy import load_file, save_file

    model, _ = made("two levels")
    tiny_unets.load(model, tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    tensors["conv_in.weight"] = tensors["conv_in.weight"][:, :3]
    tensors["up_blocks.9.more"] = tensors.pop("mid_block.resnets.0.conv1.weight")
    save_file(tensors, path)
    with pytest.raises(ModelFileError) as found:
        tiny_unets.open_files(tmp_path, "float32")
    for words in ("conv_in.weight: expected [16, 4, 3, 3], found [16, 3, 3, 3]", "up_blocks.9.more",
                  "missing: expected mid_block.resnets.0.conv1.weight [32, 32, 3, 3]"):
        assert words in str(found.value)
    tensors["conv_in.weight"] = np.full((16, 4, 3, 3), np.nan, np.float32)
    tensors["mid_block.resnets.0.conv1.weight"] = tensors.pop("up_blocks.9.more")
    save_file(tensors, path)
    with pytest.raises(ModelFileError, match=r"conv_in\.weight holds NaN"):
        tiny_unets.open_files(tmp_path, "float32")
