"""Every kind of position encoding: explicit positions, their range, padding, company, chunks and a shared beginning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forwardpass.backends import native
from forwardpass.contracts import PAGE, CacheView, Packed, Padded, unpad
from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.blocks import Weights
from forwardpass.models.network import Network
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.preprocess import pack
from forwardpass.stages.project import project
from kernel_tools import pack_floats
from numpy_model import numpy_logits, random_weights

CONTEXT, HEADS, DIM = 160, 6, 12
RMS = NormSpec("rms", 1e-6)
LONG = [1.0, 1.5, 2.0, 3.0, 5.0, 9.0]
TRAINED = 40
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
    "llama3": {"factor": 4.0, "original_max_position_embeddings": TRAINED, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0},
    "longrope": {"short_factor": [1.0] * 6, "long_factor": LONG, "original_max_position_embeddings": TRAINED},
    "proportional": {"partial_rotary_factor": 0.5},
}


def model(*attentions: dict, **changes) -> ModelSpec:
    """Two layers; attentions: what each has of its own."""
    layers = []
    for change in attentions if len(attentions) == 2 else attentions * 2:
        attention = AttentionSpec(HEADS, 2, DIM, DIM**-0.5, **change)
        layers.append(LayerSpec(RMS, attention, RMS, MlpSpec("gated", 20, "silu")))
    return ModelSpec("test", 24, 50, CONTEXT, tuple(layers), RMS, True, **changes).check()


PLAIN, SLOPES = {"rotary": rotary(DIM, 1e3)}, {"alibi": alibi_slopes(HEADS)}
KINDS = {
    "none": model({}),
    "learned": model({}, learned_positions=CONTEXT),
    "learned, from row 2": model({}, learned_positions=CONTEXT + 2, position_offset=2),
    "ALiBi": model(SLOPES),
    "ALiBi in a window": model(SLOPES | {"window": 9}),
    "rotary": model(PLAIN),
    "rotary, part of a head": model({"rotary": rotary(4, 1e3)}),
    "rotary, none in a layer": model(PLAIN, {}),
    "rotary, two bases and a window": model(PLAIN | {"window": 30}, {"rotary": rotary(DIM, 1e5)}),
    **{f"rotary, {name}": model({"rotary": rotary(DIM, 1e3, {"rope_type": name} | scaling, positions=TRAINED)})
       for name, scaling in SCALINGS.items()},
}
TEXT = np.random.default_rng(0).integers(0, 50, 100)


def of(kind: str) -> tuple[ModelSpec, dict, Network]:
    spec = KINDS[kind]
    weights = random_weights(spec)
    matrices = {name: pack_floats("F32", array).matrix() for name, array in weights.items() if array.ndim == 2}
    vectors = {name: array for name, array in weights.items() if array.ndim == 1}
    return spec, weights, Network(spec, Weights(matrices, vectors), native.NativeBackend(2), "float32")


def logits(net: Network, tokens: Packed | Padded, tables=None, memory=None, past=None, length=None) -> np.ndarray:
    """Of every row. length: that the factors of all texts follow, where they do; each text's own if not given.
    tables, memory: fresh blocks if not given."""
    hidden = embed(net, tokens)
    texts = len(hidden.packed.lengths)
    if tables is None:
        each = -(-int(hidden.packed.lengths.max()) // PAGE)
        tables = np.arange(texts * each).reshape(texts, each)
        memory = net.kv_memory(texts * each)
    follow = {} if length is None else {"regime": np.full(texts, length > TRAINED), "lengths": np.full(texts, length)}
    view = CacheView(np.zeros(texts, np.int32) if past is None else np.array(past), np.array(tables), **follow)
    hidden = decode(net, hidden, view, memory)
    return project(net, hidden, np.arange(len(hidden.values))).values


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_company_change_nothing(kind):
    """On the left, on the right and within; beside other texts."""
    _, _, net = of(kind)
    alone = logits(net, pack([TEXT[:3]]))
    for mask in ([0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1]):
        ids = np.full(5, 7)
        ids[np.array(mask) == 1] = TEXT[:3]
        padded = Padded(np.array([ids]), np.array([mask]))
        assert unpad(padded).positions.tolist() == [0, 1, 2]
        assert np.array_equal(logits(net, padded), alone), mask
    together = logits(net, pack([TEXT[:70], TEXT[:3], TEXT[5:30]]))
    assert np.array_equal(together[70:73], alone)
    assert np.array_equal(together[:70], logits(net, pack([TEXT[:70]])))
    assert np.array_equal(together[73:], logits(net, pack([TEXT[5:30]])))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_a_shared_beginning_change_nothing(kind):
    spec, weights, net = of(kind)
    whole = logits(net, pack([TEXT]))
    exact = numpy_logits(spec, weights, TEXT)
    assert np.abs(whole - exact).max() < 2e-5 * np.abs(exact).max()
    memory, past, rows = net.kv_memory(3), 0, []
    for count in (30, 1, 33, 36):
        piece = pack([TEXT[past : past + count]], past=[past])
        rows.append(logits(net, piece, [[2, 0]], memory, [past], len(TEXT)))
        past += count
    assert np.array_equal(np.concatenate(rows), whole)
    other = np.concatenate([TEXT[:PAGE], TEXT[:36]])  # its first block is the other text's
    rest = logits(net, pack([other[PAGE:]], past=[PAGE]), [[2, 1]], memory, [PAGE], len(TEXT))
    assert np.array_equal(rest, logits(net, pack([other]))[PAGE:])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_what_the_caller_says(kind):
    """A gap of 30 positions after ten tokens. ALiBi and windows count tokens, so they don't see it."""
    spec, weights, net = of(kind)
    plain, counted = np.arange(35), np.arange(35) + 30 * (np.arange(35) >= 10)
    ids, starts = TEXT[:35].astype(np.int32), np.array([0, 35], np.int32)
    packed = Packed(ids, counted.astype(np.int32), starts)
    if kind == "rotary, dynamic":
        with pytest.raises(ParameterError, match=r"slots: row i of a text must have position past \+ i"):
            logits(net, packed)
        return
    got = logits(net, packed)
    exact = numpy_logits(spec, weights, ids, counted)
    assert np.abs(got - exact).max() < 2e-5 * np.abs(exact).max()
    usual = logits(net, Packed(ids, plain.astype(np.int32), starts))
    assert np.array_equal(got[:10], usual[:10])
    seen = spec.learned_positions or any(layer.attention.rotary for layer in spec.layers)
    assert np.array_equal(got, usual) != bool(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_is_checked(kind):
    _, _, net = of(kind)

    def at(position):
        return Packed(np.array([3], np.int32), np.array([position], np.int32), np.array([0, 1], np.int32))

    assert embed(net, at(CONTEXT - 1)).values.shape == (1, 24)
    for position in (CONTEXT, 2**31 - 1):
        with pytest.raises(ContextLengthError, match=rf"position {position} is beyond .* {CONTEXT} positions"):
            embed(net, at(position))
    with pytest.raises(ParameterError, match="found -1"):
        embed(net, at(-1))


def test_learned_rows_start_at_the_offset():
    """The same table shifted by two rows gives the same bits; the rows before are never read."""
    spec, weights, net = of("learned, from row 2")
    table = weights["embed.positions.weight"]
    shifted = replace(spec, learned_positions=CONTEXT, position_offset=0)
    matrices = {name: pack_floats("F32", table[2:] if name == "embed.positions.weight" else array).matrix()
                for name, array in weights.items() if array.ndim == 2}
    vectors = {name: array for name, array in weights.items() if array.ndim == 1}
    other = Network(shifted, Weights(matrices, vectors), native.NativeBackend(1), "float32")
    assert np.array_equal(logits(net, pack([TEXT])), logits(other, pack([TEXT])))
