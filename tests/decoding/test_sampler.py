"""Sampling: exact distributions, independence of everything but (seed, choice, step), and hostile rows."""

import numpy as np
import pytest
from scipy.stats import chi2

from forwardpass.decoding import _rows
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.sampler import Sampler, logprob, logprobs
from forwardpass.errors import ForwardpassError, ParameterError

VOCAB = 60
ROW = np.random.default_rng(1).normal(0, 1.5, 64).astype(np.float32)  # four rows more than the tokenizer has
ROW[VOCAB:] = 50.0


def make(choice=0, prompt=(1, 2), vocab_size=VOCAB, **params):
    return Sampler(SamplingParams(**{"do_sample": True, "seed": 7, **params}), TokenFacts(vocab_size), prompt, choice)


def draws(count, row=ROW, **params):
    one = make(**params)
    tokens = []
    for _ in range(count):
        tokens.append(one.pick(row))
        one.accept(tokens[-1])
    return tokens


def softmax(values):
    weights = np.exp(values.astype(np.float64) - values.max())
    return weights / weights.sum()


def assert_follows(tokens, probabilities):
    expected = probabilities * len(tokens)
    counts = np.bincount(tokens, minlength=probabilities.size)[: probabilities.size]
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    rare = ~common & (expected > 0)
    observed = np.append(counts[common], counts[rare].sum() if rare.any() else [])
    wanted = np.append(expected[common], expected[rare].sum() if rare.any() else [])
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert statistic < chi2.ppf(0.999, wanted.size - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_distribution_is_the_exact_softmax(temperature):
    assert_follows(draws(4000, temperature=temperature), softmax(ROW[:VOCAB] / temperature))


def test_distribution_over_choices_at_one_step():
    # Independent streams for the choices: their first tokens together follow the distribution too.
    assert_follows([make(choice).pick(ROW) for choice in range(3000)], softmax(ROW[:VOCAB]))


@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"typical_p": 0.5}])
def test_distribution_after_a_filter_is_renormalised(params):
    chain = make(**params)._chain
    kept, _ = chain.candidates(ROW[:VOCAB])
    assert 1 < kept.size < VOCAB
    masked = np.full(VOCAB, -np.inf)
    masked[kept] = ROW[kept]
    assert_follows(draws(2000, **params), softmax(masked))


def test_rows_beyond_the_vocabulary_are_never_picked_nor_listed():
    assert max(draws(300, temperature=3.0)) < VOCAB
    assert make(do_sample=False).pick(ROW) == ROW[:VOCAB].argmax()
    assert make(do_sample=False, repetition_penalty=1.1).pick(ROW) < VOCAB
    assert all(i < VOCAB for i in logprobs(ROW, 3, 20, VOCAB)[1])


def test_greedy_takes_the_first_of_equals():
    row = np.float32([1, 5, 5, 2])
    assert make(do_sample=False, vocab_size=4).pick(row) == 1
    assert make(do_sample=False, vocab_size=4, suppress_tokens=[1]).pick(row) == 2


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-7, 1e-5, 1e-3])
def test_tiny_temperatures_are_greedy(temperature):
    row = np.float32(np.float16([11.06, -np.inf, 11.0, -3, 0.5]))
    assert set(draws(20, row=row, vocab_size=5, temperature=temperature)) == {0}


def test_huge_temperature_is_nearly_uniform():
    assert_follows(draws(2000, temperature=1e9), np.full(VOCAB, 1 / VOCAB))


def test_a_seed_means_the_same_tokens_whatever_else_runs():
    alone = draws(40)
    others = [make(seed=None), make(seed=8), make(temperature=0)]
    again, mixed = make(), []
    for step in range(40):
        for other in others[step % 2 :]:
            other.accept(other.pick(ROW))
        again.pick(ROW)  # a pick that is thrown away, as after a preemption, changes nothing
        mixed.append(again.pick(ROW))
        again.accept(mixed[-1])
    assert mixed == alone
    assert draws(40) == alone
    assert draws(40, prompt=(5,)) == alone


def test_choices_differ_and_the_first_is_the_only_one():
    texts = [draws(30, choice=i) for i in range(3)]
    assert len({tuple(text) for text in texts}) == 3
    assert [draws(30, choice=i) for i in range(3)] == texts
    assert draws(30) == texts[0]
    assert draws(30, seed=8) != texts[0]


def test_counts_of_choices_are_separate():
    row = np.float32([4, 3.9, 0])
    first, second = (make(i, do_sample=False, presence_penalty=1.0, vocab_size=3, prompt=()) for i in range(2))
    first.accept(first.pick(row))
    assert (first.pick(row), second.pick(row)) == (1, 0)


def test_no_seed_means_fresh_entropy():
    assert make(seed=None).seed != make(seed=None).seed
    assert draws(30, seed=None) != draws(30, seed=None)  # 60^30 possibilities


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.1}])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_the_models_fault(do_sample, more, value):
    row = ROW.copy()
    row[9] = value
    with pytest.raises(ForwardpassError, match="Logits must be finite numbers; the model produced"):
        make(do_sample=do_sample, **more).pick(row)


@pytest.mark.parametrize("do_sample", [False, True])
def test_no_token_left(do_sample):
    with pytest.raises(ParameterError, match="No token is left"):
        make(do_sample=do_sample, suppress_tokens=list(range(VOCAB))).pick(ROW)
    with pytest.raises(ParameterError, match="No token is left"):
        make(do_sample=do_sample).pick(ROW, list(range(VOCAB)))


@pytest.mark.parametrize("row", [ROW[:59], ROW[None], ROW.astype(np.float64), np.float32(1)])
def test_rows_of_another_shape_or_type(row):
    with pytest.raises(ParameterError, match=r"must be float32 of shape \[60\] or longer; got float"):
        make().pick(np.asarray(row))


def test_refused_tokens_are_not_picked_again_and_keep_the_distribution():
    refused = int(ROW[:VOCAB].argmax())
    tokens = []
    for choice in range(2000):
        one = make(choice)
        token = one.pick(ROW)
        tokens.append(one.pick(ROW, [token]) if token == refused else token)
    masked = ROW[:VOCAB].copy()
    masked[refused] = -np.inf
    assert_follows(tokens, softmax(masked))


def test_the_row_is_only_read():
    row = ROW.copy()
    row.flags.writeable = False
    draws(3, row=row, repetition_penalty=1.2, top_k=5, temperature=0.5, suppress_tokens=[1])


def test_log_probabilities_are_of_the_raw_row():
    row = np.log(np.float32([0.5, 0.25, 0.125, 0.125]))
    assert logprob(row, 1) == pytest.approx(np.log(0.25), abs=1e-6)
    chosen, top = logprobs(row, 2, 3, 4)
    assert chosen == pytest.approx(np.log(0.125), abs=1e-6)
    assert list(top) == [0, 1, 2] and top[1] == pytest.approx(np.log(0.25), abs=1e-6)
    assert logprobs(row, 0, 0, 4) == (pytest.approx(np.log(0.5), abs=1e-6), {})
    big = np.random.default_rng(2).normal(0, 4, 50000).astype(np.float32)
    exact = big.astype(np.float64) - np.logaddexp.reduce(big.astype(np.float64))
    assert logprob(big, 17) == pytest.approx(exact[17], abs=2e-6)


def test_row_helpers_against_plain_sorting():
    generator = np.random.default_rng(3)
    for size in (1, 2, 7, 1000):
        row = np.round(generator.normal(0, 3, size), 1).astype(np.float32)
        order = sorted(range(size), key=lambda i: (-row[i], i))
        for k in {1, min(3, size), size, size + 5}:
            assert _rows.top_k_indices(row, k).tolist() == order[:k]
            assert _rows.kth_largest(row, min(k, size)) == row[order[min(k, size) - 1]]
        assert _rows.argmax(row) == order[0]
    assert _rows.top_k_indices(np.float32([1, 2]), 0).tolist() == []


@pytest.mark.parametrize("u", [0.0, 0.3, 0.5, 1 - 2**-53])
def test_a_draw_never_lands_on_an_impossible_token(u):
    row = np.float32([-np.inf, 1, -np.inf, 1, -np.inf, -500])
    assert _rows.draw(row, u) == (1 if u < 0.5 else 3)


def test_draw_inverts_the_cumulative_sum_of_a_large_vocabulary():
    row = np.random.default_rng(6).normal(0, 2, 5000).astype(np.float32)
    row[::3] = -np.inf
    cumulative = np.cumsum(softmax(row))
    for u in [0.0, *np.random.default_rng(7).random(300), 1 - 2**-53]:
        index = _rows.draw(row, u)
        assert np.isfinite(row[index])
        low = cumulative[index - 1] if index else 0.0
        assert low - 1e-6 <= u <= cumulative[index] + 1e-6


# ---- draws without replacement


def test_draws_without_replacement_have_their_exact_probabilities():
    row = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    weight = softmax(row)
    # First i, then j: w_i * w_j / (1 - w_i); then k of what is left.
    pairs = np.array([[0 if i == j else weight[i] * weight[j] / (1 - weight[i]) for j in range(4)] for i in range(4)])
    generator = np.random.default_rng(3)
    drawn = []
    for _ in range(4000):
        lottery = _rows.Lottery(row)
        first, second = lottery.draw(generator.random()), lottery.draw(generator.random())
        drawn.append(4 * first + second)
    assert_follows(drawn, pairs.ravel())


def test_a_lottery_of_a_large_row_empties_it():
    row = np.random.default_rng(2).normal(0, 2, 1000).astype(np.float32)
    row[::3] = -np.inf
    before = row.copy()
    lottery = _rows.Lottery(row)
    us = np.random.default_rng(4).random(700)
    drawn = [lottery.draw(u) for u in us]
    np.testing.assert_array_equal(row, before)
    possible = np.flatnonzero(row > -np.inf)
    assert sorted(drawn[: possible.size]) == possible.tolist()
    assert drawn[possible.size :] == [None] * (700 - possible.size)
    # The first is what a single draw gives.
    assert drawn[0] == _rows.draw(row, us[0])


def test_what_is_far_less_likely_is_drawn_when_nothing_else_is_left():
    row = np.array([0, -200, -np.inf, -201, -400], np.float32)
    lottery = _rows.Lottery(row)
    assert [lottery.draw(0.999) for _ in range(2)] == [0, 3]  # of -200 and -201: .73 and .27
    assert [lottery.draw(0.5) for _ in range(3)] == [1, 4, None]
    assert _rows.Lottery(np.empty(0, np.float32)).draw(0.1) is None
