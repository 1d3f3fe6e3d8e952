"""Rotary frequencies and ALiBi slopes: hand-computed numbers, transformers' own functions, wrong settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom import modeling_bloom
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.rotary import TYPES, ntk_base, rotary

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.5],
        "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


# ---------------------------------------------------------------- numbers computed by hand

def test_plain():
    assert np.allclose(rotary(8, 1e4).inv_freq, [1, 0.1, 0.01, 0.001], rtol=1e-7)
    assert rotary(8, 1e4) == rotary(8, 1e4, {}) == rotary(8, 1e4, {"rope_type": "default"})


def test_linear():
    assert np.allclose(rotary(8, 1e4, {"rope_type": "linear", "factor": 4}).inv_freq, [0.25, 0.025, 0.0025, 0.00025])


def test_llama3():
    expected = [1, 0.316228, 0.1, 0.00661311, 0.00125, 0.000395285, 0.000125, 3.95285e-5]
    assert np.allclose(rotary(16, 1e4, LLAMA3).inv_freq, expected, rtol=1e-5)


def test_gguf_divisors_are_llama3():
    divisors = np.array([1, 1, 1, 4.78183, 8, 8, 8, 8], np.float32)
    expected = rotary(16, 1e4, LLAMA3).inv_freq
    for values in (divisors, divisors.tolist()):
        assert np.allclose(rotary(16, 1e4, freq_factors=values).inv_freq, expected, rtol=1e-5)


@pytest.mark.parametrize("length, base", [(1, 1e4), (6, 1e4), (8, 1e4), (9, 13465.22), (16, 43267.49),
                                          (32, 133905.18)])
def test_dynamic_bases(length, base):
    spec = rotary(8, 1e4, {"rope_type": "dynamic", "factor": 2.0}, positions=8)
    assert spec.inv_freq == rotary(8, 1e4).inv_freq  # of a text that is short enough
    assert ntk_base(spec.ntk, 8, length) == pytest.approx(base, rel=1e-6)


def test_longrope():
    spec = rotary(8, 1e4, LONG, positions=256)
    assert np.allclose(spec.inv_freq, [1, 0.1 / 1.1, 0.01 / 1.5, 0.0005])
    assert np.allclose(spec.long_inv_freq, [1, 0.05, 0.0025, 0.001 / 8.5])
    assert spec.switch == 64
    assert spec.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))
    assert rotary(8, 1e4, LONG | {"attention_factor": 1.25}).attention_factor == 1.25
    assert rotary(8, 1e4, LONG, positions=64).attention_factor == 1.0


def test_yarn_keeps_the_fast_and_divides_the_slow():
    """Trained on 128 positions: pair i turns 128 * 1e4^(-i/32) / 2 pi times; 20 turns stay, below 1 is divided by 4."""
    spec = rotary(64, 1e4, YARN)
    plain = np.array(rotary(64, 1e4).inv_freq)
    ratio = plain / spec.inv_freq
    turns = 128 * plain / (2 * math.pi)
    assert np.allclose(ratio[:1], 1) and np.allclose(ratio[turns < 0.5], 4) and (np.diff(ratio) >= -1e-6).all()
    assert spec.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize("given, factor", [
    ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
    ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
    ({"mscale": 1.0}, 0.1 * math.log(4) + 1), ({"mscale": 1.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
    ({"attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.5), ({"factor": 0.5}, 1.0),
])
def test_yarn_attention_factor(given, factor):
    assert rotary(64, 1e4, YARN | given).attention_factor == pytest.approx(factor)


def test_proportional():
    spec = rotary(8, 1e4, {"rope_type": "proportional", "partial_rotary_factor": 0.5})
    assert spec.dim == 8 and np.allclose(spec.inv_freq, [1, 0.1, 0, 0])
    assert rotary(8, 1e4, {"rope_type": "proportional"}) == rotary(8, 1e4)


# ---------------------------------------------------------------- transformers

def theirs(head_dim, theta, scaling, positions, share=1.0, length=None):
    parameters = scaling | {"rope_theta": theta, "partial_rotary_factor": share}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=positions, rope_parameters=parameters)
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)
    return frequencies.numpy(), factor


def assert_close(got, expected, ulps):
    """Within so many units in the last place. Powers differ by one, and scalings add one or two of their own; llama3
    multiplies the error by up to 2 * factor where it goes from one frequency to the other."""
    expected = np.asarray(expected, np.float32)
    assert (np.abs(np.array(got, np.float64) - expected) <= ulps * np.spacing(expected)).all()


factors = np.linspace(1, 40, 64).tolist()


@pytest.mark.parametrize("scaling, ulps", [
    ({"rope_type": "linear", "factor": 3.0}, 1), (LLAMA3, 16),
    (LLAMA3 | {"original_max_position_embeddings": 8192}, 16),
    (YARN, 2), (YARN | {"truncate": False}, 2), (YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "factor": 40.0}, 2),
    (YARN | {"original_max_position_embeddings": 4}, 2), (YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}, 2),
    (YARN | {"attention_factor": 1.3}, 2),
], ids=str)
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("head_dim, share", [(64, 1.0), (80, 0.5), (128, 0.25)])
def test_agrees_with_transformers(scaling, ulps, theta, head_dim, share):
    spec = rotary(int(head_dim * share), theta, scaling, positions=512)
    frequencies, factor = theirs(head_dim, theta, scaling, 512, share)
    assert_close(spec.inv_freq, frequencies, ulps)
    assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


def test_longrope_agrees_with_transformers():
    for scaling in (LONG, LONG | {"factor": 16.0}, LONG | {"attention_factor": 1.19}):
        scaling = scaling | {"short_factor": factors[:32], "long_factor": factors[32:]}
        spec = rotary(64, 1e4, scaling, positions=256)
        for length, got in ((None, spec.inv_freq), (64, spec.inv_freq), (65, spec.long_inv_freq)):
            frequencies, factor = theirs(64, 1e4, scaling, 256, length=length)
            assert_close(got, frequencies, 2)
            assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


def test_dynamic_agrees_with_transformers():
    scaling = {"rope_type": "dynamic", "factor": 2.5}
    spec = rotary(64, 1e4, scaling, positions=32)
    for length in (1, 32, 33, 100, 4000):
        frequencies, factor = theirs(64, 1e4, scaling, 32, length=length)
        assert_close(rotary(64, ntk_base(spec.ntk, 64, length)).inv_freq, frequencies, 2)
        assert factor == spec.attention_factor == 1.0


def test_proportional_agrees_with_transformers():
    for share in (0.25, 0.5, 1.0):
        scaling = {"rope_type": "proportional", "partial_rotary_factor": share, "factor": 2.0}
        frequencies, _ = theirs(64, 1e4, scaling, 512, share)
        assert_close(rotary(64, 1e4, scaling).inv_freq, frequencies, 1)


# ---------------------------------------------------------------- what is wrong

@pytest.mark.parametrize("scaling, name", [
    ({"rope_type": "spiral"}, "rope_type"), ({"rope_type": 3}, "rope_type"), ({"rope_type": "linear"}, "factor"),
    ({"rope_type": "linear", "factor": 0}, "factor"), ({"rope_type": "linear", "factor": math.nan}, "factor"),
    ({"rope_type": "linear", "factor": "2"}, "factor"), ({"rope_type": "dynamic", "factor": 0.5}, "factor"),
    (LLAMA3 | {"low_freq_factor": None}, "low_freq_factor"), (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor"),
    (LLAMA3 | {"original_max_position_embeddings": -1}, "original_max_position_embeddings"),
    (LONG | {"short_factor": [1.0]}, "short_factor"), (LONG | {"long_factor": None}, "long_factor"),
    (LONG | {"long_factor": [1, 2, 3, 0.0]}, "long_factor"),
    (LONG | {"long_factor": [1, 2, 3, math.inf]}, "long_factor"),
    (LONG | {"long_factor": [1, 2, 3, True]}, "long_factor"), (YARN | {"beta_fast": -1}, "beta_fast"),
    (YARN | {"truncate": 1}, "truncate"), ([1], "scaling"),
], ids=str)
def test_wrong_settings_are_named(scaling, name):
    with pytest.raises(ForwardpassError, match=name):
        rotary(8, 1e4, scaling, positions=512)


def test_other_wrong_arguments():
    with pytest.raises(UnsupportedModelError, match=", ".join(TYPES)):
        rotary(8, 1e4, {"rope_type": "mrope"})
    for arguments in ((7, 1e4), (0, 1e4), (2, 1e4, {"rope_type": "dynamic", "factor": 2.0}), (8, 1.0, YARN)):
        with pytest.raises(ModelFileError):
            rotary(*arguments, positions=64)
    with pytest.raises(ModelFileError, match="freq_factors"):
        rotary(8, 1e4, freq_factors=[1, 2, 3])
    with pytest.raises(ModelFileError, match="divisors"):
        rotary(8, 1e4, LONG, positions=64, freq_factors=[1, 1, 2, 3])


# ---------------------------------------------------------------- ALiBi

def test_slopes():
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert alibi_slopes(1) == (2.0**-8,) and alibi_slopes(4, max_bias=4) == (0.5, 0.25, 0.125, 0.0625)
    assert np.allclose(alibi_slopes(3), [2**-4, 2**-8, 2**-2])
    assert np.allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 7, 8, 12, 14, 16, 24, 71, 112])
def test_slopes_agree_with_transformers(heads):
    bloom = modeling_bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    for expected in (bloom, mpt):
        assert np.allclose(alibi_slopes(heads), expected.numpy(), rtol=3e-6)
