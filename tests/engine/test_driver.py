"""A driver's thread steps engines, and everybody else waits for it."""

import ctypes
import logging
import random
import signal
import threading
import time
from itertools import count
from queue import SimpleQueue

import numpy as np
import pytest

from driver_tools import Gate, answers, driven, sharing, until
from forwardpass.driver import ANSWERING_S, READING_S, Driver
from forwardpass.errors import DeadlineError, ForwardpassError, ParameterError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.terms import Terms
from forwardpass.tasks.stream import Stream
from script_lm import EOS, alone, each, encoded, encoder, idle, make, mixed, noisy, start, texts, usable

OVERTIME = DeadlineError, ForwardpassError


def ending(text):
    row = noisy(text)
    row[EOS] += 1.0
    return row


# ---- exact, whatever else goes on


KINDS = [
    {}, {"do_sample": True, "seed": 3}, {"do_sample": True, "seed": 4, "temperature": 1.7, "top_p": 0.9, "logprobs": 2},
    {"num_return_sequences": 3, "do_sample": True, "seed": 5}, {"num_beams": 3, "num_return_sequences": 2},
    {"logprobs": 1, "repetition_penalty": 1.3}, {"stop": ["ab", "x"]}, {"min_new_tokens": 6},
]


@pytest.fixture(scope="module")
def pool():
    """(prompt, parameters, what it gives alone) of many requests; some begin alike."""
    rng = random.Random(11)
    begin = [rng.randrange(EOS) for _ in range(130)]
    made = []
    for kind in KINDS:
        for size in (1, 9, 66, 140):
            shared = rng.choice([0, size // 2, size])
            prompt = (begin[:shared] + [rng.randrange(EOS) for _ in range(size - shared)])[:size]
            given = {**kind, "max_new_tokens": rng.randint(6, 16)}
            engine = make(ending)
            request = start(engine, prompt, **given)
            engine.run([request])
            made.append((prompt, given, answers(request)))
    return made


def mix(pool, seed, blocks, ahead, engines=1):
    """Requests come, are cancelled and run out of time at random moments; those that do neither equal their solo runs,
    and everything is given back. engines: so many share the blocks."""
    rng = random.Random(seed)
    engines = [make(ending, blocks, ahead)] if engines == 1 else sharing(blocks, *[ending] * engines, ahead=ahead)
    account = TokensInFlight(None)
    cancelled, late = set(), set()
    with driven(*engines):
        running = []
        for number, which in enumerate(rng.choices(range(len(pool)), k=12)):
            prompt, given, _ = pool[which]
            terms = Terms(account=account, key=rng.choice("abc"))
            if rng.random() < 0.2:
                terms.deadline = time.perf_counter() + rng.random() * 0.02
                late.add(number)
            try:
                with terms:
                    running.append((number, which, terms, start(rng.choice(engines), prompt, **given)))
            except DeadlineError:
                assert number in late
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.004)
            if running and rng.random() < 0.25:
                victim, _, terms, request = rng.choice(running)
                cancelled.add(victim)
                terms.cancel() if rng.random() < 0.5 else request.engine.cancel(request, wait=rng.random() < 0.5)
        for number, which, terms, request in running:
            try:
                request.engine.run([request])
            except OVERTIME:
                assert number in cancelled | late
                continue
            found = answers(request)
            if number in cancelled and any(one[2] == "cancelled" for one in found):
                continue
            assert found == pool[which][2], (seed, number, pool[which][:2])
            assert (terms.tokens_read, terms.tokens_generated) == (
                len(pool[which][0]), sum(len(one[0]) for one in found))
        until(lambda: not any(engine.busy for engine in engines))
        assert account.taken == 0
        ended = [engine.stats().ended for engine in engines]
        assert sum(sum(one.values()) for one in ended) == len(running) and not any("failed" in one for one in ended)
        for engine in engines:
            engine.prefixes.clear()
        assert all(idle(engine) for engine in engines)


@pytest.mark.parametrize("blocks, ahead, engines", [
    (100, 0.0, 1), (100, 0.01, 1), (14, 0.0, 1), (14, 0.0, 2), (30, 0.01, 3)])
def test_random_mixes_are_exact(pool, blocks, ahead, engines):
    for seed in range(45):
        mix(pool, seed, blocks, ahead, engines)


@pytest.mark.soak
def test_thousands_of_random_mixes_are_exact(pool):
    for seed in range(1000, 4000):
        rng = random.Random(-seed)
        mix(pool, seed, rng.choice([14, 18, 30, 100]), rng.choice([0.0, 0.01]), rng.choice([1, 1, 2, 3]))


def test_half_of_the_neighbours_leave_while_a_driver_steps():
    """Answers of 1 to 8 tokens, fifty times over; the free blocks return to the start value."""
    rng = random.Random(2)
    solo = {n: alone([n], max_new_tokens=n)[0] for n in range(1, 9)}
    engine = make(blocks=10)
    with driven(engine):
        for _ in range(50):
            requests = {n: start(engine, [n], max_new_tokens=n) for n in rng.sample(range(1, 9), 8)}
            leaving = set(rng.sample(sorted(requests), 4))
            for n in leaving:
                time.sleep(rng.random() * 0.001)
                engine.cancel(requests[n], wait=rng.random() < 0.5)
            engine.run([request for n, request in requests.items() if n not in leaving])
            until(lambda: not engine.busy)
            for n, request in requests.items():
                (done,) = request.completions()
                assert done.token_ids == solo[n] or (n in leaving and done.finish_reason == "cancelled")
        assert idle(engine)


# ---- from many threads


def in_threads(*calls):
    results = {}

    def run(i, call):
        try:
            results[i] = call()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread hangs"
    return [results[i] for i in range(len(calls))]


def test_threads_wait_for_answers_streams_and_texts():
    engine, reader = make(noisy), encoder()
    given = {"do_sample": True, "seed": 8}

    def run(i):
        request = start(engine, [i] * (30 * i + 1), **given)
        engine.run([request])
        return [request.completions()[0].token_ids]

    def stream(i):
        return [[piece.token_id for piece in Stream(engine, start(engine, [i] * (30 * i + 1), **given))]]

    def rows(i):
        found = []
        engine.forward([i] * 90, lambda first, rows: found.append(rows))
        return np.concatenate(found)

    calls = [lambda i=i: [run, stream][i % 2](i) for i in range(8)]
    calls += [lambda: reader.encode(texts([1, 2], [3] * 40), each), lambda: rows(3)]
    with driven(engine, reader):
        found = in_threads(*calls)
        assert idle(engine) and idle(reader)
    for i in range(8):
        assert found[i] == alone([i] * (30 * i + 1), noisy, **given)
    assert np.array_equal(found[8][1], encoded([3] * 40)) and np.array_equal(found[9][-1], noisy([3] * 90))


def test_asking_and_leaving_wait_for_no_step():
    engine = make()
    gate = Gate(engine)
    with driven(engine):
        first = start(engine, [1])
        gate.reached()
        second = start(engine, [2], max_new_tokens=4)  # were it to wait for the step, the gate would never open
        engine.cancel(first, wait=False)
        assert not first.done and not second.done
        gate.open()
        engine.run([second])
        assert first.completions()[0].finish_reason == "cancelled"
        assert [second.completions()[0].token_ids] == alone([2], max_new_tokens=4) and idle(engine)


def test_an_interrupt_of_a_waiting_thread_cancels_what_it_waits_for():
    engine = make(lambda text: 5)
    engine.network.before = lambda: time.sleep(0.001)
    with driven(engine):
        mine, other = start(engine, [1], max_new_tokens=3000), start(engine, [2], max_new_tokens=30)
        main = threading.get_ident()
        threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            engine.run([mine])
        assert mine.done and mine.completions()[0].finish_reason == "cancelled"
        engine.run([other])
        assert other.completions()[0].token_ids == [5] * 30 and idle(engine)


def test_models_cannot_be_used_from_inside_a_step():
    engine, other, reader = make(), make(), encoder()
    asked = []

    def processor(ids, row):
        for call in (lambda: start(engine), lambda: start(other), lambda: reader.encode(texts([1]), each),
                     lambda: other.run([theirs]), lambda: other.advance(theirs)):
            with pytest.raises(ForwardpassError, match="from inside it"):
                call()
            asked.append(call)
        return row

    with driven(engine, other, reader):
        gate = Gate(other)
        theirs = start(other, [4])
        request = start(engine, [1], logits_processors=[processor], max_new_tokens=1)
        gate.open()
        engine.run([request])
        other.run([theirs])
        assert len(asked) == 5 and idle(engine) and idle(other) and idle(reader)


def test_closing_ends_those_who_wait_with_an_error():
    engine = make(lambda text: 5)
    engine.network.before = lambda: time.sleep(0.001)

    def close():
        until(lambda: engine.steps > 3)
        engine.close()

    with driven(engine) as driver:
        requests = [start(engine, [i], max_new_tokens=3000) for i in range(3)]
        *found, _ = in_threads(*(lambda r=r: engine.run([r]) for r in requests[:2]),
                               lambda: list(Stream(engine, requests[2])), close)
        assert all(isinstance(one, ForwardpassError) and "closed" in str(one) for one in found)
        assert len(requests[0].choices[0].token_ids) > 1 and engine.driver is None and driver.alive
        with pytest.raises(ParameterError, match="closed"):
            start(engine)
        assert idle(engine)


# ---- ends


def test_deadlines_of_what_runs_and_of_what_only_waits(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)  # a clock that is set back harms nobody
    engine = make(lambda text: 5, blocks=4)
    engine.network.before = lambda: time.sleep(0.005)
    with driven(engine):
        first = start(engine, [1] * 120, max_new_tokens=100)  # holds all the room there is
        until(lambda: first.pieces)
        soon = Terms(deadline=time.perf_counter() + 0.25)
        with soon:
            waiting = start(engine, [2] * 120, max_new_tokens=100)
            running = start(engine, [3], max_new_tokens=100)
        for request in (waiting, running):
            with pytest.raises(DeadlineError, match="deadline"):
                engine.run([request])
        with soon, pytest.raises(DeadlineError):
            start(engine, [4])
        assert time.perf_counter() >= soon.deadline and not first.done
        engine.run([first])
        assert first.completions()[0].token_ids == [5] * 100
        assert engine.stats().ended == {"deadline": 2, "done": 1} and idle(engine)


def test_deadlines_without_a_driver():
    engine = make(lambda text: 5)
    engine.network.before = lambda: time.sleep(0.001)
    with Terms(deadline=time.perf_counter() + 0.2):
        request = start(engine, [1], max_new_tokens=4000)
    with pytest.raises(DeadlineError):
        engine.run([request])
    assert 0 < len(request.choices[0].token_ids) < 4000 and idle(engine)


def test_deadlines_met_are_forgotten():
    engine = make()
    with driven(engine):
        for _ in range(100):
            with Terms(deadline=time.perf_counter() + 1000):
                engine.run([start(engine, [1], max_new_tokens=1)])
        assert len(engine._jobs._deadlines) < 40


def reading(engine, terms, account):
    terms.account = account
    with terms:
        return engine.encode(texts([1] * 30, [2] * 30), each)


ENDS = ["done", "error", "cancel", "terms", "deadline", "close", "step", "closed before", "refused"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("with_driver", [False, True])
def test_tokens_are_given_back_exactly_once(how, with_driver):
    engine = make()
    above = TokensInFlight(100)
    account = TokensInFlight(80, above, "k")
    terms = Terms(account=account, deadline=time.perf_counter() + (0.05 if how == "deadline" else 1000))
    slow = how in ("cancel", "terms", "deadline", "close")

    def processor(ids, row):
        if how == "error":
            raise ValueError("broken")
        if slow:
            time.sleep(0.002)
        return row

    def fail():
        raise MemoryError

    driver = Driver() if with_driver else None
    if driver:
        driver.attach(engine)
    if how == "step":
        engine.network.before = fail
    if how == "refused":
        above.take(60)
    if how == "closed before":
        engine.close()
    try:
        with terms:
            request = start(engine, [1] * 20, max_new_tokens=40, logits_processors=[processor])
        assert account.taken == above.taken == 60
        if how == "cancel":
            engine.cancel(request)
        elif how == "terms":
            terms.cancel()
        elif how == "close":
            engine.close()
        engine.run([request])
    except (ForwardpassError, ValueError, MemoryError):
        assert how not in ("done", "cancel")
    finally:
        if driver:
            driver.close()
    assert (account.taken, above.taken) == (0, 60 if how == "refused" else 0)
    engine.network.before = lambda: None
    assert idle(engine)


def test_cancelled_terms_end_all_that_was_asked_under_them():
    engine, reader = make(lambda text: 5), encoder()
    gate, behind = Gate(engine), Gate(reader)
    terms = Terms()
    with driven(engine, reader):
        with terms:
            requests = [start(engine, [i] * 70, max_new_tokens=100) for i in range(3)]
        other = start(engine, [8], max_new_tokens=9)

        def encode():
            with terms:
                return reader.encode(texts([1] * 300, [2] * 300), each)

        thread = []
        runner = threading.Thread(target=lambda: thread.extend(in_threads(encode)))
        runner.start()
        gate.reached()
        gate.open()
        behind.reached()
        terms.cancel("the server is shutting down")
        behind.open()
        runner.join(20)
        assert isinstance(thread[0], ForwardpassError) and "shutting down" in str(thread[0])
        for request in requests:
            with pytest.raises(ForwardpassError, match="shutting down"):
                engine.run([request])
            assert len(request.choices[0].token_ids) < 100
        with terms, pytest.raises(ForwardpassError, match="shutting down"):
            start(engine, [1])
        engine.run([other])
        assert other.completions()[0].token_ids == [5] * 9 and idle(engine) and idle(reader)


def test_cancelling_ends_within_one_step():
    engine = make(lambda text: 5, blocks=6)
    steps, gate = [], threading.Semaphore(0)
    engine.network.before = lambda: (steps.append(1), gate.acquire(timeout=20))
    terms = Terms()
    with driven(engine):
        with terms:
            start(engine, [1] * 200, max_new_tokens=100)
        until(lambda: len(steps) == 1)
        gate.release()
        until(lambda: len(steps) == 2)  # it is in its second step
        terms.cancel()
        assert engine.busy
        gate.release()
        until(lambda: not engine.busy)
        assert len(steps) == 2
        until(lambda: engine.cache.free + _kept(engine) == engine.cache.size)


def _kept(engine):
    return engine.cache.size - engine.cache.free if not engine.scheduler.running else 0


# ---- faults


@pytest.mark.parametrize("fault", [RuntimeError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_failing_step_ends_only_what_its_engine_was_asked(fault, caplog):
    engine, other = make(), make(noisy)
    broken, all_there = count(), threading.Event()

    def fail():
        all_there.wait(20)
        if next(broken) == 2:
            raise fault("".join(["se", "cret", " words"]))

    engine.network.before = fail
    with driven(engine, other) as driver, caplog.at_level(logging.ERROR, "forwardpass"):
        theirs = [start(other, [i], do_sample=True, seed=i) for i in range(3)]
        mine = [start(engine, [i]) for i in range(3)]
        all_there.set()
        for request in mine:
            with pytest.raises((ForwardpassError, fault)):
                engine.run([request])
        other.run(theirs)
        for i, request in enumerate(theirs):
            assert [request.completions()[0].token_ids] == alone([i], noisy, do_sample=True, seed=i)
        assert driver.alive and driver.restarts == 0 and usable(engine) and idle(other)
        until(lambda: engine.stats().ended == {"failed": 3, "done": 1})
    assert fault.__name__ in caplog.text and "secret" not in caplog.text and len(caplog.records) == 1


def test_a_failing_plan_ends_only_what_its_engine_was_asked(monkeypatch):
    engine, other = make(), make()
    plan, broken = engine.scheduler.plan, count()
    monkeypatch.setattr(engine.scheduler, "plan", lambda *a: plan(*a) if next(broken) != 3 else 1 / 0)
    with driven(engine, other) as driver:
        theirs, mine = start(other, [1]), start(engine, [2])
        with pytest.raises(ForwardpassError, match="ZeroDivisionError"):
            engine.run([mine])
        other.run([theirs])
        assert [theirs.completions()[0].token_ids] == alone([1]) and driver.failures == 1 and usable(engine)


def test_what_a_processor_raises_ends_its_own_request():
    def processor(ids, row):
        raise SystemExit

    engine = make()
    with driven(engine) as driver:
        mine, other = start(engine, [1], logits_processors=[processor]), start(engine, [2])
        with pytest.raises(ForwardpassError, match="interrupted"):
            engine.run([mine])
        engine.run([other])
        assert [other.completions()[0].token_ids] == alone([2]) and driver.failures == 0 and usable(engine)


def test_a_thread_that_dies_is_replaced(monkeypatch):
    engine = make()
    deaths = iter([SystemExit, MemoryError])
    wait = Driver._wait

    def dying(self):
        for death in deaths:
            raise death
        wait(self)

    monkeypatch.setattr(Driver, "_wait", dying)
    with driven(engine) as driver:
        assert usable(engine)
        until(lambda: driver.restarts == 2)
        assert usable(engine) and driver.alive


def test_a_thread_that_dies_inside_a_step_leaves_the_engine_usable(monkeypatch):
    """It has its turn and never ends it; whoever waits is told, and others go on."""
    engine, other = make(), make()
    step, broken = engine.step, count()

    def dying(*args):
        if next(broken) == 2:
            engine._turns.__enter__()
            raise SystemExit
        return step(*args)

    monkeypatch.setattr(engine, "step", dying)
    with driven(engine, other) as driver:
        mine, theirs = start(engine, [1]), start(other, [2])
        with pytest.raises(ForwardpassError, match="has ended"):
            engine.run([mine])
        other.run([theirs])
        assert [theirs.completions()[0].token_ids] == alone([2])
        assert driver.restarts == 1 and usable(engine) and idle(other)


def test_exceptions_that_are_thrown_into_the_thread():
    """Wherever it is just then, which is most likely in the model: then what it computes ends, and it goes on."""
    engine = make()
    engine.network.before = lambda: [time.sleep(0.001) for _ in range(8)]
    told = []
    with driven(engine) as driver:
        for _ in range(5):
            request = start(engine, [1], max_new_tokens=20)
            until(lambda request=request: request.pieces)
            thread = ctypes.c_ulong(driver._thread.ident)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit)) == 1
            try:
                engine.run([request])
            except ForwardpassError as error:
                told.append(error)
        engine.network.before = lambda: None
        until(lambda: driver.alive)
        assert len(told) >= 3 and usable(engine)


def test_a_listener_that_raises_harms_nobody(caplog):
    engine = make()
    gate = Gate(engine)
    with driven(engine):
        request, other = start(engine, [1]), start(engine, [2])
        for listeners in (request.on_news, request.on_end):
            listeners += [lambda: 1 / 0, lambda: (lambda: 1 / 0)]
        request.on_end.append(lambda: start(engine))  # from inside a step
        gate.open()
        engine.run([request, other])
        assert [request.completions()[0].token_ids, other.completions()[0].token_ids] == [alone([1])[0], alone([2])[0]]
        assert idle(engine)
    assert "ZeroDivisionError" in caplog.text


# ---- turns


def test_engines_get_a_step_each_in_turn():
    order = []
    engines = [make(lambda text: 5) for _ in range(3)]
    gates = [Gate(engine) for engine in engines]
    with driven(*engines):
        requests = [start(engine, [1], max_new_tokens=40 - 10 * i) for i, engine in enumerate(engines)]
        for gate in gates:
            gate.open()
        for i, engine in enumerate(engines):
            engine.network.before = lambda i=i: order.append(i)
        for engine, request in zip(engines, requests, strict=True):
            engine.run([request])
    whole = order[order.index(1) :]
    both = "".join(map(str, whole))
    assert "0000" in both and "000" not in both[:40] and "01" in both and "12" in both


def test_running_ahead_only_where_nobody_else_waits():
    engine, other = make(ahead=1.0), make(ahead=1.0)

    def ask():
        """How many steps each call took, and whether the other engine had something to do."""
        taken = []
        gate = Gate(engine)
        request = start(engine, max_new_tokens=60)
        request.on_news.append(lambda: taken.append((len(engine.last), other.busy)))
        return request, taken, gate

    with driven(engine, other):
        request, taken, gate = ask()
        gate.open()
        engine.run([request])
        assert max(steps for steps, _ in taken) > 1 and not any(busy for _, busy in taken)
        assert [request.completions()[0].token_ids] == alone([1, 2, 3], max_new_tokens=60)
        behind = Gate(other)
        theirs = start(other, [1], max_new_tokens=60)
        behind.reached()
        request, taken, gate = ask()
        behind.open()
        gate.open()
        engine.run([request])
        other.run([theirs])
        assert sum(busy for _, busy in taken) >= 2 and all(steps == 1 for steps, busy in taken if busy)
        assert [request.completions()[0].token_ids] == alone([1, 2, 3], max_new_tokens=60)


def test_steps_are_shorter_while_somebody_is_in_the_middle_of_an_answer(monkeypatch):
    engine, reader = make(), encoder()
    seen = []
    for one in (engine, reader):
        monkeypatch.setattr(one, "step", lambda within, alone, one=one, step=one.step: (
            seen.append((one, within)), step(within, alone))[1])
    with driven(engine, reader):
        reader.encode(texts([1]), each)
        assert seen[-1] == (reader, READING_S)
        gate = Gate(reader)
        request = start(engine, [1, 2], max_new_tokens=50)
        until(lambda: request.pieces)
        in_threads(lambda: reader.encode(texts([1]), each), lambda: (gate.reached(), gate.open()))
        engine.run([request])
        assert (engine, ANSWERING_S) in seen and seen[0][1] == READING_S
        assert (reader, ANSWERING_S) in seen or request.done


def test_an_idle_driver_rests(monkeypatch):
    engine, rounds = make(), []
    real = Driver._round
    monkeypatch.setattr(Driver, "_round", lambda self: rounds.append(1) or real(self))
    with driven(engine):
        assert usable(engine)
        time.sleep(0.05)
        before = len(rounds)
        time.sleep(0.2)
        assert len(rounds) - before <= 1


class Bell(SimpleQueue):
    """Somebody rings in the very moment in which the driver looks."""

    ring = None

    def get_nowait(self):
        ring, self.ring = self.ring, None
        if ring is not None:
            ring()
        return super().get_nowait()


def test_no_ringing_is_missed():
    engine, driver = make(), Driver()
    driver._bell = Bell()
    driver.attach(engine)
    for _ in range(20):
        driver._bell.ring = driver.wake
        assert usable(engine)
    driver._bell.ring = lambda: closing.start() or until(lambda: driver._closed and driver._rung)
    closing = threading.Thread(target=driver.close)
    driver.wake()
    until(lambda: driver._closed)
    closing.join(10)
    assert not closing.is_alive() and not driver.alive


def test_coming_and_going_many_times():
    engine = make()
    for _ in range(200):
        with driven(engine):
            engine.run([start(engine, [1], max_new_tokens=1)])
    assert idle(engine)


# ---- life


def test_an_engine_has_one_driver_and_a_closed_driver_takes_none():
    engine = make()
    with driven(engine) as driver:
        with pytest.raises(ParameterError, match="has a driver"):
            Driver().attach(engine)
        assert engine.driver is driver and driver.alive
    assert engine.driver is None and usable(engine)
    with pytest.raises(ParameterError, match="closed"):
        driver.attach(engine)
    driver.close()
    driver.detach(engine)


def test_threads_that_wait_go_on_by_themselves_when_the_driver_leaves():
    engine = make(noisy)
    engine.network.before = lambda: time.sleep(0.001)
    with driven(engine) as driver:
        requests = [start(engine, [i], do_sample=True, seed=i, max_new_tokens=300) for i in range(3)]

        def leave():
            until(lambda: engine.steps > 3)
            driver.detach(engine)

        in_threads(*(lambda r=r: engine.run([r]) for r in requests[:2]), lambda: list(Stream(engine, requests[2])),
                   leave)
    for i, request in enumerate(requests):
        assert [request.completions()[0].token_ids] == alone([i], noisy, do_sample=True, seed=i, max_new_tokens=300)


def test_engines_that_share_their_memory_need_a_driver():
    engine, other = sharing(20, mixed, noisy)
    with pytest.raises(ParameterError, match="one Driver"):
        start(engine)
    with driven(engine, other) as driver:
        gate = Gate(engine)
        mine, theirs = start(engine, [1], max_new_tokens=500), start(other, [2])
        gate.reached()

        def leave():
            until(lambda: mine.on_end)
            gate.open()
            driver.detach(engine)

        found, _ = in_threads(lambda: engine.run([mine]), leave)
        assert isinstance(found, ForwardpassError) and "driver was closed" in str(found)
        other.run([theirs])
        assert [theirs.completions()[0].token_ids] == alone([2], noisy)
        engine.close()
        other.prefixes.clear()
    assert idle(engine) and idle(other)


def test_a_driver_may_come_while_threads_step():
    engine = make(lambda text: 5)
    engine.network.before = lambda: time.sleep(0.001)
    request = start(engine, [1], max_new_tokens=300)
    driver = Driver()

    def come():
        until(lambda: engine.steps > 3)
        driver.attach(engine)

    in_threads(lambda: engine.run([request]), come)
    driver.close()
    assert request.completions()[0].token_ids == [5] * 300 and idle(engine)


def test_no_driver_no_thread():
    before = threading.active_count()
    assert usable(make()) and threading.active_count() == before


def test_stats_count_what_was_done():
    engine = make()
    with driven(engine):
        engine.run([start(engine, range(20), max_new_tokens=5), start(engine, range(30, 60), max_new_tokens=3)])
        stats = engine.stats()
    assert (stats.rows, stats.generated, stats.steps) == (20 + 30 + 4 + 2, 8, engine.steps)
    assert stats.ended == {"done": 2} and (stats.requests, stats.running, stats.waiting) == (0, 0, 0)
    assert set(stats.step_seconds) == {"embed", "decode", "project", "postprocess"}
    for histogram in stats.step_seconds.values():
        assert sum(histogram.counts) == stats.steps and histogram.total >= 0
        assert len(histogram.counts) == len(histogram.edges) + 1
    assert stats.batch.total == 5 + 3 and stats.kv_size == engine.cache.size


def test_a_thread_that_does_not_start_is_tried_again(monkeypatch):
    """By whoever rings next; and closing ends what there is."""
    engine = make(ending)
    driver = Driver()
    start_thread = threading.Thread.start

    def refused(thread):
        if thread.name == "forwardpass-driver":
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        driver.attach(engine)
    assert not driver.alive and driver.restarts == 0
    monkeypatch.undo()
    driver.wake()
    assert driver.alive and driver.restarts == 0
    driver.close()
    assert not driver.alive and engine.driver is None
