"""`forwardpass complete` against a fake model, and where LINE:COL is in a file."""

import io
import json
import sys

import pytest

from forwardpass.cli import main
from forwardpass.cli.complete import cut
from forwardpass.errors import ParameterError

TEXT = "def f(x):\n    return \n\nprint(f(1))\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "f.py"
    path.write_text(TEXT)
    return str(path)


def test_what_stands_before_and_after_the_cursor_reaches_the_model(models, model_file, source, capsys):
    assert main(["complete", source, "--at", "2:12", "--model", model_file, "--max-new-tokens", "9"]) == 0
    kind, request, params = models[0].calls[0]
    assert (kind, request) == ("complete", ["def f(x):\n    return ", "\n\nprint(f(1))\n"])
    assert params == {"max_new_tokens": 9, "context_tokens": None, "stream": True}
    out, err = capsys.readouterr()
    assert out.startswith("Light is scattered") and "new tokens" in err


@pytest.mark.parametrize("options", [["--prefix-only", "--at", "2:12"], ["--at", "5:1"], []])
def test_without_a_suffix(models, model_file, source, options):
    """Asked for, or at the end of the file, which is also the default."""
    assert main(["complete", source, "--model", model_file, *options]) == 0
    assert models[0].calls[0][1] == [TEXT[:21] if "2:12" in options else TEXT, None]


def test_json_and_standard_input(models, model_file, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a = \n"), "utf-8"))
    assert main(["complete", "-", "--at", "1:5", "--json", "--context-tokens", "50", "--model", model_file]) == 0
    assert models[0].calls[0][1:] == (["a = ", "\n"], {"context_tokens": 50})
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "stop"


@pytest.mark.parametrize(("at", "before"), [("1:1", ""), ("1:4", "def"), ("1:10", "def f(x):"), ("2:1", "def f(x):\n"),
                                            ("3:1", "def f(x):\n    return \n"), ("5:1", TEXT)])
def test_places(at, before):
    assert cut(TEXT, at, "f.py") == (before, TEXT[len(before) :])


def test_an_empty_file_has_one_place():
    assert cut("", "1:1", "f.py") == ("", "")


def test_line_ends_of_other_systems():
    assert cut("ab\r\ncd", "1:3", "f.py") == ("ab", "\r\ncd")
    assert cut("ab\r\ncd", "2:2", "f.py") == ("ab\r\nc", "d")


@pytest.mark.parametrize(("at", "words"), [("6:1", "line from 1 to 5"), ("0:1", "line from 1 to 5"),
                                           ("1:11", "column from 1 to 10"), ("1:0", "column from 1 to 10"),
                                           ("3", "LINE:COL"), ("a:b", "LINE:COL"), ("-1:2", "LINE:COL"),
                                           ("1:²", "LINE:COL"), ("9" * 5000 + ":1", "LINE:COL")])
def test_no_such_place(at, words):
    with pytest.raises(ParameterError, match=words) as error:
        cut(TEXT, at, "f.py")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(("content", "words"), [(None, "found none"), (b"\xff\xfe", "UTF-8")])
def test_files_that_are_no_text(models, model_file, tmp_path, capsys, content, words):
    path = tmp_path / "x.py"
    if content is not None:
        path.write_bytes(content)
    assert main(["complete", str(path), "--model", model_file]) == 1
    assert words in capsys.readouterr().err and not models
