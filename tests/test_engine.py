"""The engine over a network whose logits are a function of the whole text: threads, cancelling, errors, interrupts."""

import gc
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from forwardpass.contracts import PAGE
from forwardpass.decoding.params import TokenFacts, from_user
from forwardpass.engine import Engine
from forwardpass.errors import CapacityError, ForwardpassError, ParameterError
from forwardpass.tasks.stream import Stream

VOCAB, EOS = 64, 63
FACTS = TokenFacts(VOCAB, end_ids=(EOS,))


class Letters:
    """One letter a token."""

    decodes_bytes = True
    drops_first_space = ""
    special_ids = frozenset({EOS})

    def token_bytes(self, token_id):
        return b"</s>" if token_id == EOS else bytes([48 + token_id])

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(map(self.token_bytes, ids)).decode()


class Memory:
    """Every slot keeps the token computed into it."""

    def __init__(self, blocks):
        self.slots = np.full((blocks, PAGE), -1)

    def clear(self, block):
        self.slots[block] = -1

    def copy(self, source, target):
        self.slots[target] = self.slots[source]


class ScriptLM:
    """logits = f(all tokens so far), read back through the block tables. before: called in every step."""

    def __init__(self, f, max_positions=4096):
        self.spec = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=max_positions)
        self.f, self.before = f, lambda: None

    def kv_memory(self, blocks):
        return Memory(blocks)

    def embed(self, ids, positions):
        return ids.astype(np.float32)[:, None]

    def layers(self, hidden, positions, starts, past, tables, memory):
        self.before()
        self.texts = []
        for s, begin in enumerate(past):
            rows = hidden[starts[s] : starts[s + 1], 0].astype(int)
            for i, token in enumerate(rows, start=int(begin)):
                assert positions[starts[s] + i - begin] == i
                memory.slots[tables[s, i // PAGE], i % PAGE] = token
            whole = np.concatenate([memory.slots[block] for block in tables[s] if block >= 0])
            assert (whole[: begin + len(rows)] >= 0).all()
            self.texts += [whole[: begin + i + 1].tolist() for i in range(len(rows))]
        return np.arange(len(self.texts), dtype=np.float32)[:, None]

    def project(self, hidden, rows):
        out = np.zeros((rows.size, VOCAB), np.float32)
        for row, index in enumerate(hidden[rows, 0].astype(int)):
            wanted = self.f(self.texts[index])
            out[row] = wanted if isinstance(wanted, np.ndarray) else 9.0 * (np.arange(VOCAB) == wanted)
        return out


    def greedy_steps(self, ids, positions, past, tables, memory, steps, vocab_size, ends):
        """Step by step what the three stages do, as the contract of the real one says."""
        chosen, rows = [], np.arange(ids.size, dtype=np.int32)
        for i in range(steps):
            hidden = self.embed(ids, positions + i)
            starts = np.arange(ids.size + 1, dtype=np.int32)
            hidden = self.layers(hidden, positions + i, starts, past + i, tables, memory)
            logits = self.project(hidden, rows)[:, :vocab_size]
            if not np.isfinite(logits.max(axis=1)).all():
                break
            ids = logits.argmax(axis=1).astype(np.int32)
            chosen.append(ids)
            if any(token in end for token, end in zip(ids, ends, strict=True)):
                break
        return np.array(chosen, np.int32).reshape(-1, ids.size), dict.fromkeys(("embed", "decode", "project"), 1e-4)


def mixed(text):
    """A next token that depends on every token before it, and never ends the answer."""
    return hash(tuple(text)) % EOS


def noisy(text):
    """A row of logits that depends on every token before it."""
    return np.random.default_rng(hash(tuple(text)) & 0xFFFF).normal(0, 2, VOCAB).astype(np.float32)


def make(f=mixed, blocks=100, ahead=0.0):
    """An engine that runs step by step; ahead: seconds it may run ahead of Python."""
    engine = Engine(ScriptLM(f), FACTS, Letters(), blocks)
    engine.run_ahead_s = ahead
    return engine


def params(**given):
    return from_user(None, {"max_new_tokens": 20, **given}, vocab_size=VOCAB)


def start(engine, prompt=(1, 2, 3), **given):
    return engine.add(list(prompt), params(**given))


def alone(prompt, f=mixed, **given):
    """What a request gives on a fresh engine."""
    engine = make(f)
    request = start(engine, prompt, **given)
    engine.run([request])
    return [one.token_ids for one in request.completions()]


def idle(engine):
    """Nothing is left behind: all blocks are free or kept, and no request is known."""
    engine.prefixes.clear()
    assert engine.pool.free == engine.pool.size
    assert not engine._owners and not engine.scheduler.running and not engine.scheduler.waiting
    return True


def usable(engine):
    request = start(engine, [5, 6], max_new_tokens=3)
    engine.run([request])
    assert request.completions()[0].token_ids == alone([5, 6], max_new_tokens=3)[0]
    return idle(engine)


def test_greedy_answer_is_what_the_script_says():
    engine = make()
    request = start(engine, [1, 2, 3])
    engine.run([request])
    (done,) = request.completions()
    text = [1, 2, 3]
    for _ in range(20):
        text.append(mixed(text))
    assert done.token_ids == text[3:] and done.finish_reason == "length" and done.prompt_token_ids == [1, 2, 3]
    assert done.text == Letters().decode(done.token_ids) and idle(engine)
    assert set(done.timings) == {"first_token", "total", "preprocess", "embed", "decode", "project", "postprocess"}
    assert 0 < done.timings["first_token"] <= done.timings["total"] and min(done.timings.values()) >= 0


def test_end_token_stops():
    engine = make(lambda text: EOS if len(text) == 6 else 7)
    request = start(engine)
    engine.run([request])
    (done,) = request.completions()
    assert (done.token_ids, done.finish_reason, done.text) == ([7, 7, 7, EOS], "stop", "777")


def test_many_requests_in_one_batch_equal_their_solo_runs():
    prompts = [[i, *range(3 * i)] for i in range(1, 12)]
    engine = make()
    requests = [start(engine, prompt, max_new_tokens=1 + i) for i, prompt in enumerate(prompts)]
    engine.run(requests)
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        assert [request.completions()[0].token_ids] == alone(prompt, max_new_tokens=1 + i)
    assert engine.steps < 30 and idle(engine)


def test_a_second_turn_is_computed_from_where_it_differs():
    engine = make()
    first = start(engine, range(60))
    engine.run([first])
    answer = first.completions()[0].token_ids
    second = start(engine, [*range(60), *answer, 1, 2])
    engine.run([second])
    assert second.sequences[0].reused == 79  # the last token of the answer was chosen, not computed
    assert [second.completions()[0].token_ids] == alone([*range(60), *answer, 1, 2])


def test_small_pool_preempts_and_changes_no_answer():
    engine = make(blocks=6)
    prompts = [[i] * (50 + i) for i in range(8)]
    requests = [start(engine, prompt, max_new_tokens=100) for prompt in prompts]
    engine.run(requests)
    assert engine.scheduler.preemptions > 0
    for prompt, request in zip(prompts, requests, strict=True):
        assert [request.completions()[0].token_ids] == alone(prompt, max_new_tokens=100)
    assert idle(engine)


# ---- several answers to a prompt


@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_choices_share_the_prompt_and_equal_their_own_runs(length):
    engine = make(noisy)
    request = start(engine, [3] * length, num_return_sequences=5, do_sample=True, seed=7)
    engine.run([request])
    choices = [one.token_ids for one in request.completions()]
    assert choices[0] == alone([3] * length, noisy, do_sample=True, seed=7)[0]
    assert choices == alone([3] * length, noisy, do_sample=True, seed=7, num_return_sequences=5)
    assert len(set(map(tuple, choices))) == 5 and idle(engine)
    assert [one.choice_index for one in request.completions()] == [0, 1, 2, 3, 4]


def test_choices_in_a_pool_too_small_for_all_of_them():
    given = dict(num_return_sequences=6, do_sample=True, seed=1, max_new_tokens=70)
    engine = make(noisy, blocks=4)
    request = start(engine, [4] * 70, **given)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == alone([4] * 70, noisy, **given) and idle(engine)


def test_all_choices_end_with_the_first_token():
    engine = make(lambda text: EOS)
    request = start(engine, num_return_sequences=3)
    engine.run([request])
    assert [one.token_ids for one in request.completions()] == [[EOS]] * 3 and idle(engine)


def test_a_processor_that_fails_in_one_choice_ends_its_request_only():
    """Both choices are in the same step when the first one fails."""
    calls = []

    def processor(ids, row):
        calls.append(ids)
        if len(calls) == 5:
            raise RuntimeError("five")
        return row

    engine = make(noisy)
    bad = start(engine, num_return_sequences=3, do_sample=True, seed=1, logits_processors=[processor])
    good = start(engine, [9, 9])
    engine.run([good])
    with pytest.raises(ParameterError, match="five"):
        engine.run([bad])
    assert [good.completions()[0].token_ids] == alone([9, 9], noisy) and usable_with(engine, noisy)


def usable_with(engine, f):
    request = start(engine, [5, 6], max_new_tokens=3)
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([5, 6], f, max_new_tokens=3)
    return idle(engine)


# ---- errors stay with their request


@pytest.mark.parametrize("when", [1, 4])
def test_a_logits_processor_that_raises_harms_nobody_else(when):
    def processor(ids, row):
        if len(ids) == 3 + when - 1:
            raise ZeroDivisionError("mine")
        return row

    engine = make()
    requests = [start(engine, [i]) for i in range(4)]
    bad = start(engine, [1, 2, 3], logits_processors=[processor])
    with pytest.raises(ParameterError, match="ZeroDivisionError: mine"):
        engine.run([bad])
    engine.run(requests)
    assert [r.completions()[0].token_ids for r in requests] == [alone([i])[0] for i in range(4)]
    assert usable(engine)


def test_a_generate_that_fails_cancels_its_other_prompts():
    def processor(ids, row):
        raise ZeroDivisionError("mine")

    engine = make()
    requests = [start(engine, [1], max_new_tokens=1000), start(engine, [2], logits_processors=[processor])]
    with pytest.raises(ParameterError, match="mine"):
        engine.run(requests)
    assert engine.steps < 5 and requests[0].done and usable(engine)


def test_bad_logits_are_an_error_of_their_request():
    engine = make(lambda text: np.full(VOCAB, np.nan, np.float32) if text[0] == 1 else 2)
    bad, good = start(engine, [1]), start(engine, [2])
    with pytest.raises(ForwardpassError, match="finite"):
        engine.run([bad])
    engine.run([good])
    assert good.completions()[0].token_ids == [2] * 20 and idle(engine)


def test_a_network_that_raises_is_an_error_for_all_in_the_step_and_none_after():
    engine = make()
    requests = [start(engine, [1]), start(engine, [2])]
    for _ in range(3):
        engine.step()
    engine.network.before = explode
    engine.step()
    engine.network.before = lambda: None
    for request in requests:
        with pytest.raises(RuntimeError, match="kernel"):
            engine.run([request])
    assert usable(engine)


def explode():
    raise RuntimeError("kernel")


def test_an_error_is_raised_where_it_is_waited_for():
    """Whoever happens to compute the step that fails does not get an error that is not theirs."""
    engine = make(lambda text: np.full(VOCAB, np.inf, np.float32) if len(text) > 5 and text[0] == 1 else 2)
    bad, good = Stream(engine, start(engine, [1])), Stream(engine, start(engine, [2]))
    assert len(list(good)) == 20
    with pytest.raises(ForwardpassError, match="finite"):
        list(bad)
    assert idle(engine)


def test_a_model_cannot_be_used_from_inside_its_own_step():
    engine = make()

    def processor(ids, row):
        engine.run([start(engine, [9])])
        return row

    with pytest.raises(ParameterError, match="in the middle of a step"):
        engine.run([start(engine, logits_processors=[processor])])
    assert usable(engine)


def test_capacity():
    engine = make(blocks=2)
    fits = start(engine, [1] * 100, max_new_tokens=29)  # the last token needs no position
    engine.run([fits])
    with pytest.raises(CapacityError, match=r"129 positions.*128"):
        start(engine, [1] * 100, max_new_tokens=30)
    with pytest.raises(CapacityError, match=r"129 positions.*128"):
        engine.forward([1] * 129, lambda first, rows: None)
    assert idle(engine)


def test_less_memory_than_hoped_for():
    class Small(ScriptLM):
        def kv_memory(self, blocks):
            if blocks > 10:
                raise MemoryError
            return super().kv_memory(blocks)

    assert 5 <= Engine(Small(mixed), FACTS, Letters(), 1000).pool.size <= 10


def test_forward_takes_room_from_running_requests_and_gives_it_back():
    engine = make(noisy, blocks=3)
    request = start(engine, [1] * 100)
    engine.step()
    rows = {}
    engine.forward([2] * 150, lambda first, values: rows.update({first + i: row for i, row in enumerate(values)}))
    assert sorted(rows) == list(range(150))
    assert all(np.array_equal(rows[i], noisy([2] * (i + 1))) for i in range(150))
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([1] * 100, noisy) and idle(engine)


# ---- leaving early


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancel_at_any_time(steps):
    engine = make()
    request, other = start(engine, [1] * 600), start(engine, [2])
    for _ in range(steps):
        engine.step()
    engine.cancel(request)
    engine.cancel(request)
    (done,) = request.completions()
    assert done.finish_reason == "cancelled" and len(done.token_ids) <= steps
    engine.run([other])
    assert [other.completions()[0].token_ids] == alone([2]) and usable(engine)


@pytest.mark.parametrize("how", ["close", "with", "del", "cycle", "unstarted"])
def test_an_abandoned_stream_frees_its_blocks(how):
    engine = make()
    stream = Stream(engine, start(engine, [1] * 100, max_new_tokens=1000))
    if how != "unstarted":
        assert next(stream).token_id == mixed([1] * 100)
    if how == "close":
        stream.close()
        assert list(stream) == [] and stream.completion.finish_reason == "cancelled"
    elif how == "with":
        with pytest.raises(KeyError), stream:
            raise KeyError
    elif how == "cycle":
        stream.myself = stream
        del stream
        gc.collect()
    else:
        del stream
    assert idle(engine)


def test_stream_pieces_are_the_answer():
    engine = make()
    stream = Stream(engine, start(engine))
    pieces = list(stream)
    assert [p.token_id for p in pieces] == alone([1, 2, 3])[0]
    assert "".join(p.text for p in pieces) == stream.completion.text and stream.completion.finish_reason == "length"


def test_a_completion_is_a_picture_of_its_moment():
    engine = make()
    stream = Stream(engine, start(engine, logprobs=1))
    next(stream)
    early = stream.completion
    list(stream)
    assert (len(early.token_ids), len(early.logprobs), len(early.top_logprobs)) == (1, 1, 1)


@pytest.mark.parametrize("leave", ["close", "collect"])
def test_streams_may_be_left_in_the_middle_of_a_step(leave):
    """The garbage collector may end any stream while this very thread computes a step that it is part of."""
    engine = make()
    streams = [Stream(engine, start(engine, [i] * 70, max_new_tokens=500)) for i in range(3)]
    kept = start(engine, [9])
    assert all([next(stream) for stream in streams])

    def drop():
        while streams:
            stream = streams.pop()
            stream.close() if leave == "close" else None
            del stream

    engine.network.before = drop
    engine.step()
    engine.network.before = lambda: None
    assert len(engine._owners) == 1
    engine.run([kept])
    assert [kept.completions()[0].token_ids] == alone([9]) and usable(engine)


def test_interrupt_in_a_step_leaves_every_request_as_it_was():
    engine = make()
    mine, other = start(engine, [1] * 600), start(engine, [2])
    for after in (0, 1, 3):
        for _ in range(after):
            engine.step()
        engine.network.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.network.before = lambda: None
    engine.run([mine, other])
    assert [mine.completions()[0].token_ids, other.completions()[0].token_ids] == [alone([1] * 600)[0], alone([2])[0]]
    assert usable(engine)


def interrupt():
    raise KeyboardInterrupt


def test_interrupted_run_cancels_its_requests():
    engine = make()
    mine, other = start(engine, [1]), start(engine, [2])
    engine.network.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.run([mine])
    engine.network.before = lambda: None
    engine.run([other])
    assert mine.done and [other.completions()[0].token_ids] == alone([2]) and usable(engine)


def test_interrupt_inside_a_logits_processor():
    def processor(ids, row):
        if len(ids) == 6:
            raise KeyboardInterrupt
        return row

    engine = make()
    others = [start(engine, [2]), start(engine, [1, 2, 3], logits_processors=[processor]), start(engine, [3])]
    with pytest.raises(KeyboardInterrupt):
        engine.run([others.pop(1)])
    engine.run(others)
    assert [r.completions()[0].token_ids for r in others] == [alone([2])[0], alone([3])[0]] and usable(engine)


def test_whose_token_was_interrupted_by_another_thread_is_told():
    """Somebody else's processor was running when the interrupt came: that request cannot go on, nor wait for ever."""
    def processor(ids, row):
        raise KeyboardInterrupt

    engine = make()
    theirs, mine = start(engine, [1], logits_processors=[processor]), start(engine, [2])
    with pytest.raises(KeyboardInterrupt):
        engine.run([mine])
    with pytest.raises(ForwardpassError, match="interrupted"):
        engine.run([theirs])
    assert usable(engine)


# ---- several threads


def together(*calls, timeout=20):
    """Run the calls in threads of their own; (results, errors) by index."""
    results, errors = {}, {}

    def run(i, call):
        try:
            results[i] = call()
        except BaseException as error:
            errors[i] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    return results, errors


def test_requests_from_several_threads_equal_their_solo_runs():
    engine = make(noisy, blocks=12)

    def ask(i):
        request = start(engine, [i] * (40 * i + 1), do_sample=True, seed=i)
        engine.run([request])
        return [request.completions()[0].token_ids]

    def listen(i):
        return [[piece.token_id for piece in Stream(engine, start(engine, [i] * 9, do_sample=True, seed=i))]]

    results, errors = together(*(lambda i=i: (ask if i % 2 else listen)(i) for i in range(8)))
    assert not errors
    for i, found in results.items():
        assert found == alone([i] * (40 * i + 1 if i % 2 else 9), noisy, do_sample=True, seed=i)
    assert usable_with(engine, noisy)


def test_nobody_waits_for_a_long_answer_of_somebody_else():
    """A lock that goes back to whoever just had it would keep the short request waiting for the long one."""
    engine = make(lambda text: 5)
    engine.network.before = lambda: time.sleep(0.001)
    long = start(engine, [1], max_new_tokens=2000)
    runner = threading.Thread(target=lambda: engine.run([long]))
    runner.start()
    while not engine.steps:
        time.sleep(0.001)
    before = engine.steps
    for _ in range(5):
        engine.run([start(engine, [2], max_new_tokens=3)])
    assert engine.steps - before < 100 and not long.done
    engine.cancel(long)
    runner.join(10)
    assert not runner.is_alive() and idle(engine)


def test_half_of_the_neighbours_leave_at_random():
    """KVC-05: survivors equal their solo runs, and the free blocks return to the start value."""
    rng = random.Random(1)
    solo = {n: alone([n], max_new_tokens=n)[0] for n in range(1, 9)}
    engine = make(blocks=10)
    for _ in range(50):
        requests = {n: start(engine, [n], max_new_tokens=n) for n in rng.sample(range(1, 9), 8)}
        leaving = rng.sample(sorted(requests), 4)
        while not all(r.done for r in requests.values()):
            if leaving and rng.random() < 0.5:
                engine.cancel(requests[leaving.pop()])
            engine.step()
        for n, request in requests.items():
            (done,) = request.completions()
            assert done.finish_reason == "cancelled" or done.token_ids == solo[n]
    assert idle(engine)


def test_close_while_others_wait():
    engine = make(lambda text: 5, blocks=1000)
    engine.network.before = lambda: time.sleep(0.001)
    requests = [start(engine, [i], max_new_tokens=5000) for i in range(3)]

    def close():
        time.sleep(0.05)
        engine.close()

    _, errors = together(*(lambda r=r: engine.run([r]) for r in requests), close)
    assert not errors and all(r.completions()[0].finish_reason == "cancelled" for r in requests)
    with pytest.raises(ParameterError, match="closed"):
        start(engine)
    assert idle(engine)


def test_a_stream_dropped_while_another_thread_computes_is_ended_by_it():
    engine = make(lambda text: 5)
    entered, go = threading.Event(), threading.Event()
    stream = Stream(engine, start(engine, [1] * 70, max_new_tokens=100))
    next(stream)
    other = start(engine, [2], max_new_tokens=5)
    engine.network.before = lambda: (entered.set(), go.wait(10))
    runner = threading.Thread(target=lambda: engine.run([other]))
    runner.start()
    entered.wait(10)
    began = time.perf_counter()
    del stream  # must not wait for the step
    assert time.perf_counter() - began < 1
    go.set()
    runner.join(10)
    assert other.done and idle(engine)


# ---- a model without tokenizer


def test_without_a_tokenizer_there_are_ids_and_no_text():
    engine = Engine(ScriptLM(mixed), FACTS, None, 10)
    request = start(engine)
    engine.run([request])
    assert request.completions()[0].text == "" and request.completions()[0].token_ids == alone([1, 2, 3])[0]
    with pytest.raises(ParameterError, match="tokenizer"):
        start(engine, stop=["x"])


# ---- running ahead: several greedy steps in one call

AHEAD = 1.0


def ahead_and_alone(prompts, f=mixed, blocks=100, **given):
    """Token ids and finish reasons of prompts run together, running ahead and step by step."""
    out = []
    for seconds in (AHEAD, 0.0):
        engine = make(f, blocks, seconds)
        requests = [start(engine, prompt, **given) for prompt in prompts]
        engine.run(requests)
        out.append([(done.token_ids, done.finish_reason) for request in requests for done in request.completions()])
        assert idle(engine)
    return out


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("new", [1, 2, 17, 70])
def test_running_ahead_changes_no_token(count, new):
    ahead, alone_ = ahead_and_alone([[i + 1, 2] for i in range(count)], max_new_tokens=new)
    assert ahead == alone_
    assert all(len(ids) == new for ids, _ in ahead)


def test_running_ahead_takes_several_steps_in_one_call():
    engine = make(ahead=AHEAD)
    request = start(engine, max_new_tokens=40)
    calls = 0
    while not request.done:
        engine.step()
        calls += 1
    assert engine.steps == 40 and calls < 10
    assert engine.last[-1] == ([(1, 3 + 40 - 2)], 1)


@pytest.mark.parametrize("length", range(1, 12))
def test_an_end_token_in_the_middle_of_running_ahead(length):
    def ending(text):
        return EOS if len(text) == 3 + length else mixed(text)

    ahead, alone_ = ahead_and_alone([[1, 2, 3], [4, 5, 6, 7]], ending)
    assert ahead == alone_
    assert len(ahead[0][0]) == length + 1 and ahead[0][1] == "stop"


def test_a_stop_string_in_the_middle_of_running_ahead():
    engine = make()
    whole = start(engine, max_new_tokens=30)
    engine.run([whole])
    stop = whole.completions()[0].text[9:11]
    ahead, alone_ = ahead_and_alone([[1, 2, 3], [7]], max_new_tokens=30, stop=stop)
    assert ahead == alone_ and ahead[0][1] == "stop"


def test_running_ahead_with_few_blocks():
    ahead, alone_ = ahead_and_alone([[1] * 60, [2] * 60, [3] * 50], blocks=4, max_new_tokens=50)
    assert ahead == alone_


def test_requests_that_need_more_than_the_likeliest_token_are_not_run_ahead():
    for given in ({"do_sample": True, "seed": 1}, {"repetition_penalty": 1.2}, {"logprobs": 0}, {"min_new_tokens": 5}):
        engine = make(ahead=AHEAD)
        request = start(engine, max_new_tokens=12, **given)
        while not request.done:
            engine.step()
            assert len(engine.last) == 1


def test_logits_that_are_no_numbers_while_running_ahead():
    def broken(text):
        return np.full(VOCAB, np.nan, np.float32) if len(text) == 9 else mixed(text)

    engine = make(broken, ahead=AHEAD)
    request = start(engine)
    with pytest.raises(ForwardpassError, match="finite"):
        engine.run([request])
    assert len(request.choices[0].token_ids) == 6 and idle(engine)
