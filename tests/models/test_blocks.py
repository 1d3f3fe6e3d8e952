"""Recorded programs against the plain NumPy meaning of their spec, and the exactness of every new kind of layer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from forwardpass.backends import native
from forwardpass.models import costs
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.blocks import Weights
from forwardpass.models.network import Network
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from kernel_tools import ISAS, pack_floats
from numpy_model import numpy_logits, random_weights
from program_tools import Texts, network, tokens, whole

RMS, LAYER, BIASED = NormSpec("rms", 1e-6), NormSpec("layer", 1e-5), NormSpec("layer", 1e-5, bias=True)
HEADS = AttentionSpec(6, 2, 10, 10**-0.5, rotary(10, 1e4))
GATED, PLAIN = MlpSpec("gated", 36, "silu"), MlpSpec("plain", 52, "gelu_tanh", bias=True)
PRE = LayerSpec(RMS, HEADS, RMS, GATED)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def model(*layers, **changes):
    return ModelSpec("test", 28, 50, 128, layers, changes.pop("final_norm", RMS), changes.pop("tied", False),
                     **changes).check()


def attention(layer=PRE, **changes):
    return replace(layer, attention=replace(layer.attention, **changes))


def mixture(**changes):
    experts = ExpertsSpec(**dict(count=7, chosen=3) | changes)
    return replace(PRE, mlp=MlpSpec("gated", 36, "silu", experts=experts))


MOE = mixture()
SPECS = {
    "plain": model(PRE, PRE),
    "embedding scaled, tied": model(PRE, embed_scale=28**0.5, tied=True),
    "positions with an offset": model(replace(attention(rotary=None), mlp=PLAIN), learned_positions=130,
                                      position_offset=2),
    "embedding normalised": model(PRE, embed_norm=BIASED),
    "narrow embedding": model(PRE, embed_size=20, learned_positions=128, tied=True),
    "narrow embedding and head": model(PRE, embed_size=33, head_bias=True),
    "no final norm": model(PRE, final_norm=None),
    "logits scaled": model(PRE, logit_scale=0.25),
    "logits scaled and capped": model(PRE, logit_scale=3.0, logit_softcap=5.0),
    "norms after": model(replace(PRE, attention_norm=None, mlp_norm=None, post_attention_norm=RMS, post_mlp_norm=RMS)),
    "norms around": model(replace(PRE, post_attention_norm=LAYER, post_mlp_norm=BIASED)),
    "no norms": model(replace(PRE, attention_norm=None, mlp_norm=None)),
    "order post": model(*2 * [replace(PRE, order="post", attention_norm=BIASED, mlp_norm=BIASED, mlp=PLAIN)],
                        final_norm=None),
    "order post, scaled": model(replace(PRE, order="post", residual_scale=0.4, mlp_norm=None)),
    "residual scaled": model(*2 * [replace(PRE, residual_scale=0.22)]),
    "norms around, scaled": model(replace(PRE, post_attention_norm=RMS, post_mlp_norm=RMS, residual_scale=-1.5)),
    "parallel, one norm": model(*2 * [replace(PRE, parallel=True, mlp_norm=None, attention_norm=BIASED, mlp=PLAIN)]),
    "parallel, two norms": model(*2 * [replace(PRE, parallel=True)]),
    "parallel, norms around": model(replace(PRE, parallel=True, post_attention_norm=RMS, post_mlp_norm=RMS)),
    "parallel, scaled": model(replace(PRE, parallel=True, residual_scale=0.7, mlp_norm=None)),
    "clipped": model(attention(clip_qkv=0.4, qkv_bias=True)),
    "clipped and normalised": model(attention(clip_qkv=0.4, qk_norm=LAYER, qk_norm_shape="all")),
    "rotary on part of a head": model(attention(rotary=rotary(4, 1e4))),
    "no positions": model(PRE, attention(rotary=None)),
    "ALiBi": model(attention(rotary=None, alibi=alibi_slopes(6))),
    "scores capped": model(PRE, attention(softcap=0.7)),
    "scores capped, ALiBi in a window": model(attention(softcap=2.0, alibi=alibi_slopes(6), window=7)),
    "YaRN": model(attention(rotary=rotary(10, 1e4, YARN))),
    "two rotary bases": model(PRE, attention(rotary=rotary(10, 1e6))),
    "layers that differ": model(PRE, attention(qkv_bias=True), replace(PRE, mlp=PLAIN), replace(PRE, parallel=True)),
    "experts": model(*2 * [MOE]),
    "experts, not normalised": model(mixture(normalise=False)),
    "all experts": model(mixture(chosen=7)),
    "one expert": model(mixture(count=1, chosen=1, normalise=False)),
    "shared expert": model(mixture(shared_size=20)),
    "shared expert with a gate": model(*2 * [mixture(shared_size=44, shared_gate=True, chosen=1)]),
    "experts with biases, scaled": model(replace(mixture(shared_size=36), residual_scale=0.3,
                                                 mlp=replace(MOE.mlp, bias=True, activation="gelu_tanh"))),
    "experts in parallel": model(replace(MOE, parallel=True, mlp_norm=None), replace(MOE, parallel=True)),
    "experts, norms around": model(replace(MOE, post_attention_norm=RMS, post_mlp_norm=RMS, residual_scale=0.5)),
    "experts, order post": model(replace(mixture(shared_size=20, shared_gate=True), order="post")),
    "experts, no norm": model(replace(MOE, mlp_norm=None)),
    **{f"q and k norm {norm.kind} {shape}{' bias' * norm.bias}": model(attention(qk_norm=norm, qk_norm_shape=shape))
       for norm in (RMS, LAYER, BIASED) for shape in ("head", "heads", "all")},
    **{f"activation {act}": model(replace(PRE, mlp=replace(mlp, activation=act)))
       for act in ("relu", "quick_gelu", "gelu_erf", "tanh") for mlp in (GATED, PLAIN)},
}


@pytest.mark.parametrize("case", SPECS)
def test_programs_mean_what_the_spec_says(case):
    spec, ids = SPECS[case], tokens(70)
    weights = random_weights(spec)
    exact = numpy_logits(spec, weights, ids)
    got = whole(network(spec, weights), ids)
    assert np.abs(got - exact).max() <= 2e-5 * np.abs(exact).max()


def random_spec(seed):
    """Any fields together, layers all different."""
    rng = np.random.default_rng(seed)

    def one(*values):
        return values[rng.integers(len(values))]

    def norm(*more):
        return one(RMS, LAYER, BIASED, *more)

    layers = []
    for _ in range(3):
        shared = one((0, False), (24, False), (24, True))
        experts = one(None, None, ExpertsSpec(5, int(rng.integers(1, 6)), one(True, False), *shared))
        count = one(2, 4, 6)
        heads = AttentionSpec(count, 2, 10, one(0.2, 0.4), one(None, rotary(one(4, 10), 1e3)), one(0, 0, 9),
                              one(True, False), one(True, False), one((), alibi_slopes(count)), one(0.0, 0.9),
                              one(0.0, 0.7), norm(None, None), qk_norm_shape=one("head", "heads", "all"))
        mlp = MlpSpec("gated" if experts else one("gated", "plain"), int(rng.integers(8, 60)),
                      one("silu", "relu", "gelu_erf"), one(True, False), experts)
        order = one("pre", "pre", "post")
        layers.append(LayerSpec(norm(None), heads, norm(None), mlp, norm(None), norm(None), order,
                                order == "pre" and one(True, False), one(1.0, 1.0, 0.6)))
    learned = one(True, False)
    offset = one(0, 3) if learned else 0
    return ModelSpec("test", int(rng.integers(9, 40)), 50, 128, tuple(layers), norm(None), one(True, False),
                     (128 + offset) * learned, one(True, False), offset, one(0, 16, 48), norm(None), one(1.0, 5.0),
                     one(1.0, 0.3), one(0.0, 4.0)).check()


@pytest.mark.parametrize("seed", range(60))
def test_any_fields_together(seed):
    spec, ids = random_spec(seed), tokens(20, seed)
    weights = random_weights(spec, seed)
    exact = numpy_logits(spec, weights, ids)
    net = network(spec, weights, threads=1 + seed % 2)
    got = whole(net, ids)
    assert np.abs(got - exact).max() <= 1e-4 * np.abs(exact).max()
    pieces = Texts(net, [ids])
    assert np.array_equal(np.concatenate([pieces.step([count]) for count in (7, 1, 1, 11)]), got)


@pytest.mark.parametrize("case", ["positions with an offset", "narrow embedding", "no final norm", "experts",
                                  "logits scaled and capped", "parallel, one norm"])
def test_greedy_steps_are_single_steps(case):
    spec, ids = SPECS[case], tokens(5)
    net = network(spec, random_weights(spec), threads=2)
    single = Texts(net, [np.concatenate([ids, np.zeros(12, np.int64)])])
    token = np.argmax(single.step([5])[-1])
    expected = []
    for step in range(12):
        single.ids[0][5 + step] = token
        token = np.argmax(single.step([1])[0])
        expected.append(token)
    ahead = Texts(net, [np.zeros(20, np.int64)])
    ahead.ids[0][:5] = ids
    first = np.array([np.argmax(ahead.step([5])[-1])], np.int32)
    got, _ = net.greedy_steps(first, np.array([5], np.int32), ahead.view([5], [0]), ahead.memory, 12, 50,
                              [np.zeros(0, np.int32)])
    assert got[:, 0].tolist() == expected


@pytest.mark.parametrize("case", SPECS)
def test_every_operation_has_a_cost(case):
    """What a program records and what costs.py counts are called the same."""
    spec = SPECS[case]
    weights = random_weights(spec)
    net = network(spec, weights)
    nbytes = {name: array.nbytes for name, array in weights.items()}
    counted = costs.stage_costs(spec, nbytes, [1], [0], "float32")
    for stage, recorded in net.timings().items():
        named = {op for op, cost in counted[stage].items() if cost.flops or cost.read}
        assert named <= set(recorded) <= set(costs.STAGES[stage])
        assert set(recorded) - named <= ({"norm"} if spec.final_norm is None else set())  # then it is a copy
    every = costs.stage_costs(spec, nbytes, [1000], [0], "float32")  # so many rows need every expert
    lookups = every["embed"]["embed"].read if not spec.embed_size and not spec.embed_norm else None
    if lookups is not None:
        read = sum(cost.read for ops in every.values() for op, cost in ops.items() if op not in ("embed", "attention"))
        table = 0 if spec.tied else nbytes["embed.tokens.weight"]
        assert read == sum(nbytes.values()) - table - nbytes.get("embed.positions.weight", 0)


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8C", "Q4"])
@pytest.mark.parametrize("case", ["experts", "shared expert with a gate", "experts in parallel",
                                  "parallel, norms around", "norms around, scaled", "q and k norm layer heads bias",
                                  "logits scaled and capped", "order post", "clipped and normalised",
                                  "narrow embedding"])
def test_bits_do_not_depend_on_company_chunks_threads_or_instructions(case, format):
    """Alone and whole on one thread gives the bits of a batch, of chunks, of single tokens, and of every table."""
    spec = SPECS[case]
    weights = random_weights(spec)
    texts = [tokens(count, seed) for seed, count in enumerate((70, 3, 21, 1))]
    one = network(spec, weights, format=format, kv_dtype="bfloat16")
    expected = [whole(one, ids) for ids in texts]
    assert all(np.isfinite(logits).all() for logits in expected)
    two = network(spec, weights, threads=2, format=format, kv_dtype="bfloat16")
    for net in (one, two):
        assert np.array_equal(Texts(net, texts).step([len(ids) for ids in texts]), np.concatenate(expected))
        got, together = [[] for _ in texts], Texts(net, texts)
        for counts in ([1, 2, 0, 1], [40, 1, 5, 0], [1, 0, 1, 0], [28, 0, 15, 0]):
            rows = iter(together.step(counts))
            for i, count in enumerate(counts):
                got[i] += [next(rows) for _ in range(count)]
        assert np.array_equal(np.concatenate(got), np.concatenate(expected))
    for isa in ISAS:
        net = network(spec, weights, threads=2, format=format, kv_dtype="bfloat16", isa=isa)
        assert np.array_equal(whole(net, texts[2]), expected[2]), isa


def test_experts_of_mixed_formats():
    """Files store some experts in more bits than others, and the router as floats."""
    spec, ids = SPECS["shared expert with a gate"], tokens(40)
    weights = random_weights(spec)
    exact = whole(network(spec, weights), ids)
    packed = {}
    formats, format = itertools.cycle(["Q8C", "F32", "BF16", "F16", "F32"]), "F32"
    for name, array in weights.items():
        if array.ndim == 2:
            format = next(formats) if name.endswith(("gate.weight", "down.weight")) else format  # up as gate
            packed[name] = pack_floats(format if ".mlp." in name else "F32", array).matrix()
    vectors = {name: array for name, array in weights.items() if array.ndim == 1}
    got = [whole(Network(spec, Weights(packed, vectors), native.NativeBackend(threads), "float32"), ids)
           for threads in (1, 2)]
    assert np.array_equal(*got)
    assert np.abs(got[0] - exact).max() < 0.05 * np.abs(exact).max()


def test_experts_that_do_not_fit_are_refused():
    backend = native.NativeBackend(1)
    rng = np.random.default_rng(0)

    def part(n, k):
        return pack_floats("F32", rng.standard_normal((n, k)).astype(np.float32)).matrix(), None

    good = dict(norm=None, router=part(3, 8), experts=[(part(5, 8), part(5, 8), part(8, 5))] * 3, chosen=2,
                normalise=True, activation="silu", label="experts")
    gate_only_integer = (pack_floats("Q8C", np.ones((5, 8), np.float32)).matrix(), None)
    for wrong in (dict(chosen=4), dict(chosen=0), dict(router=part(4, 8)), dict(router=part(3, 9)), dict(experts=[]),
                  dict(experts=[(part(5, 8), part(6, 8), part(8, 5))] * 3), dict(shared_gate=part(1, 8)),
                  dict(experts=[(part(5, 8), part(5, 8), part(8, 6))] * 3),
                  dict(experts=[(gate_only_integer, part(5, 8), part(8, 5))] * 3),
                  dict(shared=(part(4, 8), part(4, 8), part(8, 4)), shared_gate=part(2, 8))):
        program = backend.program()
        with pytest.raises(ValueError):
            program.experts(program.buffer(8), program.buffer(8), **good | wrong)
    program.experts(program.buffer(8), program.buffer(8), **good)


def test_rows_that_all_want_one_expert():
    """Whatever the router says: here every row gets the same two experts, the others none."""
    spec, ids = SPECS["experts"], tokens(33)
    weights = random_weights(spec)
    for layer in range(2):
        router = weights[f"layers.{layer}.mlp.router.weight"]
        router[:] = 0  # equal scores: the lowest numbers win
    exact, net = numpy_logits(spec, weights, ids), network(spec, weights, threads=2)
    assert np.abs(whole(net, ids) - exact).max() <= 2e-5 * np.abs(exact).max()
    for e in range(3, 7):
        for layer in range(2):
            weights[f"layers.{layer}.mlp.experts.{e}.down.weight"][:] = np.nan  # nobody reads them
    assert np.array_equal(whole(network(spec, weights, threads=2), ids), whole(net, ids))
