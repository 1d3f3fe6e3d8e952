"""Texts that are read for their hidden states: by encoders whole, by decoders in chunks, beside everything else."""

import threading

import numpy as np
import pytest

from forwardpass.engine import EncoderText
from forwardpass.errors import CapacityError, ContextLengthError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.texts import TEXT_ROWS
from script_lm import VOCAB, alone, each, encoded, encoder, idle, make, start, texts

RNG = np.random.default_rng(5)
MANY = [RNG.integers(0, VOCAB, n).tolist() for n in [1, 70, 3, 500, 3, 600, 64, 2, 900, 31, 512, 513, 40, 40]]


# ---- encoders


def test_results_are_in_the_order_of_the_texts_whatever_the_steps():
    engine = encoder()
    found = engine.encode(texts(*MANY), each)
    assert all(np.array_equal(one, encoded(ids)) for one, ids in zip(found, MANY, strict=True))
    assert idle(engine)


def test_every_text_is_read_once_and_whole_and_steps_are_even():
    engine = encoder()
    engine.encode(texts(*MANY), each)
    read = engine.network.read
    assert sorted(n for step in read for n in step) == sorted(map(len, MANY))
    assert [n for step in read for n in step] == sorted(map(len, MANY), reverse=True)
    assert all(sum(step) <= TEXT_ROWS or len(step) == 1 for step in read)
    assert sum(len(step) == 1 for step in read) >= 4  # 900, 600, 513, 512
    assert engine.steps == len(read) and [step.texts for step in engine.last] == read[-1:]


def test_types_go_with_their_tokens():
    engine = encoder()
    ids, types = [5, 6, 7, 8], [0, 0, 1, 1]
    a, b, c, d = engine.encode([EncoderText(ids), EncoderText(ids, types), EncoderText(ids, [0] * 4),
                                EncoderText(np.array(ids), np.array(types))], each)
    assert np.array_equal(a, encoded(ids)) and np.array_equal(b, encoded(ids, types)) and np.array_equal(c, a)
    assert np.array_equal(d, b) and not np.array_equal(a, b)


def test_read_gets_the_texts_of_its_caller_with_their_tokens():
    engine = encoder()
    seen = []

    def read(hidden):
        packed = hidden.packed
        assert packed.starts[0] == 0 and packed.starts[-1] == len(hidden.values) == packed.token_ids.size
        for a, b in zip(packed.starts[:-1], packed.starts[1:], strict=True):
            assert packed.positions[a:b].tolist() == list(range(b - a))
            assert np.array_equal(hidden.values[a:b], encoded(packed.token_ids[a:b].tolist(),
                                                              packed.types[a:b].tolist()))
        seen.append(packed.starts.size - 1)
        return range(packed.starts.size - 1)

    engine.encode([EncoderText(ids, [i % 2] * len(ids)) for i, ids in enumerate(MANY)], read)
    assert sum(seen) == len(MANY) and len(seen) > 3


def test_no_texts_take_no_step():
    engine = encoder()
    assert engine.encode([], each) == [] and engine.steps == 0


def test_callers_take_turns():
    """A short text beside somebody's thousand is in the very next step, and both get what they get alone."""
    engine = encoder()
    entered, go = threading.Event(), threading.Event()
    engine.network.before = lambda: (entered.set(), go.wait(10))
    found = {}
    long = threading.Thread(target=lambda: found.update(long=engine.encode(texts(*([[1] * 100] * 200)), each)))
    long.start()
    entered.wait(10)
    short = threading.Thread(target=lambda: found.update(short=engine.encode(texts([2, 3]), each)))
    short.start()
    while not engine._turns._gate.locked():
        pass  # until it waits for its turn
    go.set()
    short.join(10), long.join(10)
    assert np.array_equal(found["short"][0], encoded([2, 3])) and len(found["long"]) == 200
    assert all(np.array_equal(one, encoded([1] * 100)) for one in found["long"])
    assert [2 in step for step in engine.network.read].index(True) <= 1 and idle(engine)


def test_three_callers_share_a_step_evenly():
    engine = encoder()
    jobs = [asked(engine, [[i] * 100] * 10) for i in range(3)]
    engine.step()
    assert sorted(len(job._queue) for job in jobs) == [8, 8, 9]  # five texts fit into 512 rows
    while not all(job.done for job in jobs):
        engine.step()
    assert all(np.array_equal(one, encoded([i] * 100)) for i, job in enumerate(jobs) for one in job.results)


def test_a_text_that_is_longer_than_a_step_waits_for_its_turn_only():
    engine = encoder()
    jobs = [asked(engine, [[1] * 600]), asked(engine, [[2] * 10] * 5), asked(engine, [[3] * 700])]
    for _ in range(3):
        engine.step()
    assert all(job.done for job in jobs)
    assert sorted(map(sorted, engine.network.read)) == [[10] * 5, [600], [700]]


def asked(engine, ids, read=each):
    """A job of encode() that somebody else drives."""
    from forwardpass.scheduler.reading import CausalTexts, WholeTexts
    job = (WholeTexts if engine.encoder else CausalTexts)([(np.array(one, np.int32), None) for one in ids], read)
    engine._admit(job)
    return job


# ---- what goes wrong


@pytest.mark.parametrize(("text", "error", "match"), [
    (EncoderText([]), ParameterError, "text 1 has no tokens"),
    (EncoderText([1] * 101), ContextLengthError, r"text 1 has 101 tokens.* at most 100"),
    (EncoderText([1, VOCAB]), ParameterError, f"token id {VOCAB} of text 1.*0 to {VOCAB - 1}"),
    (EncoderText([-1]), ParameterError, "token id -1"),
    (EncoderText([2**40]), ParameterError, "32 bits"),
    (EncoderText([1.5]), ParameterError, "int32"),
    (EncoderText([1, 2], [0]), ParameterError, "2 tokens and 1 token types"),
    (EncoderText([1, 2], [0, 2]), ParameterError, "token type 2.*0 to 1"),
])
def test_wrong_texts_are_refused_before_any_work(text, error, match):
    engine = encoder(max_positions=100)
    with pytest.raises(error, match=match):
        engine.encode([EncoderText([1]), text], each)
    assert engine.steps == 0 and idle(engine)


def test_an_error_of_read_is_its_callers_own():
    engine = encoder()
    good = asked(engine, MANY)
    with pytest.raises(ZeroDivisionError, match="mine"):
        engine.encode(texts(*MANY), lambda hidden: raising(ZeroDivisionError("mine")))
    with pytest.raises(ParameterError, match=r"given \d+ texts and returned 99 results"):
        engine.encode(texts(*MANY), lambda hidden: [0] * 99)
    engine.run([good])
    assert all(np.array_equal(one, encoded(ids)) for one, ids in zip(good.results, MANY, strict=True)) and idle(engine)


def raising(error):
    raise error


def test_an_error_of_the_model_is_an_error_of_all_in_the_step_and_none_after():
    engine = encoder()
    jobs = [asked(engine, [[1]]), asked(engine, [[2]])]
    engine.network.before = lambda: raising(RuntimeError("kernel"))
    engine.step()
    engine.network.before = lambda: None
    for job in jobs:
        with pytest.raises(RuntimeError, match="kernel"):
            engine.run([job])
    assert np.array_equal(engine.encode(texts([3]), each)[0], encoded([3])) and idle(engine)


@pytest.mark.parametrize("where", ["step", "read"])
def test_an_interrupt_ends_its_own_texts_only(where):
    engine = encoder()
    other = asked(engine, MANY)
    if where == "step":
        engine.network.before = lambda: raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.encode(texts(*MANY), each if where == "step" else lambda hidden: raising(KeyboardInterrupt))
    engine.network.before = lambda: None
    engine.run([other])
    assert all(np.array_equal(one, encoded(ids)) for one, ids in zip(other.results, MANY, strict=True)) and idle(engine)


def test_closing_tells_who_waits():
    engine = encoder()
    job = asked(engine, MANY)
    engine.step()
    engine.close()
    with pytest.raises(ParameterError, match="closed before all texts were read"):
        engine.run([job])
    with pytest.raises(ParameterError, match="closed"):
        engine.encode(texts([1]), each)
    assert idle(engine)


def test_read_cannot_use_the_model_it_reads_for():
    engine = encoder()
    with pytest.raises(Exception, match="in the middle of a step"):
        engine.encode(texts([1]), lambda hidden: engine.encode(texts([2]), each))
    assert idle(engine)


def test_an_encoder_generates_nothing():
    with pytest.raises(UnsupportedModelError, match="no next tokens"):
        start(encoder())


def test_forward_of_an_encoder():
    engine, found = encoder(), []
    engine.forward([4, 5], lambda first, rows: found.append((first, rows)), logits=False)
    assert len(found) == 1 and found[0][0] == 0 and np.array_equal(found[0][1], encoded([4, 5]))
    with pytest.raises(UnsupportedModelError, match="no logits"):
        engine.forward([4, 5], lambda first, rows: None)


# ---- decoders as embedders


class Rows:
    """ScriptLM's hidden states are numbers of its texts: let them be what the text gives instead."""

    def __init__(self, engine):
        self.network = engine.network
        self.layers = engine.network.layers
        engine.network.layers = self

    def __call__(self, *args):
        self.layers(*args)
        return np.stack([encoded(text)[-1] for text in self.network.texts])


def causal(ids):
    return np.stack([encoded(ids[: i + 1])[-1] for i in range(len(ids))])


@pytest.mark.parametrize("blocks", [100, 15])
def test_a_decoder_reads_texts_in_chunks(blocks):
    engine = make(blocks=blocks)
    Rows(engine)
    found = engine.encode(texts(*MANY), each)
    assert all(np.array_equal(one, causal(ids)) for one, ids in zip(found, MANY, strict=True))
    assert all(sum(count for count, _ in step.rows) <= 512 and step.wanted == 0 for step in engine.last)
    assert idle(engine)


def test_a_texts_rows_are_computed_also_where_kept_texts_begin_like_it():
    engine = make()
    request = start(engine, MANY[5], max_new_tokens=2)
    engine.run([request])
    Rows(engine)
    assert np.array_equal(engine.encode(texts(MANY[5]), each)[0], causal(MANY[5]))
    del engine.network.layers
    again = start(engine, MANY[5], max_new_tokens=2)  # and what was read is not kept for others
    engine.run([again])
    assert again.sequences[0].reused == 599 and idle(engine)


def test_generation_goes_on_beside_texts_and_they_beside_it():
    engine = make(blocks=24)
    request = start(engine, [9] * 200, max_new_tokens=300)
    for _ in range(3):
        engine.step()
    job = asked(engine, MANY * 2, lambda hidden: [0] * (hidden.packed.starts.size - 1))
    late = start(engine, [8], max_new_tokens=5)
    steps = engine.steps
    while not late.done:
        engine.step()
    assert engine.steps - steps < 12 and not job.done  # it waited for a step's worth of texts, not for all
    engine.run([job])
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([9] * 200, max_new_tokens=300)
    assert [late.completions()[0].token_ids] == alone([8], max_new_tokens=5) and idle(engine)


def test_preempted_texts_are_read_again_and_give_the_same():
    engine = make(blocks=7)
    old = start(engine, [9] * 124, max_new_tokens=75)
    engine.step()
    Rows(engine)
    engine.network.project = lambda hidden, rows: np.eye(VOCAB, dtype=np.float32)[[5] * len(rows)]
    ids = RNG.integers(0, VOCAB, 256).tolist()
    engine.scheduler.step_tokens = 4  # so that it takes steps in which the other one grows
    job = asked(engine, [ids])
    while not job.done:
        engine.step()
    assert np.array_equal(job.results[0], causal(ids)) and engine.scheduler.preemptions == 1 and old.done
    assert idle(engine)


def test_a_decoder_has_no_room_for_some_texts():
    engine = make(blocks=2)
    with pytest.raises(CapacityError, match=r"text 1 needs 129 positions.*128"):
        engine.encode(texts([1], [1] * 129), each)
    with pytest.raises(ParameterError, match="token type 1"):
        engine.encode([EncoderText([1], [1])], each)
    assert engine.steps == 0


def test_rows_of_a_text_that_had_to_start_over_are_passed_on_once():
    engine = make(blocks=6)
    old = start(engine, [9] * 120, max_new_tokens=80)
    engine.step()
    engine.scheduler.step_tokens = 3
    Rows(engine)
    engine.network.project = lambda hidden, rows: np.eye(VOCAB, dtype=np.float32)[[5] * len(rows)]
    ids, found = RNG.integers(0, VOCAB, 190).tolist(), {}

    def consume(first, rows):
        assert first not in found
        found.update({first + i: row for i, row in enumerate(rows)})

    engine.forward(ids, consume, logits=False)
    assert sorted(found) == list(range(190)) and np.array_equal(np.stack([found[i] for i in range(190)]), causal(ids))
    assert engine.scheduler.preemptions == 1 and old.done and idle(engine)
