"""Checks of single parameter values. Each is called with (name, value), returns the value in its own form or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from forwardpass.errors import ParameterError

MAX_STOP_STRINGS = 64
MAX_STRING_LENGTH = 1000
MAX_IDS = 1_000_000


def _refuse(name: str, expected: str, value: Any) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise ParameterError(f"{name} must be {expected}; got {shown}.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def integer(low: int, high: int = 2**31 - 1, *, note: str = "") -> Callable[[str, Any], int]:
    """An integer in [low, high]. True, 1.0 and "1" are not integers here."""
    expected = f"an integer in [{low}, {high}]" + (f" ({note})" if note else "")

    def check(name: str, value: Any) -> int:
        if not _is_integer(value) or not low <= value <= high:
            _refuse(name, expected, value)
        return int(value)

    return check


def number(
    low: float, high: float = math.inf, *, open_low: bool = False, note: str = ""
) -> Callable[[str, Any], float]:
    """A finite number in [low, high], or in (low, high] with open_low."""
    interval = f"{'(' if open_low else '['}{low}, " + ("infinity)" if high == math.inf else f"{high}]")
    expected = f"a finite number in {interval}" + (f" ({note})" if note else "")

    def check(name: str, value: Any) -> float:
        if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
            _refuse(name, expected, value)
        try:
            found = float(value)
        except OverflowError:  # an integer of more than 308 digits
            _refuse(name, expected, value)
        if not math.isfinite(found) or not low <= found <= high or (open_low and found == low):
            _refuse(name, expected, value)
        return found

    return check


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        _refuse(name, "True or False", value)
    return bool(value)


def _listed(name: str, expected: str, value: Any) -> list:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        _refuse(name, expected, value)
    items = list(value)
    if len(items) > MAX_IDS:
        raise ParameterError(f"{name} must have at most {MAX_IDS} entries; got {len(items)}.")
    return items


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One id or a list of ids; the upper end of the interval is checked where the vocabulary is known."""
    expected = "a token id (an integer in [0, vocabulary size)) or a list of them"
    items = [value] if _is_integer(value) else _listed(name, expected, value)
    for item in items:
        if not _is_integer(item) or item < 0:
            _refuse(name, expected, item)
    return tuple(int(item) for item in items)


def token_id(name: str, value: Any) -> int:
    if not _is_integer(value) or value < 0:
        _refuse(name, "a token id (an integer in [0, vocabulary size))", value)
    return int(value)


def token_runs(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    expected = "a list of non-empty lists of token ids (integers in [0, vocabulary size))"
    runs = []
    for run in _listed(name, expected, value):
        items = _listed(name, expected, run)
        if not items or any(not _is_integer(item) or item < 0 for item in items):
            _refuse(name, expected, run)
        runs.append(tuple(int(item) for item in items))
    return tuple(runs)


def strings(name: str, value: Any) -> tuple[str, ...]:
    expected = f"a string or a list of at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STRING_LENGTH} characters"
    items = [value] if isinstance(value, str) else _listed(name, expected, value)
    if len(items) > MAX_STOP_STRINGS:
        _refuse(name, expected, f"{len(items)} strings")
    for item in items:
        if not isinstance(item, str) or not 1 <= len(item) <= MAX_STRING_LENGTH:
            _refuse(name, expected, item)
    return tuple(dict.fromkeys(items))


def logit_bias(name: str, value: Any) -> dict[int, float]:
    expected = "a dict of token id (an integer in [0, vocabulary size)) to a finite number in [-100, 100]"
    if not isinstance(value, Mapping):
        _refuse(name, expected, value)
    bias: dict[int, float] = {}
    checked = number(-100, 100)
    for key, amount in value.items():
        # JSON has no integer keys, so "17" is accepted for 17.
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key
        if not _is_integer(token_id) or token_id < 0:
            _refuse(name, expected, {key: amount})
        bias[int(token_id)] = checked(f"{name}[{int(token_id)}]", amount)
    return bias


def logprobs(name: str, value: Any) -> int | None:
    if isinstance(value, bool):
        return 0 if value else None
    return integer(0, 20, note="how many of the likeliest tokens to report; None = no log-probabilities")(name, value)


def early_stopping(name: str, value: Any) -> bool | str:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, str) or value != "never":
        _refuse(name, 'True, False or "never"', value)
    return "never"


def function(name: str, value: Any) -> Callable:
    if not callable(value):
        _refuse(name, "a callable (prompt index, token ids so far) -> allowed token ids", value)
    return value


def callables(name: str, value: Any) -> tuple[Callable, ...]:
    expected = "a list of callables (token ids so far, logits row) -> logits row"
    items = _listed(name, expected, value)
    for item in items:
        if not callable(item):
            _refuse(name, expected, item)
    return tuple(items)
