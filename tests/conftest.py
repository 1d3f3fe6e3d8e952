"""What all tests share: the real model, and a line that says which instruction sets ran."""

from __future__ import annotations

import signal
from collections import Counter
from zlib import crc32

import pytest

from forwardpass import _native, catalog

# A run in the background inherits "ignore interrupts", and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config) -> str:
    return f"forwardpass: instruction sets tested here: {', '.join(_native.isas())} ({_native.cpu_name()})"


@pytest.fixture(scope="session")
def smollm2_path():
    """The real SmolLM2-135M Q4_1 file, fetched on first use."""
    return catalog.resolve("smollm2-135m")


MANY = 20
"""Cases of one test from which on a default run takes half of them; the others have the marker `soak`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Which half is told by a hash of the case's name: always the same one, with some of every instruction set, format
    and shape, however the cases are ordered."""
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    for item in items:
        if cases[item.nodeid.partition("[")[0]] >= MANY and crc32(item.nodeid.encode()) % 2:
            item.add_marker(pytest.mark.soak)
