"""Several models on one budget: the oldest of what is kept goes, whoever kept it, and nobody starves beside another."""

import gc

import pytest

from forwardpass.scheduler.shared import SharedBudget
from forwardpass.scheduler.terms import Terms
from scheduler_bench import Bench


def two(blocks, **second):
    """Two models with room for so many blocks of the first one's size together."""
    budget = SharedBudget(10 * blocks)
    return Bench(shared=budget), Bench(shared=budget, **second), budget


def check(*benches):
    for bench in benches:
        bench.check()
    budget = benches[0].cache.budget
    assert budget.held == sum(bench.cache.held for bench in benches)
    assert budget.idle == sum(bench.cache.kept for bench in benches)


def kept(bench, tokens):
    """Compute a text and keep it."""
    one = bench.add(tokens)
    while one.behind:
        bench.step()
    bench.scheduler.finish(one, keep=True)


def hit(bench, tokens):
    return bench.prefixes.find(tokens, len(tokens), bench.regimes.of(1, 1)).positions


def test_kept_texts_of_all_models_go_by_age():
    a, b, budget = two(8, block_bytes=20)
    kept(b, [2] * 128), kept(a, [1] * 128), kept(a, [3] * 128)
    assert budget.free == 0 and budget.idle == 80
    b.cache.release(b.prefixes.take(b.prefixes.find([2] * 128, 128, b.regimes.of(1, 1))))  # used again
    other = b.add([5] * 60)
    b.step()
    check(a, b)
    assert (hit(a, [1] * 128), hit(a, [3] * 128), hit(b, [2] * 128), other.behind) == (0, 128, 128, 0)
    large = a.add([4] * 150)
    a.step()
    check(a, b)
    assert (hit(a, [3] * 128), hit(b, [2] * 128), large.behind) == (0, 64, 0) and budget.dropped == 60


def test_a_model_that_is_gone_leaves_nothing_behind():
    a, b, budget = two(8)
    kept(a, [1] * 200), kept(b, [2] * 100)
    a.add([3] * 60)
    a.step()
    check(a, b)
    del a
    gc.collect()
    assert budget.held == b.cache.held == 20 and budget.idle == 20
    one = b.add([4] * 8 * 64)
    b.step()
    assert not one.behind and budget.held == 80
    check(b)


def test_memory_in_use_stays_within_the_budget():
    """A block that one model gave back keeps its memory until another needs that: it is let go then."""
    a, b, budget = two(10, block_bytes=25)
    for i in range(6):
        bench = (a, b)[i % 2]
        kept(bench, [i] * (640 if bench is a else 250))
        assert budget.resident <= budget.size
        check(a, b)


def test_a_younger_request_of_another_model_does_not_pass_one_that_waits_for_room():
    a, b, _ = two(6)
    running = a.add([1] * 200)
    a.step()
    large = b.add([2] * 300)  # five blocks
    assert b.step() == [] and b.scheduler.claim.need == 50
    small = a.add([3] * 10)
    for _ in range(3):
        running.tokens.append(1)
        assert [work.sequence for work in a.step()] == [running] and b.step() == []
        check(a, b)
    a.scheduler.finish(running, keep=True)
    assert a.step() == [] and [work.sequence for work in b.step()] == [large]
    assert [work.sequence for work in a.step()] == []  # no room for it and for the other one to grow
    b.scheduler.finish(large, keep=False)
    assert [work.sequence for work in a.step()] == [small]
    check(a, b)


def test_whoever_waits_and_leaves_holds_nobody_up():
    a, b, _ = two(6)
    running = a.add([1] * 200)
    a.step()
    large = b.add([2] * 300)
    small = a.add([3] * 10)
    assert b.step() == [] and a.step() == []
    b.scheduler.finish(large, keep=True)
    assert [work.sequence for work in a.step()] == [small] and running.tables


def test_who_runs_for_one_model_can_grow_before_another_one_starts():
    a, b, _ = two(4)
    running = a.add([1] * 100)
    a.step()
    other = b.add([2] * 128)  # would take the last two blocks
    assert b.step() == []
    for _ in range(40):
        running.tokens.append(1)
        a.step(), b.step()
        check(a, b)
    assert len(running.tokens) == 140 and running.tables and a.scheduler.preemptions == 0 and other.behind


@pytest.mark.parametrize("priority", [0, 1])
def test_an_urgent_request_gets_room_from_another_model(priority):
    a, b, _ = two(6)
    running = [a.add([i] * 100, terms=Terms(priority=priority)) for i in (1, 2)]
    a.step()
    urgent = b.add([3] * 150, terms=Terms(priority=0))
    for _ in range(2):
        b.step(), a.step()
        check(a, b)
    b.step()
    assert bool(urgent.tables) == (priority == 1) == (running[1] in a.scheduler.waiting) and running[0].tables


def test_models_whose_searches_all_wait_for_each_other_go_on():
    """Each has branches that run and wait for one that has no room: the younger search gives its room up."""
    a, b, _ = two(6)
    first, second = a.add([1] * 60), b.add([2] * 60)
    a.step(), b.step()
    beams = [bench.scheduler.branch([one], [0] * 3) for bench, one in ((a, first), (b, second))]
    for beam in [*beams[0], *beams[1]]:
        beam.tokens += [5] * 10
    for _ in range(4):
        a.step(), b.step()
        check(a, b)
    assert all(not beam.behind for beam in beams[0]) and all(beam in b.scheduler.waiting for beam in beams[1])
    for beam in beams[0]:
        a.scheduler.finish(beam, keep=True)
    b.step(), b.step()
    assert all(not beam.behind for beam in beams[1])


def test_texts_of_an_encoder_decoder_wait_for_another_models_room_and_get_it():
    a, b, _ = two(6, pair=True)
    running = a.add([1] * 250)
    a.step()
    queue = b.queue([250])
    assert b.step() == [] and b.read[-1] == [] and b.scheduler.claim is not None
    later = a.add([2] * 10)
    for _ in range(3):
        running.tokens.append(1)
        assert later not in [work.sequence for work in a.step()]
        b.step()
    a.scheduler.finish(running, keep=True)
    assert a.step() == []
    b.step()
    assert b.read[-1] == [250] and not queue and [work.sequence for work in a.step()] == [later]
    check(a, b)


def test_a_flood_at_one_model_does_not_starve_another_keys_request_at_the_next():
    """It needs nearly all the memory, of which the flood would take every block that gets free."""
    a, b, _ = two(8)
    left, mine = {}, None
    for step in range(200):
        left |= {a.add([step % 9] * 60, terms=Terms(key="flood")): 20 for _ in range(2)}
        if step == 10:
            mine = b.add([77] * 400, terms=Terms(key="me"))
        for bench in (a, b):
            for work in bench.step():
                if work.final and work.sequence is not mine:
                    work.sequence.tokens.append(1)
                    left[work.sequence] -= 1
                    if not left[work.sequence]:
                        bench.scheduler.finish(work.sequence, keep=True)
            bench.check()
        if mine and not mine.behind:
            break
    assert step < 60
