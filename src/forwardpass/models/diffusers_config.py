"""Reads the config.json of one component of a diffusers directory.

Such a file names its class and every setting that the class has, most of them as they are by default. What a family
does not read must be off: anything else would change the result and is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forwardpass.errors import UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.models.spec import MAX_SIZE

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu_erf", "relu": "relu"}
"""act_fn -> the spec's spelling. Which of them a checkpoint has, its config says by the same names."""


class DiffusersFields(Fields):
    """The settings of a component. where: said in errors, the file's path or name."""

    def __init__(self, values: Mapping, name: str, where: str = "config.json") -> None:
        """name: the class that is to be read. Raises ModelFileError or UnsupportedModelError."""
        super().__init__(values, where)
        found = self.text("_class_name")
        if found != name:
            raise UnsupportedModelError(f"{where}: _class_name: expected {name}, found {show(found)}; use a model with "
                                        f"a {name}")

    def is_null(self, name: str) -> bool:
        """Whether a setting is there and null, which for a few means something else than its absence."""
        self.read.add(name)
        return name in self.values and self.values[name] is None

    def each(self, name: str, count: int, default: int, low: int = 1, high: int = MAX_SIZE) -> tuple[int, ...]:
        """A whole number for all of `count` blocks, or a list with one for each."""
        value = self.get(name)
        if not isinstance(value, (list, tuple)):
            return (self.integer(name, default=default, low=low, high=high),) * count
        if len(value) != count:
            self.wrong(name, f"a whole number or a list of {count}, one for each block", value)
        return tuple(self._whole(name, one, low, high) for one in value)

    def names(self, name: str, default: tuple[str, ...], known: Iterable[str], most: int) -> tuple[str, ...]:
        """A list of 1 to `most` kinds of blocks, each one of `known`."""
        value, known = self.get(name), tuple(known)
        value = list(default) if value is None else value
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= most:
            self.wrong(name, f"a list of 1 to {most} names", value)
        for one in value:
            if not isinstance(one, str):
                self.wrong(name, "names", value)
            if one not in known:
                self.unsupported(name, f"a block other than {', '.join(known)}")
        return tuple(value)

    def pixels(self, name: str, default: int) -> tuple[int, int]:
        """A height and a width: one whole number for both, or two."""
        return self.each(name, 2, default, high=2**16)

    def activation(self, name: str = "act_fn", default: str = "silu") -> str:
        """In the spec's spelling."""
        found = self.text(name, default)
        if found not in ACTIVATIONS:
            self.unsupported(name, f"an activation outside {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[found]

    def close(self, known: Mapping[str, tuple] = {}, without_effect: Iterable[str] = ()) -> None:
        """Refuse every setting that nobody read and that is not off: null, false or empty, or one of the values that
        `known` has for it. without_effect: settings that change no result; so are those that begin with "_"."""
        passed = {*self.read, *without_effect}
        for name, value in self.values.items():
            if not isinstance(name, str) or name.startswith("_") or name in passed:
                continue
            off = value is None or value is False or (isinstance(value, (str, list, tuple, dict)) and not value)
            plain = isinstance(value, (bool, int, float, str)) and value in known.get(name, ())
            if not off and not plain:
                self.unsupported(name if len(name) <= 80 else name[:77] + "...", "this setting")
