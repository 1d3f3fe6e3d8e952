"""Whether the parts of a spec fit together. A spec may come from a hostile file: what these checks let through can be
listed, planned and allocated without surprises.
"""

from __future__ import annotations

import math

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.spec import (
    ACTIVATIONS,
    MAX_DISTANCE,
    MAX_EXPERTS,
    MAX_EXPERTS_TOGETHER,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_SIZE,
    POOLS,
    POSITIONS,
    RESIZES,
    TASKS,
    AttentionSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PatchesSpec,
    RotarySpec,
)

MAX_TABLE = 2**26
"""Numbers in a table of positions that is computed, not read."""
MAX_PATCH = 1024
"""Pixels on a side of a patch."""
OF_IMAGES = ("patches", "first+patches", "both", "attention")
OF_TOKENS = ("end", "greatest")
"""What only images, and only texts, can be pooled by."""


def check_model(spec: ModelSpec) -> None:
    """ModelFileError names the first pair that does not fit, UnsupportedModelError what the kernels cannot do."""
    _sizes({"hidden_size": spec.hidden_size, "max_position_embeddings": spec.max_position_embeddings})
    if spec.patches:
        _check_patches(spec, spec.patches)
    else:
        _sizes({"vocab_size": spec.vocab_size})
    _require(1 <= len(spec.layers) <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", len(spec.layers))
    _check_embedding(spec)
    for layer in {id(one): one for one in spec.layers}.values():  # layers that share an object are checked once
        check_layer(layer)
    _check_layers_together(spec)
    _check_pair(spec)
    _check_towers(spec)
    _check_head(spec)
    _check_norm(spec.final_norm)


def _check_embedding(spec: ModelSpec) -> None:
    rows = spec.max_position_embeddings + spec.position_offset
    _require(0 <= spec.position_offset <= MAX_SIZE, "a position offset of 0 or more", spec.position_offset)
    _require(spec.learned_positions in (0, rows), f"a position table of {rows} rows, one for each position",
             spec.learned_positions)
    _require(0 <= spec.embed_size <= MAX_SIZE, f"embed_size from 0 to {MAX_SIZE}", spec.embed_size)
    if spec.sinusoids:
        width = spec.embed_size if spec.project_last and spec.embed_size else spec.hidden_size
        _require(not spec.learned_positions, "one position table, learned or fixed", "both")
        _require(2 * len(spec.sinusoids) == width and all(0 <= f <= 1 for f in spec.sinusoids),
                 f"{width // 2} frequencies of positions from 0 to 1, two columns each", spec.sinusoids[:4])
        _require(rows * width <= MAX_TABLE, f"positions of {width} columns for at most {MAX_TABLE // width} tokens",
                 rows)
    _require(0 <= spec.token_types <= 1024, "0 to 1024 token types", spec.token_types)
    _require(spec.embed_size > 0 or not (spec.project_last or spec.project_bias),
             "an embed_size for a projection of the embedding", spec.embed_size)
    _require(math.isfinite(spec.embed_scale), "a finite embed_scale", spec.embed_scale)
    _check_norm(spec.embed_norm)


def _check_layers_together(spec: ModelSpec) -> None:
    layers = spec.layers
    if spec.layer_weights:
        _require(len(spec.layer_weights) == len(layers)
                 and all(0 <= one <= i and spec.layer_weights[one] == one and layers[one] == layers[i]
                         for i, one in enumerate(spec.layer_weights)),
                 "layers that share weights with an equal layer before them", spec.layer_weights[:8])
    kinds = {layer.attention.causal for layer in layers}
    _require(len(kinds) == 1, "layers that are all causal or all not", "both")
    for i, layer in enumerate(layers):
        bias = layer.attention.relative
        if bias:
            _require(bias.layer <= i, "a relative bias of this layer or one before it", f"{bias.layer} in layer {i}")
            owner = layers[bias.layer].attention
            _require((owner.relative, owner.num_heads) == (bias, layer.attention.num_heads),
                     f"layer {bias.layer} to use the relative bias that it lends to layer {i}", "another one")
    tables = {(one.span, one.norm) for one in (layer.attention.disentangled for layer in layers) if one}
    _require(len(tables) <= 1, "one table of relative positions for all layers", len(tables))
    experts = sum(layer.mlp.experts.count for layer in layers if layer.mlp.experts)
    _require(experts <= MAX_EXPERTS_TOGETHER, f"at most {MAX_EXPERTS_TOGETHER} experts in all layers", experts)


def _check_pair(spec: ModelSpec) -> None:
    """An encoder-decoder's two halves."""
    crossed, encoder = {layer.cross is not None for layer in spec.layers}, spec.encoder
    _require(crossed == {encoder is not None}, "cross-attention in every layer if there is an encoder, in none "
             "otherwise", f"an encoder: {encoder is not None}, cross-attention in some: {True in crossed}")
    if not encoder:
        return
    _require(spec.causal and not encoder.causal and encoder.encoder is None,
             "an encoder that sees its whole text and a decoder that looks back", "another pair")
    _require(encoder.head.task == "none", "an encoder without a head of its own", encoder.head.task)
    _require(len({(layer.cross.num_kv_heads, layer.cross.head_dim) for layer in spec.layers}) == 1,
             "cross-attention of the same shape in all layers", "others")
    if spec.shared_embedding:
        ours, theirs = ((one.vocab_size, one.embed_size or one.hidden_size) for one in (spec, encoder))
        _require(ours == theirs, f"a shared token table of {ours[0]} rows and {ours[1]} columns",
                 f"{theirs[0]} and {theirs[1]} in the encoder")
    check_model(encoder)


def _check_patches(spec: ModelSpec, p: PatchesSpec) -> None:
    """What a model that reads images is made of."""
    _require(isinstance(p.size, int) and 1 <= p.size <= MAX_PATCH, f"patches of 1 to {MAX_PATCH} pixels a side", p.size)
    _require(1 <= p.channels <= 4096, "1 to 4096 channels of a pixel", p.channels)
    _require(len(p.image) == 2 and all(p.size <= one <= MAX_SIZE for one in p.image),
             f"images of at least one patch ({p.size} pixels) in height and width", p.image)
    for name, value in (("classes", p.classes), ("registers", p.registers)):
        _require(0 <= value <= 1024, f"0 to 1024 rows of {name} before the patches", value)
    _require(p.positions in POSITIONS, f"positions of patches: {', '.join(POSITIONS)}", p.positions)
    _require(p.resize in RESIZES, f"a way to resize positions: {', '.join(filter(None, RESIZES))} or none", p.resize)
    _require(not p.resize or p.positions == "learned", "only a learned table to be resized", p.positions)
    _require(p.rows(*p.image) <= spec.max_position_embeddings,
             f"images of at most {spec.max_position_embeddings} rows", p.rows(*p.image))
    _require(spec.vocab_size == 0 and not (spec.learned_positions or spec.sinusoids or spec.token_types
                                           or spec.embed_size or spec.position_offset or spec.encoder),
             "images without tokens and their tables", "both")
    _require(not spec.tied and spec.head.task not in ("lm", "tags"), "a head of labels, vectors or none",
             spec.head.task)


def _check_towers(spec: ModelSpec) -> None:
    """A model of texts and images, and what texts are filled up with."""
    _require(not spec.whole or (all(one.attention.causal for one in spec.layers) and not spec.encoder),
             "layers that look back where texts are read whole, and no encoder", "others")
    _require(0 <= spec.padded <= spec.max_position_embeddings, "texts filled up to a length that the model reads",
             spec.padded)
    _require(not spec.padded or 0 <= spec.pad < spec.vocab_size, f"a padding token below {spec.vocab_size}", spec.pad)
    _require(spec.contrast in ("", "softmax", "sigmoid") and bool(spec.contrast) == bool(spec.vision),
             "softmax or sigmoid over texts and images where there are both", spec.contrast)
    if not spec.vision:
        return
    vision = spec.vision
    _require(bool(vision.patches) and not spec.patches and not spec.causal and not vision.vision,
             "a tower that reads images beside one that reads texts whole", "another pair")
    check_model(vision)
    widths = [one.head.outputs or one.hidden_size for one in (spec, vision)]
    _require(spec.head.task == vision.head.task == "vector" and widths[0] == widths[1],
             "vectors of one length for texts and images", widths)


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ModelFileError(f"the model contradicts itself: expected {expected}, found {found}; "
                             "fix its config or fetch the model again")


def _sizes(sizes: dict[str, int]) -> None:
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and 1 <= value <= MAX_SIZE, f"{name} from 1 to {MAX_SIZE}", value)


def check_attention(a: AttentionSpec) -> None:
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
        if not a.causal and (a.rotary.ntk or a.rotary.long_inv_freq):
            raise UnsupportedModelError("rotary frequencies that follow the length of a text are supported only where "
                                        "tokens look back; use another model")


def check_layer(layer: LayerSpec) -> None:
    m = layer.mlp
    check_attention(layer.attention)
    if layer.cross:
        a = layer.cross
        check_attention(a)
        _require(not a.causal and not layer.parallel and not a.window,
                 "cross-attention that sees the whole source, in a layer that is not parallel", "another")
        _require(not (a.rotary or a.alibi or a.relative or a.disentangled or a.softcap or a.clip_qkv or a.qk_norm),
                 "cross-attention of queries and keys as they are", "positions, norms or limits of them")
    else:
        _require(layer.cross_norm is None, "a norm for cross-attention where there is any", "one without")
    _sizes({"intermediate_size": m.intermediate_size})
    _require(m.kind in ("gated", "plain"), "an MLP that is gated or plain", m.kind)
    _require(m.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", m.activation)
    if m.experts:
        _require(m.kind == "gated", "experts that are gated MLPs", m.kind)
        _require(1 <= m.experts.chosen <= m.experts.count <= MAX_EXPERTS,
                 f"1 to {MAX_EXPERTS} experts of which some are chosen", f"{m.experts.chosen} of {m.experts.count}")
        _require(0 <= m.experts.shared_size <= MAX_SIZE, f"a shared expert of 0 (none) to {MAX_SIZE} columns",
                 m.experts.shared_size)
    _require(layer.modulation in ("", "zero", "single"), "a modulation that is zero or single, or none",
             layer.modulation)
    _require(not layer.modulation or (layer.order == "pre" and not layer.parallel and not layer.post_attention_norm
                                      and not layer.post_mlp_norm and layer.residual_scale == 1),
             "modulated layers to have their norms before, and nothing else", "another")
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
        _require(not d.buckets or (d.span >= 4 and d.span % 2 == 0), "an even number of buckets, 4 or more", d.buckets)
        _require(not d.buckets or d.span // 2 + 1 < d.max_distance <= MAX_DISTANCE,
                 f"a greatest relative distance above {d.span // 2 + 1}, at most {MAX_DISTANCE}", d.max_distance)
        _require(not a.causal and a.num_heads == a.num_kv_heads, "disentangled attention to be an encoder's", "another")
        furthest, width = d.max_distance if d.buckets else d.span, a.num_heads * a.head_dim
        _require(2 * furthest * width <= MAX_TABLE,  # kernels have a vector for each distance
                 f"relative distances of {width} columns up to {MAX_TABLE // (2 * width)}", furthest)
        _check_norm(d.norm)


def _check_head(spec: ModelSpec) -> None:
    head = spec.head
    _require(head.task in TASKS, f"a head for {', '.join(TASKS)}", head.task)
    _require(head.pool in POOLS, f"a pooling of {', '.join(POOLS)}", head.pool)
    _require((head.pool != "each") == (head.task in ("labels", "vector")),
             "a pooled row for labels and vectors, each row for all else", f"{head.pool} for {head.task}")
    _require(not ((head.pool in OF_IMAGES and not spec.patches) or (head.pool in OF_TOKENS and spec.patches)),
             "a pooling that fits what the model reads", head.pool)
    _require(head.pool != "both" or (head.task == "labels" and not head.dense and not head.norm
                                      and spec.patches.classes >= 2),
             "two class rows for a head of each, and nothing before it", head.pool)
    _require((1 <= head.outputs <= MAX_SIZE) == (head.task in ("labels", "tags"))
             or (head.task == "vector" and 0 <= head.outputs <= MAX_SIZE),
             f"1 to {MAX_SIZE} labels where there are any", head.outputs)
    _require(head.outputs or not head.dense or head.task != "vector", "no dense layer of a pooled row alone",
             head.dense)
    _require(0 <= head.end <= MAX_SIZE, f"an end token from 0 to {MAX_SIZE}", head.end)
    _check_attention_pool(spec)
    _check_norm(head.norm)
    _require(0 <= head.dense <= MAX_SIZE, f"a dense layer of 0 (none) to {MAX_SIZE} columns", head.dense)
    _require(head.dense or head.dense_norm is None, "a norm after a dense layer where there is one", "one without")
    _require(head.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", head.activation)
    _check_norm(head.dense_norm)
    narrow = spec.embed_size or spec.hidden_size
    if head.task == "lm":
        _require(not spec.tied or head.dense in (0, narrow), f"{narrow} columns before a head that is the token table",
                 head.dense)
    else:
        _require(not spec.tied, "a head that is the token table only for the vocabulary's logits", head.task)
    _require(math.isfinite(spec.logit_scale), "a finite logit_scale", spec.logit_scale)
    _require(math.isfinite(spec.logit_softcap) and spec.logit_softcap >= 0, "a logit softcap of 0 (none) or more",
             spec.logit_softcap)


def _check_attention_pool(spec: ModelSpec) -> None:
    pool = spec.head.attention
    _require((pool is not None) == (spec.head.pool == "attention"), "attention that pools where it is asked for", pool)
    if not pool:
        return
    _sizes({"num_heads": pool.num_heads, "intermediate_size": pool.intermediate_size})
    _require(spec.hidden_size % pool.num_heads == 0, f"a divisor of {spec.hidden_size} heads", pool.num_heads)
    if spec.hidden_size // pool.num_heads > MAX_HEAD_DIM:
        raise UnsupportedModelError(f"attention heads of {spec.hidden_size // pool.num_heads} dimensions are not "
                                    f"supported, at most {MAX_HEAD_DIM} are; use another model")
    _require(pool.activation in ACTIVATIONS, f"an activation out of {', '.join(ACTIVATIONS)}", pool.activation)
    _check_norm(pool.norm)


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
    _require(norm.kind in ("rms", "layer", "scale"), "a norm of kind rms, layer or scale", norm.kind)
    if norm.kind == "scale":
        _require(norm.eps == 0 and norm.weight, "a scale with weights and no epsilon", norm.eps)
    else:
        _require(0 < norm.eps < 1, "a norm epsilon between 0 and 1", norm.eps)
    _require(norm.weight or not norm.bias, "a bias only of a norm with weights", "one without weights")
