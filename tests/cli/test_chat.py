"""`forwardpass chat`: turns, commands and what goes wrong within a turn."""

import io
import json
import sys

import pytest

from forwardpass.cli import main
from forwardpass.cli.chat import Conversation

ANSWER = "Light is scattered.\nCafé 猫\x1b[31m"


@pytest.fixture
def say(models, model_file, monkeypatch, capsys):
    """say(lines, *options) -> (status, stdout, stderr, the model)."""

    def run(*lines, options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        status = main(["chat", "--model", model_file, *options])
        return status, *capsys.readouterr(), models[-1]

    return run


def test_history_grows(say):
    status, out, err, model = say("one", "", "  two  ")
    assert status == 0
    assert out == f"{ANSWER}\n{ANSWER}\n"
    assert err.count("5 new tokens") == 2
    assert model.calls[1][1] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "two"},
    ]
    assert model.closed


def test_a_model_that_only_reads(models, tmp_path, capsys):
    """It is told before anything is typed."""
    (tmp_path / "reader.gguf").touch()
    assert main(["chat", "--model", str(tmp_path / "reader.gguf")]) == 1
    assert "cannot chat" in capsys.readouterr().err and models[0].closed


def test_commands(say):
    status, _out, err, model = say("/help", "/system", "/system Be brief.", "one", "/history", "/clear", "two", "/nope")
    assert status == 0
    assert "/retry" in err and "no system message" in err and "no command /nope" in err
    assert "user: one" in err and "\\x1b" in err and "\x1b" not in err
    assert model.calls[1][1] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]


def test_retry_asks_the_same_again(say):
    _, _, err, model = say("/retry", "one", "/retry")
    assert "nothing to ask again" in err
    assert model.calls[0][1] == model.calls[1][1] == [{"role": "user", "content": "one"}]


@pytest.mark.parametrize("leave", ["/exit", "/quit"])
def test_leaving(say, leave):
    assert not say(leave, "never asked")[3].calls


def test_an_error_costs_the_turn_only(say):
    status, out, err, model = say("error", "fine")
    assert status == 0
    assert "error: temperature must be in [0, 100]" in err
    assert out == ANSWER + "\n"
    assert model.calls[1][1] == [{"role": "user", "content": "fine"}]


def test_an_interrupted_answer_keeps_what_was_said(say):
    status, _out, err, model = say("interrupt", "next")
    assert status == 0
    assert "(stopped)" in err
    assert model.streams[0].closed
    assert model.calls[1][1][1] == {"role": "assistant", "content": "Light"}


def test_json_gives_one_line_an_answer(say):
    _, out, err, _ = say("one", "two", options=["--json", "--seed", "1"])
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["text"] for record in records] == [ANSWER, ANSWER]
    assert err == ""


def test_system_option_and_parameters(say):
    model = say("one", options=["--system", "S", "--max-new-tokens", "3"])[3]
    assert model.calls == [
        ("chat", [{"role": "system", "content": "S"}, {"role": "user", "content": "one"}], {"max_new_tokens": 3})
    ]


def test_keys_on_a_terminal(monkeypatch, capsys):
    keys = iter([KeyboardInterrupt, "/help", EOFError])

    def read(prompt):
        key = next(keys)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr("builtins.input", read)
    assert Conversation(None, None, {}).loop(interactive=True) == 0
    err = capsys.readouterr().err
    assert "Ctrl-D" in err and "/history" in err
