"""What commands print with."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from forwardpass.cli import output
from forwardpass.cli import progress as progress_module
from forwardpass.cli.progress import Progress


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("猫 é", "猫 é"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\nb"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_escape(text, shown):
    assert output.escape(text) == shown


def test_one_line():
    assert output.one_line("a\nb\r\nc") == "a b c"
    assert output.one_line("") == ""


def test_joined_emoji_stay_whole_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert output.answer_text("👩\u200d💻\x07\t") == "👩\u200d💻\\x07\t"


def test_json_of_numpy_and_paths(capsys):
    output.print_json({"a": np.arange(2), "b": np.float32(0.5), "c": Path("x"), "d": frozenset([1])})
    assert json.loads(capsys.readouterr().out) == {"a": [0, 1], "b": 0.5, "c": "x", "d": [1]}


def test_plain_table(capsys):
    output.print_table(["name", "n"], [["a", 1], ["bcdef\x1b", 22]])
    assert capsys.readouterr().out == "name       n\na          1\nbcdef\\x1b  22\n"


def test_terminal_table_has_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(["name"], [["[red]x[/red]"]])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_status_line():
    # 10 tokens, the first after 0.5 s, the other nine within one second more
    assert (
        output.status_line(3, 10, 0.5, 1.5) == "3 prompt tokens, 10 new tokens, first token after 0.500 s, 9.0 tokens/s"
    )
    assert output.status_line(3, 1, 0.5, 0.5) == "3 prompt tokens, 1 new tokens, first token after 0.500 s"


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB")])
def test_size(nbytes, text):
    assert output.size(nbytes) == text


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress_module, "SECONDS_BEFORE", 0.0)


def test_what_is_quick_shows_no_progress(capsys):
    with Progress() as progress:
        progress("packing", 1, 1)
    assert capsys.readouterr().err == ""


def test_progress_away_from_a_terminal_is_a_few_lines(at_once, capsys):
    with Progress() as progress:
        for done in range(0, 101):
            progress("fetching", done * 1_000_000, 100_000_000)
        progress("waiting", 0, 0)
    assert capsys.readouterr().err == "fetching (0 of 100 MB)\nwaiting\n"


def test_progress_on_a_terminal(at_once, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress() as progress:
        progress("fetching [bold]x", 5, 10)
        progress("fetching [bold]x", 10, 10)
    assert "fetching [bold]x" in capsys.readouterr().err
