"""Recorded programs against the plain NumPy meaning of their spec, and the exactness of every new kind of layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forwardpass.backends import native
from forwardpass.contracts import PAGE
from forwardpass.models.blocks import Weights
from forwardpass.models.network import Network
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import HEAD
from kernel_tools import pack_floats
from numpy_model import numpy_logits, random_weights

RMS, LAYER, BIASED = NormSpec("rms", 1e-6), NormSpec("layer", 1e-5), NormSpec("layer", 1e-5, bias=True)
HEADS = AttentionSpec(6, 2, 10, 10**-0.5, rotary(10, 1e4))
GATED, PLAIN = MlpSpec("gated", 36, "silu"), MlpSpec("plain", 52, "gelu_tanh", bias=True)
PRE = LayerSpec(RMS, HEADS, RMS, GATED)


def model(*layers, **changes):
    return ModelSpec("test", 28, 50, 128, layers, changes.pop("final_norm", RMS), changes.pop("tied", False),
                     **changes).check()


def attention(layer=PRE, **changes):
    return replace(layer, attention=replace(layer.attention, **changes))


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
    "two rotary bases": model(PRE, attention(rotary=rotary(10, 1e6))),
    "layers that differ": model(PRE, attention(qkv_bias=True), replace(PRE, mlp=PLAIN), replace(PRE, parallel=True)),
    **{f"q and k norm {norm.kind} {shape}{' bias' * norm.bias}": model(attention(qk_norm=norm, qk_norm_shape=shape))
       for norm in (RMS, LAYER, BIASED) for shape in ("head", "heads", "all")},
    **{f"activation {act}": model(replace(PRE, mlp=replace(mlp, activation=act)))
       for act in ("relu", "quick_gelu", "gelu_erf") for mlp in (GATED, PLAIN)},
}


def network(spec, weights, threads=1, format="F32", kv_dtype="float32", isa=None):
    """format: of all matrices but the tables and the router."""
    tables = ("embed.positions.weight", "embed.tokens.weight", HEAD)
    packed = {name: pack_floats("F32" if name in tables or "router" in name else format, array).matrix()
              for name, array in weights.items() if array.ndim == 2}
    vectors = {name: array for name, array in weights.items() if array.ndim == 1}
    return Network(spec, Weights(packed, vectors), native.NativeBackend(threads, isa), kv_dtype)


class Texts:
    """The cache of some texts, and their logits step by step."""

    def __init__(self, net, ids):
        self.net, self.ids, self.past = net, ids, [0] * len(ids)
        blocks = [-(-len(one) // PAGE) for one in ids]
        self.memory = net.kv_memory(sum(blocks))
        self.tables = np.zeros((len(ids), max(blocks)), np.int32)
        numbers = iter(reversed(range(sum(blocks))))
        for row, count in enumerate(blocks):
            self.tables[row, :count] = [next(numbers) for _ in range(count)]

    def step(self, counts):
        """Logits float32 [rows, vocab] of the next so many tokens of each text (0 = it sits out)."""
        who = [i for i, count in enumerate(counts) if count]
        past = [self.past[i] for i in who]
        ids = np.concatenate([self.ids[i][self.past[i] : self.past[i] + counts[i]] for i in who]).astype(np.int32)
        positions = np.concatenate([np.arange(p, p + counts[i]) for i, p in zip(who, past, strict=True)])
        starts = np.cumsum([0] + [counts[i] for i in who])
        self.past = [p + count for p, count in zip(self.past, counts, strict=True)]
        as_int = [np.ascontiguousarray(x, np.int32) for x in (positions, starts, past, self.tables[who])]
        out = self.net.layers(self.net.embed(ids, as_int[0]), *as_int, self.memory)
        return self.net.project(out, np.arange(len(ids), dtype=np.int32))


def whole(net, ids):
    return Texts(net, [ids]).step([len(ids)])


def tokens(count, seed=0, vocabulary=50):
    return np.random.default_rng(seed).integers(0, vocabulary, count)


@pytest.mark.parametrize("case", SPECS)
def test_programs_mean_what_the_spec_says(case):
    spec, ids = SPECS[case], tokens(70)
    weights = random_weights(spec)
    exact = numpy_logits(spec, weights, ids)
    got = whole(network(spec, weights), ids)
    assert np.abs(got - exact).max() <= 2e-5 * np.abs(exact).max()
