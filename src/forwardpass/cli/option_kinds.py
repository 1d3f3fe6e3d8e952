"""What the command line is described with: options, arguments and commands. options.py describes it."""

from __future__ import annotations

from importlib import import_module

FLAG, TRISTATE, TEXT, INT, FLOAT, TEXTS, INTS = "flag", "tristate", "text", "int", "float", "texts", "ints"
DEFAULT_MODEL = "smollm2-135m"


class Option:
    """--name VALUE. A flag takes no value; a tristate has --name and --no-name, and None when neither was given;
    texts and ints may be repeated and give a list. short: another spelling, "-x", or ""."""

    __slots__ = ("default", "flag", "help", "kind", "name", "short")

    def __init__(self, name: str, kind: str, help: str, default=None, short: str = ""):
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.short = short
        self.kind = kind
        self.help = help
        self.default = False if kind == FLAG else default


class Argument:
    """A word without dashes. many: any number of words, a list (None if there are none); only the last one may be."""

    __slots__ = ("help", "many", "name", "required")

    def __init__(self, name: str, help: str, required: bool = True, many: bool = False):
        self.name = name
        self.help = help
        self.required = required and not many
        self.many = many


MODEL = Option("model", TEXT, "A path, a name of the catalogue, or hf:org/name.")
"""Its default is the command's own."""


class Command:
    """One command; the function `run` of the module of its name does it. examples: lines for its --help;  model: the
    default of --model, None = there is none;  unset: whether options that were not given are None, and not their
    defaults, since a file may set them."""

    __slots__ = ("arguments", "examples", "help", "model", "module", "name", "options", "unset")

    def __init__(self, name: str, help: str, options: tuple[Option, ...], *arguments: Argument,
                 model: str | None = DEFAULT_MODEL, examples: tuple[str, ...] = (), unset: bool = False):
        self.name = name
        self.module = name.replace("-", "_")
        self.help = help
        self.arguments = arguments
        self.options = options
        self.model = model
        self.examples = examples
        self.unset = unset

    def load(self):
        return import_module(f"{__package__}.{self.module}").run

    def default(self, option: Option):
        if option is MODEL:
            return self.model
        return None if self.unset and option.kind != FLAG else option.default

    def defaults(self) -> dict:
        values = {option.name: self.default(option) for option in self.options}
        return values | {argument.name: None for argument in self.arguments}
