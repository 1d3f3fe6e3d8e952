"""Row order, strict matching and the tied head."""

from __future__ import annotations

import numpy as np
import pytest

from forwardpass.errors import ModelFileError
from forwardpass.models import registry
from forwardpass.models.weight_rows import row_order


def test_row_order_by_hand():
    assert row_order(4, 1).tolist() == [0, 2, 1, 3]
    assert row_order(8, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert row_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert row_order(2, 1).dtype == np.int32


@pytest.mark.parametrize(("heads", "size"), [(1, 2), (3, 8), (9, 64), (5, 6)])
def test_row_order_undoes_the_conversion(heads, size):
    """The published conversion: per head, [2, D/2] rows become [D/2, 2]."""
    ours = np.arange(heads * size)
    stored = ours.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)
    assert np.array_equal(stored[row_order(heads * size, heads)], ours)


@pytest.mark.parametrize(("rows", "heads"), [(6, 2), (7, 2), (0, 1), (4, 0), (4, 3)])
def test_row_order_refuses(rows, heads):
    with pytest.raises(ModelFileError):
        row_order(rows, heads)


@pytest.fixture
def arrays(tiny):
    made = tiny("llama")
    return made.config.values, {name: t.numpy() for name, t in made.model.state_dict().items()}


def read(tools, config, arrays):
    return registry.read(tools.FakeSource("safetensors", arrays), config)


def test_all_problems_are_reported_together(arrays, tools):
    config, held = arrays
    del held["model.layers.1.mlp.up_proj.weight"]
    del held["model.norm.weight"]
    held["model.layers.0.self_attn.k_proj.weight"] = np.zeros((48, 48), np.float32)
    held["model.layers.0.self_attn.q_norm.weight"] = np.zeros(12, np.float32)
    with pytest.raises(ModelFileError) as error:
        read(tools, config, held)
    said = str(error.value)
    assert "4 problems" in said
    assert "missing: expected model.layers.1.mlp.up_proj.weight [80, 48]" in said
    assert "missing: expected model.norm.weight [48]" in said
    assert "wrong shape: model.layers.0.self_attn.k_proj.weight: expected [24, 48], found [48, 48]" in said
    assert "unexpected: model.layers.0.self_attn.q_norm.weight [12]" in said


def test_a_config_with_other_layers(arrays, tools):
    config, held = arrays
    for layers, kind in ((1, "unexpected"), (3, "missing")):
        with pytest.raises(ModelFileError, match=kind):
            read(tools, config | {"num_hidden_layers": layers}, held)


def test_many_problems_are_counted(arrays, tools):
    config, held = arrays
    held |= {f"junk.{i}": np.zeros(1, np.float32) for i in range(500)}
    with pytest.raises(ModelFileError, match="500 problems") as error:
        read(tools, config, held)
    assert "and 480 more" in str(error.value) and len(str(error.value)) < 4000


def test_a_fused_matrix_is_one_problem(tiny, tools):
    made = tiny("gpt2")
    held = {name: t.numpy() for name, t in made.model.state_dict().items() if name != "lm_head.weight"}
    held["transformer.h.0.attn.c_attn.weight"] = np.zeros((144, 48), np.float32)  # not transposed
    with pytest.raises(ModelFileError, match=r"1 problem\).*\n.*expected \[48, 144\], found \[144, 48\]"):
        read(tools, made.config.values, held)


def test_safetensors_needs_a_config(arrays, tools):
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read(tools, None, arrays[1])


@pytest.mark.parametrize(("flag", "head", "tied", "warned"), [
    (True, None, True, ""), (True, "equal", True, ""), (True, "different", False, "holds a different"),
    (False, None, True, "has none"), (False, "different", False, ""), (False, "equal", False, ""),
])
def test_tied_flag_against_the_file(flag, head, tied, warned, arrays, tools):
    config, held = arrays
    table = held["model.embed_tokens.weight"]
    held.pop("lm_head.weight")
    if head:
        held["lm_head.weight"] = table.copy() if head == "equal" else table + np.float32(0.25)
    source = tools.FakeSource("safetensors", held)
    checkpoint = registry.read(source, config | {"tie_word_embeddings": flag})
    assert checkpoint.spec.tied == tied
    assert len(checkpoint.warnings) == bool(warned) and all(warned in said for said in checkpoint.warnings)
    targets = {one.target for one in checkpoint.weights}
    assert ("head.weight" in targets) != tied
    logits = tools.numpy_logits(checkpoint.spec, tools.load_rows(checkpoint, source), [1, 2, 3])
    held["lm_head.weight"] = held.get("lm_head.weight", table)
    plain = tools.FakeSource("safetensors", held)
    expected = registry.read(plain, config | {"tie_word_embeddings": False})
    assert np.array_equal(logits, tools.numpy_logits(expected.spec, tools.load_rows(expected, plain), [1, 2, 3]))


def test_a_head_of_another_shape_is_refused(arrays, tools):
    config, held = arrays
    held["lm_head.weight"] = np.zeros((63, 48), np.float32)
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        read(tools, config, held)
