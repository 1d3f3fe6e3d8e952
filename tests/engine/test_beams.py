"""Beam search through the engine: what the search finds over rows computed one by one, in any company."""

import threading

import numpy as np
import pytest

from forwardpass.decoding.beams import BeamSearch
from forwardpass.engine import Engine
from forwardpass.errors import CapacityError, ForwardpassError, ParameterError
from forwardpass.tasks.stream import Stream
from script_lm import END, EOS, FACTS, VOCAB, Letters, ScriptLM, alone, idle, make, noisy, params, start

GIVEN = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 30}
SOURCES = [None, [9] * 70]
sources = pytest.mark.parametrize("source", SOURCES, ids=["decoder", "pair"])


def ending(text):
    """Rows in which the end comes into question now and then."""
    row = noisy(text)
    row[EOS] += 1.5
    return row


def searched(prompt, source=None, f=ending, **given):
    """(tokens, score) of each answer, from rows that are computed without an engine."""
    search = BeamSearch(params(**given), FACTS, prompt, source_ids=source, decode=Letters().decode)
    texts = [list(prompt)]
    while not search.done:
        step = search.advance(np.stack([f([*source, END, *text] if source else text) for text in texts]))
        texts = [[*texts[p], t] for p, t in zip(step.parents.tolist(), step.tokens.tolist(), strict=True)]
    return search.results()


def answers(request):
    return [(done.token_ids, done.score) for done in request.completions()]


@sources
@pytest.mark.parametrize("given", [
    {}, {"num_beams": 2, "num_return_sequences": 1}, {"early_stopping": True}, {"early_stopping": "never"},
    {"length_penalty": 0.0}, {"no_repeat_ngram_size": 2}, {"num_beam_groups": 3, "diversity_penalty": 0.7},
    {"do_sample": True, "seed": 5}, {"max_new_tokens": 1}, {"repetition_penalty": 1.3, "min_new_tokens": 9},
    {"num_beams": 12, "max_new_tokens": 100}, {"stop": "ab"}, {"logprobs": 2},
], ids=str)
def test_the_engine_finds_what_the_search_finds(source, given):
    engine = make(ending, pair=source is not None)
    request = start(engine, [1, 2, 3], source, **GIVEN | given)
    engine.run([request])
    assert answers(request) == searched([1, 2, 3], source, **GIVEN | given) and idle(engine)
    found = request.completions()
    assert [one.choice_index for one in found] == list(range(len(found)))
    assert all(one.prompt_token_ids == (source or [1, 2, 3]) for one in found)
    for one in found:
        ended = one.token_ids[-1] == EOS or ("stop" in given and len(one.token_ids) < 30)
        assert one.finish_reason == ("stop" if ended else "length")
        text = Letters().decode([t for t in one.token_ids if t != EOS])
        assert one.text == (text if "stop" not in given else text.partition("ab")[0])
        assert (one.logprobs is not None) == ("logprobs" in given)


def test_log_probabilities_of_what_was_found():
    engine = make(ending)
    request = start(engine, [1, 2], num_beams=3, logprobs=2, max_new_tokens=8, no_repeat_ngram_size=2)
    engine.run([request])
    (done,) = request.completions()
    for i, (value, top) in enumerate(zip(done.logprobs, done.top_logprobs, strict=True)):
        row = ending([1, 2, *done.token_ids[:i]]).astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert value == pytest.approx(expected[done.token_ids[i]], abs=1e-5)
        assert list(top) == np.argsort(-row)[:2].tolist()


@sources
@pytest.mark.parametrize("blocks", [400, 9])
def test_a_batch_gives_what_each_gives_alone(source, blocks):
    """Several searches, sampled and greedy requests together; also where blocks are short and beams start over."""
    engine = make(ending, blocks=blocks if source is None else blocks // 2 + 1, pair=source is not None)
    kinds = [GIVEN, GIVEN | {"num_beams": 4}, {"num_beams": 2, "do_sample": True, "seed": 2}, {},
             {"do_sample": True, "seed": 1, "num_return_sequences": 2}, GIVEN | {"length_penalty": 2.0}]
    prompts = [([i] * (17 * i + 1), source and [i] * (11 * i + 20)) for i in range(len(kinds))]
    requests = [start(engine, *texts, **given | {"max_new_tokens": 40})
                for texts, given in zip(prompts, kinds, strict=True)]
    engine.run(requests)
    assert (engine.scheduler.preemptions > 0) == (blocks == 9 and source is None)
    for (prompt, own), given, request in zip(prompts, kinds, requests, strict=True):
        if "num_beams" in given:
            assert answers(request) == searched(prompt, own, **given | {"max_new_tokens": 40})
        else:
            assert [one for one, _ in answers(request)] == alone(prompt, ending, own, **given | {"max_new_tokens": 40})
    assert idle(engine)


@sources
def test_a_search_that_just_fits_goes_on_whatever_else_wants_room(source):
    """Six searches in room for two: beams are sent back again and again, and all come to an end."""
    engine = make(noisy, blocks=8, pair=source is not None)
    given = {"num_beams": 3, "max_new_tokens": 90}
    requests = [start(engine, [i] * 30, source and [i] * 70, **given) for i in range(6)]
    engine.run(requests)
    assert engine.scheduler.preemptions > 3 and idle(engine)
    for i, request in enumerate(requests):
        assert answers(request) == searched([i] * 30, source and [i] * 70, noisy, **given)


def test_the_prompt_is_computed_once_and_a_source_too():
    engine = make(noisy, pair=True)
    request = start(engine, range(40), [5] * 100, num_beams=4, max_new_tokens=20)
    steps = []
    while not request.done:
        engine.step()
        steps += engine.last
    assert engine.network.encoder.read == [[100]]
    assert steps[0].rows == [(40, 0)] and all(step.rows == [(1, 40 + i)] * 4 for i, step in enumerate(steps[1:]))


def test_beams_share_the_blocks_of_what_they_have_in_common():
    engine = make(noisy)
    request = start(engine, range(60), num_beams=4, max_new_tokens=200)
    most = 0
    while not request.done:
        engine.step()
        most = max(most, (engine.cache.size - engine.cache.free) // 10)
    assert most <= 4 + 3 * 4  # a text of 259 tokens has 5 blocks: four beams without sharing had 20
    assert idle(engine)


@sources
def test_the_next_request_finds_a_searched_prompt_in_the_cache(source):
    engine = make(noisy, pair=source is not None)
    first = start(engine, range(50), source, num_beams=4, max_new_tokens=20)
    engine.run([first])
    again = start(engine, range(50), source, num_beams=4, max_new_tokens=20)
    engine.step()
    assert again.sequences[0].reused == (49 if source is None else 0)
    engine.run([again])
    assert answers(again) == answers(first) and idle(engine)


def test_fewer_continuations_than_beams():
    """Four tokens and five beams: no crash, distinct answers, fewer of them than asked for."""
    facts = type(FACTS)(4, end_ids=(3,))
    engine = Engine(ScriptLM(ending), facts, Letters(), 50)
    request = start(engine, [1], num_beams=5, num_return_sequences=5, max_new_tokens=1)
    engine.run([request])
    found = answers(request)
    assert sorted(tokens for tokens, _ in found) == [[0], [1], [2], [3]] and idle(engine)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


# ---- in pieces


def test_all_pieces_of_a_search_come_at_its_end():
    engine = make(ending)
    stream = Stream(engine, start(engine, [1, 2], num_beams=3, max_new_tokens=9))
    pieces = list(stream)
    assert [piece.token_id for piece in pieces] == searched([1, 2], num_beams=3, max_new_tokens=9)[0][0]
    assert "".join(piece.text for piece in pieces) == stream.completion.text


# ---- leaving


@sources
@pytest.mark.parametrize("steps", [0, 1, 2, 9])
@pytest.mark.parametrize("how", ["cancel", "close", "model", "processor"])
def test_whoever_leaves_gives_blocks_back_and_harms_nobody(source, steps, how):
    engine = make(noisy, pair=source is not None)
    failing = []

    def processor(ids, row):
        if failing:
            raise ZeroDivisionError("mine")
        return row

    other = start(engine, [2], source, num_beams=2)
    request = start(engine, [1], source, num_beams=4, logits_processors=[processor])
    for _ in range(steps):
        engine.step()
    if how == "cancel":
        engine.cancel(request)
        assert [one.finish_reason for one in request.completions()] == ["cancelled"]
    elif how == "close":
        engine.close()
    elif how == "model":
        engine.network.before = explode
        engine.step()
        engine.network.before = lambda: None
        with pytest.raises(RuntimeError, match="kernel"):
            engine.run([request])
    else:
        failing.append(True)
        engine.step()
        with pytest.raises(ParameterError, match="ZeroDivisionError: mine"):
            engine.run([request])
    assert request.done
    if how not in ("close", "model"):
        engine.run([other])
        assert answers(other) == searched([2], source, noisy, num_beams=2, max_new_tokens=20)
    assert idle(engine)


def explode():
    raise RuntimeError("kernel")


def test_logits_that_are_no_numbers_are_an_error_of_their_request():
    engine = make(lambda text: np.full(VOCAB, np.nan, np.float32) if text[0] == 1 and len(text) > 4 else noisy(text))
    bad, good = (start(engine, [i, 0], num_beams=3) for i in (1, 2))
    with pytest.raises(ForwardpassError, match="finite"):
        engine.run([bad])
    engine.run([good])
    assert answers(good) == searched([2, 0], None, noisy, num_beams=3, max_new_tokens=20) and idle(engine)


def test_neighbours_that_are_cancelled_change_nothing():
    rng = np.random.default_rng(3)
    solo = {n: searched([n] * 20, None, ending, num_beams=3, max_new_tokens=3 * n) for n in range(1, 9)}
    engine = make(ending, blocks=20)
    for _ in range(12):
        requests = {int(n): start(engine, [int(n)] * 20, num_beams=3, max_new_tokens=3 * int(n))
                    for n in rng.permutation(8) + 1}
        for n in rng.permutation(8)[:4] + 1:
            for _ in range(rng.integers(4)):
                engine.step()
            engine.cancel(requests[int(n)])
        engine.run(list(requests.values()))
        for n, request in requests.items():
            assert request.completions()[0].finish_reason == "cancelled" or answers(request) == solo[n]
    assert idle(engine)


@pytest.mark.parametrize("where", ["step", "processor"])
def test_an_interrupt(where):
    engine, interrupting = make(noisy), []

    def interrupt(*args):
        if interrupting:
            raise KeyboardInterrupt
        return args[-1] if args else None

    mine = start(engine, [1], num_beams=3, logits_processors=[interrupt])
    other, plain = start(engine, [2], num_beams=3), start(engine, [3])
    for _ in range(3):
        engine.step()
    interrupting.append(True)
    engine.network.before = interrupt if where == "step" else lambda: None
    with pytest.raises(KeyboardInterrupt):
        engine.run([mine])
    interrupting.clear()
    if where == "step":
        engine.run([other])
        assert answers(other) == searched([2], None, noisy, num_beams=3, max_new_tokens=20)
    else:  # it was in the middle of the search's own bookkeeping
        with pytest.raises(ForwardpassError, match="interrupted"):
            engine.run([other])
    engine.run([plain])
    assert [plain.completions()[0].token_ids] == alone([3], noisy) and mine.done and idle(engine)


def test_several_threads_search_and_sample():
    engine = make(ending, blocks=30)
    found = {}

    def ask(i):
        request = start(engine, [i] * (20 * i + 1), num_beams=1 + i % 3, max_new_tokens=25)
        engine.run([request])
        found[i] = answers(request)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i in range(8):
        given = {"num_beams": 1 + i % 3, "max_new_tokens": 25}
        if i % 3:
            assert found[i] == searched([i] * (20 * i + 1), **given)
        else:
            assert [tokens for tokens, _ in found[i]] == alone([i] * (20 * i + 1), ending, max_new_tokens=25)
    assert idle(engine)


# ---- room


def test_capacity_counts_every_beam_and_the_source():
    engine = make(noisy, blocks=6)
    fits = start(engine, [1] * 100, num_beams=3, max_new_tokens=29)
    engine.run([fits])
    assert answers(fits) == searched([1] * 100, None, noisy, num_beams=3, max_new_tokens=29)
    with pytest.raises(CapacityError, match=r"129 positions.* for each of 3 beams.*room for 128.*num_beams"):
        start(engine, [1] * 100, num_beams=3, max_new_tokens=30)
    paired = make(noisy, blocks=4, pair=True)
    with pytest.raises(CapacityError, match=r"129 positions.*3 beams beside its source of 130 tokens.*room for 64"):
        start(paired, [1] * 100, [1] * 130, num_beams=3, max_new_tokens=30)
    assert idle(engine) and idle(paired)


def test_stop_strings_need_a_tokenizer():
    engine = Engine(ScriptLM(noisy), FACTS, None, 10)
    with pytest.raises(ParameterError, match="tokenizer"):
        start(engine, num_beams=2, stop="x")
    request = start(engine, [1], num_beams=2, max_new_tokens=5)
    engine.run([request])
    assert answers(request) == searched([1], None, noisy, num_beams=2, max_new_tokens=5)
