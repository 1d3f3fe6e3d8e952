"""Typed reading of a model file's settings: hostile key/value pairs in, checked numbers out.

Every value is believed only after its type and interval were checked, so that nothing later computes with a
string, a NaN, True as 1, or a size that no model has. A value of None counts as absent, as in HF configs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import NoReturn

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.spec import MAX_SIZE

REQUIRED = object()


def show(value: object) -> str:
    """A value of unknown size and kind for an error message: at most about 80 characters."""
    try:
        text = repr(value)
    except Exception:  # an integer of 5,000 digits, an object that will not print
        return f"a {type(value).__name__}"
    return (text if len(text) <= 80 else text[:77] + "...") + f" ({type(value).__name__})"


class Fields:
    """Checked access to settings by name. where: said in errors; prefix: put before every name (GGUF: "llama.")."""

    lists = False

    def __init__(self, values: Mapping, where: str, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ModelFileError(f"{where}: expected names with values, found {show(values)}; fetch the model again")
        self.values, self.where, self.prefix = values, where, prefix
        self.read: set[str] = set()

    def get(self, name: str) -> object:
        self.read.add(name)
        return self.values.get(self.prefix + name)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def wrong(self, name: str, expected: str, found: object) -> NoReturn:
        raise ModelFileError(f"{self.where}: {self.prefix}{name}: expected {expected}, found {show(found)}; "
                             "fix the file or fetch the model again")

    def unsupported(self, name: str, what: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.where}: {self.prefix}{name} = {show(self.get(name))}: {what} is not "
                                    "implemented; use a model without it")

    def _first(self, names: tuple[str, ...], default: object, expected: str) -> tuple[str, object]:
        """The value under any of several spellings. Two spellings that differ contradict each other."""
        present = [name for name in names if self.has(name)]
        if not present:
            if default is REQUIRED:
                raise ModelFileError(f"{self.where}: {self.prefix}{names[0]} is missing: expected {expected}; "
                                     "fix the file or fetch the model again")
            return names[0], default
        first = self.get(present[0])
        for other in present[1:]:
            if type(self.get(other)) is not type(first) or self.get(other) != first:
                self.wrong(other, f"the same as {self.prefix}{present[0]} ({show(first)})", self.get(other))
        return present[0], first

    def integer(self, *names: str, default: object = REQUIRED, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number in [low, high] under one of `names`. A default is returned as it is (it may be None).

        A list of equal whole numbers counts as that number where `lists` is True (GGUF's per-layer form).
        """
        expected = f"a whole number from {low} to {high}"
        name, value = self._first(names, default, expected)
        if value is default:
            return value
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, list) and self.lists:
            if not value:
                self.wrong(name, expected, value)
            if any(item != value[0] for item in value[1:]):
                self.unsupported(name, "a size that differs from layer to layer")
            value = value[0]
        return self._whole(name, value, low, high)

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        expected = f"a whole number from {low} to {high}"
        if isinstance(value, bool):
            self.wrong(name, expected, value)
        try:
            number = operator.index(value)
        except TypeError:
            self.wrong(name, expected, value)
        if not low <= number <= high:
            self.wrong(name, expected, value)
        return number

    def number(self, *names: str, default: object = REQUIRED, low: float, high: float) -> float:
        """A finite number in [low, high] under one of `names`."""
        expected = f"a number from {low:g} to {high:g}"
        name, value = self._first(names, default, expected)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.wrong(name, expected, value)
        if not low <= value <= high or not math.isfinite(value):  # NaN fails the first comparison
            self.wrong(name, expected, value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: object = REQUIRED) -> str:
        name, value = self._first((name,), default, "a text")
        if value is not default and not isinstance(value, str):
            self.wrong(name, "a text", value)
        return value

    def refuse_unread(self, table: Mapping[str, tuple[tuple, str]], known: Iterable[str] | None = None) -> None:
        """Stop at settings that would change the result and that no family has read.

        table: name -> (values that mean "off", what it is). An absent or empty one is off. known: where it is given,
        any other setting under the prefix that was neither read nor is listed here or in the table stops too.
        """
        for name, (off, what) in table.items():
            value = self.values.get(self.prefix + name)
            if name in self.read or value is None or (isinstance(value, (list, dict)) and not value):
                continue
            if not isinstance(value, (bool, int, float, str)) or value not in off:
                self.unsupported(name, what)
        if known is not None:
            known = {*known, *table, *self.read}
            for key in self.values:
                if isinstance(key, str) and key.startswith(self.prefix) and key[len(self.prefix):] not in known:
                    self.unsupported(key[len(self.prefix):], "this setting")
