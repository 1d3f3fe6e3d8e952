"""Specs survive JSON, with every field set."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.spec import (
    AttentionSpec,
    DisentangledSpec,
    DynamicNtk,
    ExpertsSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RelativeBiasSpec,
    RotarySpec,
)
from forwardpass.models.spec_json import from_json, to_json


def whole() -> ModelSpec:
    norm, small = NormSpec("layer", 1e-5, True), NormSpec("rms", 1e-6)
    rotary = RotarySpec(4, (1.0, 0.1), 1.25, (0.5, 0.05), 4096)
    dynamic = RotarySpec(4, (1.0, 0.1), ntk=DynamicNtk(1e4, 2.0, 64))
    attention = AttentionSpec(2, 1, 8, 0.3, rotary, 16, True, True, (0.5, 0.25), 50.0, 8.0, small, "heads")
    layer = LayerSpec(norm, attention, None, MlpSpec("gated", 24, "silu", True, ExpertsSpec(4, 2, False, 12, True)),
                      small, small, "pre", True, 0.5)
    other = replace(layer, attention=replace(attention, rotary=dynamic, window=0), mlp=MlpSpec("plain", 24, "relu"))
    return ModelSpec("any", 16, 32, 64, (layer, other, layer), norm, False, 66, True, 2, 8, small, 4.0, 0.5, 30.0)


def test_every_field_comes_back():
    spec = whole()
    other = replace(spec.layers[1], attention=replace(spec.layers[1].attention, rotary=None))
    written = json.loads(json.dumps(to_json(spec)))
    assert from_json(written, "x") == spec
    assert len(written["kinds"]) == 2 and written["layers"] == [0, 1, 0]
    plain = replace(spec, final_norm=None, embed_norm=None, layers=(other,))
    assert from_json(json.loads(json.dumps(to_json(plain))), "x") == plain


def encoder() -> ModelSpec:
    norm, shift = NormSpec("layer", 1e-5, True), RelativeBiasSpec(8, 20, True)
    spans = DisentangledSpec(8, 8, 30, True, False, False, norm)
    a = AttentionSpec(2, 2, 8, 0.3, None, 16, True, True, causal=False, relative=shift, disentangled=spans)
    layer = LayerSpec(norm, a, norm, MlpSpec("plain", 24, "tanh", True), order="post")
    return ModelSpec("any", 16, 32, 64, (layer,) * 4, None, False, embed_size=12, embed_norm=norm, token_types=2,
                     sinusoids=(1.0, 0.5, 0.2, 0.1, 0.05, 0.02), project_last=True, project_bias=True, head_bias=True,
                     layer_weights=(0, 1, 0, 1), head=HeadSpec("labels", 3, "mean", 20, False, "relu", norm)).check()


def pair() -> ModelSpec:
    reader = replace(encoder(), head=HeadSpec("none"), head_bias=False)
    a = AttentionSpec(2, 1, 8, 0.3, relative=RelativeBiasSpec(8, 20, False))
    cross = AttentionSpec(4, 2, 4, 0.5, qkv_bias=True, out_bias=True, causal=False)
    layer = LayerSpec(None, a, None, MlpSpec("gated", 24, "silu"), cross=cross, cross_norm=NormSpec("rms", 1e-6))
    return ModelSpec("any", 20, 30, 64, (layer,), None, True, encoder=reader, shared_embedding=False).check()


@pytest.mark.parametrize("spec", [encoder(), pair()], ids=["encoder", "pair"])
def test_encoders_pairs_and_heads_come_back(spec):
    assert from_json(json.loads(json.dumps(to_json(spec))), "x") == spec


@pytest.mark.parametrize(("make", "path", "value", "said"), [
    (pair, "encoder.encoder", {}, "without an encoder of its own"), (pair, "encoder", [], "without an encoder of its"),
    (pair, "encoder", None, "cross-attention in every layer"), (encoder, "encoder", to_json(pair().encoder), "in none"),
    (pair, "encoder.head.task", "lm", "without a head of its own"), (pair, "shared_embedding", True, "shared token"),
    (pair, "kinds.0.cross.causal", True, "sees the whole source"), (pair, "kinds.0.cross.softcap", 1.0, "as they are"),
    (pair, "kinds.0.cross", None, "norm for cross-attention"), (pair, "kinds.0.attention.causal", False, "looks back"),
    (pair, "encoder.vocab_size", 0, "vocab_size from 1"), (pair, "encoder.kinds", [], "numbers below 0"),
    (pair, "tied", 1, "type bool"), (pair, "head.dense", 12, "20 columns before a head that is the token table"),
    (encoder, "sinusoids", [1.0] * 5, "6 frequencies"), (encoder, "sinusoids", [math.nan] * 6, "from 0 to 1"),
    (encoder, "max_position_embeddings", 2**24, "positions of 12 columns"),
    (encoder, "learned_positions", 64, "learned or fixed"), (encoder, "token_types", 1025, "1024 token types"),
    (encoder, "layer_weights", [0, 1, 0], "share weights"), (encoder, "layer_weights", [0, 1, 3, 1], "share weights"),
    (encoder, "layer_weights", [0, 0, 1, 1], "share weights"), (encoder, "embed_size", 0, "8 frequencies"),
    (encoder, "tied", True, "only for the vocabulary"), (encoder, "head.pool", "each", "a pooled row for labels"),
    (encoder, "head.task", "poetry", "a head for lm"), (encoder, "head.outputs", 0, "labels where there are any"),
    (encoder, "head.dense", 0, "a norm after a dense layer"), (encoder, "head.activation", "sin", "an activation out"),
    (encoder, "kinds.0.attention.relative.layer", 1, "this layer or one before"),
    (encoder, "kinds.0.attention.relative.buckets", 7, "buckets"),
    (encoder, "kinds.0.attention.relative.max_distance", 2**17, "distance"),
    (encoder, "kinds.0.attention.disentangled.span", 2**17, "span"),
    (encoder, "kinds.0.attention.disentangled.buckets", 6, "or the span"),
    (encoder, "kinds.0.attention.disentangled", {"span": 9, "buckets": 9, "max_distance": 30}, "an even number"),
    (encoder, "kinds.0.attention.disentangled.max_distance", 5, "above 5"),
    (encoder, "kinds.0.attention.num_kv_heads", 1, "an encoder's"),
])
def test_an_encoder_or_a_head_that_cannot_be(make, path, value, said):
    written = json.loads(json.dumps(to_json(make())))
    *folders, name = path.split(".")
    place = written
    for folder in folders:
        place = place[int(folder) if folder.isdigit() else folder]
    place[name] = value
    with pytest.raises(ModelFileError, match=said):
        from_json(json.loads(json.dumps(written)), "x")


def test_vectors_of_distances_that_would_fill_the_memory():
    spec = encoder()
    layer = spec.layers[0]
    spans = replace(layer.attention.disentangled, max_distance=2**15)
    for head_dim, fits in ((512, True), (513, False)):
        layers = (replace(layer, attention=replace(layer.attention, head_dim=head_dim, disentangled=spans)),) * 4
        if fits:
            replace(spec, layers=layers).check()
            continue
        with pytest.raises(ModelFileError, match=r"1026 columns up to 32704, found 32768"):
            replace(spec, layers=layers).check()


def test_lengths_that_encoders_do_not_follow():
    spec = whole()
    layer = replace(spec.layers[0], attention=replace(spec.layers[0].attention, causal=False))
    with pytest.raises(UnsupportedModelError, match="follow the length"):
        replace(spec, layers=(layer,)).check()


@pytest.mark.parametrize(("kind", "path", "value", "said"), [
    (0, "attention.rotary.switch", -1, "length of 1"), (0, "attention.rotary.switch", 0, "length of 1"),
    (0, "attention.rotary.switch", 2**40, "length of 1"), (1, "attention.rotary.switch", 8, "no switch"),
    (0, "attention.rotary.attention_factor", math.inf, "attention factor"),
    (0, "attention.rotary.ntk", {"base": 1e4, "factor": 2.0, "trained": 64}, "no long ones"),
    (1, "attention.rotary.ntk.trained", 0, "trained length"), (1, "attention.rotary.ntk.trained", 2**63, "trained"),
    (1, "attention.rotary.ntk.factor", 0.5, "dynamic factor"), (1, "attention.rotary.ntk.factor", math.nan, "dynamic"),
    (1, "attention.rotary.ntk.base", 0.0, "base"), (1, "attention.rotary.ntk.base", math.inf, "base"),
    (1, "attention.rotary.inv_freq", [1.0, math.nan], "finite"), (0, "attention.alibi", [1e300, 1.0], "slopes"),
    (0, "attention.alibi", [math.nan, 1.0], "slopes"), (0, "attention.window", -1, "window"),
    (0, "mlp.experts.chosen", 5, "5 of 4"), (0, "attention.num_heads", True, "type int"), (0, "mlp", None, "object"),
])
def test_a_spec_that_cannot_be(kind, path, value, said):
    written = json.loads(json.dumps(to_json(whole())))
    *folders, name = path.split(".")
    place = written["kinds"][kind]
    for folder in folders:
        place = place[folder]
    place[name] = value
    with pytest.raises(ModelFileError, match=said):
        from_json(written, "x")
