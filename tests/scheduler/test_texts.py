"""Texts of an encoder: smaller priorities first, keys in turn and their callers in turn, a caller's own in order."""

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.scheduler.terms import Terms
from forwardpass.scheduler.texts import Text, TextQueues


def queue(name, *lengths):
    return deque(Text(np.zeros(n, np.int32), owner=name, index=i) for i, n in enumerate(lengths))


def step(queues, rows=None):
    """(owner, index) of what a step reads."""
    texts = queues.next(queues.rows if rows is None else rows)
    for text in texts:
        queues.done(text)
    return [(text.owner, text.index) for text in texts]


def all_steps(queues):
    steps = []
    while queues:
        steps.append(step(queues))
    return steps


def test_keys_get_the_same_however_many_callers_they_have():
    queues = TextQueues(60)
    for i in range(3):
        queues.add(queue(f"a{i}", *[10] * 8), Terms(key="a"))
    queues.add(queue("b", *[10] * 8), Terms(key="b"))
    for _ in range(2):
        names = [name for name, _ in step(queues)]
        assert names.count("b") == 3 and {name[0] for name in names} == {"a", "b"}
        assert {names.count(f"a{i}") for i in range(3)} == {1}
    assert len(all_steps(queues)) == 4


def test_smaller_priorities_are_read_first():
    queues = TextQueues(30)
    queues.add(queue("later", *[10] * 4), Terms(priority=3))
    queues.add(queue("first", *[10] * 4), Terms(priority=-1))
    queues.add(queue("then", *[10] * 2))
    assert queues.priority == -1
    assert all_steps(queues) == [[("first", 0), ("first", 1), ("first", 2)],
                                 [("first", 3), ("then", 0), ("then", 1)],
                                 [("later", 0), ("later", 1), ("later", 2)], [("later", 3)]]


def test_a_text_longer_than_a_step_is_read_alone_and_in_its_turn():
    queues = TextQueues(30)
    queues.add(queue("long", 100, 20), Terms(key="a"))
    queues.add(queue("short", *[10] * 9), Terms(key="b"))
    steps = all_steps(queues)
    assert [("long", 0)] in steps[:2] and [some for some in steps if ("long", 0) in some] == [[("long", 0)]]
    assert [index for some in steps for name, index in some if name == "long"] == [0, 1]


def test_fewer_rows_than_a_step_has():
    queues = TextQueues(60)
    queues.add(queue("a", 20, 20, 20, 20))
    assert [len(step(queues, rows)) for rows in (40, 1, None)] == [2, 1, 1] and not queues


def test_dropped_queues_are_not_read_and_dropping_twice_is_harmless():
    queues = TextQueues(60)
    gone, stays = queue("gone", 10, 10), queue("stays", 10)
    queues.add(gone), queues.add(stays)
    texts = queues.next(60)
    queues.drop(gone), queues.drop(gone)
    for text in texts:
        queues.done(text)  # the step was computed meanwhile
    assert not queues and not stays


LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=6)
CALLERS = st.lists(st.tuples(st.integers(-1, 1), st.sampled_from("abc"), LENGTHS), max_size=8)


@settings(max_examples=100, deadline=None)
@given(CALLERS, st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_everything_is_read_once_in_its_callers_order(callers, limits):
    queues, wanted, found = TextQueues(), [], {}
    for number, (priority, key, lengths) in enumerate(callers):
        queues.add(queue(number, *lengths), Terms(priority=priority, key=key))
        wanted += [(number, i) for i in range(len(lengths))]
    steps = 0
    while queues:
        limit = limits[steps % len(limits)]
        texts = queues.next(limit)
        assert len(texts) == 1 or sum(map(len, texts)) <= limit
        owners = [text.owner for text in texts]
        assert texts and owners == sorted(owners, key=owners.index)
        for text in texts:
            found.setdefault(text.owner, []).append(text.index)
            queues.done(text)
        steps += 1
    assert sorted((owner, i) for owner, all_of_it in found.items() for i in all_of_it) == sorted(wanted)
    assert all(indices == sorted(indices) for indices in found.values()) and not queues._keys
