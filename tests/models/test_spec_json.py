"""Specs survive JSON, with every field set."""

from __future__ import annotations

import json
from dataclasses import replace

from forwardpass.models.spec import (
    AttentionSpec,
    DynamicNtk,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RotarySpec,
)
from forwardpass.models.spec_json import from_json, to_json


def test_every_field_comes_back():
    norm, small = NormSpec("layer", 1e-5, True), NormSpec("rms", 1e-6)
    rotary = RotarySpec(4, (1.0, 0.1), 1.25, (0.5, 0.05), 4096, DynamicNtk(1e4, 2.0, 64))
    attention = AttentionSpec(2, 1, 8, 0.3, rotary, 16, True, True, (0.5, 0.25), 50.0, 8.0, small, "heads")
    layer = LayerSpec(norm, attention, None, MlpSpec("gated", 24, "silu", True, ExpertsSpec(4, 2, False, 12, True)),
                      small, small, "pre", True, 0.5)
    other = replace(layer, attention=replace(attention, rotary=None, window=0), mlp=MlpSpec("plain", 24, "relu"))
    spec = ModelSpec("any", 16, 32, 64, (layer, other, layer), norm, False, 66, True, 2, 8, small, 4.0, 0.5, 30.0)
    written = json.loads(json.dumps(to_json(spec)))
    assert from_json(written, "x") == spec
    assert len(written["kinds"]) == 2 and written["layers"] == [0, 1, 0]
    plain = replace(spec, final_norm=None, embed_norm=None, layers=(other,))
    assert from_json(json.loads(json.dumps(to_json(plain))), "x") == plain
