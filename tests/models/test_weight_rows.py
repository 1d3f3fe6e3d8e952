"""Row order, strict matching and the tied head."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from forwardpass.backends import native
from forwardpass.errors import ModelFileError
from forwardpass.models import registry
from forwardpass.models.loading import load_weights, plan
from forwardpass.models.registry import Checkpoint
from forwardpass.models.spec import (
    AttentionSpec,
    DisentangledSpec,
    ExpertsSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RelativeBiasSpec,
)
from forwardpass.models.weight_rows import BoundRow, WeightRow, match, named_rows, row_order, targets
from forwardpass.models.weight_tables import fused, part_of
from forwardpass.weights.source import TensorInfo

GENERATES = SimpleNamespace(causal=True)  # all that placing weights asks of a spec


def test_row_order_by_hand():
    assert row_order(4, 1).tolist() == [0, 2, 1, 3]
    assert row_order(8, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert row_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert row_order(2, 1).dtype == np.int32


def test_partial_row_order_by_hand():
    """Four of eight dimensions are rotated: they are two pairs, and the other four stay."""
    assert row_order(8, 1, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert row_order(12, 2, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert row_order(8, 1, 8).tolist() == row_order(8, 1).tolist()


@pytest.mark.parametrize(("heads", "size", "dim"), [(1, 8, 6), (3, 20, 4), (5, 6, 2)])
def test_partial_row_order_makes_halves_of_pairs(heads, size, dim):
    """Rotating interleaved neighbours of the stored rows is rotating (j, j + dim/2) of ours."""
    stored = np.random.default_rng(1).standard_normal(heads * size)
    ours = stored[row_order(heads * size, heads, dim)].reshape(heads, size)
    stored = stored.reshape(heads, size)
    for j in range(dim // 2):
        assert np.array_equal(ours[:, [j, j + dim // 2]], stored[:, [2 * j, 2 * j + 1]])
    assert np.array_equal(ours[:, dim:], stored[:, dim:])


@pytest.mark.parametrize(("heads", "size"), [(1, 2), (3, 8), (9, 64), (5, 6)])
def test_row_order_undoes_the_conversion(heads, size):
    """The published conversion: per head, [2, D/2] rows become [D/2, 2]."""
    ours = np.arange(heads * size)
    stored = ours.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)
    assert np.array_equal(stored[row_order(heads * size, heads)], ours)


@pytest.mark.parametrize(("rows", "heads", "dim"), [(6, 2, 0), (7, 2, 0), (0, 1, 0), (4, 0, 0), (4, 3, 0), (8, 2, 6),
                                                     (8, 2, 3), (8, 2, -2)])
def test_row_order_refuses(rows, heads, dim):
    with pytest.raises(ModelFileError, match="rotary rows"):
        row_order(rows, heads, dim)


def loaded(tools, row, stored):
    """float32: what the loader makes of a stored array."""
    source = tools.FakeSource("safetensors", {"x": stored})
    bound = match([row], source)
    backend = native.NativeBackend(1)
    checkpoint = Checkpoint(GENERATES, tuple(bound), ())
    weights = load_weights(checkpoint, source, "float32", backend).weights()
    if len(row.shape) == 1:
        return weights.vectors[row.target]
    matrix = weights.matrices[row.target]
    program = backend.program()
    out = program.buffer(row.shape[1])
    program.embed(out, matrix, label="look up")
    values = np.empty(row.shape, np.float32)
    program.run(row.shape[0], ids=np.arange(row.shape[0], dtype=np.int32), bound=[(out, values)])
    return values


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_slice_out_of_every_period(tools):
    """Heads of [q, k, v], 3 heads of 2: the keys are rows 2 3, 8 9, 14 15."""
    stored = numbered(18, 4)
    row = WeightRow("k", ("x",), (6, 4), rows=slice(2, 4), total=18, period=6)
    expected = stored[[2, 3, 8, 9, 14, 15]]
    assert np.array_equal(loaded(tools, row, stored), expected)
    assert np.array_equal(loaded(tools, replace(row, transform="transpose"), stored.T), expected)
    assert np.array_equal(loaded(tools, replace(row, shape=(6,)), stored[:, 0]), expected[:, 0])
    turned = replace(row, transform="rotary_rows", heads=1, rotary_dim=4)
    assert np.array_equal(loaded(tools, turned, stored), expected[[0, 2, 1, 3, 4, 5]])
    assert np.array_equal(loaded(tools, replace(turned, shape=(6,)), stored[:, 0]), expected[[0, 2, 1, 3, 4, 5], 0])


def test_a_stack_of_experts(tools):
    """Five experts of six rows: gate and up are halves of each, here expert 3's up."""
    stored = numbered(5, 6, 4)
    row = WeightRow("up", ("x",), (3, 4), rows=slice(21, 24), total=30, stack=5)
    assert np.array_equal(loaded(tools, row, stored), stored[3, 3:])
    assert np.array_equal(loaded(tools, replace(row, shape=(3,)), stored[:, :, 0]), stored[3, 3:, 0])
    bound = match([row], tools.FakeSource("gguf", {"x": stored}))
    assert bound[0].nbytes == 3 * 4 * 4
    with pytest.raises(ModelFileError, match=r"expected \[5, 6, 4\], found \[6, 5, 4\]"):
        match([row], tools.FakeSource("gguf", {"x": stored.reshape(6, 5, 4)}))


def test_what_is_added_to_a_vector(tools):
    row = WeightRow("norm", ("x",), (5,), add=1.0)
    assert np.array_equal(loaded(tools, row, numbered(5) / 8), numbered(5) / 8 + 1)


def test_a_vector_stands_for_a_matrix_of_one_row(tools):
    """GGUF drops axes of one."""
    assert np.array_equal(loaded(tools, WeightRow("gate", ("x",), (1, 6)), numbered(6)), numbered(1, 6))


def test_names_of_experts():
    """One tensor an expert, or one that stacks them all."""
    layer = LayerSpec(None, AttentionSpec(1, 1, 8, 1.0), None, MlpSpec("gated", 12, "silu", experts=ExpertsSpec(
        4, 2, shared_size=20, shared_gate=True)))
    spec = ModelSpec("test", 8, 9, 10, (layer,) * 2, None, True).check()
    assert targets(spec)["layers.1.mlp.router.weight"] == (4, 8)
    assert targets(spec)["layers.1.mlp.experts.3.down.weight"] == (8, 12)
    assert targets(spec)["layers.1.mlp.shared.gate.weight"] == (20, 8)
    assert targets(spec)["layers.1.mlp.shared_gate.weight"] == (1, 8)
    stems = {name.rpartition(".")[0].removeprefix(f"layers.{i}.") for name in targets(spec) for i in range(2)}
    names = {stem: (stem,) for stem in stems}
    names |= {"mlp.experts.gate": ("l.{i}.e.{e}.gate",), "mlp.experts.up": ("l.{i}.ups",),
              "mlp.experts.down": ("l.{i}.downs",)}
    rows = {row.target: row for row in named_rows(spec, names)}
    assert rows["layers.1.mlp.experts.2.gate.weight"].sources == ("l.1.e.2.gate.weight",)
    up, down = rows["layers.1.mlp.experts.2.up.weight"], rows["layers.0.mlp.experts.3.down.weight"]
    assert (up.sources, up.rows, up.source_shape) == (("l.1.ups.weight",), slice(24, 36), (4, 12, 8))
    assert (down.sources, down.rows, down.source_shape) == (("l.0.downs.weight",), slice(24, 32), (4, 8, 12))


def shared_and_late():
    """ALBERT's parts: one layer's weights for all, a narrow table with types, a head that is that table."""
    norm = NormSpec("layer", 1e-12, True)
    layer = LayerSpec(norm, AttentionSpec(2, 2, 4, 0.5, qkv_bias=True, causal=False), norm,
                      MlpSpec("plain", 12, "relu"), order="post")
    return ModelSpec("test", 8, 9, 10, (layer,) * 3, None, True, 10, True, embed_size=6, embed_norm=norm,
                     token_types=2, project_last=True, project_bias=True, layer_weights=(0, 0, 0),
                     head=HeadSpec(dense=6, dense_norm=norm)).check()


def test_targets_of_shared_layers_and_a_late_projection():
    shapes = targets(shared_and_late())
    layer = {name for name in shapes if name.startswith("layers.")}
    assert layer and all(name.startswith("layers.0.") for name in layer)
    assert {name: shape for name, shape in shapes.items() if name not in layer} == {
        "embed.tokens.weight": (9, 6), "embed.types.weight": (2, 6), "embed.positions.weight": (10, 6),
        "embed.project_in.weight": (8, 6), "embed.project_in.bias": (8,), "embed.norm.weight": (6,),
        "embed.norm.bias": (6,), "head.dense.weight": (6, 8), "head.dense.bias": (6,), "head.dense_norm.weight": (6,),
        "head.dense_norm.bias": (6,), "head.weight": (9, 6), "head.bias": (9,)}


def a_pair(shared=True):
    bias = RelativeBiasSpec(8, 20, True)
    seen = AttentionSpec(2, 2, 4, 1.0, causal=False, relative=bias)
    rms, mlp = NormSpec("rms", 1e-6), MlpSpec("gated", 12, "silu")
    encoder = ModelSpec("test", 10, 9, 10, (LayerSpec(rms, seen, rms, mlp),) * 2, rms, False, embed_size=8,
                        head=HeadSpec("none"))
    own = AttentionSpec(2, 1, 4, 1.0, relative=replace(bias, bidirectional=False))
    cross = AttentionSpec(4, 2, 3, 1.0, qkv_bias=True, causal=False)
    layer = LayerSpec(rms, own, rms, mlp, cross=cross, cross_norm=rms)
    return ModelSpec("test", 8, 9, 10, (layer,) * 2, rms, True, encoder=encoder, shared_embedding=shared).check()


def test_targets_of_a_pair():
    shapes = targets(a_pair())
    assert "encoder.embed.tokens.weight" not in shapes and "encoder.head.weight" not in shapes
    assert targets(a_pair(shared=False))["encoder.embed.tokens.weight"] == (9, 8)
    assert {name: shape for name, shape in shapes.items() if "relative" in name} == {
        "encoder.layers.0.attention.relative_bias.weight": (8, 2), "layers.0.attention.relative_bias.weight": (8, 2)}
    assert {name: shape for name, shape in shapes.items() if "1.cross" in name} == {
        "layers.1.cross_norm.weight": (8,), "layers.1.cross.q.weight": (12, 8), "layers.1.cross.q.bias": (12,),
        "layers.1.cross.k.weight": (6, 10), "layers.1.cross.k.bias": (6,), "layers.1.cross.v.weight": (6, 10),
        "layers.1.cross.v.bias": (6,), "layers.1.cross.out.weight": (8, 12)}
    assert shapes["encoder.layers.1.attention.q.weight"] == (8, 10) and shapes["encoder.final_norm.weight"] == (10,)
    assert list(shapes)[-1] == "head.weight"


def test_targets_of_disentangled_attention():
    spans = DisentangledSpec(8, 8, 30, shared=False, norm=NormSpec("layer", 1e-7, True))
    names = {}
    for which in ({}, {"c2p": False}, {"p2c": False}, {"shared": True}):
        a = AttentionSpec(2, 2, 4, 0.5, qkv_bias=True, causal=False, disentangled=replace(spans, **which))
        layer = LayerSpec(None, a, None, MlpSpec("plain", 12, "relu"))
        shapes = targets(ModelSpec("test", 8, 9, 10, (layer,), None, False, head=HeadSpec("none")).check())
        assert shapes["embed.relative.weight"] == (16, 8) and shapes["embed.relative_norm.bias"] == (8,)
        names[str(which)] = {name[19:] for name in shapes if "position" in name}
    q, k = {"position_q.weight", "position_q.bias"}, {"position_k.weight", "position_k.bias"}
    assert list(names.values()) == [q | k, q, k, set()]


@pytest.mark.parametrize(("task", "outputs"), [("labels", 3), ("tags", 5)])
def test_targets_of_labels(task, outputs):
    layer = LayerSpec(None, AttentionSpec(1, 1, 8, 1.0), None, MlpSpec("plain", 12, "relu"))
    head = HeadSpec(task, outputs, "last" if task == "labels" else "each", dense_bias=False)
    for dense, width in ((0, 8), (20, 20)):
        spec = ModelSpec("test", 8, 9, 10, (layer,), None, False, embed_size=6, head=replace(head, dense=dense)).check()
        shapes = targets(spec)
        assert shapes["head.weight"] == (outputs, width) and "embed.project_out.weight" not in shapes
        rows = {row.target: row for row in named_rows(spec, dict.fromkeys(stems(spec), ("x",)))}
        assert not rows["head.weight"].optional  # nothing else could stand for it


def stems(spec):
    return {re.sub(r"layers\.\d+\.", "", name.rpartition(".")[0]) for name in targets(spec)}


def test_names_of_a_pair():
    spec = a_pair()
    names = {stem: (f"{'enc' if stem.startswith('encoder.') else 'dec'}.{{i}}.{stem.rpartition('.')[2]}",)
             for stem in stems(spec)}
    rows = {row.target: row for row in named_rows(spec, names)}
    assert rows["encoder.layers.1.attention.q.weight"].sources == ("enc.1.q.weight",)
    assert rows["layers.1.attention.q.weight"].sources == ("dec.1.q.weight",)
    assert rows["layers.0.cross.k.bias"].sources == ("dec.0.k.bias",) and rows["head.weight"].optional
    assert part_of(rows["encoder.layers.1.attention.q.weight"]) == ("encoder.layers.1.", "attention.q", "weight")
    assert part_of(rows["encoder.final_norm.weight"]) == ("", "encoder.final_norm", "weight")
    both = fused(rows.values(), ["attention.q", "attention.k"])
    cut = {row.target: row.rows for row in both}
    assert cut["encoder.layers.1.attention.k.weight"] == slice(8, 16)
    assert cut["layers.1.attention.k.weight"] == slice(8, 12)


def test_a_table_of_relative_biases_stays_as_it_is(tools):
    """No kernel layout: float32, whatever dtype is asked for; transposed where a file has it so."""
    name = "layers.0.attention.relative_bias.weight"
    for transform, stored in (("none", numbered(6, 4)), ("transpose", numbered(4, 6))):
        row = WeightRow(name, ("x",), (6, 4), transform)
        source = tools.FakeSource("safetensors", {"x": stored})
        checkpoint = Checkpoint(GENERATES, tuple(match([row], source)), ())
        weights = load_weights(checkpoint, source, "int4", native.NativeBackend(1)).weights()
        assert weights.matrices == {} and weights.vectors[name].dtype == np.float32
        assert np.array_equal(weights.vectors[name], stored.T if transform == "transpose" else stored)
    broken = tools.FakeSource("safetensors", {"x": stored * np.nan})
    with pytest.raises(ModelFileError, match="NaN or infinite"):
        load_weights(Checkpoint(GENERATES, tuple(match([row], broken)), ()), broken, "auto", native.NativeBackend(1))


def test_the_weights_of_a_convolution_become_rows_of_pixels(tools):
    """Column (y * kernel + x) * channels + c of a row is stored at [c][y][x]."""
    stored = numbered(5, 3 * 2 * 2).reshape(5, 3, 2, 2)
    row = WeightRow("patches.weight", ("x",), (5, 12), "pixels", kernel=2)
    assert row.source_shape == (5, 3, 2, 2)
    source, backend = tools.FakeSource("safetensors", {"x": stored}), native.NativeBackend(1)
    weights = load_weights(Checkpoint(GENERATES, tuple(match([row], source)), ()), source, "float32", backend).weights()
    program = backend.program()
    a, b = program.buffer(12), program.buffer(5)
    program.linear(a, b, [weights.linear("patches")], norm=None, label="x")
    out = np.empty((12, 5), np.float32)
    program.run(12, bound=[(a, np.eye(12, dtype=np.float32)), (b, out)])
    expected = [[stored[n, c, y, x] for n in range(5)] for y in range(2) for x in range(2) for c in range(3)]
    assert np.array_equal(out, np.array(expected, np.float32))
    with pytest.raises(ModelFileError, match=r"expected \[5, 3, 2, 2\], found \[5, 3, 4\]"):
        match([row], tools.FakeSource("safetensors", {"x": stored.reshape(5, 3, 4)}))


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


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_tables_that_are_added_keep_their_precision(dtype, tools):
    names = ("embed.positions", "embed.types", "embed.relative", "encoder.embed.positions")
    rows = [WeightRow(name + ".weight", (name,), (4, 32)) for name in (*names, "layers.0.cross.q")]
    source = tools.FakeSource("gguf", {row.sources[0]: numbered(4, 32) for row in rows})
    places, _ = plan(Checkpoint(GENERATES, tuple(match(rows, source)), ()), dtype)
    assert [place.format for place in places] == ["F32"] * 4 + [{"int8": "Q8C", "int4": "Q4"}[dtype]]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_router_keeps_its_precision(dtype, tools):
    rows = [WeightRow(f"layers.0.mlp.{name}.weight", (name,), (4, 32))
            for name in ("router", "shared_gate", "experts.0.up")]
    source = tools.FakeSource("gguf", {row.sources[0]: numbered(4, 32) for row in rows})
    places, _ = plan(Checkpoint(GENERATES, tuple(match(rows, source)), ()), dtype)
    assert [place.format for place in places] == ["F32", "F32", {"int8": "Q8C", "int4": "Q4"}[dtype]]


def test_gate_and_up_of_an_expert_agree(tools):
    """They read the same activations: integers beside floats become floats, expert by expert."""
    sizes = {"Q8_0": 4 * 34, "F32": 512}
    stored = {"a.gate": "Q8_0", "a.up": "F32", "b.gate": "Q8_0", "b.up": "Q8_0"}
    bound = [BoundRow(WeightRow(f"layers.0.mlp.experts.{name}.weight", (name,), (4, 32)),
                      TensorInfo(name, (4, 32), type, sizes[type])) for name, type in stored.items()]
    places, _ = plan(Checkpoint(GENERATES, tuple(bound), ()), "auto")
    assert [place.format for place in places] == ["F32", "F32", "Q8", "Q8"]


@pytest.mark.parametrize(("runs", "expected"), [
    (1, {"q": [0, 1, 2, 3, 4, 5, 6, 7], "k": [8, 9, 10, 11], "v": [12, 13, 14, 15]}),
    (2, {"q": [0, 1, 2, 3, 8, 9, 10, 11], "k": [4, 5, 12, 13], "v": [6, 7, 14, 15]}),
])
def test_fused_parts_one_after_another_and_in_runs(runs, expected):
    """Four query heads and two for keys and values, of two rows each; in runs each key head follows its queries."""
    parts = ["attention.q", "attention.k", "attention.v"]
    rows = [WeightRow(f"layers.0.{part}.weight", ("qkv.weight",), (len(expected[part[-1]]), 3)) for part in parts]
    for row, part in zip(fused(rows, parts, runs), parts, strict=True):
        assert row.source_shape == (16, 3)
        assert row.pick(np.arange(16)).tolist() == expected[part[-1]]
