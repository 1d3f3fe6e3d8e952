"""A diffusion transformer as data: layers as any model has them, between patches of latents and patches of noise.

Two families are of this kind, DiT (Peebles & Xie 2023), which draws classes, and PixArt (Chen et al. 2024), which draws
what a text says. models/dit_blocks.py says what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from forwardpass.errors import ModelFileError
from forwardpass.models.spec import MAX_LAYERS, MAX_SIZE, LayerSpec, NormSpec
from forwardpass.models.spec_checks import check_layer
from forwardpass.models.weight_rows import Targets, layer_targets

MAX_PATCH = 64
FAMILIES = {"dit": "zero", "pixart": "single"}
"""Family -> how its layers are modulated."""


@dataclass(frozen=True, slots=True)
class DitSpec:
    """hidden = product of patches + positions; then layers, the final norm, modulated, and a product: patches again.

    A patch is patch * patch latents of latent_channels (out_channels) numbers, row by row.
    family: "dit" or "pixart";  sample_size: height and width of latents that it was trained at.

    base, scale: a patch in column x of n stands at x * base / n / scale, and rows likewise; its position is the sines
    and cosines of the column's and then of the row's place, at frequencies 10000 ** (-i / (hidden_size / 4)).
    waves, shift: columns of what a timestep becomes first (sinusoids.of_timesteps), cosines before sines, and what
    shifts their frequencies. Two products with silu between make a condition of them.
    final_norm: has no weights. Its shift and scale are a product of the first layer's condition ("zero"), or a table
    and the condition ("single").

    labels: classes; a condition is that of the step and a row of a table, which has one more row for no class.
    embedders: for each layer the number of the layer whose embedding of steps and classes it uses; () = all use one.

    context_width: columns of the text's states, 0 = it reads no text;  caption: two products with gelu between come
    before keys and values are made of them.
    micro: the condition is also told the size of the picture in pixels and its aspect ratio;  factor: pixels that are
    one latent, up or across.
    """

    family: str
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    latent_channels: int
    out_channels: int
    patch: int
    sample_size: int
    base: int
    scale: float
    shift: float
    final_norm: NormSpec
    labels: int = 0
    embedders: tuple[int, ...] = ()
    context_width: int = 0
    caption: bool = False
    micro: bool = False
    factor: int = 8
    waves: int = 256

    causal = False
    encoder = None
    layer_weights = ()

    @property
    def modulation(self) -> str:
        return FAMILIES[self.family]

    @property
    def context_columns(self) -> dict[int, int]:
        """Layer -> the column of a context's keys and values at which its own begin."""
        columns, at = {}, 0
        for i, layer in enumerate(self.layers):
            if layer.cross:
                columns[i] = at
                at += 2 * layer.cross.num_heads * layer.cross.head_dim
        return columns

    @property
    def context_size(self) -> int:
        """Columns of a context's keys and values in all layers."""
        return sum(2 * one.cross.num_heads * one.cross.head_dim for one in self.layers if one.cross)

    def embedder(self, layer: int) -> int:
        """The layer whose embedding of steps and classes a layer uses."""
        return self.embedders[layer] if self.embedders else 0

    @property
    def own_embedders(self) -> tuple[int, ...]:
        """The layers whose embeddings are used."""
        return tuple(sorted({self.embedder(i) for i in range(len(self.layers))}))

    def check(self) -> DitSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        for name in ("hidden_size", "latent_channels", "out_channels", "sample_size"):
            value = getattr(self, name)
            _require(1 <= value <= MAX_SIZE, f"{name} from 1 to {MAX_SIZE}", value)
        _require(self.hidden_size % 4 == 0, "a width that is a multiple of 4, as sines and cosines of two places need",
                 self.hidden_size)
        _require(1 <= self.patch <= min(MAX_PATCH, self.sample_size),
                 f"patches from 1 to {min(MAX_PATCH, self.sample_size)} latents a side", self.patch)
        numbers = max(self.latent_channels, self.out_channels) * self.patch**2
        _require(numbers <= MAX_SIZE, f"patches of at most {MAX_SIZE} numbers", numbers)
        _require(self.base >= 1 and 0 < self.scale <= 1e6, "positions with a base of 1 or more and a positive scale",
                 (self.base, self.scale))
        _require(1 <= len(self.layers) <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", len(self.layers))
        for layer in {id(one): one for one in self.layers}.values():
            check_layer(layer)
            _require(layer.modulation == self.modulation, f"layers whose modulation is {self.modulation}",
                     layer.modulation)
            _require(not layer.attention.causal and layer.attention.rotary is None,
                     "attention of patches that looks both ways", "another")
            _require((layer.cross is not None) == (self.context_width > 0),
                     "cross-attention where a text is read, and only there", layer.cross is not None)
            if layer.cross:
                _require(layer.cross.num_heads == layer.cross.num_kv_heads, "cross-attention with a key for each query "
                         "head", layer.cross.num_kv_heads)
        _require((self.labels > 0) == (self.family == "dit"), "classes in a DiT, and only there", self.labels)
        _require(not self.micro or self.hidden_size % 3 == 0, "a width that is a multiple of 3 where a picture's size "
                 "is a condition", self.hidden_size)
        _require(len(self.embedders) in (0, len(self.layers))
                 and all(0 <= one <= i and self.embedders[one] == one for i, one in enumerate(self.embedders)),
                 "layers that share the embedding of a layer before them", self.embedders[:8])
        return self


def targets(spec: DitSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the spec asks for with its shape, in the order in which a pass reads them."""
    width, out = spec.hidden_size, Targets()
    out.linear("patches", (width, spec.latent_channels * spec.patch**2), bias=True)
    for i in spec.own_embedders:
        at = f"layers.{i}." if spec.labels else ""
        _two(out, at + "time", width, spec.waves)
        if spec.labels:
            out.linear(at + "labels", (spec.labels + 1, width))
    if spec.micro:
        _two(out, "resolution", width // 3, spec.waves)
        _two(out, "aspect", width // 3, spec.waves)
    if spec.modulation == "single":
        out.linear("time.modulation", (6 * width, width), bias=True)
    if spec.caption:
        _two(out, "caption", width, spec.context_width)
    for i, layer in enumerate(spec.layers):
        layer_targets(out, f"layers.{i}.", width, layer, width if spec.caption else spec.context_width)
    if spec.modulation == "single":
        out["final.table"] = (2 * width,)
    else:
        out.linear("final.modulation", (2 * width, width), bias=True)
    out.linear("final.out", (spec.out_channels * spec.patch**2, width), bias=True)
    return dict(out)


def _two(out: Targets, name: str, width: int, columns: int) -> None:
    """The products of an embedding."""
    out.linear(name + ".first", (width, columns), bias=True)
    out.linear(name + ".second", (width, width), bias=True)


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ModelFileError(f"the model contradicts itself: expected {expected}, found {found}; "
                             "fix its config or fetch the model again")
