"""Whether the parts of a UNet's or an autoencoder's spec fit together, before anything is listed or allocated."""

from __future__ import annotations

import math

from forwardpass.errors import ModelFileError
from forwardpass.models.spec import ACTIVATIONS, MAX_SIZE
from forwardpass.models.spec_checks import check_attention, check_layer
from forwardpass.models.unet_spec import (
    RESAMPLES,
    AutoencoderSpec,
    CoderSpec,
    GroupNormSpec,
    PixelAttentionSpec,
    ResnetSpec,
    StageSpec,
    TransformerSpec,
    UNetSpec,
)

MAX_CHANNELS = 2**16
MAX_LEVELS = 8
MAX_BLOCKS = 64
"""Resnets of a stage."""
MAX_DEPTH = 256
"""Layers of one transformer."""
MAX_PARTS = 2048
"""Resnets and layers of a whole UNet: each has a dozen tensors, which are listed before a file is looked at."""


def check_unet(spec: UNetSpec) -> None:
    """ModelFileError names the first pair that does not fit, UnsupportedModelError what the kernels cannot do."""
    time = spec.time
    _channels(latent_channels=spec.latent_channels, out_channels=spec.out_channels, channels=spec.channels)
    for name, value in (("time width", time.width), ("time embedding", time.size)):
        _require(1 <= value <= MAX_SIZE, f"a {name} from 1 to {MAX_SIZE}", value)
    _require(0 <= time.guidance <= MAX_SIZE, f"waves of a guidance from 0 (none) to {MAX_SIZE} columns", time.guidance)
    _require(time.guidance == 0 or time.guidance >= 4, "waves of a guidance of 4 columns or more", time.guidance)
    _require(time.width >= 2 and 0 <= time.shift < time.width // 2, "a frequency shift from 0 to less than half of the "
             f"time width ({time.width})", time.shift)
    _activation(time.activation)
    _activation(spec.activation)
    _require(all(1 <= side <= 2**16 for side in spec.sample_size), f"a sample size from 1 to {2**16}", spec.sample_size)
    _require(all(side in (1, 3, 5, 7) for side in spec.kernels), "first and last convolutions of 1, 3, 5 or 7 pixels",
             spec.kernels)
    _require(0 <= spec.context_width <= MAX_SIZE, f"a context of 0 (none) to {MAX_SIZE} columns", spec.context_width)
    _require(bool(spec.down) and len(spec.down) == len(spec.up), "as many stages down as up, one or more",
             f"{len(spec.down)} and {len(spec.up)}")
    parts = sum(len(stage.resnets) + sum(len(getattr(one, "layers", ())) for one in stage.attentions)
                for stage in spec.stages.values())
    _require(parts <= MAX_PARTS, f"at most {MAX_PARTS} resnets and layers of transformers", parts)
    kept = [(spec.channels, 0)]
    now = (spec.channels, 0)
    for name, stage in spec.stages.items():
        up = name.startswith("up.")
        _check_stage(name, stage, now, spec.context_width, kept if up else None)
        if name.startswith("down."):
            kept += [(one.channels, stage.level) for one in stage.resnets]
            kept += [_after(stage)] if stage.resample else []
        now = _after(stage)
    _require(not kept and now[1] == 0, "every kept image to be read, on the way up to level 0", f"{len(kept)} left")
    _norm(spec.norm, now[0])


def check_autoencoder(spec: AutoencoderSpec) -> None:
    """As check_unet."""
    _channels(latent_channels=spec.latent_channels, image_channels=spec.image_channels)
    _require(math.isfinite(spec.scaling) and abs(spec.scaling) >= 1e-6, "a scaling factor other than 0", spec.scaling)
    _require(math.isfinite(spec.shift), "a finite shift factor", spec.shift)
    first, last = _check_coder("encoder", spec.encoder, 0)
    lowest, highest = _check_coder("decoder", spec.decoder, last)
    _require(first == highest == 0 and lowest == last, "an encoder that begins and a decoder that ends at the image",
             f"levels {first} to {last} and {lowest} to {highest}")
    _require((spec.encoder.width, spec.encoder.out) == (spec.image_channels, 2 * spec.latent_channels),
             "an encoder from images to means and variances", (spec.encoder.width, spec.encoder.out))
    _require((spec.decoder.width, spec.decoder.out) == (spec.latent_channels, spec.image_channels),
             "a decoder from latents to images", (spec.decoder.width, spec.decoder.out))


def _check_coder(name: str, coder: CoderSpec, level: int) -> tuple[int, int]:
    """The levels at which it begins and ends."""
    _channels(channels=coder.channels)
    _require(0 < len(coder.blocks) == len(coder.names), "a name for each stage, one or more", len(coder.names))
    _activation(coder.activation)
    now = (coder.channels, level)
    for part, stage in coder.stages.items():
        _check_stage(f"{name}.{part}", stage, now, 0, None)
        now = _after(stage)
    _norm(coder.norm, now[0])
    return level, now[1]


def _after(stage: StageSpec) -> tuple[int, int]:
    """Channels and level of what leaves a stage."""
    step = {"": 0, "double": -1}.get(stage.resample, 1)
    return stage.channels, stage.level + step


def _check_stage(name: str, stage: StageSpec, now: tuple[int, int], context: int, kept: list | None) -> None:
    """now: channels and level of what enters. kept: of what the way down left; what is read is taken off."""
    width, level = now
    _require(0 <= stage.level <= MAX_LEVELS and stage.level == level, f"{name} on level {level}", stage.level)
    _require(1 <= len(stage.resnets) <= MAX_BLOCKS, f"1 to {MAX_BLOCKS} resnets in {name}", len(stage.resnets))
    _require(len(stage.attentions) == len(stage.resnets), f"{len(stage.resnets)} attentions (or none) in {name}",
             len(stage.attentions))
    _require(stage.resample in RESAMPLES, f"a change of level out of {', '.join(RESAMPLES[1:])} in {name}",
             stage.resample)
    _require(0 <= _after(stage)[1] <= MAX_LEVELS, f"levels from 0 to {MAX_LEVELS}", _after(stage)[1])
    for resnet, attention in zip(stage.resnets, stage.attentions, strict=True):
        skip, at = 0, level
        if kept is not None:
            _require(bool(kept), f"a resnet of {name} to have an image that was kept", "none left")
            skip, at = kept.pop()
        _require((resnet.skip, at) == (skip, level), f"{skip} kept channels of level {at} in {name}",
                 f"{resnet.skip} of level {level}")
        _require(resnet.width == width + skip, f"a resnet of {width + skip} channels in {name}", resnet.width)
        _check_resnet(resnet)
        width = resnet.channels
        if attention:
            _check_pixels(name, attention, width, context)


def _check_resnet(resnet: ResnetSpec) -> None:
    _channels(channels=resnet.channels, width=resnet.width)
    _norm(resnet.norm, resnet.width)
    _norm(resnet.norm, resnet.channels)
    _activation(resnet.activation)
    _require(resnet.time in ("", "add", "scale"), "time that a resnet ignores, adds or scales with", resnet.time)
    _require(math.isfinite(resnet.divisor) and abs(resnet.divisor) >= 1e-6, "a divisor other than 0", resnet.divisor)


def _check_pixels(name: str, block: TransformerSpec | PixelAttentionSpec, width: int, context: int) -> None:
    _norm(block.norm, width)
    if isinstance(block, PixelAttentionSpec):
        attentions = [block.attention]
        check_attention(block.attention)
    else:
        _require(1 <= len(block.layers) <= MAX_DEPTH, f"1 to {MAX_DEPTH} layers of a transformer in {name}",
                 len(block.layers))
        for layer in {id(one): one for one in block.layers}.values():
            check_layer(layer)
            _require(context > 0 or layer.cross is None, f"no attention to a text in {name} without one", "some")
        attentions = [layer.attention for layer in block.layers]
    for a in attentions:
        _require(not a.causal and a.rotary is None, f"attention of pixels in {name} that looks both ways", "another")
    _require(block.hidden_size == width, f"attention of {width} channels in {name}", block.hidden_size)


def _norm(norm: GroupNormSpec, channels: int) -> None:
    _require(1 <= norm.groups <= channels and channels % norm.groups == 0,
             f"a number of groups that divides {channels} channels", norm.groups)
    _require(0 < norm.eps < 1, "a norm epsilon between 0 and 1", norm.eps)


def _channels(**sizes: int) -> None:
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and 1 <= value <= MAX_CHANNELS, f"{name.replace('_', ' ')} from 1 to {MAX_CHANNELS}", value)


def _activation(name: str) -> None:
    _require(name in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", name)


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ModelFileError(f"the model contradicts itself: expected {expected}, found {found}; "
                             "fix its config or fetch the model again")
