"""Builds the spec of an encoder-decoder out of plain numbers: what its families share.

A `Half` is the encoder or the decoder. Its layers differ only in the table of relative positions that they use.
"""

from __future__ import annotations

from dataclasses import dataclass

from forwardpass.models.spec import (
    AttentionSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RelativeBiasSpec,
)

_EMBEDDING = ("learned_positions", "sinusoids", "position_offset", "embed_norm", "embed_scale")
"""Fields of a ModelSpec that both sides have alike."""


@dataclass(frozen=True, slots=True)
class Half:
    """The numbers of one side. relative: the bias of each layer, () = none has one."""

    vocab: int
    layers: int
    heads: int
    inner: int
    relative: tuple[RelativeBiasSpec, ...] = ()


def build(*, family: str, encoder: Half, decoder: Half, hidden: int, head_dim: int | None = None, positions: int,
          norm: NormSpec, pre: bool, act: str, mlp: str = "plain", biases: bool = True, scale: float | None = None,
          final_norm: bool, tied: bool, shared: bool = True, **model) -> ModelSpec:
    """head_dim: None = what is left of the width for each head;  pre: norms stand before attention and MLP, otherwise
    after the additions;  scale: of scores, None = 1 / sqrt(head_dim);  shared: both sides have one token table.

    model: fields of ModelSpec; those of the embedding are the same on both sides, the others the decoder's.
    """
    both = {name: model.pop(name) for name in tuple(model) if name in _EMBEDDING}
    last = norm if final_norm else None

    def layers(half: Half, causal: bool) -> tuple[LayerSpec, ...]:
        size = head_dim or hidden // half.heads
        factor = size**-0.5 if scale is None else scale
        plain = MlpSpec(mlp, half.inner, act, biases)
        cross = AttentionSpec(half.heads, half.heads, size, factor, qkv_bias=biases, out_bias=biases, causal=False)

        def layer(relative: RelativeBiasSpec | None) -> LayerSpec:
            own = AttentionSpec(half.heads, half.heads, size, factor, qkv_bias=biases, out_bias=biases, causal=causal,
                                relative=relative)
            return LayerSpec(norm, own, norm, plain, order="pre" if pre else "post", cross=cross if causal else None,
                             cross_norm=norm if causal else None)

        made = {one: layer(one) for one in dict.fromkeys(half.relative or (None,))}
        return tuple(made[one] for one in half.relative or (None,) * half.layers)

    first = ModelSpec(family, hidden, encoder.vocab, positions, layers(encoder, False), last, tied=False,
                      head=HeadSpec("none"), **both)
    return ModelSpec(family, hidden, decoder.vocab, positions, layers(decoder, True), last, tied, encoder=first,
                     shared_embedding=shared, **both, **model).check()


def sided(names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A table of names for both sides out of one that says "{side}" where the two differ."""
    return {("encoder." if side == "encoder" else "") + target: tuple(name.replace("{side}", side) for name in spelled)
            for side in ("encoder", "decoder") for target, spelled in names.items()}
