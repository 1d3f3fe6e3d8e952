"""Which tensors the stages of UNets and autoencoders need, and what diffusers calls them.

Names are put together from words: a stage ("down.0"), a block in it ("resnets.1"), a tensor ("conv1.weight"). So is the
checkpoint's name, from a table of words (`WORDS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from forwardpass.models.unet_spec import AutoencoderSpec, CoderSpec, PixelAttentionSpec, StageSpec, UNetSpec
from forwardpass.models.weight_rows import Targets, WeightRow, layer_targets

QUANT, POST_QUANT = "quant", "post_quant"
ENCODER, DECODER = "encoder.", "decoder."

WORDS = {  # regular expression over a target's stem -> what stands there in a checkpoint; "|" between spellings
    r"^time\.first$": "time_embedding.linear_1", r"^time\.second$": "time_embedding.linear_2",
    r"^time\.guidance$": "time_embedding.cond_proj",
    r"^quant$": "quant_conv", r"^post_quant$": "post_quant_conv",
    r"\bnorm_out$": "conv_norm_out",
    r"\bdown\.(\d+)\.resample$": r"down_blocks.\1.downsamplers.0.conv",
    r"\bup\.(\d+)\.resample$": r"up_blocks.\1.upsamplers.0.conv",
    r"\b(down|up)\.(\d+)\.": r"\1_blocks.\2.", r"\bmiddle\.": "mid_block.",
    r"(resnets\.\d+)\.time$": r"\1.time_emb_proj", r"(resnets\.\d+)\.shortcut$": r"\1.conv_shortcut",
    r"\.project_(in|out)$": r".proj_\1", r"\.layers\.(\d+)\.": r".transformer_blocks.\1.",
    r"\.attention_norm$": ".norm1", r"\.cross_norm$": ".norm2", r"\.mlp_norm$": ".norm3",
    r"\.attention\.([qkv])$": r".attn1.to_\1", r"\.attention\.out$": ".attn1.to_out.0",
    r"\.cross\.([qkv])$": r".attn2.to_\1", r"\.cross\.out$": ".attn2.to_out.0",
    r"\.mlp\.(up|gate)$": ".ff.net.0.proj", r"\.mlp\.down$": ".ff.net.2",
}
PIXEL_WORDS = {  # of attention without a transformer around it, also as it was called first
    r"\.norm$": ".group_norm", r"\.q$": ".to_q|query", r"\.k$": ".to_k|key", r"\.v$": ".to_v|value",
    r"\.out$": ".to_out.0|proj_attn",
}


class ImageTargets(Targets):
    """Also knows which tensors are convolutions: kernels, target -> pixels of a side."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, int] = {}

    def conv(self, name: str, out: int, width: int, size: int = 3) -> None:
        self.linear(name, (out, size * size * width), bias=True)
        self.kernels[name + ".weight"] = size

    def group_norm(self, name: str, channels: int) -> None:
        self.linear(name, (channels,), bias=True)


def unet_targets(spec: UNetSpec) -> ImageTargets:
    """Every tensor of a UNet with its shape, outputs first, in the order in which a pass reads them."""
    out, time = ImageTargets(), spec.time
    if time.guidance:
        out.linear("time.guidance", (time.width, time.guidance))
    out.linear("time.first", (time.size, time.width), bias=True)
    out.linear("time.second", (time.size, time.size), bias=True)
    out.conv("conv_in", spec.channels, spec.latent_channels, spec.kernels[0])
    for name, stage in spec.stages.items():
        _stage(out, name, stage, time.size, spec.context_width)
    last = list(spec.stages.values())[-1].channels
    out.group_norm("norm_out", last)
    out.conv("conv_out", spec.out_channels, last, spec.kernels[1])
    return out


def autoencoder_targets(spec: AutoencoderSpec) -> ImageTargets:
    """Every tensor of an autoencoder, its encoder first."""
    out = ImageTargets()
    _coder(out, ENCODER, spec.encoder)
    if spec.quant:
        out.conv(QUANT, 2 * spec.latent_channels, 2 * spec.latent_channels, 1)
    if spec.post_quant:
        out.conv(POST_QUANT, spec.latent_channels, spec.latent_channels, 1)
    _coder(out, DECODER, spec.decoder)
    return out


def _coder(out: ImageTargets, at: str, coder: CoderSpec) -> None:
    out.conv(at + "conv_in", coder.channels, coder.width)
    for name, stage in coder.stages.items():
        _stage(out, at + name, stage, 0, 0)
    out.group_norm(at + "norm_out", coder.blocks[-1].channels)
    out.conv(at + "conv_out", coder.out, coder.blocks[-1].channels)


def _stage(out: ImageTargets, name: str, stage: StageSpec, time: int, context: int) -> None:
    """time, context: columns of the step's embedding and of a text's states."""
    for i, (resnet, attention) in enumerate(zip(stage.resnets, stage.attentions, strict=True)):
        at = f"{name}.resnets.{i}."
        out.group_norm(at + "norm1", resnet.width)
        out.conv(at + "conv1", resnet.channels, resnet.width)
        if resnet.time:
            out.linear(at + "time", (resnet.channels * (2 if resnet.time == "scale" else 1), time), bias=True)
        out.group_norm(at + "norm2", resnet.channels)
        out.conv(at + "conv2", resnet.channels, resnet.channels)
        if resnet.width != resnet.channels:
            out.conv(at + "shortcut", resnet.channels, resnet.width, 1)
        if attention is None:
            continue
        at, width = f"{name}.attentions.{i}.", attention.hidden_size
        out.group_norm(at + "norm", width)
        if isinstance(attention, PixelAttentionSpec):
            for part in "q", "k", "v", "out":
                out.linear(at + part, (width, width), bias=True)
            continue
        out.linear(at + "project_in", (width, width), bias=True)
        for n, layer in enumerate(attention.layers):
            layer_targets(out, f"{at}layers.{n}.", width, layer, context)
        out.linear(at + "project_out", (width, width), bias=True)
    if stage.resample:
        out.conv(f"{name}.resample", stage.channels, stage.channels)


def rows(targets: ImageTargets, words: Iterable[Mapping[str, str]]) -> tuple[WeightRow, ...]:
    """A row for every target; words: tables to be applied one after the other.

    Gate and up of an MLP are one stored tensor, up first.
    """
    out = []
    for target, shape in targets.items():
        stem, _, suffix = target.rpartition(".")
        row = WeightRow(target, tuple(f"{name}.{suffix}" for name in _spellings(stem, words)), shape)
        if targets.kernels.get(target, 1) > 1:
            row = replace(row, transform="pixels", kernel=targets.kernels[target])
        if stem.endswith((".mlp.up", ".mlp.gate")):
            start = 0 if stem.endswith("up") else shape[0]
            row = replace(row, rows=slice(start, start + shape[0]), total=2 * shape[0])
        out.append(row)
    return tuple(out)


def _spellings(stem: str, words: Iterable[Mapping[str, str]]) -> list[str]:
    for table in words:
        for pattern, word in table.items():
            stem = re.sub(pattern, word, stem)
    first, *others = stem.split("|")
    block = re.match(r"(.*attentions\.\d+\.|)", first)[1]  # other spellings are those of what stands behind it
    return [first] + [block + name for name in others]
