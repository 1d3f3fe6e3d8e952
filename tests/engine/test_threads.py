"""Several threads drive one engine."""

import random
import threading
import time

import pytest

from forwardpass.errors import ParameterError
from forwardpass.tasks.stream import Stream
from script_lm import alone, idle, make, noisy, start, usable_with


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
    """Survivors equal their solo runs, and the free blocks return to the start value."""
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
