"""Configs of models that read images: what they mean, and what is wrong with a hostile one."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models import costs, registry, spec_json
from forwardpass.models.spec import NormSpec
from forwardpass.models.weight_rows import targets

VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 48, "num_hidden_layers": 2,
       "num_attention_heads": 4, "intermediate_size": 80, "image_size": 32, "patch_size": 8,
       "id2label": {"0": "cat", "1": "dog"}}
DINO = {"model_type": "dinov2_with_registers", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 28, "patch_size": 14, "use_swiglu_ffn": True}
TOWER = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
CLIP = {"model_type": "clip", "projection_dim": 16, "text_config": TOWER | {"vocab_size": 50, "eos_token_id": 49},
        "vision_config": TOWER | {"image_size": 32, "patch_size": 16}}
SIGLIP = {"model_type": "siglip", "text_config": TOWER | {"vocab_size": 50}, "vision_config": TOWER}


def spec(base, **changes):
    return registry.spec_from_config(base | changes)


def test_absent_settings():
    """What the families' first published configs leave out."""
    found = registry.spec_from_config({"model_type": "vit"})
    assert (found.hidden_size, len(found.layers), found.patches.size, found.patches.image) == (768, 12, 16, (224, 224))
    assert found.layers[0].attention_norm.eps == pytest.approx(1e-12) and found.head.task == "none"
    found = registry.spec_from_config({"model_type": "clip"})
    assert (found.hidden_size, found.vocab_size, found.max_position_embeddings) == (512, 49408, 77)
    assert (found.vision.hidden_size, found.vision.patches.size, found.head.outputs) == (768, 32, 512)
    assert found.head.pool == "end" and found.head.end == 49407 and found.whole and not found.causal
    found = registry.spec_from_config({"model_type": "siglip"})
    assert (found.vocab_size, found.padded, found.pad, found.vision.patches.size) == (32000, 64, 1, 16)
    assert found.vision.head.attention.num_heads == 12 and found.layers[0].mlp.activation == "gelu_tanh"
    found = registry.spec_from_config({"model_type": "dinov2"})
    assert found.patches.size == 14 and found.layers[0].post_mlp_norm == NormSpec("scale", 0.0)


def test_a_gated_mlp_and_registers():
    found = spec(DINO)
    assert found.layers[0].mlp.kind == "gated" and found.layers[0].mlp.intermediate_size == 128  # 192 * 2 / 3
    assert found.patches.registers == 4 and found.patches.resize == "antialiased" and found.patches.rows(28, 28) == 9


def test_sides_that_differ():
    found = spec(VIT, image_size=[32, 48])
    assert found.patches.image == (32, 48) and targets(found)["embed.places.weight"] == (25, 48)
    assert spec(VIT, patch_size=[8, 8]).patches.size == 8
    assert spec(VIT, image_size=37).patches.grid(37, 37) == (4, 4), "what is left over is in no patch"


def test_old_configs_of_two_towers():
    """Settings in text_config_dict go before those in text_config; both may be absent or null."""
    found = spec(CLIP, text_config_dict={"hidden_size": 32, "vocab_size": None}, vision_config_dict=None)
    assert (found.hidden_size, found.vocab_size, found.vision.hidden_size) == (32, 50, 48)
    assert spec(CLIP, text_config=None).hidden_size == 512
    assert spec(CLIP, text_config=CLIP["text_config"] | {"eos_token_id": 2}).head.pool == "greatest"


@pytest.mark.parametrize(("base", "changes", "error", "message"), [
    (VIT, {"image_size": 0}, ModelFileError, "image_size: expected a whole number from 1"),
    (VIT, {"image_size": 7}, ModelFileError, "image_size: expected at least one patch of 8"),
    (VIT, {"image_size": [32]}, ModelFileError, "image_size"),
    (VIT, {"image_size": [32, True]}, ModelFileError, "image_size"),
    (VIT, {"image_size": "big"}, ModelFileError, "image_size"),
    (VIT, {"image_size": 10**7}, ModelFileError, "rows"),
    (VIT, {"patch_size": 0}, ModelFileError, "patch_size"),
    (VIT, {"patch_size": 4096}, ModelFileError, "patch_size"),
    (VIT, {"patch_size": [8, 16]}, UnsupportedModelError, "no square"),
    (VIT, {"num_channels": 0}, ModelFileError, "num_channels"),
    (VIT, {"num_channels": -3}, ModelFileError, "num_channels"),
    (VIT, {"num_attention_heads": 5}, ModelFileError, "divisor of hidden_size"),
    (VIT, {"num_hidden_layers": 0}, ModelFileError, "num_hidden_layers"),
    (VIT, {"num_labels": 3}, ModelFileError, "num_labels"),
    (VIT, {"hidden_act": "swish2"}, UnsupportedModelError, "activation"),
    (VIT, {"architectures": ["ViTForMaskedImageModeling"]}, UnsupportedModelError, "ViTForMaskedImageModeling"),
    (DINO, {"mlp_ratio": 0}, ModelFileError, "mlp_ratio"),
    (DINO, {"mlp_ratio": float("nan")}, ModelFileError, "mlp_ratio"),
    (DINO, {"num_register_tokens": 5000}, ModelFileError, "num_register_tokens"),
    (CLIP, {"text_config": [1]}, ModelFileError, "text_config: expected an object"),
    (CLIP, {"vision_config": TOWER | {"image_size": 8, "patch_size": 16}}, ModelFileError, "image_size"),
    (CLIP, {"projection_dim": 0}, ModelFileError, "projection_dim"),
    (SIGLIP, {"text_config": TOWER | {"vocab_size": 50, "projection_size": 40}}, ModelFileError, "one length"),
    (SIGLIP, {"text_config": TOWER | {"vocab_size": 50, "pad_token_id": 50}}, ModelFileError, "padding token below 50"),
    (SIGLIP, {"vision_config": TOWER | {"vision_use_head": False}}, ModelFileError, "vectors of one length"),
])
def test_hostile_configs(base, changes, error, message):
    with pytest.raises(error, match=message):
        spec(base, **changes)


@pytest.mark.parametrize("base", [VIT, DINO, CLIP, SIGLIP])
def test_specs_as_json(base):
    """There and back; and every value of another type is our error."""
    found = spec(base)
    written = json.loads(json.dumps(spec_json.to_json(found)))
    assert spec_json.from_json(written, "here") == found
    for place in [written, *([written["vision"]] if written["vision"] else [])]:
        for name in ("patches", "head", "vision", "whole", "contrast", "padded", "vocab_size"):
            for wrong in (3.5, "x", [], {"a": 1}):
                kept, place[name] = place[name], wrong
                with pytest.raises(ForwardpassError):
                    spec_json.from_json(written, "here")
                place[name] = kept
    assert spec_json.from_json(written, "here") == found


@pytest.mark.parametrize("changes", [
    {"size": 0}, {"size": 4096}, {"channels": 0}, {"image": (32,)}, {"image": (4, 32)}, {"classes": -1},
    {"registers": 10**6}, {"positions": "sines"}, {"resize": "nearest"}, {"positions": "none"},
    {"image": (10**6, 10**6)},
])
def test_patches_that_cannot_be(changes):
    found = spec(VIT)
    with pytest.raises(ModelFileError):
        dataclasses.replace(found, patches=dataclasses.replace(found.patches, **changes)).check()


@pytest.mark.parametrize("changes", [
    {"vocab_size": 10}, {"tied": True}, {"learned_positions": 16384}, {"whole": True}, {"contrast": "softmax"},
    {"padded": 9}, {"final_norm": NormSpec("scale", 0.1)}, {"final_norm": NormSpec("layer", 1e-6, True, False)},
    {"final_norm": NormSpec("scale", 0.0, False, False)},
])
def test_models_that_cannot_be(changes):
    with pytest.raises(ModelFileError):
        dataclasses.replace(spec(VIT), **changes).check()


@pytest.mark.parametrize("changes", [
    {"pool": "each"}, {"pool": "end"}, {"pool": "both"}, {"pool": "attention"}, {"outputs": 0}, {"task": "lm"},
    {"task": "vector", "outputs": 0, "dense": 8},
])
def test_heads_that_cannot_be(changes):
    found = spec(VIT)
    with pytest.raises(ModelFileError):
        dataclasses.replace(found, head=dataclasses.replace(found.head, **changes)).check()


def test_costs_by_hand():
    """Two images of 17 rows: products of 2 * rows * weights, one read of every matrix."""
    found = spec(VIT)
    nbytes = {name: 4 * int(math.prod(shape)) for name, shape in targets(found).items()}
    step = costs.stage_costs(found, nbytes, [17, 17], [0, 0])
    assert step["embed"]["embed"].flops == 34 * (2 * 48 * 192 + 48) + 34 * 48  # with the bias, and what is added
    assert step["embed"]["embed"].read == 4 * (48 * 192 + 48) + 34 * 48 * 4
    assert step["decode"]["attention"].flops == 2 * 2 * 4 * 48 * 17 * 17 and step["decode"]["attention"].bytes == 0
    assert step["decode"]["gate_up"].flops == 2 * 34 * (2 * 80 * 48 + 80 + 48 * 7)
    assert step["project"]["head"].flops == 2 * (2 * 2 * 48 + 2)
    assert costs.kv_position_bytes(found, "float32") == 0
    scaled = spec(DINO | {"use_swiglu_ffn": False, "mlp_ratio": 2})
    nbytes = {name: 4 for name in targets(scaled)}
    down = costs.stage_costs(scaled, nbytes, [9], [0])["decode"]["down"]
    assert down.flops == 2 * 9 * (2 * 96 * 48 + 48 + 48)  # a product, its bias, the layer's scale


def test_costs_of_two_towers():
    """What a vision tower does is a stage of its own; a text tower that looks only back sees half of the pairs."""
    found = spec(CLIP)
    nbytes = {name: 4 for name in targets(found)}
    both = costs.stage_costs(found, nbytes, [10], [0], images=[5, 5])
    assert both["see"]["attention"].flops == 2 * 4 * 48 * 25 and both["see"]["qkv"].flops > 0
    assert both["decode"]["attention"].flops == 4 * 48 * 55 and both["decode"]["attention"].bytes == 0
    alone = costs.stage_costs(found, nbytes, [10], [0])
    assert costs.total(alone).flops == costs.total(both).flops - sum(one.flops for one in both["see"].values())
    assert costs.parameters(found) == sum(int(math.prod(one)) for one in targets(found).values())
