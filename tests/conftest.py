"""What all tests share: the real model, and a line that says which instruction sets ran."""

from __future__ import annotations

import signal

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
