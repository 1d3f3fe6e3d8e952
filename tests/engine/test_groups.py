"""Models whose layers see windows, or whose factors follow the length: the same answers, cold, cached or crowded."""

import numpy as np
import pytest

from forwardpass.cache import prefix
from forwardpass.errors import CapacityError
from forwardpass.models.regimes import Regimes
from script_lm import EOS, idle, make, noisy, start


def visible(text):
    """A next token that depends on all that is seen, and never ends the answer."""
    return hash(tuple(text)) % EOS


KINDS = {
    "window": {"windows": (100,)},
    "mixed": {"windows": (100, 0)},
    "three": {"windows": (4, 8, 0)},
    "windows": {"windows": (70, 8)},
    "switch": {"regimes": Regimes(switch=90)},
    "dynamic": {"regimes": Regimes(trained=90)},
    "all": {"windows": (0, 40), "regimes": Regimes(switch=90)},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def cold(prompt, kind, f=visible, **given):
    """What a request gives on a fresh engine."""
    engine = make(f, **KINDS[kind])
    request = start(engine, prompt, **given)
    engine.run([request])
    return [one.token_ids for one in request.completions()]


@kinds
@pytest.mark.parametrize("ahead", [0.0, 1.0])
def test_a_batch_in_little_room_gives_what_each_gives_alone(kind, ahead):
    prompts = [[i] * (25 * i + 1) for i in range(8)]
    engine = make(visible, blocks=6, ahead=ahead, **KINDS[kind])
    requests = [start(engine, prompt, max_new_tokens=120) for prompt in prompts]
    engine.run(requests)
    for prompt, request in zip(prompts, requests, strict=True):
        assert [request.completions()[0].token_ids] == cold(prompt, kind, max_new_tokens=120)
    assert idle(engine)


@kinds
def test_texts_never_leak_into_others_through_kept_blocks(kind):
    """Each prompt again and again (A A B B), beginnings of it, its answer and what follows, after longer and shorter
    ones, as the windows move on: all equal cold runs."""
    engine = make(visible, **KINDS[kind])
    a, b = list(range(60)) * 2, [*range(30), *range(60), *range(30)]
    prompts = [a, a, b, b, a[:20], a[:12], a[:5], a, a, a, b[:100], [*a, *a[:40]], a[:119], [*b[:31], 5], a]
    for i, prompt in enumerate(prompts):
        new = (20, 1, 150)[i % 3]
        request = start(engine, prompt, max_new_tokens=new)
        engine.run([request])
        answer = request.completions()[0].token_ids
        assert [answer] == cold(prompt, kind, max_new_tokens=new), i
        follow = start(engine, [*prompt, *answer, 1, 2], max_new_tokens=3)
        engine.run([follow])
        assert [follow.completions()[0].token_ids] == cold([*prompt, *answer, 1, 2], kind, max_new_tokens=3), i
    assert idle(engine)


@kinds
def test_a_second_turn_reuses_the_first(kind):
    engine = make(visible, **KINDS[kind])
    first = start(engine, range(60), max_new_tokens=25)
    engine.run([first])
    answer = first.completions()[0].token_ids
    second = start(engine, [*range(60), *answer, 1, 2])
    engine.run([second])
    assert second.sequences[0].reused == (0 if kind in ("switch", "all") else 84)  # 0: it went on across the switch
    assert [second.completions()[0].token_ids] == cold([*range(60), *answer, 1, 2], kind)


@pytest.mark.parametrize("windows", [(100,), (100, 0), (8, 100)])
def test_a_second_turn_after_the_window_has_moved(windows):
    engine = make(visible, windows=windows)
    first = start(engine, range(60), max_new_tokens=400)
    engine.run([first])
    answer = first.completions()[0].token_ids
    second = start(engine, [*range(60), *answer, 1, 2])
    engine.run([second])
    assert second.sequences[0].reused == 459
    fresh = make(visible, windows=windows)
    alone = start(fresh, [*range(60), *answer, 1, 2])
    fresh.run([alone])
    assert second.completions()[0].token_ids == alone.completions()[0].token_ids


@kinds
@pytest.mark.parametrize("blocks", [100, 6])
def test_several_choices(kind, blocks):
    given = dict(num_return_sequences=4, do_sample=True, seed=3, max_new_tokens=60)
    engine = make(noisy, blocks=blocks, **KINDS[kind])
    request = start(engine, [4] * 70, **given)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == cold([4] * 70, kind, noisy, **given)
    assert idle(engine)


@kinds
def test_forward_sees_what_generation_sees(kind):
    """Rows of a whole text. Beyond the trained length dynamic factors are those of the whole text: ScriptLM checks."""
    engine = make(noisy, blocks=12, **KINDS[kind])
    running = start(engine, [1] * 80, max_new_tokens=60)
    engine.step()
    text, rows = list(range(60)) * 9, {}
    window = max(KINDS[kind].get("windows", (0,))) if 0 not in KINDS[kind].get("windows", (0,)) else 1000
    engine.forward(text, lambda first, values: rows.update({first + i: row for i, row in enumerate(values)}))
    assert all(np.array_equal(rows[i], noisy(text[max(0, i + 1 - window) : i + 1])) for i in range(540))
    engine.run([running])
    assert [running.completions()[0].token_ids] == cold([1] * 80, kind, noisy, max_new_tokens=60) and idle(engine)


def test_room_is_that_of_the_layers_that_see_everything():
    engine = make(blocks=20, windows=(100, 0))  # 40 blocks in all, of which a window takes 11 at most
    with pytest.raises(CapacityError, match=r"1857 positions.*1856"):
        start(engine, [1] * 1000, max_new_tokens=858)
    request = start(engine, [1] * 1000, max_new_tokens=857)
    engine.run([request])
    assert len(request.completions()[0].token_ids) == 857
    endless = make(visible, blocks=12, windows=(100,))
    request = start(endless, [1] * 700, max_new_tokens=800)
    endless.run([request])
    assert len(request.completions()[0].token_ids) == 800 and endless.scheduler.preemptions == 0


def test_a_longer_text_than_the_switch_from_the_start():
    engine = make(visible, ahead=1.0, regimes=Regimes(switch=90))
    long, short = start(engine, [1] * 91, max_new_tokens=40), start(engine, [2] * 30, max_new_tokens=100)
    engine.run([long, short])
    assert [long.completions()[0].token_ids] == cold([1] * 91, "switch", max_new_tokens=40)
    assert [short.completions()[0].token_ids] == cold([2] * 30, "switch", max_new_tokens=100)
    assert engine.scheduler.preemptions == 0 and idle(engine)


def test_an_interrupt_where_a_text_crosses_the_switch():
    engine = make(visible, regimes=Regimes(switch=90))
    request = start(engine, [1] * 85)

    def stop():
        raise KeyboardInterrupt

    while not request.done:
        engine.network.before = stop
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.network.before = lambda: None
        engine.step()
    assert [request.completions()[0].token_ids] == cold([1] * 85, "switch") and idle(engine)


@pytest.mark.parametrize("kind", ["window", "three", "all"])
def test_colliding_hashes_of_kept_pages_change_no_answer(kind, monkeypatch):
    """Pages whose keys have one of sixteen hashes: begun alike, swapped, with the same middle after another start."""
    class WeakKey(bytes):
        def __hash__(self):
            return super().__hash__() & 15

    key = prefix._key
    monkeypatch.setattr(prefix, "_key", lambda tokens: WeakKey(key(tokens)))
    rng = np.random.default_rng(2)
    engine, pages = make(visible, blocks=40, **KINDS[kind]), [rng.integers(0, EOS, 64).tolist() for _ in range(4)]
    for _ in range(60):
        prompt = [t for page in rng.integers(0, 4, rng.integers(1, 4)) for t in pages[page]][: rng.integers(30, 200)]
        request = start(engine, prompt, max_new_tokens=3)
        engine.run([request])
        assert [request.completions()[0].token_ids] == cold(prompt, kind, max_new_tokens=3)
    assert engine.prefixes.found > 1000 and idle(engine)
