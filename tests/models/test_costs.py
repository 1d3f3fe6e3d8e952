"""Costs against the bytes of the real file, against counting by hand and against counting one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forwardpass.models import costs, registry
from forwardpass.models.cache_groups import cache_groups
from forwardpass.models.costs import Cost
from forwardpass.models.spec import (
    AttentionSpec,
    DisentangledSpec,
    ExpertsSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
)
from forwardpass.models.weight_rows import targets


@pytest.fixture(scope="module")
def real(smollm2):
    checkpoint = registry.read(smollm2)
    return checkpoint.spec, costs.stored_bytes(checkpoint.weights), smollm2.tensors


def test_smollm2_reads_its_whole_file_once(real):
    spec, nbytes, tensors = real
    assert sum(nbytes.values()) == sum(info.nbytes for info in tensors.values())
    step = costs.stage_costs(spec, nbytes, [1], [0])
    row = tensors["token_embd.weight"].nbytes // 49152
    cache = costs.kv_position_bytes(spec, "bfloat16")
    # the table is read as the head; as the embedding it gives one row
    assert costs.total(step).read == sum(info.nbytes for info in tensors.values()) + row + cache
    assert round(costs.total(step).read / 1e6, 1) == 96.6
    assert round((costs.total(step).read - cache) / 1e6, 1) == 96.6
    assert step["embed"]["embed"] == Cost(0, row)
    assert step["project"]["head"] == Cost(2 * 49152 * 576, tensors["token_embd.weight"].nbytes)
    for op, parts in {"qkv": ("attn_norm.", "attn_q.", "attn_k.", "attn_v."), "out": ("attn_output.",),
                      "down": ("ffn_down.",), "gate_up": ("ffn_norm.", "ffn_gate.", "ffn_up."),
                      "norm": ("output_norm.",)}.items():
        named = [info for name, info in tensors.items() if any(part in name for part in parts)]
        assert step["decode"][op].read == sum(info.nbytes for info in named)
    assert cache == 30 * 2 * 3 * 64 * 2
    assert costs.parameters(spec) == 134_515_008  # as its makers state


def test_weights_are_read_once_and_computed_for_each_row(real):
    spec, nbytes, _ = real
    one, many = costs.stage_costs(spec, nbytes, [1], [0]), costs.stage_costs(spec, nbytes, [4, 28], [0, 0], wanted=32)
    for op in ("qkv", "out", "gate_up", "down", "norm"):
        assert many["decode"][op].read == one["decode"][op].read
        assert many["decode"][op].flops == 32 * one["decode"][op].flops
    assert many["project"]["head"] == Cost(32 * one["project"]["head"].flops, one["project"]["head"].read)
    assert many["embed"]["embed"].read == 32 * one["embed"]["embed"].read


def test_only_wanted_rows_are_projected(real):
    spec, nbytes, _ = real
    assert costs.stage_costs(spec, nbytes, [512], [0], wanted=0)["project"]["head"] == Cost()
    last = costs.stage_costs(spec, nbytes, [512, 3], [0, 9])["project"]["head"]
    assert last.flops == 2 * 2 * 49152 * 576
    assert costs.total(costs.stage_costs(spec, nbytes, [], [])) == Cost()
    assert costs.total(costs.stage_costs(spec, nbytes, [0], [50])) == Cost()


@pytest.mark.parametrize(("kv_dtype", "position"), [("float32", 256), ("bfloat16", 128), ("int8", 68)])
def test_attention_by_hand(real, kv_dtype, position):
    """Per head 64 elements of keys and 64 of values; 30 layers, 3 heads of keys, 9 of queries."""
    spec, nbytes, _ = real
    position *= 2 * 3 * 30
    got = costs.stage_costs(spec, nbytes, [1, 3], [1024, 2], kv_dtype)["decode"]["attention"]
    seen = 1025 + (3 + 4 + 5)
    assert got == Cost(30 * 4 * 9 * 64 * seen, (1025 + 5) * position, 4 * position)
    assert got.bytes == got.read + got.written


def test_windows_bound_what_a_text_keeps_and_a_row_reads(real):
    """Every second layer sees 100 positions, and the last has twice as many heads of keys as the others."""
    spec, *_ = real
    layers = [replace(layer, attention=replace(layer.attention, window=i % 2 * 100)) for i, layer in
              enumerate(spec.layers)]
    wide = replace(layers[-1].attention, num_heads=6, num_kv_heads=6, window=8192)  # the whole context: no window
    layers[-1] = replace(layers[-1], attention=wide)
    spec = replace(spec, layers=tuple(layers))
    each = 2 * 3 * 64 * 2
    assert [(group.window, len(group.layers)) for group in cache_groups(spec)] == [(0, 15), (100, 14), (0, 1)]
    assert costs.kv_position_bytes(spec, "bfloat16") == 31 * each
    assert costs.kv_text_bytes(spec, "bfloat16", 5000) == (15 * 5000 + 14 * 100 + 2 * 5000) * each
    step = costs._attention(spec, [1], [4999], "bfloat16")
    assert (step.read, step.written) == ((17 * 5000 + 14 * 100) * each, 31 * each)


@pytest.mark.parametrize("window", [0, 1, 3, 8])
def test_keys_seen_counted_one_by_one(window):
    for new in range(6):
        for past in range(12):
            each = [past + i + 1 if not window else min(past + i + 1, window) for i in range(new)]
            assert costs._seen(new, past, window) == sum(each)


def test_gpt2_counts_biases_and_positions(tiny):
    made = tiny("gpt2")
    nbytes = costs.stored_bytes(made.checkpoint.weights)
    assert sum(nbytes.values()) == sum(info.nbytes for info in made.source.tensors.values())  # shares of fused tensors
    step = costs.stage_costs(made.checkpoint.spec, nbytes, [1], [0])
    assert step["embed"]["embed"] == Cost(48, 2 * 48 * 4)
    # two layers: a norm of weight and bias (7 operations an element), then the product with its bias
    flops, floats = 48 * 7 + 2 * 3 * 48 * 48 + 3 * 48, 2 * 48 + 3 * 48 * 48 + 3 * 48
    assert step["decode"]["qkv"] == Cost(2 * flops, 2 * floats * 4)
    assert step["decode"]["norm"] == Cost(48 * 7, 2 * 48 * 4)
    assert costs.parameters(made.checkpoint.spec) == sum(p.numel() for p in made.model.parameters())


@pytest.mark.parametrize(("rows", "distinct"), [(1, 2), (2, 4), (3, 6), (4, 6), (100, 6)])
def test_experts_by_hand(rows, distinct):
    """Of six experts each row reads two; a step reads no more than there are. All count operations for each row."""
    mlp = MlpSpec("gated", 5, "silu", experts=ExpertsSpec(6, 2, shared_size=7, shared_gate=True))
    layer = LayerSpec(None, AttentionSpec(1, 1, 8, 1.0), NormSpec("rms", 1e-5), mlp)
    spec = ModelSpec("test", 8, 9, 10, (layer,), None, True).check()
    nbytes = {name: 4 * math.prod(shape) for name, shape in targets(spec).items()}
    step = costs.stage_costs(spec, nbytes, [rows], [0])["decode"]
    expert, shared, router = 3 * 5 * 8, 3 * 7 * 8, 6 * 8 + 8
    assert step["experts"] == Cost(rows * (2 * (2 * expert + shared + router) + 4 * 8),
                                   4 * (distinct * expert + shared + router + 8))
    assert step["gate_up"] == step["down"] == Cost()


def test_stages_and_ops_are_complete(real):
    spec, nbytes, _ = real
    step = costs.stage_costs(spec, nbytes, [1], [0])
    wanted = {stage: ops for stage, ops in costs.STAGES.items() if stage != "see"}  # it has no vision tower
    assert {stage: tuple(ops) for stage, ops in step.items()} == wanted


@pytest.mark.parametrize("window", [0, 1, 3, 8])
def test_keys_seen_both_ways_counted_one_by_one(window):
    for new in range(12):
        near = [sum(not window or abs(i - j) < window for j in range(new)) for i in range(new)]
        assert costs._seen_both_ways(new, window) == sum(near)


SEEN = AttentionSpec(2, 1, 4, 0.5, qkv_bias=True, causal=False)
NORM = NormSpec("layer", 1e-5, True)


def encoder(attention=SEEN, **changes):
    layer = LayerSpec(NORM, attention, NORM, MlpSpec("plain", 12, "relu", bias=True), order="post")
    return ModelSpec("test", 8, 9, 10, (layer,) * changes.pop("count", 2), None, False,
                     head=changes.pop("head", HeadSpec("none")), **changes).check()


def stored(spec):
    return {name: 4 * math.prod(shape) for name, shape in targets(spec).items() if not (spec.tied and "head.w" in name)}


def test_an_encoder_keeps_nothing():
    spec = encoder()
    step = costs.stage_costs(spec, stored(spec), [3, 5], [0, 0])["decode"]
    assert costs.kv_position_bytes(spec, "float32") == 0 and cache_groups(spec) == ()
    assert step["attention"] == Cost(2 * 4 * 8 * (9 + 25))
    # queries of 8, keys and values of 4, with biases; the norm after attention belongs to the output product
    assert step["qkv"] == Cost(2 * 8 * (2 * 16 * 8 + 16), 2 * 4 * (16 * 8 + 16))
    assert step["out"] == Cost(2 * 8 * (2 * 8 * 8 + 8 * 7), 2 * 4 * (64 + 16))


def test_shared_layers_are_read_once_and_computed_each_time():
    own, shared = encoder(count=3), encoder(count=3, layer_weights=(0, 0, 0))
    first, second = (costs.stage_costs(spec, stored(spec), [4], [0])["decode"] for spec in (own, shared))
    for op in ("qkv", "out", "gate_up", "down"):
        assert (first[op].flops, first[op].read) == (second[op].flops, 3 * second[op].read) and first[op].read
    assert costs.parameters(own) - costs.parameters(shared) == 2 * sum(
        math.prod(shape) for name, shape in targets(shared).items() if name.startswith("layers.0."))


def test_tables_that_are_looked_up():
    """A row of each table a token, two additions an element, a norm of 7 operations, a product into the width of 8."""
    spec = encoder(embed_size=6, project_last=True, project_bias=True, token_types=2, learned_positions=10,
                   embed_norm=NORM)
    step = costs.stage_costs(spec, stored(spec), [5], [0])["embed"]["embed"]
    assert step == Cost(5 * (2 * 6 + 7 * 6 + 2 * 6 * 8 + 8), 4 * (5 * 3 * 6 + 2 * 6 + 6 * 8 + 8))
    waves = encoder(sinusoids=(1.0, 0.5, 0.2, 0.1))
    assert costs.stage_costs(waves, stored(waves), [5], [0])["embed"]["embed"] == Cost(5 * 8, 4 * 5 * 2 * 8)


def test_disentangled_attention_meets_each_position():
    spans = DisentangledSpec(4, 0, 0)
    spec = encoder(replace(SEEN, num_kv_heads=2, disentangled=spans))
    plain = encoder(replace(SEEN, num_kv_heads=2))
    for new, told_apart in ((3, 5), (4, 7), (20, 8)):
        more, less = (costs.stage_costs(one, stored(spec), [new], [0])["decode"] for one in (spec, plain))
        assert more["attention"].flops - less["attention"].flops == 2 * 2 * new * told_apart * 2 * 8
        assert more["qkv"] == less["qkv"]


@pytest.mark.parametrize(("head", "uses"), [
    (HeadSpec("labels", 3, "first", 20, dense_norm=NORM), 2), (HeadSpec("tags", 3, dense=20, dense_norm=NORM), 8)])
def test_heads_of_labels(head, uses):
    """Of texts once each, of tokens for all of them."""
    spec = encoder(head=head, head_bias=True)
    step = costs.stage_costs(spec, stored(spec), [3, 5], [0, 0])["project"]["head"]
    assert step == Cost(uses * (2 * 20 * 8 + 20 + 7 * 20 + 2 * 3 * 20 + 3), 4 * (20 * 9 + 2 * 20 + 3 * 21))


def test_a_pair_by_hand():
    """The encoder's pass leaves keys and values of three layers, which each sequence reads in every step."""
    rms, mlp = NormSpec("rms", 1e-6), MlpSpec("gated", 12, "silu")
    cross = AttentionSpec(4, 2, 3, 1.0, qkv_bias=True, causal=False)
    layer = LayerSpec(rms, AttentionSpec(2, 1, 4, 0.5), rms, mlp, cross=cross, cross_norm=rms)
    reader = replace(encoder(), hidden_size=10, embed_size=8)
    spec = ModelSpec("test", 8, 9, 10, (layer,) * 3, rms, True, encoder=reader).check()
    nbytes = stored(spec)
    place = 2 * 2 * 3 * 2  # bytes of a source's position in one layer: keys and values, 2 heads of 3
    assert costs.kv_position_bytes(spec, "bfloat16") == 3 * 2 * 4 * 2
    assert costs.kv_text_bytes(spec, "bfloat16", 5, 7) == 5 * 3 * 16 + 7 * 3 * place
    step = costs.stage_costs(spec, nbytes, [1, 4], [6, 0], sources=[7, 5])
    assert all(cost == Cost() for cost in step["encode"].values())
    assert step["decode"]["cross"] == Cost(3 * 4 * 12 * (7 + 4 * 5), 3 * place * (7 + 5))
    assert step["decode"]["cross_q"] == Cost(3 * 5 * (2 * 12 * 8 + 12 + 4 * 8), 3 * 4 * (12 * 8 + 12 + 8))
    assert step["decode"]["cross_out"] == Cost(3 * 5 * 2 * 8 * 12, 3 * 4 * 8 * 12)
    both = costs.stage_costs(spec, nbytes, [1, 4], [6, 0], sources=[7, 5], encoded=[5])
    inner = {name.removeprefix("encoder."): size for name, size in nbytes.items() if name.startswith(("enc", "embed"))}
    alone = costs.stage_costs(reader, inner, [5], [0])
    assert both["encode"] == {op: cost for op, cost in (alone["embed"] | alone["decode"]).items()
                              if "cross" not in op} | {
        "cross_kv": Cost(3 * 5 * (2 * 12 * 10 + 12), 3 * 4 * (12 * 10 + 12), 5 * 3 * place)}
    assert {stage: ops for stage, ops in both.items() if stage != "encode"} == {
        stage: ops for stage, ops in step.items() if stage != "encode"}
    only = costs.stage_costs(spec, nbytes, [], [], encoded=[5])
    assert only["encode"] == both["encode"] and costs.total(only) == costs.total({"encode": only["encode"]})
    table = nbytes["embed.tokens.weight"]
    once = costs.stage_costs(spec, nbytes, [1], [0], "float32", sources=[1], encoded=[1])
    read = sum(cost.read for ops in once.values() for op, cost in ops.items() if op not in ("attention", "cross"))
    assert read == sum(nbytes.values()) + 2 * table // 9  # the table as the head, and a row for each half
