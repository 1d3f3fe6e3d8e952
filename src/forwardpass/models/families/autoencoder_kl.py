"""AutoencoderKL of diffusers: between images and the latents in which Stable Diffusion and others draw."""

from __future__ import annotations

from forwardpass.models.diffusers_config import DiffusersFields
from forwardpass.models.spec import AttentionSpec
from forwardpass.models.unet_checks import MAX_BLOCKS, MAX_CHANNELS, MAX_LEVELS
from forwardpass.models.unet_spec import (
    AutoencoderSpec,
    CoderSpec,
    GroupNormSpec,
    PixelAttentionSpec,
    ResnetSpec,
    StageSpec,
)
from forwardpass.models.unet_weights import PIXEL_WORDS, WORDS, autoencoder_targets, rows
from forwardpass.models.weight_rows import WeightRow

CLASS = "AutoencoderKL"
IGNORED: tuple[str, ...] = ()
_DOWN, _UP = "DownEncoderBlock2D", "UpDecoderBlock2D"
_WITHOUT_EFFECT = ("force_upcast", "sample_size")
"""force_upcast: sums are float32 in any case.  sample_size: only says how large an image is cut into tiles."""


def from_config(f: DiffusersFields) -> AutoencoderSpec:
    """The spec that a config.json describes. Raises ModelFileError or UnsupportedModelError."""
    down = f.names("down_block_types", (_DOWN,), (_DOWN,), MAX_LEVELS)
    up = f.names("up_block_types", (_UP,), (_UP,), MAX_LEVELS)
    count = len(down)
    if len(up) != count:
        f.wrong("up_block_types", f"{count} blocks, as many as down_block_types", list(up))
    widths = f.get("block_out_channels")
    if widths is not None and not isinstance(widths, (list, tuple)):
        f.wrong("block_out_channels", f"a list of {count}, one for each block", widths)
    widths = f.each("block_out_channels", count, 64, high=MAX_CHANNELS)
    channels = f.integer("in_channels", default=3, high=MAX_CHANNELS)
    if f.integer("out_channels", default=3, high=MAX_CHANNELS) != channels:
        f.wrong("out_channels", f"as many as in_channels ({channels})", f.get("out_channels"))
    latent = f.integer("latent_channels", default=4, high=MAX_CHANNELS)
    each = f.integer("layers_per_block", default=1, high=MAX_BLOCKS - 1)
    if f.is_null("norm_num_groups"):
        f.unsupported("norm_num_groups", "an autoencoder without group norms")
    norm, active = GroupNormSpec(f.integer("norm_num_groups", default=32), 1e-6), f.activation()
    wide, attends = widths[-1], f.flag("mid_block_add_attention", True)
    attention = PixelAttentionSpec(norm, wide, AttentionSpec(1, 1, wide, wide**-0.5, qkv_bias=True, out_bias=True,
                                                            causal=False))

    def stage(level: int, now: int, width: int, resnets: int, resample: str) -> StageSpec:
        inputs = [now] + [width] * (resnets - 1)
        return StageSpec(level, tuple(ResnetSpec(one, width, norm, active) for one in inputs), (None,) * resnets,
                         resample)

    middle = StageSpec(count - 1, (ResnetSpec(wide, wide, norm, active),) * 2, (attention if attends else None, None))
    halves, doubles, now = [], [], widths[0]
    for i, width in enumerate(widths):
        halves.append(stage(i, now, width, each, "halve_end" if i + 1 < count else ""))
        now = width
    for i in reversed(range(count)):
        doubles.append(stage(i, now, widths[i], each + 1, "double" if i else ""))
        now = widths[i]
    names = [f"down.{i}" for i in range(count)], [f"up.{i}" for i in range(count)]
    encoder = CoderSpec(channels, widths[0], 2 * latent, (*names[0], "middle"), (*halves, middle), norm, "silu")
    decoder = CoderSpec(latent, wide, channels, ("middle", *names[1]), (middle, *doubles), norm, "silu")
    spec = AutoencoderSpec("autoencoder_kl", latent, channels, encoder, decoder, f.flag("use_quant_conv", True),
                           f.flag("use_post_quant_conv", True),
                           f.number("scaling_factor", default=0.18215, low=-1e6, high=1e6),
                           f.number("shift_factor", default=0.0, low=-1e6, high=1e6))
    f.close({}, _WITHOUT_EFFECT)
    return spec.check()


def weight_rows(spec: AutoencoderSpec) -> tuple[WeightRow, ...]:
    return rows(autoencoder_targets(spec), (PIXEL_WORDS, WORDS))
