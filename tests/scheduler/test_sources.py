"""Sources of encoder-decoders and texts that are only read: when, how many in a step, and whose blocks they hold."""

import pytest

from scheduler_bench import Bench


def pair(blocks, **given):
    return Bench(blocks, pair=True, **given)


def test_a_source_is_read_in_the_step_that_starts_its_answer_and_once():
    bench = pair(20)
    one, other = bench.add([0], [1] * 100), bench.add([0], [2] * 70)
    assert [(w.sequence, w.final) for w in bench.step()] == [(one, True), (other, True)]
    for _ in range(3):
        one.tokens.append(3), other.tokens.append(4)
        bench.step()
        bench.check()
    assert bench.read == [[100, 70], [], [], []]


def test_sources_fill_a_step_and_the_others_wait_without_holding_anybody_up():
    bench = pair(60, text_rows=200)
    answers = [bench.add([0], [i] * n) for i, n in enumerate([90, 300, 80, 20, 90])]
    started = []
    for _ in range(5):
        started.append([w.sequence for w in bench.step()])
        for one in bench.scheduler.running:
            if not one.behind:
                one.tokens.append(1)
        bench.check()
    assert bench.read[:4] == [[90], [300], [80, 20, 90], []]
    assert started[0] == answers[:1] and set(started[1]) == set(answers[:2]) and set(started[2]) == set(answers)


def test_forks_share_their_source_and_the_last_one_gives_it_back():
    bench = pair(20)
    one = bench.add([0] * 10, [1] * 100)
    bench.step()
    source = one.source
    twins = [one, bench.scheduler.fork(one), bench.scheduler.fork(one)]
    assert source.holders == 3 and len({id(s.source) for s in twins}) == 1
    for i, twin in enumerate(twins):
        twin.tokens.append(i)
    bench.step()
    for left, twin in enumerate(reversed(twins)):
        assert source.holders == 3 - left and len(source.blocks) == 2
        bench.scheduler.finish(twin, keep=True)
        bench.check()
    assert bench.cache.free == bench.cache.size and bench.read == [[100], []]


def test_nothing_is_reused_between_answers():
    """The same beginning belongs to another source: what is cached of it is something else."""
    bench = pair(20)
    for source in ([1] * 70, [2] * 70, [1] * 70):
        one = bench.add(range(100), source)
        (work,) = bench.step()
        assert (one.reused, work.count) == (0, 100)
        bench.scheduler.finish(one, keep=True)
    assert bench.read == [[70]] * 3 and not bench.cache.budget.pages


def test_a_source_counts_as_room_that_an_answer_needs():
    bench = pair(4)
    first = bench.add([0], [1] * 128)  # three of four blocks
    second = bench.add([0], [2] * 64)  # would need two
    third = bench.add([0], first.source)  # would fit, but came later
    assert [w.sequence for w in bench.step()] == [first]
    bench.check()
    bench.scheduler.finish(first, keep=False)
    assert [w.sequence for w in bench.step()] == [second] and third in bench.scheduler.waiting
    bench.scheduler.finish(second, keep=False)
    assert [w.sequence for w in bench.step()] == [third] and bench.read == [[128], [64], [128]]


def test_who_yields_gives_its_source_back_and_reads_it_again():
    bench = pair(7)
    old, young = bench.add([0] * 60, [1] * 64), bench.add([0] * 60, [2] * 128)
    bench.step()
    for _ in range(70):
        for one in (old, young):
            if not one.behind:
                one.tokens.append(5)
        bench.step()
        bench.check()
    assert bench.scheduler.preemptions == 1 and young in bench.scheduler.waiting and not young.source.blocks
    bench.scheduler.finish(old, keep=False)
    bench.step()
    assert young in bench.scheduler.running and bench.read[0] == [64, 128] and bench.read[-1] == [128]


def test_an_interrupted_step_reads_its_sources_again():
    bench = pair(20)
    one = bench.add([0], [1] * 100)
    bench.compute(bench.scheduler.plan())  # computed, but nobody noted it
    bench.check()
    assert [w.sequence for w in bench.step()] == [one] and bench.read == [[100], [100]]
    one.tokens.append(1)
    bench.step()
    assert bench.read[2:] == [[]]


def test_running_ahead_begins_after_the_source():
    bench = pair(20)
    one = bench.add([0], [1] * 100)
    plan = bench.scheduler.plan()
    assert bench.scheduler.ahead(plan, 16) == 1
    bench.compute(plan)
    bench.scheduler.text_done(plan.texts[0]), bench.scheduler.done(plan.work[0])
    one.tokens.append(1)
    assert bench.scheduler.ahead(bench.scheduler.plan(), 16) == 16


# ---- texts that are only read


@pytest.mark.parametrize("with_cache", [False, True])
def test_texts_of_everybody_in_turn(with_cache):
    bench = Bench(blocks=100, pair=with_cache, text_rows=100)
    queues = [bench.queue([40] * 4), bench.queue([30, 20, 10]), bench.queue([300])]
    for _ in range(10):
        bench.step()
        bench.check()
    done = [step for step in bench.read if step]
    assert sorted(n for step in done for n in step) == [10, 20, 30, 40, 40, 40, 40, 300]
    assert [300] in done[:3] and not any(queues) and bench.cache.free == bench.cache.size
    assert any(40 in step and 30 in step for step in done)


def test_texts_take_room_from_the_youngest_for_one_step():
    bench = pair(7)
    old, young = bench.add([0] * 64, [1] * 64), bench.add([0] * 64, [2] * 64)
    bench.step()
    queue = bench.queue([128, 128, 100])
    for one in (old, young):
        one.tokens.append(1)
    bench.step()
    bench.check()
    assert bench.read[-1] == [128] and young in bench.scheduler.waiting and old in bench.scheduler.running
    while queue:
        bench.step()
        bench.check()
    bench.step()
    assert [text for step in bench.read for text in step if text >= 100] == [128, 128, 100]
    assert young in bench.scheduler.running


def test_texts_of_an_interrupted_step_give_their_blocks_back():
    """Another queue's turn comes next: it must not find the room taken by a step that never was."""
    bench = pair(4)
    queues = [bench.queue([256]), bench.queue([250])]
    for _ in range(5):
        bench.compute(bench.scheduler.plan())
        bench.check()
    bench.step(), bench.step()
    assert not any(queues) and bench.cache.free == bench.cache.size


def test_dropped_texts_are_not_read():
    bench = pair(9)
    first, second = bench.queue([100] * 3), bench.queue([60] * 3)
    bench.compute(bench.scheduler.plan())
    bench.scheduler.drop_texts(first)
    bench.scheduler.drop_texts(first)
    bench.check()
    while second:
        bench.step()
    assert 100 not in [n for step in bench.read[1:] for n in step] and bench.cache.free == bench.cache.size


# ---- branches


def branched(bench, prompt, beams):
    """The sequences of a beam search after its prompt."""
    one = bench.add(prompt, [7] * 70 if bench.cache.sources else None)
    bench.step()
    return bench.scheduler.branch([one], [0] * beams)


@pytest.mark.parametrize("with_source", [False, True])
def test_branches_share_whole_blocks_and_run_side_by_side(with_source):
    bench = Bench(blocks=60, pair=with_source)
    other = bench.add([9], [8] * 5 if with_source else None)
    beams = branched(bench, range(100), 4)
    last = bench.add([9], [8] * 5 if with_source else None)
    assert len({b.tables[0].blocks[0] for b in beams}) == 1 and len({b.tables[0].blocks[1] for b in beams}) == 4
    for parents in ([0, 1, 2, 3], [1, 1, 0, 3], [3, 3, 3, 3], [2, 0, 1, 3], [0], [0, 0, 0]):
        for i, beam in enumerate(beams):
            beam.tokens.append(i)
        other.tokens.append(1)
        plan = bench.step()
        assert [w.sequence for w in plan][:-1] == [other, *beams] or [w.sequence for w in plan] == [other, *beams]
        texts = [list(beams[p].tokens) for p in parents]
        before = list(beams)
        beams = bench.scheduler.branch(beams, parents)
        assert [b.tokens for b in beams] == texts and len({id(b) for b in beams}) == len(beams)
        assert all(beams[parents.index(p)] is before[p] for p in set(parents))
        assert not last.behind
        bench.check()
    for beam in beams:
        bench.scheduler.finish(beam, keep=False)
    bench.check()


def test_branches_without_room_wait_and_start_over():
    bench = Bench(blocks=4)
    beams = branched(bench, range(100), 4)  # two blocks, and one for each branch that does not take them over
    assert [bool(beam.tables) for beam in beams] == [True, True, True, False]
    assert beams[3] in bench.scheduler.waiting and beams[3].tokens == beams[0].tokens
    for i, beam in enumerate(beams):
        beam.tokens.append(i)
    assert [w.sequence for w in bench.step()] == beams[:3]
    bench.check()
    beams = bench.scheduler.branch(beams, [3, 0])
    assert [(w.sequence, w.count) for w in bench.step()] == [(beams[0], 101 - 64)]  # the first block was kept
    bench.check()


def test_of_requests_that_all_wait_for_room_the_oldest_goes_on():
    """Each has a branch that waits, and all that run wait for theirs: the younger request yields."""
    bench = Bench(blocks=6)
    one, two = bench.add([1] * 60), bench.add([2] * 60)
    bench.step()
    first, second = (bench.scheduler.branch([s], [0] * 3) for s in (one, two))
    for beam in [*first, *second]:
        beam.tokens += [5] * 10
    for _ in range(3):
        bench.step()
        bench.check()
    assert all(not beam.behind for beam in first) and bench.scheduler.preemptions > 0
    assert all(beam in bench.scheduler.waiting for beam in second)
    for beam in first:
        bench.scheduler.finish(beam, keep=True)
    bench.step()
    assert all(not beam.behind for beam in second)


def test_a_branch_of_a_waiting_sequence_waits_too():
    bench = Bench(blocks=5)
    old = bench.add([1] * 192)
    beams = branched(bench, [2] * 60, 2)
    for sequence in (old, *beams):
        sequence.tokens.append(3)
    bench.step()
    assert [beam in bench.scheduler.waiting for beam in beams] == [False, True]
    beams = bench.scheduler.branch(beams, [1, 1, 0])
    assert [beam in bench.scheduler.waiting for beam in beams] == [True, True, False]
    bench.check()
    bench.scheduler.finish(old, keep=False)
    bench.step()
    bench.check()
    assert all(not beam.behind for beam in beams)
