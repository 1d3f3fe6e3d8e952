"""Which pictures a step advances: by priority, then fairly over the keys, then by arrival."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.models.denoiser import Condition
from forwardpass.scheduler.pictures import DECODE, DENOISE, ENCODE, READ, Picture, PictureScheduler, Prompt
from forwardpass.scheduler.terms import Terms
from script_pictures import ScriptTrajectory


def picture(rows=10, steps=3, tokens=0, image=None):
    """tokens: of its prompt, 0 = its condition is known."""
    prompt = Prompt(np.zeros(tokens, np.int32)) if tokens else Prompt(condition=Condition())
    return Picture((2, 2), rows, (prompt,), trajectory=ScriptTrajectory(steps), image=image)


def queue(scheduler, *pictures, priority=0, key=""):
    for one in pictures:
        scheduler.add(one, Terms(priority=priority, key=key))
    return pictures


def step(scheduler, within=None):
    """Do what is planned; its kind and pictures."""
    plan = scheduler.plan(within)
    if plan is None:
        return None, []
    for one in plan.prompts:
        one.condition = Condition()
    for one in plan.pictures:
        if plan.kind == ENCODE:
            one.image = None
        elif plan.kind == DENOISE:
            one.step += 1
        elif plan.kind == DECODE:
            scheduler.drop(one)
    return plan.kind, plan.pictures


def test_in_order_of_arrival_and_until_the_rows_are_spent():
    scheduler = PictureScheduler(step_rows=25)
    a, b, c = queue(scheduler, picture(), picture(), picture())
    assert step(scheduler) == (DENOISE, [a, b])
    for _ in range(2):
        step(scheduler)
    assert step(scheduler) == (DECODE, [a]) and step(scheduler) == (DECODE, [b])
    assert [step(scheduler) for _ in range(5)] == [(DENOISE, [c])] * 3 + [(DECODE, [c]), (None, [])]


def test_the_first_is_advanced_however_large_and_smaller_ones_fill_up():
    scheduler = PictureScheduler(step_rows=25)
    large, small, larger, last = queue(scheduler, picture(20), picture(5), picture(300), picture(4))
    assert step(scheduler) == (DENOISE, [large, small])
    scheduler.drop(large)
    assert step(scheduler) == (DENOISE, [small, last])
    scheduler.drop(small)
    assert step(scheduler) == (DENOISE, [larger])


def test_keys_take_turns_and_a_key_alone_has_all():
    scheduler = PictureScheduler(step_rows=20)
    mine = queue(scheduler, *[picture(steps=1) for _ in range(6)], key="a")
    yours = queue(scheduler, *[picture(steps=1) for _ in range(2)], key="b")
    order = []
    while scheduler.pictures:
        kind, pictures = step(scheduler)
        order += pictures if kind == DENOISE else []
    assert order == [mine[0], yours[0], mine[1], yours[1], *mine[2:]]


def test_smaller_priorities_first_even_before_those_that_have_begun():
    scheduler = PictureScheduler(step_rows=10)
    (slow,) = queue(scheduler, picture(steps=9))
    step(scheduler)
    (urgent,) = queue(scheduler, picture(steps=2, tokens=3), priority=-1)
    assert [step(scheduler) for _ in range(4)] == [(READ, [urgent]), (DENOISE, [urgent]), (DENOISE, [urgent]),
                                                   (DECODE, [urgent])]
    assert step(scheduler) == (DENOISE, [slow])


def test_what_comes_joins_those_that_are_being_drawn():
    scheduler = PictureScheduler(step_rows=30)
    (first,) = queue(scheduler, picture(steps=5))
    step(scheduler)
    read, begun = queue(scheduler, picture(steps=5, tokens=7), picture(steps=5, image=np.zeros((2, 2, 1))))
    assert [step(scheduler) for _ in range(3)] == [(READ, [read]), (ENCODE, [begun]), (DENOISE, [first, read, begun])]


def test_what_less_urgent_ones_need_beside_steps_waits():
    """They fill up passes, but nobody urgent waits until their prompts are read or their pictures decoded."""
    scheduler = PictureScheduler(step_rows=30)
    (urgent,) = queue(scheduler, picture(steps=2))
    done, unread, ready = queue(scheduler, picture(steps=1), picture(tokens=5), picture(5), priority=3)
    done.step = 1
    assert [step(scheduler) for _ in range(3)] == [(DENOISE, [urgent, ready]), (DENOISE, [urgent, ready]),
                                                   (DECODE, [urgent])]
    assert step(scheduler) == (READ, [unread]) and step(scheduler) == (DECODE, [done])
    assert step(scheduler) == (DENOISE, [unread, ready])


def test_prompts_up_to_the_rows_of_a_step_and_shared_ones_once():
    scheduler = PictureScheduler(step_rows=100, text_rows=12)
    shared = Prompt(np.zeros(7, np.int32))
    a, b, c = picture(), picture(), picture(tokens=8)
    a.prompts = b.prompts = (shared, shared)
    queue(scheduler, a, b, c)
    plan = scheduler.plan()
    assert (plan.kind, plan.pictures, plan.prompts, plan.rows) == (READ, [a, b], [shared], 7)
    step(scheduler)
    assert step(scheduler) == (READ, [c])


def test_steps_take_no_longer_than_they_should():
    scheduler = PictureScheduler(step_rows=1000)
    pictures = queue(scheduler, *[picture(100, steps=9) for _ in range(9)])
    assert len(step(scheduler, within=0.05)[1]) == 9  # nothing is known yet
    scheduler.pace.note_texts(100, 0.02)
    assert step(scheduler, within=0.05) == (DENOISE, list(pictures[:2]))
    assert step(scheduler, within=1e-6) == (DENOISE, [pictures[0]])
    scheduler.pace.note_texts(100, 3.0)
    scheduler.pace.note_texts(100, 3.0)
    assert step(scheduler, within=None) == (DENOISE, [pictures[0]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(0, 9), st.integers(-1, 2),
                          st.sampled_from("abc")), min_size=1, max_size=12), st.integers(1, 80))
def test_everybody_is_drawn_and_no_step_is_too_large(wanted, step_rows):
    scheduler = PictureScheduler(step_rows=step_rows, text_rows=10)
    for rows, steps, tokens, priority, key in wanted:
        queue(scheduler, picture(rows, steps, tokens), priority=priority, key=key)
    pictures = list(scheduler.pictures)
    for _ in range(sum(steps + 2 for _, steps, *_ in wanted)):
        before = [one.step for one in pictures]
        kind, chosen = step(scheduler)
        if kind == DENOISE:
            assert len(chosen) == 1 or sum(one.rows for one in chosen) <= step_rows
            assert [one.step - old for one, old in zip(pictures, before, strict=True)] == [
                one in chosen for one in pictures]
    assert not scheduler.pictures and scheduler.plan() is None
    assert all(one.step == one.steps for one in pictures)
