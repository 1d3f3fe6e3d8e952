"""`forwardpass translate` and `summarize` against a fake model."""

import io
import json
import sys

import pytest

from forwardpass.cli import main


def stdin(monkeypatch, raw):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))


def test_files_and_texts(models, model_file, tmp_path, capsys):
    path = tmp_path / "letter.txt"
    path.write_bytes("\ufeffDear Ann.\n\nCafé 12.\n".encode())
    assert main(["translate", "--to", "de", "--source", "en", str(path), "Some words", "--model", model_file]) == 0
    assert models[0].calls == [
        ("translate", ["Dear Ann.\n\nCafé 12.\n"], {"source": "en", "target": "de", "stream": True}),
        ("translate", ["Some words"], {"source": "en", "target": "de", "stream": True})]
    out, err = capsys.readouterr()
    assert out == "DEAR ANN.\n\nCAFÉ 12.\nSOME WORDS\n"
    assert err == "not found in the translation: 12\n"


def test_standard_input(models, model_file, monkeypatch, capsys):
    stdin(monkeypatch, b"piped text")
    assert main(["translate", "--to", "fr", "--model", model_file]) == 0
    assert models[0].calls[0][1] == ["piped text"]
    stdin(monkeypatch, b"piped text")
    assert main(["summarize", "-", "--model", model_file, "--max-new-tokens", "9"]) == 0
    assert models[1].calls == [("summarize", ["piped text"], {"max_new_tokens": 9})]
    assert capsys.readouterr().out == "PIPED TEXT\nPIPED TEXT\n"


def test_n_best(models, model_file, capsys):
    assert main(["translate", "--to", "de", "--num-return-sequences", "2", "--model", model_file, "two words"]) == 0
    assert capsys.readouterr().out == "1. (-0.500) TWO WORDS\n2. (-0.500) TWO WORDS\n"


def test_json(models, model_file, capsys):
    assert main(["translate", "--to", "de", "--json", "--model", model_file, "two words"]) == 0
    assert json.loads(capsys.readouterr().out) == {"source": "two words", "answers": [
        {"text": "TWO WORDS", "score": -0.5, "finish_reason": "stop", "lost": []}]}


@pytest.mark.parametrize(("word", "message"), [
    ("missing.txt", "there is no file missing.txt"), ("some/path", "there is no file some/path"),
    (" \n ", "nothing but blanks"),
])
def test_what_cannot_be_read(models, model_file, capsys, word, message):
    assert main(["translate", "--to", "de", word, "--model", model_file]) == 1
    assert message in capsys.readouterr().err and not models


def test_bytes_that_are_no_text(models, model_file, tmp_path, capsys):
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["summarize", str(path), "--model", model_file]) == 1
    assert "UTF-8" in capsys.readouterr().err
