"""Who comes first: smaller priorities, then everybody in turn; nobody waits for all that somebody else asked for."""

import pytest

from forwardpass.scheduler.line import Line
from forwardpass.scheduler.terms import Terms
from scheduler_bench import Bench


def started(line, places):
    """Start all of them in order; their names."""
    names = []
    for order, name in sorted(places):
        line.started(order)
        names.append(name)
    return names


def test_one_key_is_served_as_it_comes():
    line = Line()
    assert started(line, [(line.place(0, "a"), i) for i in range(20)]) == list(range(20))


def test_keys_are_served_in_turn_and_priorities_one_after_another():
    line = Line()
    places = [(line.place(priority, key), f"{key}{priority}{i}") for priority, key, count in
              ((0, "a", 3), (1, "a", 2), (0, "b", 2), (-1, "c", 1), (1, "d", 1)) for i in range(count)]
    assert started(line, places) == ["c-10", "a00", "b00", "a01", "b01", "a02", "a10", "d10", "a11"]


def test_whoever_comes_late_is_behind_what_was_started_and_no_further():
    line = Line()
    flood = [line.place(0, "a") for _ in range(50)]
    for order in flood[:30]:
        line.started(order)
    late, later = line.place(0, "b"), line.place(0, "b")
    assert flood[29] < late < flood[31] and flood[30] < later < flood[32]
    for order in flood[30:]:
        line.started(order)
    assert line.place(0, "b") > flood[-1]  # what b did not ask for meanwhile is not made up for


def test_what_other_priorities_have_had_makes_no_difference():
    line = Line()
    batch = [line.place(5, "a") for _ in range(10)]
    for _ in range(100):
        line.started(line.place(0, "c"))
    assert batch[0] < line.place(5, "b") < batch[1]


def test_keys_without_requests_are_forgotten():
    line = Line()
    for i in range(10_000):
        line.started(line.place(i % 3, f"key {i}"))
    assert len(line._newest) < 500
    waiting = [line.place(0, f"key {i}") for i in range(1000)]
    assert started(line, [(order, i) for i, order in enumerate(waiting)]) == list(range(1000))


# ---- in a scheduler


def served(bench, wanted, flood, steps=400):
    """Steps until the answers of `wanted` (20 tokens each) are there, while two of `flood` come with each step."""
    left = {}
    for step in range(steps):
        left |= {bench.add([7] * 60, terms=flood): 20 for _ in range(2)}
        if step == 10:
            mine = [bench.add([i] * 60, terms=terms) for i, terms in enumerate(wanted)]
            left |= dict.fromkeys(mine, 20)
        for work in bench.step():
            sequence = work.sequence
            if work.final:
                sequence.tokens.append(1)
                left[sequence] -= 1
                if not left[sequence]:
                    del left[sequence]
                    bench.scheduler.finish(sequence, keep=True)
        bench.check()
        if step > 10 and not any(sequence in left for sequence in mine):
            return step - 10
    return None


def test_a_flood_of_another_key_delays_nobody():
    """In room for three answers: those that run end, then it is the others' turn. Whoever has the flood's own key waits
    for all of it that came before."""
    flood = Terms(key="flood")
    assert served(Bench(blocks=8), [Terms(key="me")], flood) <= 2 * 20 + 5
    assert served(Bench(blocks=8), [Terms(key="me")] * 4, flood) <= 9 * 20
    assert served(Bench(blocks=8), [flood], flood) > 100


def test_a_flood_of_larger_priority_delays_nobody():
    assert served(Bench(blocks=8), [Terms(priority=0)], Terms(priority=1)) <= 22


def test_the_urgent_one_gets_its_room_from_the_last_of_those_that_can_wait():
    bench = Bench(blocks=8)
    running = [bench.add([i] * 100, terms=Terms(priority=i)) for i in (1, 2, 3)]
    bench.step()
    assert all(one.tables for one in running[:2])
    urgent = bench.add([9] * 150, terms=Terms(priority=0))
    bench.step()
    assert urgent not in [work.sequence for work in bench.step()] or not urgent.behind
    assert urgent.tables and running[0].tables and not running[2].tables
    bench.check()
    same = bench.add([8] * 150, terms=Terms(priority=1))
    for _ in range(3):
        bench.step()
    assert not same.tables and running[0].tables  # of equal ones nobody yields to another


@pytest.mark.parametrize("priority", [0, -1])
def test_rows_go_to_the_urgent_prompt_first(priority):
    bench = Bench(blocks=60, budget=100)
    long = bench.add(range(1000))
    bench.step()
    other = bench.add(range(5000, 5500), terms=Terms(priority=priority))
    for _ in range(3):
        bench.step()
    assert (other.computed > 0) == (priority < 0) and long.computed + other.computed == 400


# ---- prompts of several lengths in a step


def test_a_short_prompt_does_not_wait_for_a_long_one():
    bench = Bench(blocks=60, budget=100)
    long = bench.add(range(1000))
    bench.step()
    shorts = [bench.add([7000 + i] * 20) for i in range(4)]
    counts = {work.sequence: (work.count, work.final) for work in bench.step()}
    assert counts == {shorts[0]: (20, True), shorts[1]: (20, True), long: (60, False)}
    counts = {work.sequence: (work.count, work.final) for work in bench.step()}
    assert counts == {shorts[2]: (20, True), shorts[3]: (20, True), long: (60, False)}


def test_a_long_prompt_goes_on_under_any_number_of_short_ones():
    bench = Bench(blocks=400, budget=100)
    long = bench.add(range(1000))
    for step in range(20):
        for i in range(5):
            bench.add([7000 + 5 * step + i] * 20)
        bench.step()
        assert long.computed >= min(1000, 50 * (step + 1))


def test_of_two_long_prompts_one_is_computed_after_the_other():
    bench = Bench(blocks=60, budget=100)
    first, second = bench.add(range(500)), bench.add(range(1000, 1500))
    for _ in range(4):
        assert [work.sequence for work in bench.step()] == [first]
    bench.step()
    assert not first.behind and [work.sequence for work in bench.step()] == [second]
