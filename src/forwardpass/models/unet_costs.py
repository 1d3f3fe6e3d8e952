"""What a pass of a UNet or of half an autoencoder must do, and the activations that it needs at once.

Operations are counted as in costs.py: a multiply-add is two. Activations are the float32 images that an operation reads
or writes, and those that wait to be read: their sum at the operation where it is greatest. Attention keeps no scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forwardpass.models.arena import rows_by_level
from forwardpass.models.costs import Cost
from forwardpass.models.spec import LayerSpec
from forwardpass.models.unet_spec import (
    AutoencoderSpec,
    CoderSpec,
    PixelAttentionSpec,
    ResnetSpec,
    StageSpec,
    TransformerSpec,
    UNetSpec,
)

_GROUP_NORM, _LAYER_NORM = 8, 7
"""Operations an element: mean, difference, squares and their sum, scale, weight and bias; an activation after the one
for all pixels."""


def unet_flops(spec: UNetSpec, height: int, width: int, context: int = 0) -> dict[str, int]:
    """Operations by kind of one pass, see unet_operations."""
    return {label: cost.flops for label, cost in unet_operations(spec, height, width, context).items()}


def decoder_flops(spec: AutoencoderSpec, height: int, width: int) -> dict[str, int]:
    """Of decoding latents of this size."""
    return {label: cost.flops for label, cost in decoder_operations(spec, height, width).items()}


def encoder_flops(spec: AutoencoderSpec, height: int, width: int) -> dict[str, int]:
    """Of encoding an image into latents of this size."""
    return {label: cost.flops for label, cost in encoder_operations(spec, height, width).items()}


def unet_operations(spec: UNetSpec, height: int, width: int, context: int = 0) -> dict[str, Cost]:
    """What one pass over latents of this size does, by the labels of unet_blocks.py; Cost.read counts weights, not
    bytes, each as often as it is read. context: tokens of the text, whose keys and values are made before."""
    images = _Flops(height, width, context)
    time = spec.time
    images.count["time"] += 2 * time.size * (time.width + time.size + 1) + 2 * time.width * time.guidance
    images.weights["time"] += time.size * (time.width + time.size + 2) + time.width * time.guidance
    images.conv("conv_in", 0, spec.channels, spec.latent_channels, spec.kernels[0])
    for stage in spec.stages.values():
        images.stage(stage, time.size)
    last = list(spec.stages.values())[-1]
    images.count["group_norm"] += _GROUP_NORM * images.rows[0] * last.channels
    images.conv("conv_out", 0, spec.out_channels, last.channels, spec.kernels[1])
    return images.operations()


def decoder_operations(spec: AutoencoderSpec, height: int, width: int) -> dict[str, Cost]:
    """Of decoding latents of this size, as unet_operations."""
    images = _Flops(height * spec.factor, width * spec.factor, 0)
    if spec.post_quant:
        images.conv("quant", spec.decoder.blocks[0].level, spec.latent_channels, spec.latent_channels, 1)
    return _coder_operations(images, spec.decoder, spec.decoder.blocks[0].level, 0)


def encoder_operations(spec: AutoencoderSpec, height: int, width: int) -> dict[str, Cost]:
    """Of encoding an image into latents of this size, as unet_operations."""
    images, level = _Flops(height * spec.factor, width * spec.factor, 0), spec.decoder.blocks[0].level
    if spec.quant:
        images.conv("quant", level, spec.encoder.out, spec.encoder.out, 1)
    return _coder_operations(images, spec.encoder, 0, level)


def _coder_operations(images: _Flops, coder: CoderSpec, first: int, last: int) -> dict[str, Cost]:
    images.conv("conv_in", first, coder.channels, coder.width, 3)
    for stage in coder.blocks:
        images.stage(stage, 0)
    images.count["group_norm"] += _GROUP_NORM * images.rows[last] * coder.blocks[-1].channels
    images.conv("conv_out", last, coder.out, coder.blocks[-1].channels, 3)
    return images.operations()


class _Flops:
    """Operations of blocks over one image. count: by kind;  weights: that are read for them."""

    def __init__(self, height: int, width: int, context: int):
        self.rows = rows_by_level([(height, width)], 16)
        self.context = context
        self.count: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()

    def operations(self) -> dict[str, Cost]:
        return {label: Cost(flops, self.weights[label]) for label, flops in self.count.items()}

    def linear(self, label: str, level: int, out: int, width: int, bias: bool = True) -> None:
        self.count[label] += self.rows[level] * out * (2 * width + bias)
        self.weights[label] += out * (width + bias)

    def conv(self, label: str, level: int, out: int, width: int, size: int) -> None:
        self.linear(label, level, out, size * size * width)

    def stage(self, stage: StageSpec, time: int) -> None:
        level = stage.level
        for resnet, block in zip(stage.resnets, stage.attentions, strict=True):
            self._resnet(resnet, level, time)
            if isinstance(block, PixelAttentionSpec):
                self._pixels(block, level)
            elif block:
                self._transformer(block, level)
        if stage.resample:
            self.conv("resample", level + (-1 if stage.resample == "double" else 1), stage.channels, stage.channels, 3)

    def _resnet(self, spec: ResnetSpec, level: int, time: int) -> None:
        self.count["group_norm"] += _GROUP_NORM * self.rows[level] * (spec.width + spec.channels)
        self.conv("conv", level, spec.channels, spec.width, 3)
        self.conv("conv", level, spec.channels, spec.channels, 3)
        if spec.time:
            columns = spec.channels * (2 if spec.time == "scale" else 1)
            self.count["time"] += columns * (2 * time + 1) + self.rows[level] * columns
            self.weights["time"] += columns * (time + 1)
        if spec.width != spec.channels:
            self.linear("shortcut", level, spec.channels, spec.width)

    def _transformer(self, spec: TransformerSpec, level: int) -> None:
        width = spec.hidden_size
        self.count["group_norm"] += _GROUP_NORM * self.rows[level] * width
        for _ in range(2):
            self.linear("project", level, width, width)
        for layer in spec.layers:
            self._layer(layer, level, width)

    def _layer(self, layer: LayerSpec, level: int, width: int) -> None:
        a, c, m, rows = layer.attention, layer.cross, layer.mlp, self.rows[level]
        wide = a.num_heads * a.head_dim
        self.count["qkv"] += _LAYER_NORM * rows * width
        self.linear("qkv", level, 3 * wide, width, a.qkv_bias)
        self.count["attention"] += 4 * rows * rows * wide
        self.linear("out", level, width, wide, a.out_bias)
        if c:
            wide = c.num_heads * c.head_dim
            self.count["cross_q"] += _LAYER_NORM * rows * width
            self.linear("cross_q", level, wide, width, c.qkv_bias)
            self.count["cross"] += 4 * rows * self.context * wide
            self.linear("cross_out", level, width, wide, c.out_bias)
        self.count["gate_up"] += _LAYER_NORM * rows * width
        self.linear("gate_up", level, m.intermediate_size * (2 if m.kind == "gated" else 1), width, m.bias)
        self.linear("down", level, width, m.intermediate_size, m.bias)

    def _pixels(self, spec: PixelAttentionSpec, level: int) -> None:
        width, wide = spec.hidden_size, spec.attention.num_heads * spec.attention.head_dim
        self.count["group_norm"] += _GROUP_NORM * self.rows[level] * width
        self.linear("qkv", level, 3 * wide, width)
        self.count["attention"] += 4 * self.rows[level] ** 2 * wide
        self.linear("out", level, width, wide)


def unet_activations(spec: UNetSpec, sizes: Sequence[tuple[int, int]]) -> int:
    """Bytes of images that a pass over latents of these sizes needs at once, latents and what is predicted left out."""
    live = _Live(rows_by_level(sizes, 16))
    live.keep(0, spec.channels)
    for stage in spec.down:
        for resnet, block in zip(stage.resnets, stage.attentions, strict=True):
            live.pair(stage.level, resnet, block, mine=False)
            live.keep(stage.level, resnet.channels)
        if stage.resample:
            live.need((stage.level + 1, stage.channels))
            live.keep(stage.level + 1, stage.channels)
    for stage in (spec.middle,) if spec.middle else ():
        for n, (resnet, block) in enumerate(zip(stage.resnets, stage.attentions, strict=True)):
            live.pair(stage.level, resnet, block, mine=n > 0)
    for stage in spec.up:
        for resnet, block in zip(stage.resnets, stage.attentions, strict=True):
            live.need((stage.level, resnet.width - resnet.skip), (stage.level, resnet.width))
            live.drop(stage.level, resnet.skip)
            live.pair(stage.level, resnet, block, mine=True)
        live.change(stage)
    return live.most


def decoder_activations(spec: AutoencoderSpec, height: int, width: int) -> int:
    """Bytes of images that decoding latents of this size needs at once, as unet_activations."""
    live = _Live(rows_by_level([(height * spec.factor, width * spec.factor)], 16))
    for stage in spec.decoder.blocks:
        for resnet, block in zip(stage.resnets, stage.attentions, strict=True):
            live.pair(stage.level, resnet, block, mine=True)
        live.change(stage)
    return live.most


class _Live:
    """Images that are needed at once, in bytes. mine: whether a block's input is not needed after it."""

    def __init__(self, rows: Sequence[int]):
        self.rows = rows
        self.kept, self.most = 0, 0

    def _bytes(self, *images: tuple[int, int]) -> int:
        """images: (level, channels) of each."""
        return sum(4 * self.rows[level] * channels for level, channels in images)

    def need(self, *images: tuple[int, int]) -> None:
        """Beside those that are kept."""
        self.most = max(self.most, self.kept + self._bytes(*images))

    def keep(self, level: int, channels: int) -> None:
        self.kept += self._bytes((level, channels))
        self.need()

    def drop(self, level: int, channels: int) -> None:
        self.kept -= self._bytes((level, channels))

    def pair(self, level: int, resnet: ResnetSpec, block: TransformerSpec | PixelAttentionSpec | None,
             mine: bool) -> None:
        """A resnet and its attention. What is normalised may take the place of an input that is not needed again."""
        wide, width = resnet.width, resnet.channels
        # what the convolutions make, and what the first one reads or what is added at the end
        self.need((level, 2 * width + wide * (mine or wide != width)))
        if block:
            self.need((level, width + _attention_columns(block)))

    def change(self, stage: StageSpec) -> None:
        """To another level, where the input is not needed again."""
        if stage.resample:
            out = stage.level + (-1 if stage.resample == "double" else 1)
            self.need((stage.level, stage.channels), (out, stage.channels))


def _attention_columns(block: TransformerSpec | PixelAttentionSpec) -> int:
    """What attention needs at once for each pixel, its input left out."""
    if isinstance(block, PixelAttentionSpec):
        a = block.attention
        return max(block.hidden_size, a.num_heads * a.head_dim) + 3 * a.num_heads * a.head_dim
    width, most = block.hidden_size, 0
    for layer in block.layers:
        own, cross = (a.num_heads * a.head_dim if a else 0 for a in (layer.attention, layer.cross))
        most = max(most, 4 * own, 2 * cross, layer.mlp.intermediate_size)
    return width + most

