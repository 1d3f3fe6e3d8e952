"""Convolutional models of images as data: the UNet that denoises latents, and the autoencoder around them.

Both are made of stages. A stage works on one level: images halved that many times. unet_blocks.py alone says what the
blocks compute; `check` says what fits together.
"""

from __future__ import annotations

from dataclasses import dataclass

from forwardpass.models.spec import AttentionSpec, LayerSpec

RESAMPLES = ("", "halve", "halve_end", "double")


@dataclass(frozen=True, slots=True)
class GroupNormSpec:
    """Mean and variance over all pixels of an image and the channels of one of `groups` groups (Wu & He 2018)."""

    groups: int
    eps: float


@dataclass(frozen=True, slots=True)
class ResnetSpec:
    """y = shortcut(x) + conv2(act(norm2(conv1(act(norm1(x)))))), both convolutions of 3 x 3 pixels.

    shortcut: a product of each pixel where `width` differs from `channels`, else x itself.
    width: channels of x;  skip: so many of them, the last ones, were kept on the way down and are put beside the rest.
    time: what the step's embedding does to norm2, after a product with it: "" = nothing;  "add", it is added before;
    "scale", what is normalised is multiplied by 1 + its first half, and the second half is added.
    divisor: y is divided by it.
    """

    width: int
    channels: int
    norm: GroupNormSpec
    activation: str
    time: str = ""
    skip: int = 0
    divisor: float = 1.0


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """x += project_out(layers(project_in(norm(x)))): layers are those of any Transformer, pixels are its tokens."""

    norm: GroupNormSpec
    hidden_size: int
    layers: tuple[LayerSpec, ...]

    layer_weights = ()
    encoder = None
    causal = False


@dataclass(frozen=True, slots=True)
class PixelAttentionSpec:
    """x += out(attention(q, k and v of norm(x))): every pixel sees all."""

    norm: GroupNormSpec
    hidden_size: int
    attention: AttentionSpec


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Resnets on one level, each followed by attention or by None, and then perhaps a change of level.

    level: of the resnets;  resample: "halve", a convolution of 3 x 3 pixels with stride 2 and a pixel of zeros on all
    sides;  "halve_end", with zeros at the right and lower edges only;  "double", every pixel four times and then a
    convolution.
    """

    level: int
    resnets: tuple[ResnetSpec, ...]
    attentions: tuple[TransformerSpec | PixelAttentionSpec | None, ...]
    resample: str = ""

    @property
    def channels(self) -> int:
        return self.resnets[-1].channels


@dataclass(frozen=True, slots=True)
class TimeSpec:
    """What a network knows of its step: second(act(first(waves(timestep) + guidance(scale)))).

    width: columns of the waves (sinusoids.of_timesteps with flip and shift);  size: of the embedding;
    guidance: columns of the waves of a scale of guidance that the network was trained to follow, 0 = it was not.
    """

    width: int
    size: int
    activation: str
    flip: bool = True
    shift: float = 0.0
    guidance: int = 0


@dataclass(frozen=True, slots=True)
class UNetSpec:
    """A UNet (Ronneberger et al. 2015) that denoises latents as a text asks (Rombach et al. 2022).

    A convolution makes `channels` of a latent's. What leaves it, each resnet (with its attention) and each change of
    level of `down` is kept; resnets of `up` take these back, the newest first. norm, activation: of the end, before the
    last convolution. kernels: pixels of a side of the first and the last convolution.
    sample_size: height and width of latents that it was trained at;  context_width: columns of the text's states;
    centred: it reads 2 x - 1.
    """

    family: str
    latent_channels: int
    out_channels: int
    sample_size: tuple[int, int]
    channels: int
    time: TimeSpec
    down: tuple[StageSpec, ...]
    middle: StageSpec | None
    up: tuple[StageSpec, ...]
    norm: GroupNormSpec
    activation: str
    context_width: int
    kernels: tuple[int, int] = (3, 3)
    centred: bool = False

    causal = False

    @property
    def stages(self) -> dict[str, StageSpec]:
        """By name, in the order in which they compute."""
        stages = {f"down.{i}": one for i, one in enumerate(self.down)}
        stages |= {"middle": self.middle} if self.middle else {}
        return stages | {f"up.{i}": one for i, one in enumerate(self.up)}

    def check(self) -> UNetSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        from forwardpass.models.unet_checks import check_unet  # which reads the classes above

        check_unet(self)
        return self


@dataclass(frozen=True, slots=True)
class CoderSpec:
    """Half of an autoencoder: a convolution, stages, a group norm, an activation, a convolution.

    width, out: channels of what it reads and writes;  channels: between the first convolution and the stages.
    names: of the stages.
    """

    width: int
    channels: int
    out: int
    names: tuple[str, ...]
    blocks: tuple[StageSpec, ...]
    norm: GroupNormSpec
    activation: str

    @property
    def stages(self) -> dict[str, StageSpec]:
        return dict(zip(self.names, self.blocks, strict=True))


@dataclass(frozen=True, slots=True)
class AutoencoderSpec:
    """An autoencoder between images and latents (Kingma & Welling 2014): a latent's mean and the logarithm of its
    variance are what the encoder makes of an image.

    quant, post_quant: whether a product of each pixel comes after the encoder, and before the decoder.
    Denoisers see (latent - shift) * scaling.
    """

    family: str
    latent_channels: int
    image_channels: int
    encoder: CoderSpec
    decoder: CoderSpec
    quant: bool
    post_quant: bool
    scaling: float
    shift: float = 0.0

    causal = False

    @property
    def factor(self) -> int:
        """Pixels of an image, up or across, that are one of its latents."""
        return 2 ** max(stage.level for stage in self.decoder.blocks)

    def check(self) -> AutoencoderSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        from forwardpass.models.unet_checks import check_autoencoder  # which reads the classes above

        check_autoencoder(self)
        return self
