"""Answers of the engine: alone, in a batch, again, in little room, and several to one prompt."""

import numpy as np
import pytest

from forwardpass.engine import Engine
from forwardpass.errors import CapacityError, ParameterError
from forwardpass.scheduler.terms import Terms
from script_lm import EOS, FACTS, Letters, ScriptLM, alone, idle, make, mixed, noisy, start, usable_with


def test_greedy_answer_is_what_the_script_says():
    engine = make()
    request = start(engine, [1, 2, 3])
    engine.run([request])
    (done,) = request.completions()
    text = [1, 2, 3]
    for _ in range(20):
        text.append(mixed(text))
    assert done.token_ids == text[3:] and done.finish_reason == "length" and done.prompt_token_ids == [1, 2, 3]
    assert done.text == Letters().decode(done.token_ids) and idle(engine)
    assert set(done.timings) == {"first_token", "total", "preprocess", "embed", "decode", "project", "postprocess"}
    assert 0 < done.timings["first_token"] <= done.timings["total"] and min(done.timings.values()) >= 0


def test_end_token_stops():
    engine = make(lambda text: EOS if len(text) == 6 else 7)
    request = start(engine)
    engine.run([request])
    (done,) = request.completions()
    assert (done.token_ids, done.finish_reason, done.text) == ([7, 7, 7, EOS], "stop", "777")


def test_many_requests_in_one_batch_equal_their_solo_runs():
    prompts = [[i, *range(3 * i)] for i in range(1, 12)]
    engine = make()
    requests = [start(engine, prompt, max_new_tokens=1 + i) for i, prompt in enumerate(prompts)]
    engine.run(requests)
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        assert [request.completions()[0].token_ids] == alone(prompt, max_new_tokens=1 + i)
    assert engine.steps < 30 and idle(engine)


def test_a_second_turn_is_computed_from_where_it_differs():
    engine = make()
    first = start(engine, range(60))
    engine.run([first])
    answer = first.completions()[0].token_ids
    second = start(engine, [*range(60), *answer, 1, 2])
    engine.run([second])
    assert second.sequences[0].reused == 79  # the last token of the answer was chosen, not computed
    assert [second.completions()[0].token_ids] == alone([*range(60), *answer, 1, 2])


def test_small_pool_preempts_and_changes_no_answer():
    engine = make(blocks=6)
    prompts = [[i] * (50 + i) for i in range(8)]
    requests = [start(engine, prompt, max_new_tokens=100) for prompt in prompts]
    engine.run(requests)
    assert engine.scheduler.preemptions > 0
    for prompt, request in zip(prompts, requests, strict=True):
        assert [request.completions()[0].token_ids] == alone(prompt, max_new_tokens=100)
    assert idle(engine)


# ---- several answers to a prompt


@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_choices_share_the_prompt_and_equal_their_own_runs(length):
    engine = make(noisy)
    request = start(engine, [3] * length, num_return_sequences=5, do_sample=True, seed=7)
    engine.run([request])
    choices = [one.token_ids for one in request.completions()]
    assert choices[0] == alone([3] * length, noisy, do_sample=True, seed=7)[0]
    assert choices == alone([3] * length, noisy, do_sample=True, seed=7, num_return_sequences=5)
    assert len(set(map(tuple, choices))) == 5 and idle(engine)
    assert [one.choice_index for one in request.completions()] == [0, 1, 2, 3, 4]


def test_choices_in_a_pool_too_small_for_all_of_them():
    given = dict(num_return_sequences=6, do_sample=True, seed=1, max_new_tokens=70)
    engine = make(noisy, blocks=4)
    request = start(engine, [4] * 70, **given)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == alone([4] * 70, noisy, **given) and idle(engine)


def test_all_choices_end_with_the_first_token():
    engine = make(lambda text: EOS)
    request = start(engine, num_return_sequences=3)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == [[EOS]] * 3 and idle(engine)


def test_a_processor_that_fails_in_one_choice_ends_its_request_only():
    """Both choices are in the same step when the first one fails."""
    calls = []

    def processor(ids, row):
        calls.append(ids)
        if len(calls) == 5:
            raise RuntimeError("five")
        return row

    engine = make(noisy)
    bad = start(engine, num_return_sequences=3, do_sample=True, seed=1, logits_processors=[processor])
    good = start(engine, [9, 9])
    engine.run([good])
    with pytest.raises(ParameterError, match="five"):
        engine.run([bad])
    assert [good.completions()[0].token_ids] == alone([9, 9], noisy) and usable_with(engine, noisy)


# ---- room


def test_capacity():
    engine = make(blocks=2)
    fits = start(engine, [1] * 100, max_new_tokens=29)  # the last token needs no position
    engine.run([fits])
    with pytest.raises(CapacityError, match=r"129 positions.*128"):
        start(engine, [1] * 100, max_new_tokens=30)
    with pytest.raises(CapacityError, match=r"129 positions.*128"):
        engine.forward([1] * 129, lambda first, rows: None)
    assert idle(engine)


def test_less_memory_than_hoped_for():
    class Small(ScriptLM):
        def kv_memory(self, blocks):
            if max(blocks) > 10:
                raise MemoryError
            return super().kv_memory(blocks)

    assert 5 <= Engine(Small(mixed), FACTS, Letters(), 1000).cache.room(10**6) // 64 <= 10


def test_forward_takes_room_from_running_requests_and_gives_it_back():
    engine = make(noisy, blocks=3)
    request = start(engine, [1] * 100)
    engine.step()
    rows = {}
    engine.forward([2] * 150, lambda first, values: rows.update({first + i: row for i, row in enumerate(values)}))
    assert sorted(rows) == list(range(150))
    assert all(np.array_equal(rows[i], noisy([2] * (i + 1))) for i in range(150))
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([1] * 100, noisy) and idle(engine)


# ---- a model without tokenizer


def test_without_a_tokenizer_there_are_ids_and_no_text():
    engine = Engine(ScriptLM(mixed), FACTS, None, 10)
    request = start(engine)
    engine.run([request])
    assert request.completions()[0].text == "" and request.completions()[0].token_ids == alone([1, 2, 3])[0]
    with pytest.raises(ParameterError, match="tokenizer"):
        start(engine, stop=["x"])


def test_requests_that_come_together_share_their_beginning():
    engine = make()
    system = [i % 60 for i in range(700)]
    requests = [start(engine, [*system, i]) for i in range(6)]
    engine.run(requests)
    assert requests[0].cached == 0 and requests[-1].cached >= 640
    assert sum(step.positions for step in engine.last) < 10 and engine.stats().rows < 3 * 700
    for i, request in enumerate(requests):
        assert [request.completions()[0].token_ids] == alone([*system, i])
    assert idle(engine)


def test_another_salt_finds_nothing_and_gets_the_same():
    engine = make()
    (answer,), (follow,) = alone(range(60)), alone([*range(60), 5])
    short, longer = list(range(60)), [*range(60), 5]
    for salt, text, cached, expected in (("", short, 0, answer), ("a", short, 0, answer), ("b", longer, 0, follow),
                                         ("a", longer, 60, follow), ("", short, 59, answer)):
        with Terms(salt=salt):
            request = start(engine, text)
        engine.run([request])
        assert (request.cached, request.completions()[0].token_ids) == (cached, expected)
    assert idle(engine)
