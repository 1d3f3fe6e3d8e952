"""An autoencoder makes of latents and of pictures what diffusers makes of them."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_unets
from forwardpass.errors import ParameterError
from kernel_tools import ISAS

KINDS = {
    "two levels": {},
    "three levels": dict(block_out_channels=(8, 16, 24), norm_num_groups=4, layers_per_block=2, latent_channels=3,
                         down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
                         use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False, act_fn="gelu"),
    "one level": dict(block_out_channels=(16,), down_block_types=("DownEncoderBlock2D",), scaling_factor=0.5,
                      up_block_types=("UpDecoderBlock2D",), shift_factor=0.25, use_quant_conv=False),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(kind) -> (the model of diffusers, ours in float32)."""
    found = {}

    def make(kind):
        if kind not in found:
            model = tiny_unets.autoencoder(**KINDS[kind])
            found[kind] = model, tiny_unets.load(model, tmp_path_factory.mktemp("vae"))
        return found[kind]

    return make


def close(found, wanted):
    return found.shape == wanted.shape and np.abs(found - wanted).max() < 2e-5 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(5, 7), (1, 1), (12, 2)])
def test_equals_diffusers(made, kind, size):
    import torch

    model, ours = made(kind)
    latent = tiny_unets.images(0, size, channels=ours.latent_channels)[0]
    height, width = (side * ours.factor for side in size)
    picture = np.tanh(tiny_unets.images(1, (height, width), channels=3)[0])
    with torch.no_grad():
        decoded, told = model.decode(tiny_unets.tensor(latent)).sample, model.encode(tiny_unets.tensor(picture))
    assert close(ours.decode(latent), tiny_unets.array(decoded))
    mean, variance = ours.encode(picture)
    assert close(mean, tiny_unets.array(told.latent_dist.mean))
    assert close(variance, tiny_unets.array(told.latent_dist.logvar))


def test_logarithms_of_variances_are_cut_as_in_training(made, tmp_path):
    import torch

    model = tiny_unets.autoencoder(seed=2)
    with torch.no_grad():
        model.quant_conv.weight *= 40
    ours = tiny_unets.load(model, tmp_path)
    _, variance = ours.encode(np.tanh(tiny_unets.images(1, (16, 16), channels=3)[0]))
    assert (variance.min(), variance.max()) == (-30, 20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_threads_nor_on_the_machine(made, tmp_path, dtype):
    model, _ = made("two levels")
    latent, picture = tiny_unets.images(0, (6, 5))[0], tiny_unets.images(1, (6, 10), channels=3)[0]
    ours = tiny_unets.load(model, tmp_path, dtype, "bfloat16", threads=1)
    decoded, encoded = ours.decode(latent), ours.encode(picture)
    for threads, isa in [(3, None), *((2, isa) for isa in ISAS)]:
        other = tiny_unets.load(model, tmp_path, dtype, "bfloat16", threads, isa)
        assert np.array_equal(other.decode(latent), decoded)
        assert all(np.array_equal(a, b) for a, b in zip(other.encode(picture), encoded, strict=True))


@pytest.mark.parametrize(("dtype", "decibels"), [("bfloat16", 40), ("int8", 34)])
def test_smaller_types_are_close(made, tmp_path, dtype, decibels):
    model, ours = made("two levels")
    latent = tiny_unets.images(0, (9, 9))[0]
    wanted, found = ours.decode(latent), tiny_unets.load(model, tmp_path, dtype, "bfloat16").decode(latent)
    assert 10 * np.log10(np.ptp(wanted) ** 2 / np.square(found - wanted).mean()) > decibels


def test_names_that_attention_had_first(made, tmp_path):
    from safetensors.numpy import load_file, save_file

    model, ours = made("two levels")
    tiny_unets.load(model, tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for name, value in load_file(path).items():
        for new, first in old.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{first}.")
        tensors[name] = value[:, :, None, None] if name.endswith("query.weight") else value  # some had convolutions
    assert any("proj_attn" in name for name in tensors)
    save_file(tensors, path)
    latent = tiny_unets.images(0, (3, 4))[0]
    assert np.array_equal(tiny_unets.open_files(tmp_path, "float32").decode(latent), ours.decode(latent))


def test_what_it_says_of_itself(made):
    _, ours = made("one level")
    assert (ours.factor, ours.scaling_factor, ours.shift_factor) == (1, 0.5, 0.25)
    _, ours = made("three levels")
    assert (ours.factor, ours.latent_channels, ours.image_channels) == (4, 3, 3)
    assert ours.flops(8, 8) > 3 * ours.flops(4, 4) > 0 and ours.activation_bytes(8, 8) > 8 * 8 * 16 * 4 * 8
    ours.reset_timings()
    ours.backend.timed = True
    ours.decode(tiny_unets.images(0, (8, 8), channels=3)[0])
    ours.backend.timed = False
    assert ours.timings()["decode_image"]["conv"] > 0 and not any(ours.timings()["encode_image"].values())


def test_memory_is_given_back(made):
    _, ours = made("two levels")
    ours.decode(tiny_unets.images(0, (16, 16))[0])
    assert not ours._decoder.planner.memory_bytes


def test_bad_input_stops_before_anything_is_computed(made):
    _, ours = made("two levels")
    for bad, words in ((np.zeros((4, 4, 3), np.float32), "latents must be"), (np.zeros((4, 4, 4)), "float64"),
                       (np.zeros((4, 4), np.float32), r"\[4, 4\]"), (None, "NoneType"),
                       (np.zeros((0, 4, 4), np.float32), "0 x 4"),
                       (np.zeros((1024, 257, 4), np.float32), "1024 x 257")):
        with pytest.raises(ParameterError, match=words):
            ours.decode(bad)
    for bad, words in ((np.zeros((4, 5, 3), np.float32), "multiples of 2, not 4 x 5"),
                       (np.zeros((4, 4, 4), np.float32), "a picture"), (np.zeros((0, 4, 3), np.float32), "0 x 2")):
        with pytest.raises(ParameterError, match=words):
            ours.encode(bad)
