"""Engines that share the memory of their caches: each answer is that of its request alone, and nothing stays behind."""

import pytest

from driver_tools import answers, driven, until
from forwardpass.errors import CapacityError, ParameterError
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.scheduler.terms import Terms
from script_lm import alone, idle, make, mixed, start

KINDS = [{}, {"windows": (40, 0)}, {"pair": True}]


def three(blocks):
    """A model, one with windows and an encoder-decoder, all with blocks of 10 bytes."""
    budget = SharedBudget(10 * blocks)
    return [make(mixed, budget=budget, **kind) for kind in KINDS], budget


def wish(i, number):
    """(prompt, source, parameters) of a request to engine i."""
    prompt = [number % 5] * (3 + 17 * number % 110)
    source = [number % 7 + 1] * (5 + 11 * number % 60) if KINDS[i].get("pair") else None
    return (prompt[:20] if source else prompt), source, {"max_new_tokens": 5 + 13 * number % 60}


@pytest.mark.parametrize("blocks", [300, 14, 9])
def test_answers_are_those_of_each_alone(blocks):
    engines, budget = three(blocks)
    with driven(*engines):
        asked = []
        for number in range(24):
            i = number % 3
            prompt, source, given = wish(i, number)
            with Terms(key="ab"[number % 2], priority=number % 3 // 2):
                asked.append((i, prompt, source, given, start(engines[i], prompt, source, **given)))
        for i, prompt, source, given, request in asked:
            engines[i].run([request])
            assert [request.completions()[0].token_ids] == alone(prompt, mixed, source, **given), (i, prompt)
        assert all(idle(engine) for engine in engines) and budget.held == 0


def test_beams_of_all_models_come_to_an_end():
    """In room for the beams of one search of each, when they start, and not for what they grow to."""
    engines, budget = three(18)
    engines = engines[:2]
    given = {"num_beams": 3, "max_new_tokens": 90}
    expected = []
    for kind in KINDS[:2]:
        engine = make(mixed, blocks=300, **kind)
        request = start(engine, [4] * 40, **given)
        engine.run([request])
        expected.append(answers(request))
    with driven(*engines):
        requests = [(engine, start(engine, [4] * 40, **given)) for engine in engines for _ in range(3)]
        for engine, request in requests:
            engine.run([request])
        assert [answers(request) for _, request in requests] == [one for one in expected for _ in range(3)]
        assert all(idle(engine) for engine in engines) and budget.held == 0


def test_a_second_turn_is_found_until_another_model_needs_the_room():
    engines, _ = three(14)
    with driven(*engines):
        engines[0].run([start(engines[0], range(60))])
        second = start(engines[0], [*range(60), 7, 8])
        engines[0].run([second])
        assert second.cached == 60
        large = start(engines[1], [3] * 420)  # all the blocks there are, in its two groups
        engines[1].run([large])
        again = start(engines[0], [*range(60), 7, 8])
        engines[0].run([again])
        assert again.cached == 0 and engines[0].stats().kv_dropped > 0
        assert [one.completions()[0].token_ids for one in (second, again)] == [alone([*range(60), 7, 8])[0]] * 2


def test_an_urgent_request_does_not_wait_for_another_models_long_ones():
    engines, _ = three(8)
    with driven(*engines):
        with Terms(priority=3):
            long = [start(engines[0], [i] * 60, max_new_tokens=400) for i in range(3)]
        until(lambda: sum(bool(one.pieces) for one in long) >= 2)
        with Terms(priority=0):
            urgent = start(engines[1], [9] * 200, max_new_tokens=10)
        engines[1].run([urgent])
        assert not all(one.done for one in long) and engines[0].scheduler.preemptions > 0
        for i, one in enumerate(long):
            engines[0].run([one])
            assert [one.completions()[0].token_ids] == alone([i] * 60, max_new_tokens=400)


def test_what_a_closed_model_held_is_room_for_the_others():
    engines, budget = three(8)
    with driven(*engines):
        start(engines[0], [1] * 300, max_new_tokens=200)
        until(lambda: engines[0].scheduler.running)
        waiting = start(engines[1], [2] * 200, max_new_tokens=30)
        engines[0].close()
        engines[1].run([waiting])
        assert [waiting.completions()[0].token_ids] == alone([2] * 200, max_new_tokens=30) and idle(engines[1])
        assert budget.held == 0 and engines[0].stats().kv_held == 0


def test_engines_that_share_need_a_driver():
    """Whoever computed for one of them would wait for what only somebody else can give back."""
    engines, _ = three(8)
    with pytest.raises(ParameterError, match="attach them all to one Driver"):
        start(engines[0], [1])
    with driven(*engines):
        engines[0].run([start(engines[0], [1])])


def test_what_never_fits_is_refused():
    engines, _ = three(8)
    with driven(*engines), pytest.raises(CapacityError, match=r"513 positions.*512"):
        start(engines[0], [1] * 500, max_new_tokens=14)
