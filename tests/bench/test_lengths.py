"""Lengths and arrivals: what is asked for is what comes, and the same for the same seed."""

from itertools import islice, pairwise

import numpy as np
import pytest

from forwardpass.bench.lengths import Lengths, arrivals
from forwardpass.errors import ParameterError


def drawn(text, count=4000, seed=5):
    lengths, chance = Lengths.parse(text, "--prompt-tokens"), np.random.default_rng(seed)
    return lengths, [lengths.draw(chance) for _ in range(count)]


def test_fixed():
    lengths, values = drawn("37")
    assert set(values) == {37} and (lengths.least, lengths.most, str(lengths)) == (37, 37, "37")
    assert drawn("fixed:37")[0] == lengths


def test_uniform_includes_both_ends():
    lengths, values = drawn("uniform:3:7")
    assert set(values) == {3, 4, 5, 6, 7} and (lengths.least, lengths.most) == (3, 7)
    assert all(700 < values.count(n) < 900 for n in range(3, 8))


def test_lognormal_has_its_median_and_its_sigma_and_ends():
    lengths, values = drawn("lognormal:200:0.5")
    assert abs(np.median(values) - 200) < 6 and abs(np.std(np.log(values)) - 0.5) < 0.02
    # e^(-1.5) and e^1.5 times the median
    assert (lengths.least, lengths.most) == (45, 896) and min(values) >= 45 and max(values) <= 896


@pytest.mark.parametrize("text", ["uniform:1:90", "lognormal:50:1"])
def test_a_seed_repeats_them(text):
    assert drawn(text)[1] == drawn(text)[1] != drawn(text, seed=6)[1]


@pytest.mark.parametrize("text", [
    "", "0", "-1", "1.5", "nan", "inf", "1e7", "x", "uniform:1", "uniform:9:3", "uniform:1:2:3", "uniform:0:4",
    "lognormal:10", "lognormal:10:-1", "lognormal:10:9", "lognormal:nan:1", "normal:3:4", "5:6", "lognormal:900000:1"])
def test_others_are_refused_by_name(text):
    with pytest.raises(ParameterError, match="--answer-tokens: expected N, uniform:LEAST:MOST"):
        Lengths.parse(text, "--answer-tokens")


def test_constant_arrivals():
    assert list(islice(arrivals("constant", 4.0, 0), 4)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_exponential_gaps():
    """Mean and standard deviation of the gaps are both 1 / rate, and a share 1 / e of them is above that."""
    times = list(islice(arrivals("poisson", 8.0, 3), 8000))
    gaps = np.array([times[0], *(b - a for a, b in pairwise(times))])
    assert abs(gaps.mean() - 0.125) < 0.005 and abs(gaps.std() - 0.125) < 0.006
    assert abs((gaps > 0.125).mean() - np.exp(-1)) < 0.02
    assert times == list(islice(arrivals("poisson", 8.0, 3), 8000))
    assert times != list(islice(arrivals("poisson", 8.0, 4), 8000))
