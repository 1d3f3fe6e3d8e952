"""Parse a plain command line in well under a millisecond (importing and running typer costs over 100).

Only what is certain is decided here. For anything else - help, mistakes, abbreviations, `--`, values that begin
with a dash - the answer is None, and typer decides.
"""

from __future__ import annotations

from .option_kinds import FLAG, FLOAT, INT, INTS, TEXT, TEXTS, TRISTATE, Command
from .options import COMMANDS


def parse(arguments: list[str]) -> tuple[Command, dict] | None:
    """(command, values of its options and argument), or None: let typer decide."""
    command = next((command for command in COMMANDS if arguments and command.name == arguments[0]), None)
    if command is None:
        return None
    values = command.defaults()
    by_flag = {flag: option for option in command.options for flag in (option.flag, option.short)}
    words: list[str] = []
    rest = iter(arguments[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, has_value, text = word.partition("=")
        if flag.startswith("--no-") and (option := by_flag.get("--" + flag[5:])) and option.kind == TRISTATE:
            if has_value:
                return None
            values[option.name] = False
            continue
        option = by_flag.get(flag)
        if option is None:
            return None
        if option.kind in (FLAG, TRISTATE):
            if has_value:
                return None
            values[option.name] = True
            continue
        if not has_value:
            text = next(rest, "-")
        if text.startswith("-") or not _store(values, option.name, option.kind, text):
            return None
    required = sum(argument.required for argument in command.arguments)
    single = [argument.name for argument in command.arguments if not argument.many]
    many = [argument.name for argument in command.arguments if argument.many]
    if len(words) < required or (len(words) > len(single) and not many):
        return None
    values.update(zip(single, words, strict=False))
    if len(words) > len(single):
        values[many[0]] = words[len(single) :]
    return command, values


def _store(values: dict, name: str, kind: str, text: str) -> bool:
    if kind == TEXT:
        values[name] = text
    elif kind == TEXTS:
        values[name] = [*(values[name] or ()), text]
    elif kind in (INT, INTS):
        # Digits only: int() also takes "1_000" and other scripts' digits, which typer may see differently.
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            return False
        values[name] = int(text) if kind == INT else [*(values[name] or ()), int(text)]
    elif kind == FLOAT:
        whole, _, fraction = text.partition(".")
        if not text.isascii() or not (whole + fraction).isdigit():
            return False
        values[name] = float(text)
    return True
