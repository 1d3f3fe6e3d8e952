"""How much a chat template may do. A template comes out of a model file, so it is as untrusted as the file.

Jinja's sandbox stops a template from reaching Python's internals but not from asking for 3 GB of "a". So every step of
a template pays here before the work is done: steps (loop rounds, calls, filters), characters made, and time. Values
stay below MAX_SIZE, so that no single operation is slow.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from string import Formatter
from typing import Any

MAX_TEMPLATE = 2**18
"""Characters of a template; real ones have up to 30,000."""
MAX_SIZE = 2**23
"""Characters of one value, and of the whole output."""
MAX_MADE = 2**27
"""Characters that all steps together may make."""
MAX_STEPS = 500_000
MAX_SECONDS = 3.0
MAX_WIDTH = 10_000
MAX_DEPTH = 100
_NODE = 64
"""What an entry of a list or dict costs, in characters."""

_PRINTF = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+)?)?")


class LimitError(Exception):
    """The template wants more than it may have."""


class Budget:
    """What one rendering has used so far."""

    def __init__(self) -> None:
        self.steps = 0
        self.made = 0
        self.end = time.monotonic() + MAX_SECONDS

    def pay(self, characters: int = 0) -> None:
        self.steps += 1
        self.made += characters
        if self.steps > MAX_STEPS:
            raise LimitError(f"more than {MAX_STEPS} steps")
        if self.made > MAX_MADE:
            raise LimitError(f"more than {MAX_MADE} characters made on the way")
        if time.monotonic() > self.end:
            raise LimitError(f"more than {MAX_SECONDS} seconds")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")


def step() -> None:
    BUDGET.get().pay()


def toll(value: Any) -> Any:
    """Pay for a value just made, and refuse it if it is too large. Returns it."""
    if isinstance(value, str):
        size = len(value)
        need(size)
        BUDGET.get().pay(size)
    elif isinstance(value, (list, tuple, dict, set, frozenset)):
        weigh(value)
        BUDGET.get().pay(_NODE * len(value))
    else:
        BUDGET.get().pay()
    return value


def need(size: int) -> None:
    """Refuse, before it is made, a value of this many characters."""
    if size > MAX_SIZE:
        raise LimitError(f"a value of {size} characters; at most {MAX_SIZE} are allowed")


def weigh(value: Any, per_node: int = _NODE) -> int:
    """Characters that writing out `value` takes, roughly; a part that appears twice counts twice."""
    return _weigh(value, 0, 0, per_node)


def _weigh(value: Any, total: int, depth: int, per_node: int) -> int:
    if depth > MAX_DEPTH:
        raise LimitError(f"values nested deeper than {MAX_DEPTH}")
    if isinstance(value, (str, bytes)):
        total += len(value)
    elif isinstance(value, int):
        total += value.bit_length() // 3
    elif isinstance(value, dict):
        for key, item in value.items():
            total = _weigh(item, _weigh(key, total + per_node, depth + 1, per_node), depth + 1, per_node)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            total = _weigh(item, total + per_node, depth + 1, per_node)
    else:
        total += _NODE
    need(total)
    return total


def width(value: Any, most: int = MAX_WIDTH) -> None:
    """Refuse a column width, an indent or a count above `most`; anything that is no int is left to the operation."""
    if isinstance(value, int) and abs(value) > most:
        raise LimitError(f"a width or count of {value}; at most {most} is allowed")
    if isinstance(value, (str, bytes)):
        need(len(value))


# -- before operators


def before_operator(operator: str, left: Any, right: Any) -> None:
    sized = (str, bytes, list, tuple)
    if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
        need(len(left) + len(right))
    elif operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            need(left.bit_length() * 100 + right.bit_length() * 100)
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, sized) and isinstance(times, int):
                need(weigh(sequence) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        need(left.bit_length() * abs(right) * 100)
    elif operator == "%" and isinstance(left, (str, bytes)):
        before_printf(left, right)


def before_printf(pattern: str | bytes, values: Any) -> None:
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    fields = 0
    for match in _PRINTF.finditer(text):
        fields += 1
        for size in match.groups():
            if size is not None and (size == "*" or len(size) > 4):
                raise LimitError(f"the format {match.group()!r}")
            fields += int(size or 0) // _NODE
    need(len(text) + fields * (weigh(values) + _NODE))


def before_format(pattern: str, args: tuple, kwargs: dict) -> None:
    """`str.format`: widths are numbers in the field, and every field may show the largest argument."""
    fields = 0
    for _, name, spec, _ in Formatter().parse(pattern):
        if name is None:
            continue
        fields += 1
        if spec and ("{" in spec or re.search(r"\d{5}", spec)):
            raise LimitError(f"the format {spec[:40]!r}")
        fields += sum(int(number) for number in re.findall(r"\d+", spec or "")) // _NODE
    need(len(pattern) + fields * (weigh(list(args)) + weigh(kwargs) + _NODE))


def before_replace(text: Any, old: Any, new: Any) -> None:
    if type(text) is not bytes:
        text, old, new = str(text), str(old), str(new)
    need(len(text) + text.count(old) * len(new))


# -- before methods of str, bytes and int


def before_method(owner: Any, name: str, args: tuple, kwargs: dict) -> tuple:
    """Check a call of a built-in method; returns the arguments to call it with."""
    if name in ("translate", "maketrans", "to_bytes", "from_bytes"):
        raise LimitError(f"the method {name}")
    if not isinstance(owner, (str, bytes)):
        return args
    if name in ("center", "ljust", "rjust", "zfill"):
        width(args[0] if args else 0)
    elif name == "expandtabs":
        width([*args, *kwargs.values(), 8][0], 64)
    elif name == "replace" and len(args) >= 2:
        before_replace(owner, args[0], args[1])
    elif name == "join" and args:
        items = list(args[0])
        need(weigh(items) + len(owner) * len(items))
        return (items, *args[1:])
    return args
