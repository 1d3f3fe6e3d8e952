"""A model as data: what each layer is made of. Families produce these; blocks.py alone interprets them.

Specs are per layer, so windows, biases and norms may differ from layer to layer. Everything is frozen and
validated once by `ModelSpec.check` (spec_checks.py).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """kind "rms": x / rms(x) * w;  kind "layer": (x - mean) / std * w + b;  kind "scale": x * w + b, without statistics
    and with an eps of 0.  weight: whether there is a w."""

    kind: str
    eps: float
    bias: bool = False
    weight: bool = True


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
    attention.position_q and attention.position_k.  norm: of the table, `embed.relative_norm`.
    """

    span: int
    buckets: int
    max_distance: int
    c2p: bool = True
    p2c: bool = True
    shared: bool = True
    norm: NormSpec | None = None


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

    modulation: of a denoiser, whose norms and branches follow what is known of the picture's step: of each norm
    x * (1 + scale) + shift is read, and what attention and MLP add is multiplied by a gate. Shift, scale and gate of
    attention, then of the MLP, are "zero": a product of the layer's own with the condition (adaLN-zero; Peebles & Xie
    2023);  "single": the model's six, to which the layer adds a table of its own (PixArt; Chen et al. 2024).
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
    modulation: str = ""


POSITIONS = ("learned", "none")
RESIZES = ("", "bicubic", "antialiased")


@dataclass(frozen=True, slots=True)
class PatchesSpec:
    """Images in place of texts. Squares of size x size pixels with `channels` numbers each, line by line, become rows
    by one matrix, `embed.patches`, whose columns are [y][x][channel] of a square; bias: it has one.

    image: (height, width) in pixels of the images that the table of positions is for. What is left over on the right
    and at the bottom is in no patch. Before the patches stand rows that are the same for every image: `classes` of them
    that have positions (a class token, one of a teacher), then `registers` without.
    positions: "learned", a table of classes + patches rows;  "none".
    resize: how a learned table serves other grids: "bicubic", "antialiased" (bicubic), "" = not at all.
    """

    size: int
    channels: int
    image: tuple[int, ...]
    classes: int = 0
    registers: int = 0
    positions: str = "learned"
    resize: str = ""
    bias: bool = True

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(lines, columns) of patches in an image of so many pixels."""
        return height // self.size, width // self.size

    @property
    def first(self) -> int:
        """Rows before the patches."""
        return self.classes + self.registers

    def rows(self, height: int, width: int) -> int:
        """Rows that an image of so many pixels becomes."""
        lines, columns = self.grid(height, width)
        return self.first + lines * columns


@dataclass(frozen=True, slots=True)
class AttentionPoolSpec:
    """One learned query that attends to all rows of an image (SigLIP): y = out(attention), then y + mlp(norm(y)) with
    two matrices, intermediate_size columns and `activation` between them. All products have biases."""

    num_heads: int
    intermediate_size: int
    activation: str
    norm: NormSpec


TASKS = ("lm", "labels", "tags", "vector", "none")
POOLS = ("each", "first", "last", "mean", "patches", "first+patches", "both", "end", "greatest", "attention")


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What reads the final hidden states.

    task: "lm", logits of the vocabulary for wanted tokens; "labels", scores of `outputs` labels for a text or an image;
    "tags", the same for every token; "vector", `outputs` numbers that stand for a text or an image, or the pooled row
    itself where outputs is 0; "none", nothing, the hidden states are the result.
    pool: the row that it reads, "first", "last" or the "mean" of all; "patches", the mean of an image's patches;
    "first+patches", both side by side; "both", the first two rows, each through a head of its own (the second is
    head.teacher), of which the mean counts; "end", that of the first token `end`; "greatest", that of the first of the
    greatest token ids; "attention", see AttentionPoolSpec; "each" for lm, tags and none.
    norm: of the pooled row, before all else.
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
    norm: NormSpec | None = None
    end: int = 0
    attention: AttentionPoolSpec | None = None


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

    patches: it reads images, not texts; vocab_size is then 0, and max_position_embeddings the rows that an image may
    become. whole: its layers are causal, and yet a text is read whole, in one step, and nothing is kept of it.
    vision: of a model whose texts and images have vectors in one space, the tower that reads images; its weights have
    names that begin with "vision.". contrast: how a pair of these is scored, cosine * exp(pair.scale) with "softmax"
    over the texts, or that + pair.bias with "sigmoid" for each pair. padded: it was trained with texts filled up to so
    many tokens with the token `pad`, which all others see; 0 = it was not.
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
    patches: PatchesSpec | None = None
    whole: bool = False
    vision: ModelSpec | None = None
    contrast: str = ""
    padded: int = 0
    pad: int = 0

    @property
    def causal(self) -> bool:
        """Whether it can generate: every layer looks only back. An encoder computes each text whole, in one step."""
        return not self.whole and all(layer.attention.causal for layer in self.layers)

    @property
    def images(self) -> ModelSpec | None:
        """What reads images: itself, its vision tower, or nothing."""
        return self if self.patches else self.vision

    def check(self) -> ModelSpec:
        """Return self if the parts fit together; ModelFileError names the first pair that does not."""
        from forwardpass.models.spec_checks import check_model  # which reads the classes above

        check_model(self)
        return self
