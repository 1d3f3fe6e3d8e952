"""Specs survive JSON, with every field set."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from forwardpass.errors import ModelFileError
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
