"""Configs of UNets and autoencoders as diffusers writes them, and everything that must stop with a named error."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models import components
from forwardpass.models.families import autoencoder_kl, unet
from forwardpass.models.unet_spec import GroupNormSpec
from forwardpass.models.unet_weights import autoencoder_targets, unet_targets

KNOWN = components.DENOISERS | components.AUTOENCODERS
CROSS = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"], ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
SD1 = {  # as Stable Diffusion 1.5 publishes it
    "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0", "act_fn": "silu", "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280], "center_input_sample": False, "cross_attention_dim": 768,
    "down_block_types": CROSS[0], "downsample_padding": 1, "flip_sin_to_cos": True, "freq_shift": 0, "in_channels": 4,
    "layers_per_block": 2, "mid_block_scale_factor": 1, "norm_eps": 1e-05, "norm_num_groups": 32, "out_channels": 4,
    "sample_size": 64, "up_block_types": CROSS[1],
}
SD2 = SD1 | {"attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True,
             "upcast_attention": True, "sample_size": 96, "dual_cross_attention": False, "class_embed_type": None,
             "num_class_embeds": None, "only_cross_attention": False, "resnet_time_scale_shift": "default"}
VAE = {
    "_class_name": "AutoencoderKL", "_diffusers_version": "0.6.0", "act_fn": "silu", "in_channels": 3,
    "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D"] * 4, "latent_channels": 4,
    "layers_per_block": 2, "norm_num_groups": 32, "out_channels": 3, "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
SMALL = SD1 | {"block_out_channels": [8, 16], "down_block_types": CROSS[0][-2:], "up_block_types": CROSS[1][:2],
               "norm_num_groups": 4, "attention_head_dim": 2, "cross_attention_dim": 12, "layers_per_block": 1}


def read(config):
    return components.read_spec(config, KNOWN, "config.json")[1]


def parameters(targets):
    return sum(map(math.prod, targets.values()))


def test_stable_diffusion_has_the_weights_that_its_authors_counted():
    assert parameters(unet_targets(read(SD1))) == 859_520_964
    assert parameters(unet_targets(read(SD2))) == 865_910_724
    assert parameters(autoencoder_targets(read(VAE))) == 83_653_863


def test_attention_head_dim_is_a_number_of_heads():
    heads = {stage.level: (layer.attention.num_heads, layer.attention.head_dim) for stage in read(SD1).down
             for block in stage.attentions if block for layer in block.layers}
    assert heads == {0: (8, 40), 1: (8, 80), 2: (8, 160)}
    one, middle = read(SD2), read(SD2).middle.attentions[0].layers[0]
    assert {layer.attention.head_dim for stage in one.stages.values() for block in stage.attentions if block
            for layer in block.layers} == {64}
    assert (middle.cross.num_heads, middle.attention.scale, one.sample_size) == (20, 0.125, (96, 96))
    assert read(SD1 | {"num_attention_heads": 4, "attention_head_dim": [64] * 4}).middle.attentions[0].layers[
        0].attention.num_heads == 4


def test_defaults_are_those_of_diffusers():
    bare = {"_class_name": "UNet2DConditionModel"}
    assert read(bare) == read(SD1 | {"cross_attention_dim": 1280})
    assert read(VAE | {"sample_size": 768, "scaling_factor": 0.18215}) == read(VAE)
    few = read({"_class_name": "AutoencoderKL"})
    assert (few.factor, few.encoder.channels, len(few.decoder.blocks[1].resnets), few.scaling) == (1, 64, 2, 0.18215)


def test_what_configs_say_by_blocks():
    spec = read(SMALL | {"layers_per_block": [1, 3], "transformer_layers_per_block": [2, 1], "down_block_types":
                         ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
                         "sample_size": [12, 20], "time_embedding_dim": 48, "only_cross_attention": [False, False]})
    assert [len(stage.resnets) for stage in spec.down + spec.up] == [1, 3, 4, 2]
    assert [stage.attentions[0] is not None for stage in spec.down + spec.up] == [False, True, True, False]
    assert [(one.width, one.skip) for one in spec.up[0].resnets] == [(32, 16)] * 3 + [(24, 8)]
    assert [(one.width, one.skip) for one in spec.up[1].resnets] == [(24, 8), (16, 8)]
    assert len(spec.middle.attentions[0].layers) == 1 and spec.sample_size == (12, 20) and spec.time.size == 48
    assert read(SMALL | {"mid_block_type": None}).middle is None


def test_halves_of_an_autoencoder():
    spec = read(VAE | {"shift_factor": 0.1, "scaling_factor": 0.3, "use_quant_conv": False})
    assert [stage.resample for stage in spec.encoder.blocks] == ["halve_end"] * 3 + ["", ""]
    assert [stage.level for stage in spec.decoder.blocks] == [3, 3, 2, 1, 0] and spec.factor == 8
    assert [stage.channels for stage in spec.decoder.blocks] == [512, 512, 512, 256, 128]
    assert (spec.quant, spec.post_quant, spec.shift, spec.scaling) == (False, True, 0.1, 0.3)
    attention = spec.decoder.blocks[0].attentions[0].attention
    assert (attention.num_heads, attention.head_dim) == (1, 512)
    assert read(VAE | {"mid_block_add_attention": False}).encoder.stages["middle"].attentions == (None, None)


LONG = "x" * 5000
UNSUPPORTED = [
    (SMALL, {"class_embed_type": "timestep"}), (SMALL, {"num_class_embeds": 10}),
    (SMALL, {"dual_cross_attention": True}), (SMALL, {"addition_embed_type": "text_time"}),
    (SMALL, {"encoder_hid_dim": 32}),
    (SMALL, {"only_cross_attention": [True, False]}), (SMALL, {"only_cross_attention": True}),
    (SMALL, {"time_embedding_type": "fourier"}), (SMALL, {"time_embedding_act_fn": "silu"}),
    (SMALL, {"timestep_post_act": "silu"}), (SMALL, {"attention_type": "gated"}),
    (SMALL, {"resnet_skip_time_act": True}), (SMALL, {"resnet_out_scale_factor": 2.0}),
    (SMALL, {"cross_attention_norm": "layer_norm"}),
    (SMALL, {"reverse_transformer_layers_per_block": [[1]]}), (SMALL, {"norm_num_groups": None}),
    (SMALL, {"mid_block_type": "UNetMidBlock2D"}), (SMALL, {"resnet_time_scale_shift": "ada_group"}),
    (SMALL, {"down_block_types": ["AttnDownBlock2D", "DownBlock2D"]}), (SMALL, {"act_fn": "mish"}),
    (SMALL, {"cross_attention_dim": [12, 24]}), (SMALL, {"a_setting_of_next_year": 3}), (SMALL, {LONG: 3}),
    (VAE, {"latents_mean": [0.0] * 4}), (VAE, {"norm_num_groups": None}), (VAE, {"latents_std": [1.0] * 4}),
    (VAE, {"up_block_types": ["AttnUpDecoderBlock2D"] * 4}), (VAE, {"_class_name": "AutoencoderTiny"}),
    (SMALL, {"_class_name": "UNet2DModel"}), (SMALL, {"_class_name": LONG}),
    (SMALL, {"block_out_channels": [2048, 4096], "attention_head_dim": 1}),
]
WRONG = [
    (SMALL, {"block_out_channels": [8]}), (SMALL, {"block_out_channels": 8}),
    (SMALL, {"block_out_channels": [8, 18]}), (SMALL, {"block_out_channels": [8, -16]}),
    (SMALL, {"block_out_channels": [8, 2**40]}),
    (SMALL, {"up_block_types": ["UpBlock2D"]}), (SMALL, {"down_block_types": []}),
    (SMALL, {"down_block_types": [3, 4]}),
    (SMALL, {"down_block_types": ["DownBlock2D"] * 10**5}), (SMALL, {"layers_per_block": 0}),
    (SMALL, {"layers_per_block": 10**6}), (SMALL, {"layers_per_block": [1, 2, 3]}),
    (SMALL, {"layers_per_block": True}),
    (SMALL, {"layers_per_block": 60, "transformer_layers_per_block": 250}),
    (SMALL, {"attention_head_dim": 3}), (SMALL, {"attention_head_dim": 0}), (SMALL, {"attention_head_dim": "8"}),
    (SMALL, {"transformer_layers_per_block": [[1], [1]]}), (SMALL, {"transformer_layers_per_block": 10**9}),
    (SMALL, {"norm_num_groups": 5}), (SMALL, {"norm_eps": float("nan")}), (SMALL, {"norm_eps": 0}),
    (SMALL, {"freq_shift": 4}), (SMALL, {"freq_shift": -1}), (SMALL, {"downsample_padding": 2}),
    (SMALL, {"mid_block_scale_factor": 0}), (SMALL, {"conv_in_kernel": 2}), (SMALL, {"conv_out_kernel": 9}),
    (SMALL, {"time_cond_proj_dim": 2}), (SMALL, {"sample_size": [64]}), (SMALL, {"sample_size": 0}),
    (SMALL, {"center_input_sample": "yes"}), (SMALL, {"in_channels": 2**20}), (SMALL, {"cross_attention_dim": 0}),
    (VAE, {"scaling_factor": 0}), (VAE, {"scaling_factor": float("inf")}), (VAE, {"out_channels": 4}),
    (VAE, {"block_out_channels": [128] * 3}), (VAE, {"latent_channels": 0}), (VAE, {"norm_num_groups": 33}),
    (VAE, {"down_block_types": ["DownEncoderBlock2D"] * 9, "up_block_types": ["UpDecoderBlock2D"] * 9,
           "block_out_channels": [32] * 9}), ({}, {}), (SMALL, {"_class_name": 7}),
]


@pytest.mark.parametrize(("base", "changes"), UNSUPPORTED)
def test_what_is_not_implemented_is_named(base, changes):
    with pytest.raises(UnsupportedModelError) as found:
        read(base | changes)
    name = next(iter(changes))
    assert (name if len(name) < 100 else name[:60]) in str(found.value) or "dimensions are not" in str(found.value)
    assert len(str(found.value)) < 700


@pytest.mark.parametrize(("base", "changes"), WRONG)
def test_contradictions_are_errors_of_the_file(base, changes):
    with pytest.raises(ModelFileError) as found:
        read(base | changes)
    assert "expected" in str(found.value) and len(str(found.value)) < 700


@pytest.mark.parametrize("value", [None, [], {}, "x" * 100, -1, 1e300, [[]], {"a": 1}, True, [None] * 4, 10**400])
def test_no_value_of_any_setting_does_anything_but_stop_or_load(value):
    for base in SMALL, VAE:
        for name in base:
            try:
                read(base | {name: value}).check()
            except ForwardpassError as error:
                assert len(str(error)) < 700


def test_specs_that_do_not_fit_together():
    spec = read(SMALL)
    first, second = spec.down
    resnet = first.resnets[0]
    for wrong in (
        replace(spec, up=spec.up[:1]), replace(spec, up=spec.up[::-1]), replace(spec, channels=16),
        replace(spec, norm=GroupNormSpec(3, 1e-5)), replace(spec, activation="sine"), replace(spec, context_width=0),
        replace(spec, down=(replace(first, level=1), second)),
        replace(spec, down=(replace(first, resample=""), second)),
        replace(spec, down=(replace(first, resample="double"), second)), replace(spec, kernels=(3, 4)),
        replace(spec, down=(replace(first, attentions=()), second)),
        replace(spec, down=(replace(first, resnets=(replace(resnet, time="multiply"),)), second)),
        replace(spec, down=(replace(first, resnets=(replace(resnet, divisor=0.0),)), second)),
        replace(spec, down=(replace(first, attentions=(replace(first.attentions[0] or spec.middle.attentions[0],
                                                               hidden_size=12),)), second)),
        replace(spec, time=replace(spec.time, width=1)), replace(spec, sample_size=(0, 4)),
    ):
        with pytest.raises(ModelFileError, match="contradicts itself"):
            wrong.check()
    spec = read(VAE)
    for wrong in (replace(spec, decoder=replace(spec.decoder, blocks=spec.decoder.blocks[:-1], names=("a",) * 4)),
                  replace(spec, encoder=replace(spec.encoder, out=4)), replace(spec, shift=math.nan),
                  replace(spec, decoder=replace(spec.decoder, names=()))):
        with pytest.raises(ModelFileError, match="contradicts itself"):
            wrong.check()


def test_names_of_weights():
    rows = {row.target: row for row in unet.weight_rows(read(SMALL | {"time_cond_proj_dim": 4}))}
    names = {target: row.sources[0] for target, row in rows.items()}
    assert names["time.guidance.weight"] == "time_embedding.cond_proj.weight"
    assert names["down.0.resample.bias"] == "down_blocks.0.downsamplers.0.conv.bias"
    assert names["up.0.resample.weight"] == "up_blocks.0.upsamplers.0.conv.weight"
    assert names["up.1.resnets.1.shortcut.weight"] == "up_blocks.1.resnets.1.conv_shortcut.weight"
    layer = "middle.attentions.0.layers.0.", "mid_block.attentions.0.transformer_blocks.0."
    assert names[layer[0] + "cross.out.bias"] == layer[1] + "attn2.to_out.0.bias"
    gate, up = (rows[layer[0] + f"mlp.{name}.weight"] for name in ("gate", "up"))
    assert gate.sources == up.sources == (layer[1] + "ff.net.0.proj.weight",)
    assert (up.rows, gate.rows, gate.total) == (slice(0, 64), slice(64, 128), 128)
    conv = rows["up.0.resnets.0.conv1.weight"]
    assert (conv.shape, conv.source_shape, conv.transform) == ((16, 9 * 32), (16, 32, 3, 3), "pixels")
    names = {row.target: row.sources for row in autoencoder_kl.weight_rows(read(VAE))}
    at = "encoder.mid_block.attentions.0."
    assert names["encoder.middle.attentions.0.q.weight"] == (at + "to_q.weight", at + "query.weight")
    assert names["encoder.middle.attentions.0.out.bias"] == (at + "to_out.0.bias", at + "proj_attn.bias")
    assert names["encoder.middle.attentions.0.norm.bias"] == (at + "group_norm.bias",)
    assert names["post_quant.weight"] == ("post_quant_conv.weight",)
