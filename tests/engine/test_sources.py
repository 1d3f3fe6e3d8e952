"""Encoder-decoders: answers depend on their own source and on nothing else, and a source is encoded once."""

import numpy as np
import pytest

from forwardpass.errors import CapacityError, ContextLengthError, ParameterError
from script_lm import END, EOS, alone, each, encoded, idle, make, mixed, noisy, start, texts

SOURCES = [[i] * (30 * i + 1) for i in range(1, 9)]


def pair(f=mixed, **given):
    return make(f, pair=True, **given)


def test_an_answer_is_what_the_script_makes_of_source_and_text():
    engine = pair()
    request = start(engine, [0], [4, 5, 6])
    engine.run([request])
    (done,) = request.completions()
    text = [0]
    for _ in range(20):
        text.append(mixed([4, 5, 6, END, *text]))
    assert done.token_ids == text[1:] and done.prompt_token_ids == [4, 5, 6] and idle(engine)
    assert engine.network.encoder.read == [[3]]


@pytest.mark.parametrize("ahead", [0.0, 1.0])
@pytest.mark.parametrize("blocks", [300, 14])
def test_a_batch_gives_what_each_gives_alone(ahead, blocks):
    """Also in little room, where requests yield their blocks, and run ahead."""
    engine = pair(ahead=ahead, blocks=blocks)
    requests = [start(engine, [0], source, max_new_tokens=150) for source in SOURCES]
    engine.run(requests)
    for source, request in zip(SOURCES, requests, strict=True):
        assert [request.completions()[0].token_ids] == alone([0], source=source, max_new_tokens=150)
    assert (engine.scheduler.preemptions > 0) == (blocks == 14) and idle(engine)
    assert blocks == 14 or sum(map(len, engine.network.encoder.read)) == len(SOURCES)


def test_changing_one_source_changes_no_other_answer():
    found = []
    for second in ([2] * 12, [3] * 40):
        engine = pair(noisy)
        requests = [start(engine, [0], source, do_sample=True, seed=3) for source in ([1] * 3, second)]
        engine.run(requests)
        found.append([request.completions()[0].token_ids for request in requests])
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_the_same_beginning_with_another_source_is_computed_cold():
    """One after the other and in one batch; also the same source again."""
    engine = pair()
    beginning = [0, *range(40), *range(40)]
    for source in ([1] * 70, [2] * 70, [1] * 70):
        request = start(engine, beginning, source)
        engine.run([request])
        assert [request.completions()[0].token_ids] == alone(beginning, source=source)
    requests = [start(engine, beginning, source) for source in ([1] * 70, [2] * 70)]
    engine.run(requests)
    assert [r.completions()[0].token_ids for r in requests] == [alone(beginning, source=[i] * 70)[0] for i in (1, 2)]
    assert idle(engine)


@pytest.mark.parametrize("blocks", [100, 4])
def test_answers_of_one_source_share_it(blocks):
    given = dict(num_return_sequences=5, do_sample=True, seed=7, max_new_tokens=70)
    engine = pair(noisy, blocks=blocks)
    request = start(engine, [0, 1], [9] * 90, **given)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == alone([0, 1], noisy, [9] * 90, **given)
    assert len(set(map(tuple, (one.token_ids for one in request.completions())))) == 5
    assert all(one.prompt_token_ids == [9] * 90 for one in request.completions()) and idle(engine)
    if blocks == 100:
        assert engine.network.encoder.read == [[90]]


def test_running_ahead_with_sources():
    engine = pair(lambda text: EOS if len(text) > 60 else mixed(text), ahead=1.0)
    requests = [start(engine, [0], source) for source in ([4] * 20, [5] * 50)]
    calls = 0
    while not all(r.done for r in requests):
        engine.step()
        calls += 1
    assert engine.steps > 2 * calls
    for request, source in zip(requests, ([4] * 20, [5] * 50), strict=True):
        assert [request.completions()[0].token_ids] == alone([0], lambda t: EOS if len(t) > 60 else mixed(t), source)


# ---- leaving


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("how", ["cancel", "close", "encoder", "decoder", "processor"])
def test_whoever_leaves_gives_blocks_back_and_harms_nobody(steps, how):
    engine = pair()
    failing = []

    def processor(ids, row):
        if failing:
            raise ZeroDivisionError
        return row

    request = start(engine, [0], [1] * 200, num_return_sequences=2, do_sample=True, seed=1,
                    logits_processors=[processor])
    for _ in range(steps):
        engine.step()
    if how == "cancel":
        engine.cancel(request)
    elif how == "close":
        engine.close()
    elif how == "processor":
        failing.append(True)
        engine.step()
    else:
        one = engine.network.encoder if how == "encoder" and not steps else engine.network
        one.before = explode
        engine.step()
        one.before = lambda: None
    assert request.done and engine.cache.free == engine.cache.size
    if how != "close":
        other = start(engine, [0], [2] * 100)
        engine.run([other])
        assert [other.completions()[0].token_ids] == alone([0], source=[2] * 100)
    assert idle(engine)


def explode():
    raise RuntimeError("kernel")


def test_half_of_the_neighbours_leave_at_random():
    rng = np.random.default_rng(2)
    solo = {n: alone([0], source=[n] * 50, max_new_tokens=n)[0] for n in range(1, 9)}
    engine = pair(blocks=12)
    for _ in range(20):
        requests = {int(n): start(engine, [0], [int(n)] * 50, max_new_tokens=int(n)) for n in rng.permutation(8) + 1}
        leaving = rng.permutation(8)[:4] + 1
        for n in leaving:
            for _ in range(rng.integers(3)):
                engine.step()
            engine.cancel(requests[int(n)])
        engine.run(list(requests.values()))
        for n, request in requests.items():
            (done,) = request.completions()
            assert done.finish_reason == "cancelled" or done.token_ids == solo[n]
    assert idle(engine)


def test_an_interrupted_step_is_planned_again_with_its_sources():
    engine = pair()
    requests = [start(engine, [0], source) for source in SOURCES]

    def interrupt():
        raise KeyboardInterrupt

    for one in (engine.network.encoder, engine.network, engine.network):
        one.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        one.before = lambda: None
    engine.run(requests)
    for source, request in zip(SOURCES, requests, strict=True):
        assert [request.completions()[0].token_ids] == alone([0], source=source)
    assert idle(engine)


# ---- room, and what else is asked


def test_capacity_counts_the_source():
    engine = pair(blocks=2)  # four blocks in all
    fits = start(engine, [0], [1] * 128, max_new_tokens=128)
    engine.run([fits])
    assert [fits.completions()[0].token_ids] == alone([0], source=[1] * 128, max_new_tokens=128)
    with pytest.raises(CapacityError, match=r"129 positions.*beside its source of 128 tokens.*room for 128"):
        start(engine, [0], [1] * 128, max_new_tokens=129)
    with pytest.raises(CapacityError, match=r"257 positions"):
        start(engine, [0], [1] * 257)
    assert idle(engine)


def test_wrong_sources():
    engine = pair(max_positions=300)
    for source, error, match in (([], ParameterError, "no tokens"), ([64], ParameterError, "token id 64"),
                                 ([1] * 301, ContextLengthError, "301"), (None, ParameterError, "source_ids")):
        with pytest.raises(error, match=match):
            start(engine, [0], source)
    with pytest.raises(ParameterError, match="no encoder"):
        start(make(), [0], [1])
    assert idle(engine)


def test_reading_texts_beside_answers():
    """encode() of an encoder-decoder: the states of its encoder, and the cache is as it was."""
    engine = pair(blocks=5)
    request = start(engine, [0], [1] * 100, max_new_tokens=150)
    for _ in range(4):
        engine.step()
    many = [[i + 2] * (50 * i + 1) for i in range(9)]
    found = engine.encode(texts(*many), each)
    assert all(np.array_equal(one, encoded(ids)) for one, ids in zip(found, many, strict=True))
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([0], source=[1] * 100, max_new_tokens=150) and idle(engine)
    with pytest.raises(CapacityError, match="text 0 needs 641 positions"):
        engine.encode(texts([1] * 641), each)


def test_forward_of_an_answer_to_a_source():
    engine, rows = pair(noisy), {}
    text = list(range(60)) * 10
    engine.forward(text, lambda first, values: rows.update(enumerate(values, start=first)), source_ids=[7] * 70)
    assert sorted(rows) == list(range(600))
    assert all(np.array_equal(rows[i], noisy([7] * 70 + [END] + text[: i + 1])) for i in range(0, 600, 7))
    with pytest.raises(ParameterError, match="source_ids"):
        engine.forward(text, lambda first, values: None)
    assert idle(engine)
