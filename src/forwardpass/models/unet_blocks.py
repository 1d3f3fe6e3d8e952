"""The forward pass of UNets and autoencoders, the only place where it is written down.

A spec and its weights become recorded programs: one for each half of an autoencoder, and for a UNet one that makes keys
and values of texts and one that is a step. Buffers are seldom used for two things: memory is planned for when a program
runs (arena.py). But where an image is not needed any more its buffer may be written over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forwardpass.backends.protocol import CONTEXT, IMAGES, NormWeights, Program
from forwardpass.models.arena import Planner
from forwardpass.models.blocks import Layers, Recorded, Weights
from forwardpass.models.unet_spec import (
    AutoencoderSpec,
    CoderSpec,
    GroupNormSpec,
    PixelAttentionSpec,
    ResnetSpec,
    StageSpec,
    TransformerSpec,
    UNetSpec,
)
from forwardpass.models.unet_weights import DECODER, ENCODER, POST_QUANT, QUANT


@dataclass(frozen=True, slots=True)
class RecordedImages:
    """A program over images. source, out: the buffers of what it reads and makes;  levels: that its images have;
    waves, guidance: of a UNet's step and scale of guidance, in the space of one row an image;  context: of the keys and
    values of its texts. None = there is none."""

    planner: Planner
    source: int
    out: int
    levels: int
    waves: int | None = None
    guidance: int | None = None
    context: int | None = None

    @property
    def program(self) -> Program:
        return self.planner.program


def context_columns(spec: UNetSpec) -> tuple[dict[str, int], int]:
    """Where the keys and values of each attention to a text lie in a context's row: ("down.0.attentions.1.layers.0." ->
    first column of its keys, width of the row)."""
    columns, width = {}, 0
    for name, stage in spec.stages.items():
        for i, block in enumerate(stage.attentions):
            for n, layer in enumerate(block.layers if isinstance(block, TransformerSpec) else ()):
                if layer.cross:
                    columns[f"{name}.attentions.{i}.layers.{n}."] = width
                    width += 2 * layer.cross.num_heads * layer.cross.head_dim
    return columns, width


def record_context(backend, spec: UNetSpec, weights: Weights) -> Recorded:
    """Keys and values of all attentions to a text, of the states of its tokens."""
    program = backend.program()
    columns, width = context_columns(spec)
    source, out = program.buffer(spec.context_width), program.buffer(width)
    parts: dict[int, int] = {}
    for (at, column), end in zip(columns.items(), [*columns.values(), width][1:], strict=True):
        size = end - column
        if size not in parts:
            parts[size] = program.buffer(size)
        program.linear(source, parts[size], [weights.linear(at + "cross.k"), weights.linear(at + "cross.v")], norm=None,
                       label="cross_kv")
        program.copy(parts[size], out, column=column, label="cross_kv")
    return Recorded(program, source, out)


def record_unet(backend, spec: UNetSpec, weights: Weights, kv_dtype: str) -> RecordedImages:
    """One forward pass: what latents at their steps, and their texts, are predicted to be made of."""
    planner, time = Planner(backend.program()), spec.time
    source, out = planner.bound(spec.latent_channels), planner.bound(spec.out_channels)
    waves = planner.bound(time.width, IMAGES)
    guidance = planner.bound(time.guidance, IMAGES) if time.guidance else None
    columns, width = context_columns(spec)
    context = planner.bound(width, CONTEXT) if width else None
    images = _Images(backend, planner, weights, kv_dtype, context, columns)
    images.step(spec, waves, guidance)

    x = planner.buffer(spec.channels)
    planner.conv(source, x, weights.linear("conv_in"), size=spec.kernels[0], label="conv_in")
    kept = [x]
    for i, stage in enumerate(spec.down):
        for n in range(len(stage.resnets)):
            x = images.pair(f"down.{i}", stage, n, x, mine=False)
            kept.append(x)
        if stage.resample:
            x = images.resample(f"down.{i}", stage, x)
            kept.append(x)
    if spec.middle:
        for n in range(len(spec.middle.resnets)):
            x = images.pair("middle", spec.middle, n, x, mine=n > 0)
    for i, stage in enumerate(spec.up):
        for n in range(len(stage.resnets)):
            x = images.pair(f"up.{i}", stage, n, images.beside(x, kept.pop(), stage.level), mine=True)
        if stage.resample:
            x = images.resample(f"up.{i}", stage, x)
    images.end("", x, out, spec.norm, spec.activation, spec.kernels[1])
    levels = 1 + max(stage.level for stage in spec.stages.values())
    return RecordedImages(planner, source, out, levels, waves, guidance, context)


def record_encoder(backend, spec: AutoencoderSpec, weights: Weights, kv_dtype: str) -> RecordedImages:
    """Images to the means and logarithms of variances of their latents."""
    planner = Planner(backend.program())
    images = _Images(backend, planner, weights, kv_dtype)
    source, level = planner.bound(spec.image_channels), spec.decoder.blocks[0].level
    out = planner.bound(spec.encoder.out, level)
    x = planner.buffer(spec.encoder.out, level) if spec.quant else out
    _coder(images, ENCODER, spec.encoder, source, x)
    if spec.quant:
        planner.linear(x, out, [weights.linear(QUANT)], norm=None, label="quant")
    return RecordedImages(planner, source, out, 1 + level)


def record_decoder(backend, spec: AutoencoderSpec, weights: Weights, kv_dtype: str) -> RecordedImages:
    """Latents to images. Level 0 is that of the images, so that latents lie on the last one."""
    planner = Planner(backend.program())
    images = _Images(backend, planner, weights, kv_dtype)
    level = spec.decoder.blocks[0].level
    source, out = planner.bound(spec.latent_channels, level), planner.bound(spec.image_channels)
    x = source
    if spec.post_quant:
        x = planner.buffer(spec.latent_channels, level)
        planner.linear(source, x, [weights.linear(POST_QUANT)], norm=None, label="quant")
    _coder(images, DECODER, spec.decoder, x, out)
    return RecordedImages(planner, source, out, 1 + level)


def _coder(images: _Images, at: str, coder: CoderSpec, source: int, out: int) -> None:
    planner = images.planner
    x = planner.buffer(coder.channels, planner.spaces[source])
    planner.conv(source, x, images.weights.linear(at + "conv_in"), size=3, label="conv_in")
    for name, stage in coder.stages.items():
        for n in range(len(stage.resnets)):
            x = images.pair(at + name, stage, n, x, mine=True)
        if stage.resample:
            x = images.resample(at + name, stage, x)
    images.end(at, x, out, coder.norm, coder.activation, 3)


@dataclass(slots=True)
class _Images:
    """Records blocks of stages. x is always the buffer of an image; mine: whether it may be written over, since nobody
    reads it later. context, columns: of the texts' keys and values."""

    backend: object
    planner: Planner
    weights: Weights
    kv_dtype: str
    context: int | None = None
    columns: dict[str, int] = field(default_factory=dict)
    embedding: int | None = None

    def step(self, spec: UNetSpec, waves: int, guidance: int | None) -> None:
        """The embedding of the step. Resnets read act(embedding) and nothing else, so that this is what is kept."""
        time, linear = spec.time, self.weights.linear
        if guidance is not None:
            self.planner.linear(guidance, waves, [linear("time.guidance")], norm=None, mode="add", label="time")
        inner, self.embedding = (self.planner.buffer(time.size, IMAGES) for _ in range(2))
        self.planner.linear(waves, inner, [linear("time.first")], norm=None, activation=time.activation, label="time")
        self.planner.linear(inner, self.embedding, [linear("time.second")], norm=None, activation=spec.activation,
                            label="time")

    def pair(self, stage_name: str, stage: StageSpec, n: int, x: int, mine: bool) -> int:
        """The n-th resnet of a stage and its attention."""
        x = self.resnet(f"{stage_name}.resnets.{n}.", stage.resnets[n], x, mine)
        block, at = stage.attentions[n], f"{stage_name}.attentions.{n}."
        if isinstance(block, TransformerSpec):
            self.transformer(at, block, x)
        elif block:
            self.attention(at, block, x)
        return x

    def resnet(self, at: str, spec: ResnetSpec, x: int, mine: bool) -> int:
        planner, linear, level = self.planner, self.weights.linear, self.planner.spaces[x]
        out, normed = x, x
        if spec.width != spec.channels:
            out = planner.buffer(spec.channels, level)
            planner.linear(x, out, [linear(at + "shortcut")], norm=None, label="shortcut")
        if not mine or out == x:
            normed = planner.buffer(spec.width, level)
        self._norm(at + "norm1", spec.norm, x, normed, spec.activation)
        inner = planner.buffer(spec.channels, level)
        planner.conv(normed, inner, linear(at + "conv1"), size=3, label="conv")
        self._timed(at, spec, inner)
        if out == x and not mine:
            out = planner.buffer(spec.channels, level)
            planner.copy(x, out, label="shortcut")
        planner.conv(inner, out, linear(at + "conv2"), size=3, mode="add", label="conv")
        if spec.divisor != 1.0:
            planner.cap(out, scale=1 / spec.divisor, softcap=0.0, label="conv")
        return out

    def _timed(self, at: str, spec: ResnetSpec, inner: int) -> None:
        """Between the convolutions of a resnet, in place: what the step adds or scales, norm, activation."""
        planner, doubled = self.planner, spec.time == "scale"
        if spec.time:
            by = planner.buffer(spec.channels * (2 if doubled else 1), IMAGES)
            planner.linear(self.embedding, by, [self.weights.linear(at + "time")], norm=None, label="time")
        if spec.time == "add":
            planner.add_rows(inner, by=by, column=0, label="time")
        self._norm(at + "norm2", spec.norm, inner, inner, None if doubled else spec.activation)
        if doubled:
            planner.modulate(inner, inner, None, by=by, scale=0, shift=spec.channels, label="time")
            planner.activate(inner, inner, spec.activation, label="time")

    def transformer(self, at: str, spec: TransformerSpec, x: int) -> None:
        """In place."""
        planner, linear, level = self.planner, self.weights.linear, self.planner.spaces[x]
        normed, hidden = (planner.buffer(spec.hidden_size, level) for _ in range(2))
        self._norm(at + "norm", spec.norm, x, normed, None)
        planner.linear(normed, hidden, [linear(at + "project_in")], norm=None, label="project")
        columns = {n: self.columns.get(f"{at}layers.{n}.", 0) for n in range(len(spec.layers))}
        layers = _PixelLayers(self.backend, planner, hidden, spec, self.weights.under(at), self.kv_dtype, space=level,
                              context=None if self.context is None else (self.context, columns))
        for n in range(len(spec.layers)):
            layers.record(n)
        planner.linear(hidden, x, [linear(at + "project_out")], norm=None, mode="add", label="project")

    def attention(self, at: str, spec: PixelAttentionSpec, x: int) -> None:
        """In place."""
        planner, linear, level, a = self.planner, self.weights.linear, self.planner.spaces[x], spec.attention
        width = a.num_heads * a.head_dim
        normed, mixed = planner.buffer(spec.hidden_size, level), planner.buffer(width, level)
        qkv = planner.buffer(3 * width, level)
        self._norm(at + "norm", spec.norm, x, normed, None)
        planner.linear(normed, qkv, [linear(at + part) for part in "qkv"], norm=None, label="qkv")
        planner.attention(qkv, mixed, layer=0, num_heads=a.num_heads, num_kv_heads=a.num_kv_heads, head_dim=a.head_dim,
                          scale=a.scale, window=0, kv_dtype=self.kv_dtype, rotary=None, causal=False, label="attention")
        planner.linear(mixed, x, [linear(at + "out")], norm=None, mode="add", label="out")

    def beside(self, x: int, kept: int, level: int) -> int:
        """Channels of two images side by side."""
        width = self.planner.widths[x]
        out = self.planner.buffer(width + self.planner.widths[kept], level)
        self.planner.copy(x, out, label="join")
        self.planner.copy(kept, out, column=width, label="join")
        return out

    def resample(self, name: str, stage: StageSpec, x: int) -> int:
        """One level up or down."""
        doubles = stage.resample == "double"
        out = self.planner.buffer(stage.channels, stage.level + (-1 if doubles else 1))
        linear, padding = self.weights.linear(f"{name}.resample"), "end" if stage.resample == "halve_end" else "same"
        self.planner.conv(x, out, linear, size=3, stride=1 if doubles else 2, upsample=doubles, padding=padding,
                          label="resample")
        return out

    def end(self, at: str, x: int, out: int, norm: GroupNormSpec, activation: str, size: int) -> None:
        self._norm(at + "norm_out", norm, x, x, activation)
        self.planner.conv(x, out, self.weights.linear(at + "conv_out"), size=size, label="conv_out")

    def _norm(self, name: str, spec: GroupNormSpec, x: int, out: int, activation: str | None) -> None:
        vectors = self.weights.vectors
        norm = NormWeights("layer", spec.eps, vectors[name + ".weight"], vectors[name + ".bias"])
        self.planner.group_norm(x, out, groups=spec.groups, norm=norm, activation=activation, label="group_norm")


class _PixelLayers(Layers):
    """Layers whose every buffer is a new one: memory is planned for by when they are used."""

    def _buffer(self, kind: str, width: int) -> int:
        return self.program.buffer(width, self.space)
