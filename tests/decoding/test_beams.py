"""Beam search without a model: tables of probabilities, with every number worked out by hand."""

import math

import numpy as np
import pytest

from forwardpass import _native
from forwardpass.decoding.beams import BeamSearch, advance_all
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.errors import ForwardpassError, ParameterError

END = 0


def table(rows, vocab, end_logp=-12.0):
    """Logits after each text: {(token, ...): {token: log-probability}}; the rest of the mass is spread evenly, but an
    end token that is not named has next to none. A text that is not named: all others equally likely."""

    def f(text):
        named = {END: end_logp, **rows.get(tuple(text), {})}
        rest = (1 - sum(map(math.exp, named.values()))) / (vocab - len(named))
        assert rest > 0
        row = np.full(vocab, math.log(rest), np.float32)
        for token, logp in named.items():
            row[token] = logp
        return row + np.float32(3)  # logits, not probabilities

    return f


def searching(prompt=(), vocab=6, ends=(END,), decode=None, **settings):
    return BeamSearch(SamplingParams(**settings), TokenFacts(vocab, end_ids=ends), prompt, decode=decode)


def follow(search, f, prompt=(), steps=10**6):
    """Runs a search to its end, or some steps; the texts of its live beams."""
    texts = [list(prompt)]
    while not search.done and steps:
        step = search.advance(np.stack([f(text[len(prompt) :]) for text in texts]))
        texts = [texts[p] + [int(t)] for p, t in zip(step.parents, step.tokens, strict=True)]
        steps -= 1
    return [text[len(prompt) :] for text in texts]


def ids(search):
    return [ids for ids, _ in search.results()]


# ---- length normalisation (BEM-01)

# 1 END: -.7 -.5 = -1.2;  2 3 3 3 END: -.8 - 4 * .3 = -2.0
SHORT_AND_LONG = table(
    {(): {1: -0.7, 2: -0.8}, (1,): {END: -0.5}, (2,): {3: -0.3}, (2, 3): {3: -0.3}, (2, 3, 3): {3: -0.3},
     (2, 3, 3, 3): {END: -0.3}}, 6
)  # fmt: skip


@pytest.mark.parametrize("prompt", [[5], [4] * 10, [1, 2] * 50])
def test_scores_are_sums_over_the_generated_length_with_the_end_token(prompt):
    settings = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 9, "early_stopping": "never"}
    search = searching(prompt, **settings)
    follow(search, SHORT_AND_LONG, prompt)
    (first, first_score), (second, second_score) = search.results()
    assert (first, second) == ([2, 3, 3, 3, END], [1, END])  # had the prompt of ten counted: -2/15 < -1.2/12
    assert first_score == pytest.approx(-2.0 / 5, abs=1e-6)
    assert second_score == pytest.approx(-1.2 / 2, abs=1e-6)
    search = searching(prompt, length_penalty=0, **settings)
    follow(search, SHORT_AND_LONG, prompt)
    assert search.results()[0] == ([1, END], pytest.approx(-1.2, abs=1e-6))
    search = searching(prompt, length_penalty=2, **{**settings, "max_new_tokens": 5})
    follow(search, SHORT_AND_LONG, prompt)
    assert search.results()[0] == ([2, 3, 3, 3, END], pytest.approx(-2.0 / 25, abs=1e-6))


# ---- when to stop (BEM-03): length_penalty 2, ten tokens at most

# END: -.9 after one token;  1 END: -1.4 / 4 = -.35, and 1 3 goes on with -1.35 / 4 = -.3375
PROMISING = table({(): {1: -0.6, END: -0.9}, (1,): {END: -0.8, 3: -0.75}}, 6)
# 1 END: -.7 / 4 = -.175, and the best that goes on has -.6 + log((1 - e^-.1) / 5) = -4.56
HOPELESS = table({(): {1: -0.6, END: -0.9}, (1,): {END: -0.1}}, 6)


@pytest.mark.parametrize(
    ("f", "early_stopping", "stops"),
    [
        (PROMISING, True, True),
        (PROMISING, False, False),  # -.3375 is better than the worst finished, -.9
        (PROMISING, "never", False),
        (HOPELESS, True, True),
        (HOPELESS, False, True),  # -4.56 / 4 = -1.14 is not
        (HOPELESS, "never", False),  # but -4.56 / 100 might be
    ],
)
def test_when_to_stop(f, early_stopping, stops):
    search = searching(num_beams=2, length_penalty=2, max_new_tokens=10, early_stopping=early_stopping)
    follow(search, f, steps=1)
    assert not search.done
    live = follow(search := searching(num_beams=2, length_penalty=2, max_new_tokens=10,
                                      early_stopping=early_stopping), f, steps=2)  # fmt: skip
    assert search.done == stops and len(live) == (0 if stops else 2)
    assert search.results() == [([1, END], pytest.approx(-0.35 if f is PROMISING else -0.175, abs=1e-6))]


@pytest.mark.parametrize("penalty", [0, -1])
def test_never_uses_the_current_length_where_longer_texts_do_not_gain(penalty):
    search = searching(num_beams=2, length_penalty=penalty, max_new_tokens=10, early_stopping="never")
    follow(search, HOPELESS, steps=2)
    assert search.done  # -4.56 * 2 ** -penalty is below -.9


def test_the_last_token_may_be_any():
    search = searching(num_beams=2, num_return_sequences=2, max_new_tokens=2)
    follow(search, table({(): {1: -0.4, 2: -1.3}, (1,): {3: -0.2}, (2,): {4: -0.1}}, 6))
    assert search.done
    assert search.results() == [
        ([1, 3], pytest.approx(-0.3, abs=1e-6)), ([2, 4], pytest.approx(-0.7, abs=1e-6))
    ]  # fmt: skip


# ---- end tokens (BEM-05)


def test_beams_that_end_leave_and_as_many_live_on():
    rows = {(): {1: -1.1, 2: -1.2, 3: -1.3}}
    rows |= {(i,): {END: -0.3, 4: -1.7} for i in (1, 2, 3)}
    search = searching(num_beams=3, num_return_sequences=3, max_new_tokens=20, early_stopping=True)
    assert follow(search, table(rows, 6), steps=1) == [[1], [2], [3]]
    search = searching(num_beams=3, num_return_sequences=3, max_new_tokens=20, early_stopping="never",
                       length_penalty=3)  # fmt: skip
    assert follow(search, table(rows, 6), steps=2) == [[1, 4], [2, 4], [3, 4]]
    assert ids(search) == [[1, END], [2, END], [3, END]]
    assert follow(search := searching(num_beams=3, num_return_sequences=3, early_stopping=True), table(rows, 6)) == []
    assert ids(search) == [[1, END], [2, END], [3, END]]


def test_an_end_token_beyond_the_best_num_beams_does_not_count():
    # 1 (-.5) and 2 (-1.2) are the best two, END (-2.5) is the third.
    search = searching(num_beams=2, max_new_tokens=5)
    assert follow(search, table({(): {1: -0.5, 2: -1.2, END: -2.5}}, 6), steps=1) == [[1], [2]]
    assert search.results() == []


def test_ten_end_tokens():
    ends = tuple(range(10))
    rng = np.random.default_rng(4)
    for beams in (2, 3, 5):
        search = searching(vocab=20, ends=ends, num_beams=beams, num_return_sequences=beams, max_new_tokens=6)
        texts = [[]]
        while not search.done:
            rows = rng.normal(0, 1, (len(texts), 20)).astype(np.float32)
            rows[:, :10] += 2
            step = search.advance(rows)
            texts = [texts[p] + [int(t)] for p, t in zip(step.parents, step.tokens, strict=True)]
            assert not texts or (len(texts) == beams and min(map(min, texts)) >= 10)
        found = search.results()
        assert len({tuple(text) for text, _ in found}) == beams
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_fewer_continuations_than_beams():
    search = searching(vocab=4, num_beams=5, num_return_sequences=5, max_new_tokens=3, length_penalty=0)
    rows = {(): {1: -0.5, 2: -1.5}, (1,): {1: -0.3, 2: -1.6}}
    assert follow(search, table(rows, 4), steps=1) == [[1], [2], [3]]
    search = searching(vocab=4, num_beams=5, num_return_sequences=5, max_new_tokens=3, length_penalty=0)
    assert follow(search, table(rows, 4)) == []
    found = search.results()
    assert len(found) == 5 and len({tuple(text) for text, _ in found}) == 5
    only = searching(vocab=2, num_beams=2, num_return_sequences=2, max_new_tokens=3)
    follow(only, lambda text: np.array([0.0, 1.0], np.float32))
    expected = [[0], [1, 0], [1, 1, 0], [1, 1, 1]]
    assert all(text in expected for text, _ in only.results()) and len(only.results()) == 2


def test_a_constraint_with_one_way_gives_one_result():
    way = [3, 1, 2, END]
    search = searching(num_beams=4, num_return_sequences=4, max_new_tokens=8,
                       prefix_allowed_tokens_fn=lambda index, so_far: [way[len(so_far)]])  # fmt: skip
    follow(search, table({}, 6))
    assert ids(search) == [way]


# ---- forced and forbidden tokens


def test_no_token_left():
    search = searching(vocab=4, num_beams=2, suppress_tokens=[0, 1, 2, 3])
    with pytest.raises(ParameterError, match="No token is left"):
        search.advance(np.zeros((1, 4), np.float32))


def test_a_search_ends_where_its_beams_cannot_go_on():
    # Every token once: after three tokens only the end token is left, after it nothing.
    search = searching(vocab=4, num_beams=2, num_return_sequences=2, no_repeat_ngram_size=1, max_new_tokens=30)
    follow(search, lambda text: np.array([-20, 3, 2, 1], np.float32))
    assert ids(search) == [[1, 2, 3, END], [2, 1, 3, END]]


def test_forced_tokens_cost_nothing():
    # 5 is forced after the start token 3, END as the fourth: only 1 and 2 are chosen.
    rows = {(5,): {1: -0.5}, (5, 1): {2: -0.25}}
    search = searching([3], num_beams=2, max_new_tokens=4, forced_bos_token_id=5, forced_eos_token_id=END)
    follow(search, table(rows, 6), [3])
    assert search.results() == [([5, 1, 2, END], pytest.approx(-0.75 / 4, abs=1e-6))]


def test_what_all_beams_may_not_say_is_said_where_nothing_else_is_allowed():
    # suppress_tokens comes later and wins; the ban of a bad word does not.
    search = searching(num_beams=2, max_new_tokens=2, bad_words_ids=[[4]],
                       prefix_allowed_tokens_fn=lambda index, so_far: [4])  # fmt: skip
    follow(search, table({}, 6))
    assert search.results() == [([4, 4], 0.0)]
    search = searching(num_beams=2, suppress_tokens=[4], prefix_allowed_tokens_fn=lambda index, so_far: [4])
    with pytest.raises(ParameterError, match="No token is left"):
        search.advance(np.zeros((1, 6), np.float32))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda index, so_far: [], "allows no token after 0 tokens of prompt 7"),
        (lambda index, so_far: [6], r"token ids in \[0, 5\]; got \[6\]"),
        (lambda index, so_far: [-1, 2], r"token ids in \[0, 5\]"),
        (lambda index, so_far: [0.5], r"token ids in \[0, 5\]"),
        (lambda index, so_far: 1 / 0, "prefix_allowed_tokens_fn raised ZeroDivisionError"),
        (lambda index, so_far: None, "prefix_allowed_tokens_fn raised TypeError"),
    ],
)
def test_a_constraint_that_misbehaves_is_named(function, message):
    params = SamplingParams(num_beams=2, prefix_allowed_tokens_fn=function)
    search = BeamSearch(params, TokenFacts(6, end_ids=(END,)), [], prompt_index=7)
    with pytest.raises(ParameterError, match=message):
        search.advance(np.zeros((1, 6), np.float32))


# ---- text


def letters(token_ids):
    return "".join("#abcde"[i] for i in token_ids)


def test_a_stop_string_ends_a_beam_like_an_end_token():
    # a b: -.2 -.3, the string is in it;  a c: -.2 -1.6
    f = table({(): {1: -0.2}, (1,): {2: -0.3, 3: -1.6}}, 6)
    settings = {"num_beams": 2, "stop": ["ab"], "max_new_tokens": 6}
    search = searching(decode=letters, **settings)
    live = follow(search, f, steps=2)
    assert [1, 3] in live and [1, 2] not in live and len(live) == 2
    assert search.results() == [([1, 2], pytest.approx(-0.25, abs=1e-6))]
    with pytest.raises(ParameterError, match="stop and bad_words need the model's tokenizer"):
        searching(**settings)


def test_stop_strings_may_end_more_than_the_best_candidates():
    # After each of a .. e every letter but e completes a stop string; ten candidates would not leave two others.
    stops = [x + y for x in "abcde" for y in "abcd"]
    search = searching(decode=letters, num_beams=2, stop=stops, max_new_tokens=6, early_stopping="never",
                       length_penalty=10)  # fmt: skip
    row = np.array([-9, 2, 1.9, 1.8, 1.7, -7], np.float32)
    assert follow(search, lambda text: row, steps=2) == [[1, 5], [2, 5]]


def test_bad_words_are_avoided_however_they_are_cut():
    f = table({(): {1: -0.2}, (1,): {2: -0.3, 3: -1.6}}, 6)
    search = searching(decode=letters, num_beams=2, num_return_sequences=2, bad_words=["ab"], max_new_tokens=2)
    follow(search, f)
    assert ids(search)[0] == [1, 3] and [1, 2] not in ids(search)


# ---- log-probabilities


def test_log_probabilities_are_raw_and_follow_the_beams():
    f = table({(): {1: -0.7, 2: -0.8}, (1,): {3: -1.0}, (2,): {4: -0.1}}, 6)
    search = searching(num_beams=2, num_return_sequences=2, max_new_tokens=2, logprobs=1, repetition_penalty=2.0,
                       prompt=[4])  # fmt: skip
    follow(search, f, [4])
    first, second = search.finished()
    # 2 4: the penalty doubles the cost of the 4 that stands in the prompt; the log-probability stays.
    assert first.token_ids == [2, 4] and first.score == pytest.approx((-0.8 - 0.2) / 2, abs=1e-6)
    assert first.logprobs == pytest.approx([-0.8, -0.1], abs=1e-6)
    assert [list(one) for one in first.top_logprobs] == [[1], [4]]
    assert second.token_ids == [1, 3] and second.logprobs == pytest.approx([-0.7, -1.0], abs=1e-6)
    assert second.top_logprobs[1] == {3: pytest.approx(-1.0, abs=1e-6)}


# ---- diverse groups, two of one beam each: a token that the first has just chosen costs the second `penalty`


def diverse(penalty, f, **settings):
    search = searching(num_beams=2, num_beam_groups=2, diversity_penalty=penalty, num_return_sequences=2, **settings)
    follow(search, f)
    return search.results()


def test_groups_avoid_each_others_tokens():
    rows = {(): {1: -0.7, 2: -0.9}, (1,): {3: -0.3, 4: -1.6}, (2,): {3: -0.4, 4: -1.2}}
    f = table(rows, 6)
    # First group: 1 3, -1.0. Second: 1 would cost -1.2, so 2; then 3 costs -.4 - .5, still less than 4.
    assert diverse(0.5, f, max_new_tokens=2) == [
        ([1, 3], pytest.approx(-1.0 / 2, abs=1e-6)), ([2, 3], pytest.approx((-0.9 - 0.9) / 2, abs=1e-6))
    ]  # fmt: skip
    # A penalty of 1: 4 for -1.2 instead of 3 for -1.4.
    assert diverse(1.0, f, max_new_tokens=2)[1] == ([2, 4], pytest.approx((-0.9 - 1.2) / 2, abs=1e-6))
    # A penalty of .1: the second group follows the first, and pays twice; one text is one result.
    assert diverse(0.1, f, max_new_tokens=2) == [([1, 3], pytest.approx(-1.0 / 2, abs=1e-6))]


def test_each_beam_of_an_earlier_group_counts():
    # Both beams of the first group choose 3: the second group pays .4 for it twice.
    rows = {(): {1: -0.7, 2: -0.9}, (1,): {3: -0.2}, (2,): {3: -0.2, 4: -1.8}}
    search = searching(num_beams=4, num_beam_groups=2, diversity_penalty=0.4, num_return_sequences=4, max_new_tokens=2,
                       length_penalty=0)  # fmt: skip
    live = follow(search, table(rows, 6), steps=1)
    # First group: 1 (-.7), 2 (-.9). Second: both at .4 more, or one of 3, 4, 5 at log((1 - .4966 - .4066) / 3) = -3.43
    assert live == [[1], [2], [1], [2]]
    follow(search := searching(num_beams=4, num_beam_groups=2, diversity_penalty=0.4, num_return_sequences=4,
                               max_new_tokens=2, length_penalty=0), table(rows, 6))  # fmt: skip
    # First: 1 3 (-.9), 2 3 (-1.1). Second: 1 3 (-1.1 - 1.0), 2 3 (-1.3 - 1.0), later dropped as the same texts.
    assert search.results() == [
        ([1, 3], pytest.approx(-0.9, abs=1e-6)), ([2, 3], pytest.approx(-1.1, abs=1e-6))
    ]  # fmt: skip


def test_a_group_that_is_done_leaves_the_others_alone():
    # The first group takes 1 and ends; the second, for whom 1 costs -2.5, goes on with 2, and later nothing costs more.
    rows = {(): {1: -0.5, 2: -1.2}, (1,): {END: -0.1}, (2,): {3: -0.2}, (2, 3): {1: -0.3}, (2, 3, 1): {END: -0.1}}
    found = diverse(2.0, table(rows, 6), max_new_tokens=6, early_stopping=True)
    assert found == [([1, END], pytest.approx(-0.3, abs=1e-6)), ([2, 3, 1, END], pytest.approx(-0.45, abs=1e-6))]


def test_one_group_is_a_beam_search():
    f = SHORT_AND_LONG
    search = searching(num_beams=4, num_return_sequences=4, max_new_tokens=6)
    follow(search, f)
    # The first group of two is that search of its own, whatever the second does.
    alone = searching(num_beams=2, num_return_sequences=2, max_new_tokens=6)
    follow(alone, f)
    both = searching(num_beams=4, num_beam_groups=2, diversity_penalty=50.0, num_return_sequences=4, max_new_tokens=6)
    follow(both, f)
    assert both.results()[:2] == alone.results()


# ---- many searches together


def random_rows(seed, n, vocab):
    return np.random.default_rng(seed).normal(0, 2, (n, vocab)).astype(np.float32)


MIXED = [
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 2, "length_penalty": 0.3, "early_stopping": True},
    {"num_beams": 3, "num_return_sequences": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7, "num_return_sequences": 6},
    {"num_beams": 3, "do_sample": True, "seed": 5, "top_k": 20},
    {"num_beams": 1, "logprobs": 2},
    {"num_beams": 5, "eos_token_id": [3, 4, 5], "num_return_sequences": 5},
]


def scripted(text, vocab):
    return random_rows(hash(tuple(text)) & 0xFFFFFFFF, 1, vocab)[0]


def run_together(settings, vocab, pool=None, shuffle=0):
    searches = [searching([1, 2, i], vocab=vocab, max_new_tokens=9, **one) for i, one in enumerate(settings)]
    texts = [[[1, 2, i]] for i in range(len(searches))]
    order = np.random.default_rng(shuffle)
    while going := [i for i, search in enumerate(searches) if not search.done]:
        flat = [(i, j) for i in going for j in range(len(texts[i]))]
        place = order.permutation(len(flat)).astype(np.int32)
        logits = np.empty((len(flat), vocab), np.float32)
        logits[place] = np.stack([scripted(texts[i][j], vocab) for i, j in flat])
        rows = [place[[flat.index((i, j)) for j in range(len(texts[i]))]] for i in going]
        for i, step in zip(going, advance_all([searches[i] for i in going], logits, rows, pool), strict=True):
            texts[i] = [texts[i][p] + [int(t)] for p, t in zip(step.parents, step.tokens, strict=True)]
    return [search.finished() for search in searches]


@pytest.mark.parametrize("vocab", [40, 700])
def test_a_search_does_not_depend_on_the_others(vocab):
    alone = [run_together([{}] * i + [one], vocab)[i] for i, one in enumerate(MIXED)]
    pool = _native.Pool(3)
    for shuffle in range(3):
        assert run_together(MIXED, vocab, pool, shuffle) == alone
    assert all(alone)


def test_one_that_fails_takes_nobody_with_it():
    searches = [searching(num_beams=2), searching(num_beams=2, suppress_tokens=list(range(6))),
                searching(num_beams=2), searching(num_beams=3, no_repeat_ngram_size=2)]  # fmt: skip
    logits = random_rows(1, 4, 6)
    logits[2, 4] = np.nan
    logits[3, 1] = np.inf
    steps = advance_all(searches, logits, [np.array([i], np.int32) for i in range(4)])
    assert len(steps[0].tokens) == 2
    assert isinstance(steps[1], ParameterError) and "No token is left" in str(steps[1])
    for broken in steps[2:]:
        assert type(broken) is ForwardpassError and "Logits must be finite" in str(broken)


def test_rows_are_checked():
    with pytest.raises(ParameterError, match="1 live beams got 2 rows"):
        searching(num_beams=2).advance(np.zeros((2, 6), np.float32))
    with pytest.raises(ParameterError, match="must have 6 values or more; got 5"):
        searching(num_beams=2).advance(np.zeros((1, 5), np.float32))
    with pytest.raises(ParameterError, match=r"float32 .* got float64"):
        searching(num_beams=2).advance(np.zeros((1, 6)))


def test_rows_beyond_the_vocabulary_count_in_the_sum_and_are_never_chosen():
    # Four tokens, two rows beyond: each has e^0 of a sum of 2 + 2 e.
    row = np.array([[0, 0, 1, 1, 9, 9]], np.float32)
    search = searching(vocab=4, num_beams=3, num_return_sequences=3, max_new_tokens=1)
    search.advance(row)
    total = math.log(2 + 2 * math.e + 2 * math.exp(9))
    assert search.results() == [
        ([2], pytest.approx(1 - total, abs=1e-6)), ([3], pytest.approx(1 - total, abs=1e-6)),
        ([0], pytest.approx(-total, abs=1e-6)),
    ]  # fmt: skip
    edited = searching(vocab=4, num_beams=3, num_return_sequences=3, max_new_tokens=1, suppress_tokens=[2])
    edited.advance(row)
    assert ids(edited) == [[3], [0], [1]]


def test_as_many_end_tokens_as_there_are_others():
    """Looking at the best few first changes nothing: half of 400 tokens end a text, and they are the likelier half."""
    vocab, ends = 400, tuple(range(200))
    row = np.linspace(3, -3, vocab).astype(np.float32)
    for settings in ({}, {"repetition_penalty": 1.0001}):  # read off the best sums, and from whole rows
        search = searching([399], vocab=vocab, ends=ends, num_beams=3, num_return_sequences=3, max_new_tokens=9,
                           early_stopping="never", length_penalty=5, **settings)  # fmt: skip
        assert follow(search, lambda text: row, [399], steps=1) == [[200], [201], [202]]
        assert sorted(search.finished(), key=lambda one: -one.score) == search.finished()
        assert ids(search) == [[0], [1], [2]]


def test_sampling_beams_draws_so_many_at_most():
    with pytest.raises(ParameterError, match="draws 4800 continuations a step; 4096 is the limit"):
        searching(vocab=2000, ends=tuple(range(1199)), num_beams=4, do_sample=True)
    searching(vocab=2000, ends=tuple(range(1199)), num_beams=4)
