"""Engines with a driver, for tests."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from forwardpass.driver import Driver
from forwardpass.engine import Engine
from forwardpass.scheduler.shared import SharedBudget
from script_lm import FACTS, Letters, Memory, ScriptLM


@contextmanager
def driven(*engines):
    """The driver of these engines. Afterwards its thread is gone."""
    driver = Driver()
    for engine in engines:
        driver.attach(engine)
    try:
        yield driver
    finally:
        driver.close()
        assert not driver.alive


def sharing(blocks, *functions, ahead=0.0):
    """Engines of ScriptLMs that share so many blocks."""
    budget = SharedBudget(blocks * Memory.block_bytes)
    engines = [Engine(ScriptLM(f), FACTS, Letters(), budget=budget) for f in functions]
    for engine in engines:
        engine.run_ahead_s = ahead
    return engines


def until(condition, seconds=20):
    """Wait until it holds."""
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "it never came to that"
        time.sleep(0.001)


class Gate:
    """Holds every step of an engine up until it is opened: Gate(engine), gate.reached(), gate.open()."""

    def __init__(self, engine):
        self._entered, self._go = threading.Event(), threading.Event()
        engine.network.before = self._pass

    def _pass(self):
        self._entered.set()
        assert self._go.wait(20), "nobody opened the gate"

    def reached(self):
        assert self._entered.wait(20), "no step began"

    def open(self):
        self._go.set()


def answers(request):
    """All that must be equal to what a request gives alone."""
    return [(done.token_ids, done.text, done.finish_reason, done.logprobs, done.top_logprobs, done.score)
            for done in request.completions()]
