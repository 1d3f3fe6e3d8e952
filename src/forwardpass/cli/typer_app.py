"""The same command line through typer: help, shell-style mistakes and every form that `fastparse` leaves alone."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from .option_kinds import FLAG, FLOAT, INT, INTS, TEXT, TEXTS, TRISTATE, Command
from .options import COMMANDS

_TYPES = {
    FLAG: bool,
    TRISTATE: bool | None,
    TEXT: str | None,
    INT: int | None,
    FLOAT: float | None,
    TEXTS: list[str] | None,
    INTS: list[int] | None,
}


def parse(arguments: list[str]) -> tuple[Command, dict] | int:
    """(command, values), or the exit status after typer has printed help or what is wrong."""
    parsed: list[tuple[Command, dict]] = []
    app = build(lambda command, values: parsed.append((command, values)))
    try:
        app(args=arguments, prog_name="forwardpass")
    except SystemExit as leaving:
        if leaving.code or not parsed:
            return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return parsed[0]


def build(receive) -> typer.Typer:
    """The typer application; it only calls receive(command, values), so commands run outside of typer."""
    # Without rich markup, usage errors stay two plain lines and rich is not imported.
    app = typer.Typer(
        help="A Transformer inference engine: point it at a checkpoint and it answers.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def top(version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version)] = False) -> None:
        pass

    for command in COMMANDS:
        # "\b": the lines of this paragraph are not to be joined.
        examples = "\b\nExamples:\n  " + "\n  ".join(command.examples) if command.examples else None
        app.command(command.name, help=command.help, epilog=examples)(_function(command, receive))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print("forwardpass", version("forwardpass"))
        raise typer.Exit()


def _function(command: Command, receive):
    """A function with the signature that typer reads the command's parameters from."""

    def function(**values) -> None:
        # Parameter names must be Python names: "from" and "json" travel with an underscore.
        plain = {name.removesuffix("_"): value for name, value in values.items()}
        lists = [option.name for option in command.options if option.kind in (TEXTS, INTS)]
        for name in lists + [argument.name for argument in command.arguments if argument.many]:
            plain[name] = list(plain[name]) if plain[name] else None
        receive(command, plain)

    parameters = []
    for argument in command.arguments:
        about = typer.Argument(help=argument.help, metavar=argument.name.upper(), show_default=False)
        default = inspect.Parameter.empty if argument.required else None
        kind = list[str] | None if argument.many else str
        parameters.append(_parameter(argument.name, Annotated[kind, about], default))
    for option in command.options:
        names = [option.flag, option.short] if option.short else [option.flag]
        if option.kind == TRISTATE:
            names = [f"{option.flag}/--no-{option.flag[2:]}"]
        default = command.default(option)
        about = typer.Option(*names, help=option.help, show_default=isinstance(default, str | int)
                             and option.kind != FLAG)
        parameters.append(_parameter(option.name, Annotated[_TYPES[option.kind], about], default))
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    function.__name__ = command.module
    return function


def _parameter(name: str, annotation, default) -> inspect.Parameter:
    return inspect.Parameter(name + "_", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
