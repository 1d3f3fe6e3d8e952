"""Steps that take no longer than they should: chunks follow from what was measured, and something is always done."""

import pytest

from forwardpass.scheduler.pace import LEAST_ROWS, Pace
from scheduler_bench import Bench

STEP, ROW, SEEN, TEXT_ROW = 4e-3, 2e-4, 1e-7, 5e-4
"""Seconds, roughly as a small model takes them: a row of a prompt costs twice as much after 2,000 others."""


def paced(speed=(STEP, ROW, SEEN, TEXT_ROW), **given):
    bench = Bench(**{"blocks": 400} | given)
    bench.speed = speed
    return bench


def streaming(bench, count=2):
    """Answers that go on for ever."""
    running = [bench.add([9000 + i] * 20) for i in range(count)]
    for _ in range(3):
        bench.step()
        for one in running:
            one.tokens.append(1)
    return running


def test_streams_go_on_in_time_while_a_long_prompt_is_computed():
    bench = paced()
    running = streaming(bench)
    long = bench.add(range(4000))
    bench.seconds.clear()
    while long.behind:
        works = {work.sequence: work.count for work in bench.step()}
        assert all(works[one] == 1 for one in running) and works[long] >= LEAST_ROWS
        for one in running:
            one.tokens.append(1)
    assert max(bench.seconds[1:]) <= 0.055 and len(bench.seconds) <= 1.2 * sum(bench.seconds) / 0.05
    # The first one follows from what a short prompt took, which says little of what a row adds.
    assert bench.seconds[0] <= 0.1


def test_without_streams_a_prompt_takes_the_step_it_needs():
    bench = paced()
    bench.add(range(1000))
    assert [sum(w.count for w in bench.step()) for _ in range(2)] == [512, 488]


def test_a_step_that_others_wait_for_is_short():
    bench = paced()
    bench.add(range(600))
    bench.step()
    bench.add(range(5000, 9000))
    bench.step()
    for within in (0.02, 0.1, 0.03):
        bench.seconds.clear()
        for _ in range(3):
            bench.step(within)
        assert within / 2 < bench.seconds[-1] <= 1.2 * within  # deeper rows take longer


def test_where_single_tokens_take_longer_than_that_a_step_takes_twice_as_long():
    """A large model: the prompt goes on, and whoever streams notices at most half."""
    bench = paced((0.2, 2e-3, 0, 0))
    (one,) = streaming(bench, 1)
    long = bench.add(range(2000))
    bench.seconds.clear()
    for _ in range(12):
        bench.step(0.05)
        one.tokens.append(1)
    assert max(bench.seconds) <= 0.41 and bench.seconds[-1] > 0.35 and long.computed > 700


def test_some_rows_are_computed_however_slow_they_are():
    bench = paced((0.0, 10.0, 0, 10.0))
    (one,) = streaming(bench, 1)
    long, queue = bench.add(range(200)), bench.queue([300, 200, 100])
    steps = 0
    while long.behind or queue:
        bench.step(0.001)
        one.tokens.append(1)
        steps += 1
    assert steps == -(-200 // LEAST_ROWS) and sorted(n for step in bench.read for n in step) == [100, 200, 300]


def test_texts_of_an_encoder_share_the_time():
    bench = paced(pair=False)
    running = streaming(bench)
    bench.queue([20]), bench.step()
    bench.seconds.clear()
    queue, long = bench.queue([30] * 100), bench.add(range(3000))
    while queue:
        for one in running:
            one.tokens.append(1)
        bench.step()
    assert max(bench.seconds[1:]) <= 0.06 and long.computed > 0
    assert {len(step) for step in bench.read[-10:-1]} == {2}  # 0.05 s without those of the streams are 80 rows


def test_sources_of_answers_are_read_in_time():
    """Beside a stream sources are read a few at a time, at least one."""
    bench = paced((STEP, ROW, 0, TEXT_ROW), pair=True)
    one = bench.add([0], [1] * 20)
    for _ in range(3):
        bench.step()
        one.tokens.append(1)
    answers = [bench.add([0], [i] * 40) for i in range(2, 8)]
    long = bench.add([0], [9] * 400)
    while any(not answer.computed for answer in [*answers, long]):
        bench.step()
        one.tokens.append(1)
    assert [step for step in bench.read if step] == [[20], [40, 40], [40, 40], [40, 40], [400]]


def test_what_was_measured_last_counts_most():
    pace = Pace()
    assert pace.rows(0.05, 512) == 512  # nothing is known
    for seconds in (0.1, 0.1, 0.1, 0.4, 0.4, 0.4):
        pace.note(0, 100, seconds)
    assert 0.05 / 0.004 - LEAST_ROWS < pace.rows(0.05, 512) < 0.05 / 0.003
    for _ in range(9):
        pace.note(0, 100, 0.01)
    assert 400 <= pace.rows(0.05, 512) <= 512


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 5.0])
def test_measurements_that_make_no_sense(seconds):
    """A clock that stands still, or a step beside whose tokens a prompt seems to cost nothing."""
    pace = Pace()
    pace.note(3, 0, seconds)
    pace.note(3, 50, 0.0)
    pace.note(3, 50, seconds / 2)
    pace.note_texts(10, 0.0)
    for within in (0.0, 1e-6, 0.05):
        spare = pace.spare(within, 3)
        assert LEAST_ROWS <= pace.rows(spare, 512) <= 512 and LEAST_ROWS <= pace.text_rows(spare, 512) <= 512


def test_the_same_rows_are_computed_whatever_time_there_is():
    """Exactness never depends on it: TokenCache checks what each row sees."""
    for within in (None, 0.001, 0.02, 5.0):
        bench = paced(blocks=12, windows=(0, 60))
        texts = [bench.add([i] * (70 * i + 1)) for i in range(5)]
        left = dict.fromkeys(texts, 30)
        while left:
            for work in bench.step(within):
                if work.final:
                    sequence = work.sequence
                    sequence.tokens.append(len(sequence.tokens) % 7)
                    left[sequence] -= 1
                    if not left[sequence]:
                        del left[sequence]
                        bench.scheduler.finish(sequence, keep=True)
            bench.check()
