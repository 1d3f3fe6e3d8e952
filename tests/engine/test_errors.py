"""Errors stay with the request that has them, and are raised where it is waited for."""

import numpy as np
import pytest

from forwardpass.errors import ForwardpassError, ParameterError
from forwardpass.tasks.stream import Stream
from script_lm import VOCAB, alone, idle, make, start, usable


@pytest.mark.parametrize("when", [1, 4])
def test_a_logits_processor_that_raises_harms_nobody_else(when):
    def processor(ids, row):
        if len(ids) == 3 + when - 1:
            raise ZeroDivisionError("mine")
        return row

    engine = make()
    requests = [start(engine, [i]) for i in range(4)]
    bad = start(engine, [1, 2, 3], logits_processors=[processor])
    with pytest.raises(ParameterError, match="ZeroDivisionError: mine"):
        engine.run([bad])
    engine.run(requests)
    assert [r.completions()[0].token_ids for r in requests] == [alone([i])[0] for i in range(4)]
    assert usable(engine)


def test_a_generate_that_fails_cancels_its_other_prompts():
    def processor(ids, row):
        raise ZeroDivisionError("mine")

    engine = make()
    requests = [start(engine, [1], max_new_tokens=1000), start(engine, [2], logits_processors=[processor])]
    with pytest.raises(ParameterError, match="mine"):
        engine.run(requests)
    assert engine.steps < 5 and requests[0].done and usable(engine)


def test_bad_logits_are_an_error_of_their_request():
    engine = make(lambda text: np.full(VOCAB, np.nan, np.float32) if text[0] == 1 else 2)
    bad, good = start(engine, [1]), start(engine, [2])
    with pytest.raises(ForwardpassError, match="finite"):
        engine.run([bad])
    engine.run([good])
    assert good.completions()[0].token_ids == [2] * 20 and idle(engine)


def test_a_network_that_raises_is_an_error_for_all_in_the_step_and_none_after():
    engine = make()
    requests = [start(engine, [1]), start(engine, [2])]
    for _ in range(3):
        engine.step()
    engine.network.before = explode
    engine.step()
    engine.network.before = lambda: None
    for request in requests:
        with pytest.raises(RuntimeError, match="kernel"):
            engine.run([request])
    assert usable(engine)


def explode():
    raise RuntimeError("kernel")


def test_an_error_is_raised_where_it_is_waited_for():
    """Whoever happens to compute the step that fails does not get an error that is not theirs."""
    engine = make(lambda text: np.full(VOCAB, np.inf, np.float32) if len(text) > 5 and text[0] == 1 else 2)
    bad, good = Stream(engine, start(engine, [1])), Stream(engine, start(engine, [2]))
    assert len(list(good)) == 20
    with pytest.raises(ForwardpassError, match="finite"):
        list(bad)
    assert idle(engine)


def test_a_model_cannot_be_used_from_inside_its_own_step():
    engine = make()

    def processor(ids, row):
        engine.run([start(engine, [9])])
        return row

    with pytest.raises(ParameterError, match="in the middle of a step"):
        engine.run([start(engine, logits_processors=[processor])])
    assert usable(engine)
