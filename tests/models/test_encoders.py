"""Encoders, encoder-decoders and heads: recorded programs against the plain NumPy meaning of their spec, and the same
bits whatever the company, the threads and the instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forwardpass.models import sinusoids
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import (
    AttentionSpec,
    DisentangledSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RelativeBiasSpec,
)
from kernel_tools import ISAS
from numpy_model import numpy_head, numpy_hidden, numpy_logits, random_weights
from program_tools import Texts, encode, joined, network, tokens, whole

RMS, LAYER, BIASED = NormSpec("rms", 1e-6), NormSpec("layer", 1e-5), NormSpec("layer", 1e-5, bias=True)
SEEN = AttentionSpec(6, 6, 10, 10**-0.5, qkv_bias=True, out_bias=True, causal=False)
BERT = LayerSpec(BIASED, SEEN, BIASED, MlpSpec("plain", 52, "gelu_erf", bias=True), order="post")
MODERN = LayerSpec(LAYER, AttentionSpec(6, 2, 10, 10**-0.5, rotary(10, 1e4), causal=False), LAYER,
                   MlpSpec("gated", 36, "gelu_tanh"))
NONE = HeadSpec("none")
WAVES = tuple(100.0 ** (-i / 14) for i in range(14))


def model(*layers, **changes):
    return ModelSpec("test", 28, 50, 128, layers, changes.pop("final_norm", None), changes.pop("tied", False),
                     head=changes.pop("head", NONE), **changes).check()


def attention(layer=BERT, **changes):
    return replace(layer, attention=replace(layer.attention, **changes))


def relative(buckets=8, distance=20, bidirectional=True, layer=0):
    return RelativeBiasSpec(buckets, distance, bidirectional, layer)


def disentangled(*sizes, **changes):
    return attention(disentangled=DisentangledSpec(*sizes, **changes))


ENCODERS = {
    "learned positions": model(BERT, BERT, learned_positions=130, position_offset=2, embed_norm=BIASED),
    "rotary": model(MODERN, MODERN, final_norm=LAYER),
    "windows": model(attention(MODERN, window=16), attention(MODERN, window=1), attention(MODERN, window=500)),
    "ALiBi": model(attention(alibi=alibi_slopes(6))),
    "soft cap, norms of heads": model(attention(MODERN, softcap=0.7, qk_norm=BIASED, qk_norm_shape="all")),
    "token types": model(BERT, token_types=3, embed_norm=LAYER),
    "waves": model(BERT, sinusoids=WAVES, position_offset=2, embed_scale=28**0.5),
    "late projection": model(*3 * [BERT], embed_size=16, project_last=True, project_bias=True, token_types=2,
                             learned_positions=128, embed_norm=BIASED, layer_weights=(0, 0, 0)),
    "late projection, waves": model(BERT, embed_size=16, project_last=True, sinusoids=WAVES[:8]),
    "early projection, types": model(BERT, embed_size=16, project_bias=True, token_types=2, embed_norm=BIASED),
    "groups of layers that share": model(BERT, MODERN, BERT, MODERN, layer_weights=(0, 1, 0, 1)),
    "relative bias": model(*2 * [attention(relative=relative())]),
    "relative bias of each layer": model(*[attention(relative=relative(layer=i)) for i in range(2)]),
    "relative bias in a window": model(attention(relative=relative(32, 40), window=9)),
    "disentangled": model(*2 * [disentangled(10, 0, 0)]),
    "disentangled, buckets": model(disentangled(8, 8, 30, norm=BIASED), BERT, disentangled(8, 8, 20, norm=BIASED)),
    "disentangled, matrices of its own": model(disentangled(16, 16, 60, shared=False)),
    "disentangled, one term": model(disentangled(10, 0, 0, p2c=False), disentangled(10, 0, 0, c2p=False, shared=False)),
}


def spoken(spec, ids, seed=0):
    """Types for a text of a model that has some, else None."""
    return np.random.default_rng(seed).integers(0, spec.token_types, len(ids)) if spec.token_types else None


@pytest.mark.parametrize("case", ENCODERS)
def test_encoders_mean_what_the_spec_says(case):
    spec, ids = ENCODERS[case], tokens(70)
    weights, types = random_weights(spec), spoken(spec, ids)
    exact = numpy_hidden(spec, weights, ids, types=types)
    got = encode(network(spec, weights), [ids], types if types is None else [types])
    assert np.abs(got - exact).max() <= 2e-5 * np.abs(exact).max()


@pytest.mark.parametrize("case", ENCODERS)
def test_a_text_is_the_same_alone_and_in_company(case):
    """And with another number of threads, other instructions, and whatever it was beside."""
    spec = ENCODERS[case]
    weights, texts = random_weights(spec), [tokens(count, count) for count in (70, 3, 128, 1, 21)]
    types = [spoken(spec, ids, len(ids)) for ids in texts]
    one = network(spec, weights)
    alone = [encode(one, [ids], which if which is None else [which]) for ids, which in zip(texts, types, strict=True)]
    every = None if types[0] is None else types
    for threads, isa in [(1, None), *[(2, isa) for isa in ISAS]]:
        got = encode(network(spec, weights, threads, isa=isa), texts, every)
        assert np.array_equal(got, np.concatenate(alone)), isa
    backwards = encode(one, texts[::-1], every and every[::-1])
    assert np.array_equal(backwards, np.concatenate(alone[::-1]))


def test_types_that_are_not_given_are_zero():
    spec, ids = ENCODERS["token types"], tokens(9)
    net = network(spec, random_weights(spec))
    assert np.array_equal(encode(net, [ids]), encode(net, [ids], [np.zeros(9, int)]))
    assert not np.array_equal(encode(net, [ids]), encode(net, [ids], [np.ones(9, int)]))


def test_waves_by_hand():
    table = sinusoids.table((1.0, 0.01), 4)
    expected = [[0, 0, 1, 1], [0.84147098, 0.00999983, 0.54030231, 0.99995], [0.90929743, 0.01999867, -0.41614684,
                0.9998], [0.14112001, 0.0299955, -0.9899925, 0.99955003]]
    assert np.abs(table - expected).max() < 6e-8 and table.dtype == np.float32


def test_waves_equal_the_library():
    """Far out too, where an angle has many turns."""
    angle = np.concatenate([np.linspace(0, 10, 5001), np.random.default_rng(0).uniform(0, 2**24, 5000)])
    for ours, theirs in zip(sinusoids.sine_and_cosine(angle), (np.sin(angle), np.cos(angle)), strict=True):
        assert np.abs(ours - theirs).max() < 4e-16


CROSS = AttentionSpec(6, 6, 10, 10**-0.5, qkv_bias=True, out_bias=True, causal=False)
BART = replace(BERT, attention=replace(SEEN, causal=True), cross=CROSS, cross_norm=BIASED)
T5 = LayerSpec(RMS, AttentionSpec(4, 4, 10, 1.0, relative=relative(bidirectional=False)), RMS,
               MlpSpec("gated", 36, "gelu_tanh"), cross=AttentionSpec(4, 4, 10, 1.0, causal=False), cross_norm=RMS)
T5_ENCODER = replace(attention(T5, causal=False, relative=relative()), cross=None, cross_norm=None)


def pair(encoder, *layers, **changes):
    return model(*layers, encoder=encoder, head=HeadSpec(), **changes)


WIDER = ModelSpec("test", 36, 50, 128, (replace(BERT, order="pre"),), LAYER, False, learned_positions=128, head=NONE)
PAIRS = {
    "BART": pair(model(BERT, BERT, learned_positions=130, position_offset=2, embed_norm=BIASED), BART, BART,
                 learned_positions=130, position_offset=2, embed_norm=BIASED, tied=True, head_bias=True),
    "T5": pair(model(T5_ENCODER, T5_ENCODER, final_norm=RMS), T5, T5, T5, final_norm=RMS, tied=True,
               logit_scale=28**-0.5),
    "waves, norms before": pair(model(replace(BERT, order="pre"), sinusoids=WAVES, final_norm=BIASED),
                                replace(BART, order="pre"), sinusoids=WAVES, final_norm=BIASED, tied=True),
    "another width and table": pair(WIDER, replace(BART, cross=replace(CROSS, num_kv_heads=2)), shared_embedding=False),
    "two groups, scaled": pair(model(MODERN), replace(BART, residual_scale=0.4, cross_norm=None),
                               attention(BART, window=9, num_kv_heads=3), attention(BART, window=9, num_kv_heads=3)),
    "layers that share": pair(model(BERT), BART, BART, layer_weights=(0, 0)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_pairs_mean_what_the_spec_says(case):
    spec, ids, source = PAIRS[case], tokens(70), tokens(90, 1)
    weights = random_weights(spec)
    exact = numpy_logits(spec, weights, ids, source=source)
    net = network(spec, weights)
    got = whole(net, ids, source)
    assert np.abs(got - exact).max() <= 5e-5 * np.abs(exact).max()
    inside = {name.removeprefix("encoder."): array for name, array in weights.items()
              if name.startswith("encoder.") or (name == "embed.tokens.weight" and spec.shared_embedding)}
    exact = numpy_hidden(spec.encoder, inside, source)
    assert np.abs(Texts(net, [ids], [source]).encode([0]) - exact).max() <= 5e-5 * np.abs(exact).max()


@pytest.mark.parametrize("case", PAIRS)
def test_each_sequence_sees_its_own_source(case):
    """In one batch, in chunks, one token at a time, with sources encoded together or alone: the same bits."""
    spec = PAIRS[case]
    weights = random_weights(spec)
    texts, sources = [tokens(n, n) for n in (70, 3, 21)], [tokens(n, n + 1) for n in (12, 128, 3)]
    one = network(spec, weights, kv_dtype="bfloat16")
    expected = [whole(one, ids, source) for ids, source in zip(texts, sources, strict=True)]
    for net in (one, network(spec, weights, 2, kv_dtype="bfloat16")):
        assert np.array_equal(Texts(net, texts, sources).step([70, 3, 21]), np.concatenate(expected))
        got, together = [[] for _ in texts], Texts(net, texts, sources)
        for i in (2, 0, 1):
            together.encode([i])
        for counts in ([1, 2, 0], [40, 1, 20], [29, 0, 1]):
            rows = iter(together.step(counts))
            for i, count in enumerate(counts):
                got[i] += [next(rows) for _ in range(count)]
        assert np.array_equal(np.concatenate(got), np.concatenate(expected))
    for isa in ISAS:
        net = network(spec, weights, 2, kv_dtype="bfloat16", isa=isa)
        assert np.array_equal(whole(net, texts[2], sources[2]), expected[2]), isa
    swapped = Texts(one, texts, [sources[0], sources[2], sources[2]]).step([70, 3, 21])
    assert np.array_equal(swapped[:70], expected[0]) and not np.array_equal(swapped[70:73], expected[1])


@pytest.mark.parametrize("case", ["BART", "T5", "two groups, scaled"])
def test_greedy_steps_of_pairs_are_single_steps(case):
    spec, sources = PAIRS[case], [tokens(33, 3), tokens(7, 4)]
    net = network(spec, random_weights(spec), threads=2)
    starts, room = [tokens(5, 1), tokens(5, 2)], np.zeros(12, np.int64)
    single = Texts(net, [np.concatenate([ids, room]) for ids in starts], sources)
    best, expected = np.argmax(single.step([5, 5])[[4, 9]], 1), []
    first = best.astype(np.int32)
    for step in range(12):
        for ids, token in zip(single.ids, best, strict=True):
            ids[5 + step] = token
        best = np.argmax(single.step([1, 1]), 1)
        expected.append(best.tolist())
    ahead = Texts(net, [np.concatenate([ids, room]) for ids in starts], sources)
    ahead.step([5, 5])
    got, _ = net.greedy_steps(first, np.full(2, 5, np.int32), ahead.view([5, 5], [0, 1]), ahead.memory, 12, 50,
                              [np.zeros(0, np.int32)] * 2)
    assert got.tolist() == expected


HEADS = {
    "labels of the first": dict(head=HeadSpec("labels", 3, "first", 28), head_bias=True),
    "labels of the last": dict(head=HeadSpec("labels", 2, "last")),
    "labels of the mean": dict(head=HeadSpec("labels", 1, "mean", 20, False, "gelu_erf", BIASED), head_bias=True),
    "tags": dict(head=HeadSpec("tags", 5), head_bias=True),
    "tags, dense": dict(head=HeadSpec("tags", 5, dense=12, activation="relu", dense_norm=LAYER)),
    "masked": dict(head=HeadSpec(dense=28, activation="gelu_erf", dense_norm=BIASED), tied=True, head_bias=True),
    "masked, narrow table": dict(head=HeadSpec(dense=16, activation="gelu_tanh", dense_norm=LAYER), tied=True,
                                 head_bias=True, embed_size=16, project_last=True),
    "masked, head of its own": dict(head=HeadSpec(dense=33, activation="gelu_erf", dense_norm=RMS)),
    "projected out": dict(head=HeadSpec(), embed_size=16, tied=True),
    "labels of a narrow table": dict(head=HeadSpec("labels", 3, "first"), embed_size=16, project_last=True),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_mean_what_the_spec_says(case):
    spec, ids = model(BERT, **HEADS[case]), tokens(40)
    weights = random_weights(spec)
    exact = numpy_head(spec, weights, numpy_hidden(spec, weights, ids))
    net = network(spec, weights)
    hidden = encode(net, [ids])
    if spec.head.task == "lm":
        got = net.project(hidden, np.arange(40, dtype=np.int32))
    elif spec.head.task == "tags":
        got = net.head(hidden)
    else:
        row = {"first": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[spec.head.pool]
        got = net.head(row[None])[0]
    assert np.abs(got - exact).max() <= 2e-5 * np.abs(exact).max() and got.shape == exact.shape


def random_spec(seed):
    """Any fields together: an encoder, or a pair."""
    rng = np.random.default_rng(seed)

    def one(*values):
        return values[rng.integers(len(values))]

    def norm(*more):
        return one(RMS, LAYER, BIASED, *more)

    def layers(width, causal, count, crossed):
        heads, out = one(2, 4, 6), []
        bias = one(None, relative(one(8, 32), one(40, 50), not causal))
        shapes = dict(num_heads=heads, num_kv_heads=one(1, 2), head_dim=10)
        spans = DisentangledSpec(8, one(0, 8), 30, one(True, False), True, one(True, False), norm(None))
        for _ in range(count):
            a = AttentionSpec(**shapes, scale=one(0.2, 0.4), rotary=one(None, rotary(one(4, 10), 1e3)),
                              window=one(0, 0, 9), qkv_bias=one(True, False), out_bias=one(True, False),
                              alibi=one((), (), alibi_slopes(heads)), softcap=one(0.0, 0.9), clip_qkv=one(0.0, 0.7),
                              qk_norm=norm(None, None), causal=causal, relative=bias)
            if not causal and one(True, False, False):
                a = replace(a, num_kv_heads=heads, disentangled=spans, softcap=0.0)
            order = one("pre", "post")
            x = AttentionSpec(one(2, 4), 2, 10, one(0.2, 0.4), qkv_bias=one(True, False), out_bias=one(True, False),
                              causal=False) if crossed else None
            mlp = MlpSpec(one("gated", "plain"), int(rng.integers(8, 60)), one("silu", "tanh", "gelu_erf"),
                          one(True, False))
            out.append(LayerSpec(norm(None), a, norm(None), mlp, norm(None), norm(None), order,
                                 order == "pre" and not crossed and one(True, False), one(1.0, 1.0, 0.6), x,
                                 norm(None) if crossed else None))
        if bias:  # the layer that lends its table has the number of heads of all
            out = [replace(layer, attention=replace(layer.attention, relative=bias)) for layer in out]
        return tuple(out)

    def half(width, **changes):
        table = one(*["learned"] * 2, "waves", "none")
        narrow = one(0, 16)
        late = narrow > 0 and one(True, False)
        first = narrow if late else width
        return dict(family="test", hidden_size=width, vocab_size=50, max_position_embeddings=128, final_norm=norm(None),
                    tied=False, learned_positions=128 * (table == "learned"), embed_size=narrow, embed_norm=norm(None),
                    embed_scale=one(1.0, 5.0), sinusoids=WAVES[: first // 2] if table == "waves" else (),
                    token_types=one(0, 2), project_last=late, project_bias=narrow > 0 and one(True, False)) | changes

    if seed % 2:
        return ModelSpec(**half(one(18, 28), layers=layers(0, False, 3, False), head=NONE)).check()
    encoder = ModelSpec(**half(one(18, 28), layers=layers(0, False, 2, False), head=NONE))
    return ModelSpec(**half(one(18, 28), layers=layers(0, True, 2, True), encoder=encoder, token_types=0,
                            shared_embedding=False)).check()


@pytest.mark.parametrize("seed", range(40))
def test_any_fields_together(seed):
    spec, ids, source = random_spec(seed), tokens(45, seed), tokens(33, seed + 1)
    weights = random_weights(spec, seed)
    net = network(spec, weights, threads=1 + seed % 2)
    if spec.encoder:
        exact, got = numpy_logits(spec, weights, ids, source=source), whole(net, ids, source)
    else:
        types = spoken(spec, ids)
        exact = numpy_hidden(spec, weights, ids, types=types)
        got = encode(net, [ids], types if types is None else [types])
    assert np.abs(got - exact).max() <= 1e-4 * np.abs(exact).max()


def test_only_causal_layers_keep_a_cache():
    spec = PAIRS["two groups, scaled"]
    net = network(spec, random_weights(spec))
    assert [(group.window, group.num_kv_heads, group.layers, group.cross) for group in net.groups] == [
        (0, 6, (0,), False), (9, 3, (1, 2), False), (0, 6, (0, 1, 2), True)]
    assert net.encoder.groups == net.groups[2:]
    plain = ENCODERS["rotary"]
    assert network(plain, random_weights(plain)).groups == ()
    ids, positions, starts = joined([tokens(5)])
    assert network(plain, random_weights(plain)).embed(ids, positions).shape == (5, 28) and starts.tolist() == [0, 5]
