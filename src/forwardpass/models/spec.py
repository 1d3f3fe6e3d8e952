"""A model as data: what each layer is made of. Families produce these; blocks.py alone interprets them.

Specs are per layer, so windows, biases and norms may differ from layer to layer. Everything is frozen and
validated once by `ModelSpec.check`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forwardpass.errors import ModelFileError, UnsupportedModelError

MAX_SIZE = 2**24
"""Largest width, vocabulary or context that is believed: beyond it a file is corrupt, not big."""
MAX_LAYERS = 4096
MAX_HEAD_DIM = 1024
"""The attention kernels keep a head of this size on their stack."""
MAX_EXPERTS = 1024
MAX_EXPERTS_TOGETHER = 2**16
"""In all layers. The largest models have a third of it; each expert's tensors are listed before a weight is read."""
ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf", "relu", "quick_gelu", "tanh")
MAX_DISTANCE = 2**16
"""Furthest distance that a relative position bias may tell apart."""


@dataclass(frozen=True, slots=True)
class NormSpec:
    """kind "rms": x / rms(x) * w;  kind "layer": (x - mean) / std * w + b."""

    kind: str
    eps: float
    bias: bool = False


@dataclass(frozen=True, slots=True)
class DynamicNtk:
    """NTK scaling that follows the text's length L: beyond `trained` the base is
    base * (factor * L / trained - (factor - 1)) ** (dim / (dim - 2)). Keys are cached unrotated."""

    base: float
    factor: float
    trained: int


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Rotary position encoding (Su et al. 2021). inv_freq has dim / 2 entries; dimension pairs are (j, j + dim/2).

    Only the first `dim` dimensions of a head are rotated. Checkpoints with interleaved pairs are reordered on loading.
    long_inv_freq, switch: longrope, whose frequencies change for the whole text once it has more than `switch` tokens.
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    long_inv_freq: tuple[float, ...] = ()
    switch: int = 0
    ntk: DynamicNtk | None = None


@dataclass(frozen=True, slots=True)
class RelativeBiasSpec:
    """Learned numbers added to scores, one a head and bucket of distances (T5; see models/relative_bias.py).

    bidirectional: keys after the query have buckets of their own;  layer: the layer whose table is used.
    """

    buckets: int
    max_distance: int
    bidirectional: bool
    layer: int = 0


@dataclass(frozen=True, slots=True)
class DisentangledSpec:
    """Disentangled attention (DeBERTa; He et al. 2021): scores also have terms between contents and relative positions.

    span: relative positions are told apart from -span to span - 1, so the model's table `embed.relative` has 2 * span
    rows;  buckets: 0 = each distance for itself, else logarithmic buckets (DeBERTa v2), span of them in a direction;
    max_distance: where those end.  c2p, p2c: which of the two terms there are (content to position, position to
    content).  shared: positions go through the layer's own query and key matrices, else through
    attention.position_q and attention.position_k.
    """

    span: int
    buckets: int
    max_distance: int
    c2p: bool = True
    p2c: bool = True
    shared: bool = True


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """window: keys that a token sees, itself included, 0 = all;  alibi: the slope of each head (Press et al. 2022);
    softcap: scores become softcap * tanh(score / softcap), 0 = not;  clip_qkv: q, k and v are cut to +-clip_qkv.

    qk_norm: of queries and keys before they are rotated. qk_norm_shape: "head", one weight [head_dim] for all heads;
    "heads", each head its own weight [heads, head_dim]; "all", one norm over all heads together.

    causal: a token sees those before it and itself; otherwise all of its text, or with a window those that are less
    than `window` away on either side. Without causality nothing is cached: a text is computed whole.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rotary: RotarySpec | None = None
    window: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    alibi: tuple[float, ...] = ()
    softcap: float = 0.0
    clip_qkv: float = 0.0
    qk_norm: NormSpec | None = None
    qk_norm_shape: str = "head"
    causal: bool = True
    relative: RelativeBiasSpec | None = None
    disentangled: DisentangledSpec | None = None


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: `chosen` of `count` gated MLPs answer for each token, weighted by its router's scores.

    normalise: the chosen scores are divided by their sum. shared_size: width of an MLP that answers for every token,
    0 = none; shared_gate: its answer is multiplied by sigmoid(a product with the token).
    """

    count: int
    chosen: int
    normalise: bool = True
    shared_size: int = 0
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """kind "gated": down(act(gate(x)) * up(x));  kind "plain": down(act(up(x))).  activation: one of ACTIVATIONS.

    experts: intermediate_size is then the width of one expert, and kind is "gated".
    """

    kind: str
    intermediate_size: int
    activation: str
    bias: bool = False
    experts: ExpertsSpec | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer of the residual stream x.

    order "pre":  x += post_attention_norm(attention(attention_norm(x))), then the same with the MLP; None = no norm.
    order "post": x = attention_norm(x + attention(x)), then x = mlp_norm(x + mlp(x)).
    parallel: attention and MLP both read the x that enters the layer; then an mlp_norm of None stands for the
    attention_norm, which both share. residual_scale: what is added to x is multiplied by it.

    cross: attention to the encoder's output, between attention and MLP and with its norm (cross_norm) in the same
    order: queries are made of x, keys and values of the encoder's final hidden states, all of which are seen.
    """

    attention_norm: NormSpec | None
    attention: AttentionSpec
    mlp_norm: NormSpec | None
    mlp: MlpSpec
    post_attention_norm: NormSpec | None = None
    post_mlp_norm: NormSpec | None = None
    order: str = "pre"
    parallel: bool = False
    residual_scale: float = 1.0
    cross: AttentionSpec | None = None
    cross_norm: NormSpec | None = None


TASKS = ("lm", "labels", "tags", "none")
POOLS = ("each", "first", "last", "mean")


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What reads the final hidden states.

    task: "lm", logits of the vocabulary for wanted tokens; "labels", scores of `outputs` labels for a text; "tags", the
    same for every token; "none", nothing, the hidden states are the result.
    pool: the row of a text that it reads, "first", "last" or the "mean" of all; "each" for lm and tags.
    dense: columns of a product with `activation` that comes first, 0 = none;  dense_norm: after it. Then the output
    product: head.weight [outputs or vocab_size, width], which may be the token table (`ModelSpec.tied`).
    """

    task: str = "lm"
    outputs: int = 0
    pool: str = "each"
    dense: int = 0
    dense_bias: bool = True
    activation: str = "tanh"
    dense_norm: NormSpec | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """learned_positions: rows of the learned position table, 0 = no such table; a token at position p takes row
    p + position_offset. embed_size: width of the token table where it differs from hidden_size (0 = it does not): then
    matrices project into and out of the hidden width. Logits are softcapped after they were multiplied by logit_scale.

    sinusoids: frequencies f of a fixed position table with rows [sin(p f), ..., cos(p f), ...] in place of a learned
    one. token_types: rows of a table of token types (segments), 0 = no such table. project_last: positions, types and
    embed_norm are embed_size wide, and the projection to the hidden width, with project_bias, comes after them.
    layer_weights: for each layer the number of the layer whose weights it uses; () = each has its own.
    encoder: of an encoder-decoder; its weights have names that begin with "encoder.". shared_embedding: its token table
    is the decoder's. head: what reads the final hidden states.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    tied: bool
    learned_positions: int = 0
    head_bias: bool = False
    position_offset: int = 0
    embed_size: int = 0
    embed_norm: NormSpec | None = None
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    sinusoids: tuple[float, ...] = ()
    token_types: int = 0
    project_last: bool = False
    project_bias: bool = False
    layer_weights: tuple[int, ...] = ()
    encoder: ModelSpec | None = None
    shared_embedding: bool = True
    head: HeadSpec = HeadSpec()

    @property
    def causal(self) -> bool:
        """Whether it can generate: every layer looks only back. An encoder computes each text whole, in one step."""
        return all(layer.attention.causal for layer in self.layers)

    def check(self) -> ModelSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        sizes = {"hidden_size": self.hidden_size, "vocab_size": self.vocab_size}
        sizes |= {"max_position_embeddings": self.max_position_embeddings}
        _sizes(sizes)
        _require(1 <= len(self.layers) <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", len(self.layers))
        rows = self.max_position_embeddings + self.position_offset
        _require(self.learned_positions in (0, rows), f"a position table of {rows} rows, one for each position",
                 self.learned_positions)
        _require(0 <= self.embed_size <= MAX_SIZE, f"embed_size from 0 to {MAX_SIZE}", self.embed_size)
        if self.sinusoids:
            width = self.embed_size if self.project_last and self.embed_size else self.hidden_size
            _require(not self.learned_positions, "one position table, learned or fixed", "both")
            _require(len(self.sinusoids) == width // 2 and all(map(math.isfinite, self.sinusoids)),
                     f"{width // 2} finite frequencies of positions", len(self.sinusoids))
        _require(0 <= self.token_types <= 1024, "0 to 1024 token types", self.token_types)
        _require(not self.project_last or self.embed_size > 0, "an embed_size for a projection after the embedding",
                 self.embed_size)
        if self.layer_weights:
            _require(len(self.layer_weights) == len(self.layers)
                     and all(0 <= one <= i and self.layer_weights[one] == one and self.layers[one] == self.layers[i]
                             for i, one in enumerate(self.layer_weights)),
                     "layers that share weights with an equal layer before them", self.layer_weights[:8])
        kinds = {layer.attention.causal for layer in self.layers}
        _require(len(kinds) == 1, "layers that are all causal or all not", "both")
        for i, layer in enumerate(self.layers):
            _require(layer.attention.relative is None or layer.attention.relative.layer <= i,
                     "a relative bias of this layer or one before it", i)
        crossed = {layer.cross is not None for layer in self.layers}
        _require(crossed == {self.encoder is not None}, "cross-attention in every layer if there is an encoder, in "
                 "none otherwise", f"an encoder: {self.encoder is not None}, cross-attention in some: {True in crossed}")
        if self.encoder:
            _require(self.causal and not self.encoder.causal and self.encoder.encoder is None,
                     "an encoder that sees its whole text and a decoder that looks back", "another pair")
            _require(not self.shared_embedding or self.encoder.vocab_size == self.vocab_size,
                     f"a shared token table of {self.vocab_size} rows", self.encoder.vocab_size)
            self.encoder.check()
        _check_head(self.head)
        for name in ("embed_scale", "logit_scale"):
            _require(math.isfinite(getattr(self, name)), f"a finite {name}", getattr(self, name))
        _require(math.isfinite(self.logit_softcap) and self.logit_softcap >= 0, "a logit softcap of 0 (none) or more",
                 self.logit_softcap)
        for layer in {id(one): one for one in self.layers}.values():  # layers that share an object are checked once
            _check_layer(layer)
        experts = sum(layer.mlp.experts.count for layer in self.layers if layer.mlp.experts)
        _require(experts <= MAX_EXPERTS_TOGETHER, f"at most {MAX_EXPERTS_TOGETHER} experts in all layers", experts)
        _check_norm(self.final_norm)
        _check_norm(self.embed_norm)
        return self


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ModelFileError(f"the model contradicts itself: expected {expected}, found {found}; "
                             "fix its config or fetch the model again")


def _sizes(sizes: dict[str, int]) -> None:
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and 1 <= value <= MAX_SIZE, f"{name} from 1 to {MAX_SIZE}", value)


def _check_attention(a: AttentionSpec) -> None:
    _sizes({"num_heads": a.num_heads, "num_kv_heads": a.num_kv_heads, "head_dim": a.head_dim,
            "num_heads * head_dim": a.num_heads * a.head_dim})
    if a.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(f"attention heads of {a.head_dim} dimensions are not supported, at most "
                                    f"{MAX_HEAD_DIM} are; use another model")
    _require(a.num_heads % a.num_kv_heads == 0,
             f"attention heads ({a.num_heads}) to be a multiple of key-value heads", a.num_kv_heads)
    _require(math.isfinite(a.scale) and a.scale > 0, "a positive attention scale", a.scale)
    _require(0 <= a.window <= MAX_SIZE, f"a window from 0 (none) to {MAX_SIZE}", a.window)
    _require(len(a.alibi) in (0, a.num_heads) and all(abs(x) <= 1e6 for x in a.alibi),
             f"{a.num_heads} ALiBi slopes up to 1e6, one a head", a.alibi[:4])
    for name in ("softcap", "clip_qkv"):
        _require(math.isfinite(getattr(a, name)) and getattr(a, name) >= 0, f"{name} of 0 (none) or more",
                 getattr(a, name))
    _require(a.qk_norm_shape in ("head", "heads", "all"), "a qk_norm_shape of head, heads or all", a.qk_norm_shape)
    _check_norm(a.qk_norm)
    _check_bias(a)
    if a.rotary:
        _check_rotary(a.rotary, a.head_dim)


def _check_layer(layer: LayerSpec) -> None:
    m = layer.mlp
    _check_attention(layer.attention)
    if layer.cross:
        _check_attention(layer.cross)
        _require(not layer.cross.causal and not layer.parallel and not layer.cross.window,
                 "cross-attention that sees the whole source, in a layer that is not parallel", "another")
    _sizes({"intermediate_size": m.intermediate_size})
    _require(m.kind in ("gated", "plain"), "an MLP that is gated or plain", m.kind)
    _require(m.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", m.activation)
    if m.experts:
        _require(m.kind == "gated", "experts that are gated MLPs", m.kind)
        _require(1 <= m.experts.chosen <= m.experts.count <= MAX_EXPERTS,
                 f"1 to {MAX_EXPERTS} experts of which some are chosen", f"{m.experts.chosen} of {m.experts.count}")
        _require(0 <= m.experts.shared_size <= MAX_SIZE, f"a shared expert of 0 (none) to {MAX_SIZE} columns",
                 m.experts.shared_size)
    _require(layer.order in ("pre", "post"), "an order of norms that is pre or post", layer.order)
    _require(layer.order == "pre" or not layer.parallel, "parallel layers to have their norms before", layer.order)
    _require(math.isfinite(layer.residual_scale), "a finite residual scale", layer.residual_scale)
    for norm in (layer.attention_norm, layer.mlp_norm, layer.post_attention_norm, layer.post_mlp_norm,
                 layer.cross_norm):
        _check_norm(norm)


def _check_bias(a: AttentionSpec) -> None:
    if a.relative:
        low = 4 if a.relative.bidirectional else 2
        _require(low <= a.relative.buckets <= 4096 and a.relative.buckets % (low // 2) == 0,
                 f"{low} to 4096 buckets of relative positions", a.relative.buckets)
        _require(a.relative.buckets // low < a.relative.max_distance <= MAX_DISTANCE,
                 f"a greatest relative distance above {a.relative.buckets // low}, at most {MAX_DISTANCE}",
                 a.relative.max_distance)
        _require(a.relative.layer >= 0, "a layer of the relative bias from 0", a.relative.layer)
    if a.disentangled:
        d = a.disentangled
        _require(1 <= d.span <= MAX_DISTANCE, f"a span of relative positions from 1 to {MAX_DISTANCE}", d.span)
        _require(d.buckets in (0, d.span), f"buckets of relative positions: 0 (none) or the span, {d.span}", d.buckets)
        _require(not d.buckets or d.span // 2 < d.max_distance <= MAX_DISTANCE,
                 f"a greatest relative distance above {d.span // 2}, at most {MAX_DISTANCE}", d.max_distance)
        _require(not a.causal and a.num_heads == a.num_kv_heads, "disentangled attention to be an encoder's", "another")


def _check_head(head: HeadSpec) -> None:
    _require(head.task in TASKS, f"a head for {', '.join(TASKS)}", head.task)
    _require(head.pool in POOLS, f"a pooling of {', '.join(POOLS)}", head.pool)
    _require((head.pool != "each") == (head.task == "labels"), "a pooled row for labels, each row for all else",
             f"{head.pool} for {head.task}")
    _require((1 <= head.outputs <= MAX_SIZE) == (head.task in ("labels", "tags")),
             f"1 to {MAX_SIZE} labels where there are any", head.outputs)
    _require(0 <= head.dense <= MAX_SIZE, f"a dense layer of 0 (none) to {MAX_SIZE} columns", head.dense)
    _require(head.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", head.activation)
    _check_norm(head.dense_norm)


def _check_rotary(rotary: RotarySpec, head_dim: int) -> None:
    dim, ntk = rotary.dim, rotary.ntk
    _require(dim % 2 == 0 and 2 <= dim <= head_dim, f"an even rotary dimension from 2 to head_dim ({head_dim})", dim)
    _require(len(rotary.inv_freq) == dim // 2, f"{dim // 2} rotary frequencies", len(rotary.inv_freq))
    _require(all(math.isfinite(f) for f in (*rotary.inv_freq, *rotary.long_inv_freq)), "finite rotary frequencies",
             "one that is not")
    _require(len(rotary.long_inv_freq) in (0, dim // 2), f"{dim // 2} long rotary frequencies",
             len(rotary.long_inv_freq))
    _require(math.isfinite(rotary.attention_factor), "a finite rotary attention factor", rotary.attention_factor)
    if rotary.long_inv_freq:
        _require(1 <= rotary.switch <= MAX_SIZE, f"long frequencies from a length of 1 to {MAX_SIZE} on", rotary.switch)
    else:
        _require(rotary.switch == 0, "no switch without long frequencies", rotary.switch)
    if ntk:
        _require(dim >= 4 and not rotary.long_inv_freq, "dynamic frequencies of 4 dimensions or more, and no long ones",
                 dim)
        _require(1 <= ntk.trained <= MAX_SIZE, f"a trained length from 1 to {MAX_SIZE}", ntk.trained)
        _require(1 <= ntk.factor <= 1e6, "a dynamic factor from 1 to 1e6", ntk.factor)
        _require(0 < ntk.base <= 1e12, "a rotary base above 0 and at most 1e12", ntk.base)


def _check_norm(norm: NormSpec | None) -> None:
    if norm is None:
        return
    _require(norm.kind in ("rms", "layer"), "a norm of kind rms or layer", norm.kind)
    _require(0 < norm.eps < 1, "a norm epsilon between 0 and 1", norm.eps)
