"""Turns: one thread inside, and whoever waits is next."""

import os
import signal
import threading
import time

import pytest

from forwardpass.errors import ForwardpassError
from forwardpass.scheduler.turns import Turns


def test_one_at_a_time():
    turns, inside, most = Turns(), [], []

    def work():
        for _ in range(100):
            with turns:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(most) == 400 and max(most) == 1


def test_who_waits_comes_before_who_was_just_there():
    turns, stop, count = Turns(), threading.Event(), [0]

    def hog():
        while not stop.is_set():
            with turns:
                count[0] += 1
                time.sleep(0.001)

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        for _ in range(10):
            before = count[0]
            with turns:
                waited = count[0] - before
            assert waited <= 3
    finally:
        stop.set()
        thread.join(10)


def test_entering_twice_is_an_error_and_not_a_deadlock():
    turns = Turns()
    with turns:
        assert turns.mine
        with pytest.raises(ForwardpassError, match="in the middle of a step"), turns:
            pass
        assert turns.mine and not turns.enter_if_free()
    assert not turns.mine


def test_enter_if_free():
    turns = Turns()
    assert turns.enter_if_free() and turns.mine
    turns.leave()
    with turns:
        pass


def test_leaving_by_an_exception():
    turns = Turns()
    with pytest.raises(KeyError), turns:
        raise KeyError
    assert turns.enter_if_free()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_an_interrupted_wait_leaves_no_trace():
    turns = Turns()
    held, go = threading.Event(), threading.Event()

    def hold():
        with turns:
            held.set()
            go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), turns:
        pass
    go.set()
    thread.join(10)
    assert turns.enter_if_free()
    turns.leave()
    with turns:
        pass
