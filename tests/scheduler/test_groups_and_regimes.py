"""Layers that see a window, and rotary factors that follow a text's length: what the scheduler makes of them."""

import pytest

from few import few
from forwardpass.cache.blocks import blocks_for
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime, Regimes
from scheduler_bench import Bench


def grow_to(bench, sequence, length):
    """Answer until the text has `length` tokens; the number of blocks in use, by group, after each step."""
    used = []
    while len(sequence.tokens) < length:
        bench.step()
        if not sequence.behind:
            sequence.tokens.append(len(sequence.tokens) % 5)
        used.append(bench.cache.used())
        bench.check()
    return used


@pytest.mark.parametrize("windows", few([(100,), (100, 0), (0, 100, 30)], 1))
def test_a_windowed_group_stays_the_same_over_two_thousand_tokens(windows):
    bench = Bench(blocks=60, windows=windows)
    sequence = bench.add(range(50))
    used = grow_to(bench, sequence, 2050)
    for g, window in enumerate(windows):
        late = {each[g] for each in used[300:]}
        if window:
            most = (window + 62) // PAGE + 1
            assert late in ({most - 1, most}, {most})
        else:
            assert used[-1][g] == blocks_for(2049)


def test_a_text_longer_than_the_cache_runs_where_all_layers_see_a_window():
    bench = Bench(blocks=12, budget=512, windows=(100,))
    assert bench.cache.room(10**6) == 10**6
    sequence = bench.add(range(3000))
    grow_to(bench, sequence, 3500)
    assert bench.scheduler.preemptions == 0


def test_a_long_prompt_keeps_the_room_it_began_with():
    """Others take blocks as they grow, but never those that a prompt in the middle of its chunks goes on with."""
    bench = Bench(blocks=8, budget=64, windows=(100,))
    short = bench.add([1])
    bench.step()
    long = bench.add(range(1000))
    while long.behind:
        short.tokens.append(7)
        assert short in [work.sequence for work in bench.step()]
        assert long in bench.scheduler.running
    assert bench.scheduler.preemptions == 0 and len(short.tokens) > 10


@pytest.mark.parametrize("windows", [(0,), (100,), (64, 0), (8, 70)])
def test_forks_of_windows(windows):
    bench = Bench(blocks=40, windows=windows)
    one = bench.add(range(300))
    bench.step()
    twins = [one, bench.scheduler.fork(one), bench.scheduler.fork(one)]
    for _ in range(150):
        for token, sequence in enumerate(twins):
            sequence.tokens.append(token)
        bench.step()
        bench.check()
    assert len(bench.scheduler.running) == 3


def test_running_ahead_stops_at_the_last_block_of_any_group():
    bench = Bench(blocks=3, windows=(0, 10))
    one = bench.add(range(126))
    bench.step()
    one.tokens.append(1)
    plan = bench.scheduler.plan()
    other = bench.cache.empty()
    while bench.cache.grow(other, 0, (other[0].end + 1) * PAGE):
        pass
    assert bench.scheduler.ahead(plan, 16) == 2


# ---- rotary factors that depend on the length


def test_a_text_that_crosses_the_switch_is_computed_again_from_its_start():
    bench = Bench(blocks=20, regimes=Regimes(switch=100))
    one, other = bench.add(range(98)), bench.add([5] * 120)
    for _ in range(2):
        bench.step()
        one.tokens.append(1), other.tokens.append(1)
    assert len(one.tokens) == 100 and not one.regime.long and other.regime.long
    assert [(w.sequence, w.count) for w in bench.step()] == [(one, 1), (other, 1)]
    one.tokens.append(1), other.tokens.append(1)
    assert {(w.sequence, w.count) for w in bench.step()} == {(one, 101), (other, 1)}
    assert one.regime.long and bench.scheduler.preemptions == 0


def test_kept_texts_serve_their_own_regime_only():
    bench = Bench(blocks=20, regimes=Regimes(switch=100))
    for length, reused in ((90, 0), (90, 89), (150, 0), (150, 149), (101, 100), (100, 90)):
        one = bench.add(range(length))
        bench.step()
        assert one.reused == reused
        bench.scheduler.finish(one, keep=True)


@pytest.mark.parametrize("prompt", [30, 100, 101, 150])
def test_dynamic_factors_cut_the_work_where_they_change(prompt):
    """The prompt at once, then what is within the trained length, then row by row; also when it is computed again."""
    bench = Bench(blocks=20, regimes=Regimes(trained=100))
    one = bench.add(range(prompt))
    grow_to(bench, one, 192)
    bench.step()
    one.tokens.append(0)
    bench.cache.grow(other := bench.cache.empty(), 0, 17 * PAGE)
    assert bench.step() == [] and bench.scheduler.preemptions == 1
    bench.cache.release(other)
    bench.prefixes.clear()
    counts = []
    while one.behind:
        counts += [work.count for work in bench.step()]
    base = max(prompt, 100)
    assert counts == [base, *[1] * (193 - base)]


def test_texts_beyond_the_trained_length_are_shared_by_prompts_of_one_length():
    bench = Bench(blocks=40, regimes=Regimes(trained=100))
    for length, reused in ((90, 0), (99, 90), (120, 0), (120, 119), (121, 0), (130, 0)):
        one = bench.add(range(length))
        bench.step()
        assert one.reused == reused and one.regime == Regime(base=max(100, length))
        bench.scheduler.finish(one, keep=True)


def test_running_ahead_ends_at_the_switch():
    for regimes, steps in ((Regimes(switch=100), 3), (Regimes(trained=100), 16), (Regimes(), 16)):
        bench = Bench(blocks=20, regimes=regimes)
        one = bench.add(range(97))
        bench.step()
        one.tokens.append(1)  # the 98th; the 101st is the first that needs others
        assert bench.scheduler.ahead(bench.scheduler.plan(), 16) == steps
    bench = Bench(blocks=20, regimes=Regimes(switch=50))
    one = bench.add(range(97))
    bench.step()
    one.tokens.append(1)
    assert bench.scheduler.ahead(bench.scheduler.plan(), 16) == 16
