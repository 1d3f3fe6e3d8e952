"""The scheduler without a model: budgets, room, fairness, reuse and forks."""

import pytest

from forwardpass.scheduler.terms import Terms
from scheduler_bench import Bench


def test_a_prompt_is_cut_into_chunks():
    bench = Bench(blocks=30, budget=100)
    bench.add(range(250))
    assert [(w.count, w.final) for w in [bench.step()[0] for _ in range(3)]] == [(100, False), (100, False), (50, True)]


def test_running_answers_go_on_beside_a_long_prompt():
    bench = Bench(blocks=60, budget=64)
    short = bench.add([1, 2, 3])
    bench.step()
    long = bench.add(range(1000))
    while long.behind:
        short.tokens.append(7)
        plan = bench.step()
        assert (short, 1) in [(w.sequence, w.count) for w in plan]
        assert sum(w.count for w in plan) == 64 or not long.behind


def test_first_come_first_served():
    bench = Bench(blocks=60, budget=100)
    texts = [bench.add([i] * 80) for i in range(4)]
    order = []
    while len(order) < 4:
        order += [w.sequence for w in bench.step() if w.final]
    assert order == texts


def test_a_text_waits_until_it_fits_as_a_whole_and_nobody_passes_it():
    bench = Bench(blocks=4)
    first, large, small = bench.add([1] * 128), bench.add([2] * 200), bench.add([3])
    assert [w.sequence for w in bench.step()] == [first]
    first.tokens.append(1)
    assert [w.sequence for w in bench.step()] == [first]
    bench.scheduler.finish(first, keep=True)
    assert [w.sequence for w in bench.step()] == [large]
    bench.scheduler.finish(large, keep=True)
    assert [w.sequence for w in bench.step()] == [small]


def test_waiting_in_vain_drops_no_kept_text():
    bench = Bench(blocks=6)
    kept = bench.add([5] * 64)
    bench.step()
    bench.scheduler.finish(kept, keep=True)
    running, large = bench.add([1] * 200), bench.add([2] * 200)
    bench.step()
    for _ in range(3):
        running.tokens.append(1)
        assert [w.sequence for w in bench.step()] == [running]
    assert large in bench.scheduler.waiting
    bench.scheduler.finish(running, keep=False)
    bench.scheduler.finish(large, keep=False)
    again = bench.add([5] * 65)
    bench.step()
    assert again.reused == 64


def test_the_youngest_yields_and_nothing_is_lost():
    bench = Bench(blocks=5)
    old, young = bench.add([1] * 120), bench.add([2] * 120)
    bench.step()
    for _ in range(20):
        for one in (old, young):
            if not one.behind:
                one.tokens.append(9)
        bench.step()
        bench.check()
    assert bench.scheduler.preemptions == 1 and len(old.tokens) == 140 and young in bench.scheduler.waiting
    bench.scheduler.finish(old, keep=True)
    assert [w.sequence for w in bench.step()] == [young]


def test_second_turn_computes_only_what_is_new():
    bench = Bench(blocks=20)
    turn = bench.add(range(100))
    bench.step()
    turn.tokens.append(500)
    bench.scheduler.finish(turn, keep=True)  # the end token was chosen but not computed
    bench.computed = 0
    again = bench.add([*range(100), 500, 501, 502])
    bench.step()
    assert (again.reused, bench.computed) == (100, 3)


def test_the_same_prompt_again_computes_its_last_token():
    bench = Bench(blocks=20)
    bench.scheduler.finish([bench.add(range(100)), bench.step()][0], keep=True)
    again = bench.add(range(100))
    (work,) = bench.step()
    assert (again.reused, work.count, work.final) == (99, 1, True)


@pytest.mark.parametrize(("length", "shared"), [(64, 1), (100, 1), (128, 2)])
def test_fork_shares_whole_blocks(length, shared):
    bench = Bench(blocks=9)
    one = bench.add(range(length))
    bench.step()
    twin = bench.scheduler.fork(one)
    mine, its = one.tables[0].blocks, twin.tables[0].blocks
    assert its[:shared] == mine[:shared] and not set(its[shared:]) & set(mine[shared:])
    for token, sequence in enumerate((one, twin)):
        sequence.tokens.append(token)
    for _ in range(70):
        bench.step()
        for token, sequence in enumerate((one, twin)):
            sequence.tokens.append(token)
    bench.check()


def test_fork_without_room_starts_over():
    bench = Bench(blocks=2)
    one = bench.add(range(100))
    bench.step()
    twin = bench.scheduler.fork(one)
    assert twin in bench.scheduler.waiting and twin.tokens == one.tokens and not twin.tables


def test_a_fork_does_not_wait_for_a_long_prompt_that_came_before_it():
    bench = Bench(blocks=30, budget=100)
    one, long = bench.add([1] * 70), bench.add([2] * 900)
    assert [w.count for w in bench.step()] == [70, 30]
    twin = bench.scheduler.fork(one)
    one.tokens.append(5), twin.tokens.append(6)
    assert {(id(w.sequence), w.count) for w in bench.step()} == {(id(one), 1), (id(twin), 1), (id(long), 98)}


def test_a_text_starts_only_beside_others_that_can_still_grow():
    """With the last blocks it would send somebody back within 64 steps: nobody starts to be sent back."""
    bench = Bench(blocks=7)
    running = [bench.add([i] * 100) for i in range(3)]
    for _ in range(30):
        bench.step()
        for one in running:
            if not one.behind:
                one.tokens.append(5)
    assert [bool(one.tables) for one in running] == [True, True, False] and bench.scheduler.preemptions == 0
    bench.scheduler.finish(running[0], keep=True)
    bench.step()
    assert running[2].tables


def test_of_a_preempted_text_only_what_was_dropped_is_computed_again():
    bench = Bench(blocks=9)
    old, young = bench.add([1] * 190), bench.add([2] * 250)
    bench.step()
    for _ in range(70):
        for one in (old, young):
            if not one.behind:
                one.tokens.append(len(one.tokens))
        bench.step()
        bench.check()
    assert bench.scheduler.preemptions == 1 and young in bench.scheduler.waiting
    bench.scheduler.finish(old, keep=False)
    (work,) = bench.step()
    assert work.sequence is young and young.reused >= 3 * 64 and young.cached == 0


def test_texts_that_come_together_share_their_beginning():
    """Whoever starts while another one is still computed finds the pages that are done."""
    bench = Bench(blocks=60, budget=200)
    system = list(range(384))
    texts = [bench.add([*system, *[1000 + i] * 10]) for i in range(8)]
    steps = 0
    while any(one.behind for one in texts):
        bench.step()
        bench.check()
        steps += 1
    assert bench.computed < 1000 and steps <= 6 and texts[-1].cached == 384
    assert bench.prefixes.asked == 8 * 394 and bench.prefixes.found == sum(one.cached for one in texts)
    assert bench.cache.used() == [6 + 8]


def test_waiting_for_room_costs_one_look(monkeypatch):
    """As long as nothing has changed, what is kept is not looked through again at every step."""
    bench = Bench(blocks=6)
    running = bench.add([1] * 258)
    bench.step()
    bench.add([2] * 200)
    looks, find = [], bench.prefixes.find
    monkeypatch.setattr(bench.prefixes, "find", lambda *given: looks.append(given) or find(*given))
    for _ in range(50):
        running.tokens.append(3)
        bench.step()
    assert len(looks) == 1
    for _ in range(20):
        running.tokens.append(3)
        bench.step()
    assert len(looks) == 2  # a page of the running text has been filled


@pytest.mark.parametrize("salt", ["", "mine"])
def test_texts_are_kept_for_those_with_the_same_salt(salt):
    bench = Bench(blocks=40)
    for terms, reused in ((Terms(salt=salt), 0), (Terms(salt="other"), 0), (Terms(salt=salt), 99)):
        one = bench.add(range(100), terms=terms)
        bench.step()
        assert one.reused == reused
        twin = bench.scheduler.fork(one)
        bench.scheduler.finish(one, keep=True), bench.scheduler.finish(twin, keep=True)
        bench.check()
