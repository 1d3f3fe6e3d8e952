"""Running ahead: several greedy steps in one call, with the tokens of single steps."""

import numpy as np
import pytest

from forwardpass.engine import Step
from forwardpass.errors import ForwardpassError
from script_lm import EOS, VOCAB, idle, make, mixed, start

AHEAD = 1.0


def ahead_and_alone(prompts, f=mixed, blocks=100, **given):
    """Token ids and finish reasons of prompts run together, running ahead and step by step."""
    out = []
    for seconds in (AHEAD, 0.0):
        engine = make(f, blocks, seconds)
        requests = [start(engine, prompt, **given) for prompt in prompts]
        engine.run(requests)
        out.append([(done.token_ids, done.finish_reason) for request in requests for done in request.completions()])
        assert idle(engine)
    return out


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("new", [1, 2, 17, 70])
def test_running_ahead_changes_no_token(count, new):
    ahead, alone_ = ahead_and_alone([[i + 1, 2] for i in range(count)], max_new_tokens=new)
    assert ahead == alone_
    assert all(len(ids) == new for ids, _ in ahead)


def test_running_ahead_takes_several_steps_in_one_call():
    engine = make(ahead=AHEAD)
    request = start(engine, max_new_tokens=40)
    calls = 0
    while not request.done:
        engine.step()
        calls += 1
    assert engine.steps == 40 and calls < 10
    assert engine.last[-1] == Step([(1, 3 + 40 - 2)], 1, [], [])


@pytest.mark.parametrize("length", range(1, 12))
def test_an_end_token_in_the_middle_of_running_ahead(length):
    def ending(text):
        return EOS if len(text) == 3 + length else mixed(text)

    ahead, alone_ = ahead_and_alone([[1, 2, 3], [4, 5, 6, 7]], ending)
    assert ahead == alone_
    assert len(ahead[0][0]) == length + 1 and ahead[0][1] == "stop"


def test_a_stop_string_in_the_middle_of_running_ahead():
    engine = make()
    whole = start(engine, max_new_tokens=30)
    engine.run([whole])
    stop = whole.completions()[0].text[9:11]
    ahead, alone_ = ahead_and_alone([[1, 2, 3], [7]], max_new_tokens=30, stop=stop)
    assert ahead == alone_ and ahead[0][1] == "stop"


def test_running_ahead_with_few_blocks():
    ahead, alone_ = ahead_and_alone([[1] * 60, [2] * 60, [3] * 50], blocks=4, max_new_tokens=50)
    assert ahead == alone_


def test_requests_that_need_more_than_the_likeliest_token_are_not_run_ahead():
    for given in ({"do_sample": True, "seed": 1}, {"repetition_penalty": 1.2}, {"logprobs": 0}, {"min_new_tokens": 5}):
        engine = make(ahead=AHEAD)
        request = start(engine, max_new_tokens=12, **given)
        while not request.done:
            engine.step()
            assert len(engine.last) == 1


def test_logits_that_are_no_numbers_while_running_ahead():
    def broken(text):
        return np.full(VOCAB, np.nan, np.float32) if len(text) == 9 else mixed(text)

    engine = make(broken, ahead=AHEAD)
    request = start(engine)
    with pytest.raises(ForwardpassError, match="finite"):
        engine.run([request])
    assert len(request.choices[0].token_ids) == 6 and idle(engine)
