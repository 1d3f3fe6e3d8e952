"""Logits processors: hand-computed numbers, and transformers' own classes on random logits."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from forwardpass.decoding import processors as p
from forwardpass.decoding.history import History
from forwardpass.decoding.params import SamplingParams, TokenFacts

VOCAB = 24
INF = np.inf
# No search for smaller examples across runs: the same examples every time.
same_examples = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 10**6)
ids = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def row_of(*values):
    return np.array(values, np.float32)


def impossible(row):
    return np.flatnonzero(row == -INF).tolist()


def random_row(seed, banned=0):
    generator = np.random.default_rng(seed)
    row = generator.normal(0, 3, VOCAB).astype(np.float32)
    row[generator.permutation(VOCAB)[:banned]] = -INF
    return row


def theirs(processor, token_ids, row):
    input_ids = torch.tensor([token_ids], dtype=torch.int64)
    return processor(input_ids, torch.from_numpy(row.copy())[None])[0].numpy()


def adjusted(params, prompt, answer, row, **facts):
    chain = p.build(SamplingParams(**params), TokenFacts(**{"vocab_size": row.size, **facts}), prompt)
    for token_id in answer:
        chain.history.append(token_id)
    before = row.copy()
    result = chain.adjust(row)
    np.testing.assert_array_equal(row, before, "the model's row was edited")
    return result


def filtered(row, **params):
    """The row with everything that the filters drop at -inf, and temperature applied."""
    chain = p.build(SamplingParams(do_sample=True, **params), TokenFacts(vocab_size=row.size), [])
    kept, logits = chain.candidates(row)
    result = np.full(row.size, -INF, np.float32)
    result[slice(None) if kept is None else kept] = logits
    return result


# ---- hand-computed numbers


def test_repetition_penalty_by_sign_and_once_for_each_token():
    row = row_of(4, 3, -2, 0)
    np.testing.assert_array_equal(adjusted({"repetition_penalty": 2.0}, [0, 0, 0], [2, 2], row), [2, 3, -4, 0])


def test_presence_and_frequency_count_the_answer_only():
    row = row_of(4, 3, -2, 0)
    params = {"presence_penalty": 0.3, "frequency_penalty": 0.5}
    np.testing.assert_allclose(adjusted(params, [0, 0], [], row), row)
    np.testing.assert_allclose(adjusted(params, [0, 0], [1], row), [4, 2.2, -2, 0], rtol=1e-6)
    np.testing.assert_allclose(adjusted(params, [1], [0, 0], row), [2.7, 3, -2, 0], rtol=1e-6)


def test_all_penalties_then_bias():
    # token 0: 4 / 2 - .3 - 2 * .5 + 1 = 1.7
    params = {"repetition_penalty": 2.0, "presence_penalty": 0.3, "frequency_penalty": 0.5, "logit_bias": {0: 1.0}}
    np.testing.assert_allclose(adjusted(params, [], [0, 0], row_of(4, 3)), [1.7, 3], rtol=1e-6)


def test_bias_of_100_forces_and_minus_100_bans():
    assert adjusted({"logit_bias": {2: 100}}, [], [], row_of(9, 8, -30)).argmax() == 2
    assert adjusted({"logit_bias": {0: -100}}, [], [], row_of(9, 8, -30)).argmax() == 1


def test_a_ban_beats_a_bias():
    params = {"logit_bias": {2: 100}, "suppress_tokens": [2]}
    np.testing.assert_array_equal(adjusted(params, [], [], row_of(9, 8, 7)), [9, 8, -INF])


def test_no_repeat_ngram():
    row = np.zeros(6, np.float32)

    # "1 2 3 ... 1 2": 3 is out; with unigrams everything seen is out; too short a text bans nothing.
    def banned(n, tokens):
        return set(impossible(adjusted({"no_repeat_ngram_size": n}, tokens, [], row)))

    assert banned(3, [1, 2, 3, 0, 1, 2]) == {3}
    assert banned(2, [1, 2, 3, 1, 4, 1]) == {2, 4}
    assert banned(1, [1, 2, 1]) == {1, 2}
    assert banned(3, [1]) == set()
    assert banned(3, []) == set()


def test_no_repeat_ngram_follows_the_growing_answer():
    row = np.zeros(6, np.float32)
    assert np.flatnonzero(adjusted({"no_repeat_ngram_size": 2}, [1, 2], [3, 1], row) == -INF).tolist() == [2]
    assert np.flatnonzero(adjusted({"no_repeat_ngram_size": 2}, [], [4, 5, 4], row) == -INF).tolist() == [5]


def test_bad_words_ids():
    params = {"bad_words_ids": [[3], [1, 2, 4], [0]]}
    row = np.zeros(6, np.float32)

    def banned(tokens):
        return impossible(adjusted(params, tokens, [], row, end_ids=(0,)))

    assert banned([]) == [3]  # 0 is the end token: a bad word that is only an end token is left out
    assert banned([1, 2]) == [3, 4]
    assert banned([2, 1]) == [3]


def test_min_new_tokens_bans_every_end_token_until_then():
    params = {"min_new_tokens": 2, "stop_token_ids": [4]}
    row = np.zeros(6, np.float32)

    def banned(answer):
        return impossible(adjusted(params, [9, 9], answer, row, end_ids=(0, 5)))

    assert banned([]) == [0, 4, 5]
    assert banned([1]) == [0, 4, 5]
    assert banned([1, 1]) == []


def test_mask_special_tokens_keeps_end_tokens():
    facts = {"end_ids": (2,), "special_ids": frozenset({0, 1, 2, 5}), "unk_id": 3, "pad_id": 2}

    def banned(**more):
        return impossible(adjusted({"mask_special_tokens": True, **more}, [], [], np.zeros(6, np.float32), **facts))

    assert banned() == [0, 1, 3, 5]
    assert banned(eos_token_id=[5]) == [0, 1, 3]
    assert banned(ignore_eos=True) == [0, 1, 3, 5]


def test_rows_beyond_the_vocabulary_are_gone():
    row = row_of(1, 2, 99, 99)
    np.testing.assert_array_equal(adjusted({"repetition_penalty": 2.0}, [2, 3], [], row, vocab_size=2), [1, 2])


def test_top_k_keeps_what_equals_the_kth():
    np.testing.assert_array_equal(filtered(row_of(1, 3, 2, 2), top_k=2), [-INF, 3, 2, 2])
    np.testing.assert_array_equal(filtered(row_of(1, 3), top_k=9), [1, 3])


def test_top_p():
    row = np.log(row_of(0.5, 0.3, 0.15, 0.05))

    def kept(top_p):
        return np.flatnonzero(filtered(row, top_p=top_p) > -INF).tolist()

    assert kept(0.7) == [0, 1]
    assert kept(0.82) == [0, 1, 2]
    assert kept(0.4) == [0]
    assert kept(0.0) == [0]
    assert kept(1.0) == [0, 1, 2, 3]
    # Equals at the border: as many as the mass asks for, not all.
    assert np.flatnonzero(filtered(row_of(0, 0, 0, 0), top_p=0.5) > -INF).tolist() == [0, 1]


def test_min_p():
    row = np.log(row_of(0.5, 0.3, 0.15, 0.05))
    assert np.flatnonzero(filtered(row, min_p=0.25) > -INF).tolist() == [0, 1, 2]
    assert np.flatnonzero(filtered(row, min_p=1.0) > -INF).tolist() == [0]


def test_typical_p():
    # Entropy of (.7, .1, .1, .1) is .940; surprises .357 and 2.303, so the likeliest is the most typical one.
    row = np.log(row_of(0.1, 0.7, 0.1, 0.1))
    assert np.flatnonzero(filtered(row, typical_p=0.6) > -INF).tolist() == [1]
    # Entropy of (.4, .3, .2, .1) is 1.280; distances .364 .076 .330 1.023: .3 first, then .2, then .4.
    row = np.log(row_of(0.4, 0.3, 0.2, 0.1))
    assert np.flatnonzero(filtered(row, typical_p=0.2) > -INF).tolist() == [1]
    assert np.flatnonzero(filtered(row, typical_p=0.45) > -INF).tolist() == [1, 2]


def test_filters_see_the_temperature():
    # At T = 1 the likeliest alone has .88 of the mass, at T = 4 it has .62.
    row = row_of(2, 0)
    assert np.isfinite(filtered(row, top_p=0.8)).sum() == 1
    assert np.isfinite(filtered(row, top_p=0.8, temperature=4.0)).sum() == 2


def test_filters_work_one_after_another():
    # top_k leaves .5 and .3 of (.5 .3 .15 .05); renormalised they are .625 and .375, so top_p .6 needs one only.
    row = np.log(row_of(0.5, 0.3, 0.15, 0.05))
    assert np.isfinite(filtered(row, top_p=0.6)).sum() == 2
    assert np.isfinite(filtered(row, top_k=2, top_p=0.6)).sum() == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-7, 1e-5, 1e-3])
def test_tiny_temperatures_make_no_nan(temperature):
    result = p.apply_temperature(row_of(11.06, -INF, 11.0, -60000), temperature)
    assert result[0] >= result[2] and not np.isnan(result).any() and result.argmax() == 0
    assert np.isfinite(result[0])


@pytest.mark.parametrize("temperature", [1e9, 1e300])
def test_huge_temperatures_make_no_nan(temperature):
    result = p.apply_temperature(row_of(11.06, -INF, -60000), temperature)
    np.testing.assert_allclose(result, [0, -INF, 0], atol=1e-3)


# ---- forced and constrained tokens, and what the encoder read


def test_forced_first_token_follows_a_single_one_only():
    row = row_of(4, 3, 2, 1)
    forced = [-INF, -INF, 0, -INF]
    params = {"forced_bos_token_id": 2}
    np.testing.assert_array_equal(adjusted(params, [3], [], row), forced)
    np.testing.assert_array_equal(adjusted(params, [3], [2], row), row)
    np.testing.assert_array_equal(adjusted(params, [3, 1], [], row), row)
    # Bans that come before give way, suppress_tokens comes after.
    np.testing.assert_array_equal(adjusted({**params, "bad_words_ids": [[2]]}, [3], [], row), forced)
    assert (adjusted({**params, "suppress_tokens": [2]}, [3], [], row) == -INF).all()
    np.testing.assert_array_equal(
        adjusted({**params, "mask_special_tokens": True}, [3], [], row, special_ids=frozenset({2})), forced
    )


def test_forced_last_tokens():
    row = row_of(4, 3, 2, 1)
    params = {"forced_eos_token_id": [1, 3], "max_new_tokens": 3}
    np.testing.assert_array_equal(adjusted(params, [3], [0], row), row)
    np.testing.assert_array_equal(adjusted(params, [3], [0, 2], row), [-INF, 0, -INF, 0])


def test_begin_suppress_tokens_wait_for_a_forced_one():
    row = row_of(4, 3, 2, 1)

    def banned(prompt, answer, **more):
        return impossible(adjusted({"begin_suppress_tokens": [0, 1], **more}, prompt, answer, row))

    assert banned([3], []) == [0, 1] and banned([3], [3]) == []
    assert banned([3, 3], []) == [0, 1]
    assert banned([3], [], forced_bos_token_id=3) == [0, 1, 2]  # forced: nothing else is possible anyway
    assert banned([3], [3], forced_bos_token_id=3) == [0, 1]
    assert banned([3, 3], [], forced_bos_token_id=3) == [0, 1]


def test_min_length_counts_the_prompt():
    row = row_of(4, 3, 2, 1)

    def banned(prompt, answer, **more):
        return impossible(adjusted({"min_length": 4, **more}, prompt, answer, row, end_ids=(0, 2)))

    assert banned([1], []) == banned([1, 1], [1]) == [0, 2]
    assert banned([1, 1], [1, 1]) == banned([1] * 9, []) == []
    assert banned([1] * 9, [], min_new_tokens=1) == [0, 2]


def with_source(params, source, prompt, answer, row):
    chain = p.build(SamplingParams(**params), TokenFacts(row.size), prompt, source_ids=source)
    for token_id in answer:
        chain.history.append(token_id)
    return chain.adjust(row).copy()


def test_encoder_penalties_are_of_the_source():
    row = row_of(4, 3, -2, -1)
    # Likelier: 1 / 2 divides what is positive and multiplies what is negative, once.
    params = {"encoder_repetition_penalty": 2.0}
    np.testing.assert_array_equal(with_source(params, [0, 0, 2], [3], [1], row), [8, 3, -1, -1])
    np.testing.assert_array_equal(with_source(params, None, [0, 2], [1], row), [8, 3, -1, -1])  # the prompt instead
    params = {"encoder_no_repeat_ngram_size": 2}
    assert impossible(with_source(params, [0, 1, 0, 2], [3], [0], row)) == [1, 2]
    assert impossible(with_source(params, [0, 1, 0, 2], [0], [3], row)) == []
    assert impossible(with_source(params, [0, 1, 0, 2], [], [], row)) == []
    assert impossible(with_source({"encoder_no_repeat_ngram_size": 1}, [0, 3], [1], [1], row)) == [0, 3]


def test_a_constraint_sees_the_prompts_index_and_the_text():
    row = row_of(4, 3, 2, 1)
    seen = []

    def allowed(index, token_ids):
        seen.append((index, token_ids))
        return np.array([1, 3])

    chain = p.build(SamplingParams(prefix_allowed_tokens_fn=allowed), TokenFacts(4), [2, 0], prompt_index=5)
    chain.history.append(3)
    np.testing.assert_array_equal(chain.adjust(row), [-INF, 3, -INF, 1])
    assert seen == [(5, [2, 0, 3])]
    assert chain.edits_logits


def test_a_history_that_forks_goes_two_ways():
    first = History([1, 2, 1, 2], ngram_size=2)
    first.append(3)
    other = first.fork()
    first.append(1)
    other.append(2)
    assert (first.token_ids, other.token_ids) == ([1, 2, 1, 2, 3, 1], [1, 2, 1, 2, 3, 2])
    assert first.repeated_ngram_ends(9).tolist() == [2] and other.repeated_ngram_ends(9).tolist() == [1, 3]
    assert sorted(first.seen(9)) == sorted(other.seen(9)) == [1, 2, 3]
    assert [dict(zip(*map(list, one.counts()), strict=True)) for one in (first, other)] == [{3: 1, 1: 1}, {3: 1, 2: 1}]
    other.append(8)
    assert sorted(first.seen(9)) == [1, 2, 3] and sorted(other.seen(9)) == [1, 2, 3, 8]
    assert first.generated == 2 and other.generated == 3


# ---- of beams, at least so many tokens stay


def test_filters_leave_enough_tokens_for_beams():
    row = np.log(row_of(0.05, 0.9, 0.03, 0.02))
    assert np.flatnonzero(p.keep_top_k(row, 1, 3)).tolist() == [0, 1, 2]
    assert np.flatnonzero(p.keep_top_p(row, 0.5, 2)).tolist() == [0, 1]
    assert np.flatnonzero(p.keep_top_p(row, 0.96, 2)).tolist() == [0, 1, 2]
    assert np.flatnonzero(p.keep_min_p(row, 0.9, 2)).tolist() == [0, 1]
    chain = p.build(SamplingParams(do_sample=True, num_beams=2, top_k=1), TokenFacts(4, end_ids=(0, 1)), [])
    assert chain.candidates(row)[0].tolist() == [0, 1, 2]  # two end tokens and one more


# ---- transformers' classes


@same_examples
@given(seeds, ids, st.floats(0.1, 5))
def test_repetition_penalty_equals_hf(seed, tokens, penalty):
    assume(penalty != 1.0)
    row = random_row(seed)
    expected = theirs(hf.RepetitionPenaltyLogitsProcessor(penalty), tokens, row)
    split = len(tokens) // 2
    np.testing.assert_array_equal(
        adjusted({"repetition_penalty": penalty}, tokens[:split], tokens[split:], row), expected
    )


@same_examples
@given(seeds, st.lists(st.integers(0, 3), max_size=30), st.integers(1, 4))
def test_no_repeat_ngram_equals_hf(seed, tokens, size):
    row = random_row(seed)
    expected = theirs(hf.NoRepeatNGramLogitsProcessor(size), tokens, row)
    split = len(tokens) // 3
    params = {"no_repeat_ngram_size": size}
    np.testing.assert_array_equal(adjusted(params, tokens[:split], tokens[split:], row), expected)


@same_examples
@given(
    seeds,
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=4).filter(
        lambda runs: any(run != [0] for run in runs)
    ),
)
def test_bad_words_equal_hf(seed, tokens, runs):
    row = random_row(seed)
    expected = theirs(hf.NoBadWordsLogitsProcessor(runs, 0), tokens, row)
    np.testing.assert_array_equal(adjusted({"bad_words_ids": runs}, tokens, [], row, end_ids=(0,)), expected)


@same_examples
@given(seeds, ids, st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=4), st.integers(0, 6))
def test_suppress_and_min_new_tokens_equal_hf(seed, answer, special, minimum):
    row = random_row(seed)
    special = sorted(special)
    expected = theirs(hf.SuppressTokensLogitsProcessor(special), [1, *answer], row)
    np.testing.assert_array_equal(adjusted({"suppress_tokens": special}, [1], answer, row), expected)
    expected = theirs(hf.MinNewTokensLengthLogitsProcessor(1, minimum, special), [1, *answer], row)
    params = {"min_new_tokens": minimum, "eos_token_id": special}
    np.testing.assert_array_equal(adjusted(params, [1], answer, row), expected)


@same_examples
@given(seeds, st.floats(0.01, 100))
def test_temperature_equals_hf(seed, temperature):
    row = random_row(seed, banned=3)
    np.testing.assert_allclose(
        p.apply_temperature(row, temperature), theirs(hf.TemperatureLogitsWarper(temperature), [0], row), rtol=3e-7
    )


@same_examples
@given(seeds, st.integers(1, VOCAB + 4), st.integers(0, 8))
def test_top_k_equals_hf(seed, k, banned):
    row = np.round(random_row(seed, banned))  # rounded: with equals
    np.testing.assert_array_equal(filtered(row, top_k=k), theirs(hf.TopKLogitsWarper(k), [0], row))


@same_examples
@given(seeds, st.floats(0, 0.999), st.integers(0, 8), st.booleans())
def test_top_p_equals_hf(seed, top_p, banned, equals):
    row = random_row(seed, banned)
    row = np.round(row) if equals else row
    mass = np.cumsum(np.sort(np.exp(row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64)))))
    assume(np.abs(mass - (1 - top_p)).min() > 1e-5)  # their float32 sums may round to the other side
    found, expected = filtered(row, top_p=top_p), theirs(hf.TopPLogitsWarper(top_p), [0], row)
    if equals:  # which of several equals stay is left open by their sort; how many is not
        found, expected = np.sort(found), np.sort(expected)
    np.testing.assert_array_equal(found, expected)


@same_examples
@given(seeds, st.floats(0.0001, 1), st.integers(0, 8))
def test_min_p_equals_hf(seed, min_p, banned):
    row = random_row(seed, banned)
    assume(np.abs(np.exp(row - row.max()) - min_p)[row < row.max()].min() > 1e-6)
    np.testing.assert_array_equal(filtered(row, min_p=min_p), theirs(hf.MinPLogitsWarper(min_p), [0], row))


@same_examples
@given(seeds, st.floats(0.01, 0.99), st.integers(0, 8))
def test_typical_p_equals_hf(seed, mass, banned):
    row = random_row(seed, banned)
    expected = theirs(hf.TypicalLogitsWarper(mass), [0], row)
    found = filtered(row, typical_p=mass)
    if not np.array_equal(found, expected):  # only a sum that rounds to the other side of the mass may differ
        log_p = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
        prob = np.exp(log_p)
        order = np.argsort(np.abs(-log_p + np.nansum(prob * log_p)), kind="stable")
        assert np.abs(np.cumsum(prob[order]) - mass).min() < 1e-5


@same_examples
@given(seeds, st.integers(1, 6), st.integers(0, 8), st.floats(0.05, 0.95))
def test_filters_of_beams_equal_hf(seed, least, banned, amount):
    row = random_row(seed, banned)
    for keep, warper in [
        (lambda: p.keep_top_k(row, 2, least), hf.TopKLogitsWarper(2, min_tokens_to_keep=least)),
        (lambda: p.keep_top_p(row, amount, least), hf.TopPLogitsWarper(amount, min_tokens_to_keep=least)),
        (lambda: p.keep_min_p(row, amount, least), hf.MinPLogitsWarper(amount, min_tokens_to_keep=least)),
        (lambda: p.keep_typical(row, amount, least), hf.TypicalLogitsWarper(amount, min_tokens_to_keep=least)),
    ]:
        expected = theirs(warper, [0], row)
        found = np.where(keep(), row, -INF)
        # A sum at the border may round to the other side, on both of theirs and ours: one token more or less.
        assert np.count_nonzero(found != expected) <= 1
        assert np.count_nonzero(found > -INF) >= min(least, VOCAB - banned)


@same_examples
@given(
    seeds,
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.integers(1, 4),
    st.floats(0.3, 3),
)
def test_encoder_processors_equal_hf(seed, source, text, size, penalty):
    assume(penalty != 1.0)
    row = random_row(seed)
    expected = theirs(hf.EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([source])), text, row)
    split = len(text) // 2
    found = with_source({"encoder_no_repeat_ngram_size": size}, source, text[:split], text[split:], row)
    np.testing.assert_array_equal(found, expected)
    expected = theirs(hf.EncoderRepetitionPenaltyLogitsProcessor(penalty, torch.tensor([source])), text, row)
    found = with_source({"encoder_repetition_penalty": penalty}, source, text, [], row)
    np.testing.assert_array_equal(found, expected)


@same_examples
@given(seeds, ids, st.floats(0.3, 3), st.integers(2, 20), st.floats(0.3, 0.95), st.floats(0.01, 0.3))
def test_the_whole_chain_equals_hf(seed, tokens, temperature, top_k, top_p, min_p):
    row = random_row(seed)
    params = SamplingParams(
        do_sample=True, repetition_penalty=1.3, suppress_tokens=[4], temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p,
    )  # fmt: skip
    chain = p.build(params, TokenFacts(vocab_size=VOCAB), tokens)
    kept, logits = chain.candidates(chain.adjust(row))
    found = np.full(VOCAB, -INF, np.float32)
    found[kept] = logits
    expected = row
    for processor in [
        hf.RepetitionPenaltyLogitsProcessor(1.3), hf.SuppressTokensLogitsProcessor([4]),
        hf.TemperatureLogitsWarper(temperature), hf.TopKLogitsWarper(top_k), hf.TopPLogitsWarper(top_p),
        hf.MinPLogitsWarper(min_p),
    ]:  # fmt: skip
        expected = theirs(processor, tokens, expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-6)


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.0, 0.05, 0.5, 0.9, 0.999])
def test_top_p_on_a_large_vocabulary_against_a_full_sort(spread, top_p):
    row = np.random.default_rng(5).normal(0, spread, 30_000).astype(np.float32)
    exact = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-exact, kind="stable")
    needed = int(np.count_nonzero(np.cumsum(exact[order]) < top_p * exact.sum())) + 1
    kept = np.flatnonzero(p.keep_top_p(row, top_p))
    assert abs(kept.size - needed) <= 1  # float32 weights may move the border by one token
    assert set(kept) >= set(order[: needed - 1])
