"""What a pass of a UNet and of an autoencoder costs, and that its memory is what is counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

import tiny_unets
from forwardpass.models import components, unet_blocks, unet_costs
from forwardpass.models.arena import rows_by_level
from forwardpass.models.blocks import Weights
from forwardpass.models.unet_spec import GroupNormSpec

SD1 = {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768}
VAE = {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
       "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
KNOWN = components.DENOISERS | components.AUTOENCODERS


class Nothing:
    """A backend whose programs only number their buffers. Threads meet after products, as they do where these are in
    floats, and after what mixes rows."""

    def program(self):
        return self

    def __init__(self):
        self.buffers, self.found, self.now = 0, [], 0

    def buffer(self, width, space=0):
        self.buffers += 1
        return self.buffers - 1

    def __getattr__(self, name):
        def record(*buffers, **facts):
            apart = name not in ("copy", "add_rows", "cap", "modulate", "activate")
            self.now += apart
            self.found.append(self.now)
            self.now += apart

        return record

    def moments(self):
        return self.found

    def passed(self):
        return ()


def read(config):
    return components.read_spec(config, KNOWN, "config.json")[1]


class AnyWeights(Weights):
    """Has every name."""

    def __init__(self):
        super().__init__(defaultdict(object), defaultdict(object))

    def under(self, prefix):
        return self


def planner(record, spec):
    return record(Nothing(), spec, AnyWeights(), "bfloat16").planner


@pytest.mark.parametrize("changes", [
    {}, {"attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024},
    {"block_out_channels": [320, 640, 1280], "down_block_types": ["DownBlock2D"] + ["CrossAttnDownBlock2D"] * 2,
     "up_block_types": ["CrossAttnUpBlock2D"] * 2 + ["UpBlock2D"], "transformer_layers_per_block": [1, 2, 4]},
])
def test_memory_of_a_pass_is_what_is_counted_and_a_fifth_at_most(changes):
    spec = read(SD1 | changes)
    found = planner(unet_blocks.record_unet, spec)
    for sizes in [(64, 64)], [(64, 64)] * 6, [(96, 64), (37, 50), (128, 128)]:
        counted = unet_costs.unet_activations(spec, sizes)
        assert counted <= found.bytes(rows_by_level(sizes, 4)) <= 1.2 * counted


@pytest.mark.parametrize("size", [(64, 64), (37, 50), (1, 1)])
def test_memory_of_a_decoder_is_what_is_counted_and_a_fifth_at_most(size):
    spec = read(VAE)
    counted = unet_costs.decoder_activations(spec, *size)
    rows = rows_by_level([[8 * side for side in size]], 4)
    assert counted <= planner(unet_blocks.record_decoder, spec).bytes(rows) <= 1.2 * counted


def test_memory_by_hand():
    """One level of 4 x 3 pixels without attention: 16 channels, 8 of the second resnet on the way up are kept ones."""
    spec = read(SD1 | {"block_out_channels": [8], "down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"],
                       "norm_num_groups": 4, "layers_per_block": 1, "mid_block_type": None})
    # the first resnet on the way up: 16 channels of its input, 8 each of its two halves; 8 are still kept
    assert unet_costs.unet_activations(spec, [(4, 3)]) == 4 * 12 * (16 + 8 + 8 + 8)


def test_operations_are_those_that_torch_counts():
    """Its counter knows products, convolutions and attention; norms, biases and the like are a little more."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    def counted(call) -> int:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call()
        return counter.get_total_flops()

    model = tiny_unets.unet(block_out_channels=(32, 64), attention_head_dim=4, time_cond_proj_dim=32)
    latent, text = tiny_unets.images(0, (16, 12))[0], tiny_unets.texts(0, 11)[0]
    spec = read(dict(model.config) | {"_class_name": "UNet2DConditionModel"})
    made_once = sum(2 * 11 * 24 * 2 * layer.cross.num_heads * layer.cross.head_dim for stage in spec.stages.values()
                    for block in stage.attentions if block for layer in block.layers)
    guidance = 2 * spec.time.width * 32  # torch was not told any
    found = sum(unet_costs.unet_flops(spec, 16, 12, 11).values()) - guidance
    products = counted(lambda: tiny_unets.predicted(model, latent, 5.0, text)) - made_once
    assert products < found < 1.06 * products

    model = tiny_unets.autoencoder(block_out_channels=(32, 64), norm_num_groups=8)
    spec = read(dict(model.config) | {"_class_name": "AutoencoderKL"})
    products = counted(lambda: model.decode(tiny_unets.tensor(tiny_unets.images(0, (8, 6))[0])))
    assert products < sum(unet_costs.decoder_flops(spec, 8, 6).values()) < 1.06 * products
    products = counted(lambda: model.encode(tiny_unets.tensor(tiny_unets.images(0, (16, 12), channels=3)[0])))
    assert products < sum(unet_costs.encoder_flops(spec, 8, 6).values()) < 1.06 * products


def test_stable_diffusion_takes_as_many_operations_as_is_known():
    """About 0.8 TFLOP a pass at 512 x 512, and 2.5 for a decoder."""
    count = unet_costs.unet_flops(read(SD1), 64, 64, 77)
    assert 0.75e12 < sum(count.values()) < 0.85e12 and max(count, key=count.get) == "conv"
    assert 2.4e12 < sum(unet_costs.decoder_flops(read(VAE), 64, 64).values()) < 2.6e12


def test_half_the_groups_cost_the_same():
    spec = read(SD1)
    half = replace(spec, norm=GroupNormSpec(16, 1e-5))
    assert unet_costs.unet_flops(spec, 8, 8) == unet_costs.unet_flops(half, 8, 8)
