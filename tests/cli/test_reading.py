"""The commands that read texts, against a fake model: where texts come from, and what is printed."""

import io
import json
import sys

import numpy as np
import pytest

from forwardpass.cli import main, reading

COMMANDS = {  # command: (its arguments beside the texts, what the model is asked)
    "embed": ([], "embed"), "classify": ([], "classify"), "rerank": (["what"], "rerank"),
    "tag": ([], "token_classify"), "fill-mask": ([], "fill_mask"), "zero-shot": (["--label", "x"], "zero_shot")}


def asked(model):
    """The texts of all calls."""
    return [text for _, texts, _ in model.calls for text in texts]


def stdin(monkeypatch, raw):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_where_texts_come_from(models, model_file, tmp_path, monkeypatch, capsys, command):
    more, kind = COMMANDS[command]
    line = [command, *more, "--model", model_file]
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffFrom a file\r\n\n  \nCafé 猫 [MASK]\n".encode())
    stdin(monkeypatch, b"piped\nin\n")
    assert main([*line, "A word", "-", "--file", str(path)]) == 0
    assert asked(models[0]) == ["A word", "piped", "in", "From a file", "Café 猫 [MASK]"]
    assert models[0].calls[0][0] == kind and models[0].closed
    stdin(monkeypatch, b"only this\n")
    assert main(line) == 0 and asked(models[1]) == ["only this"]
    stdin(monkeypatch, b"and this\n")
    assert main([*line, "--file", "-"]) == 0 and asked(models[2]) == ["and this"]
    capsys.readouterr()


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_a_line_a_text(models, model_file, capsys, command):
    more, _ = COMMANDS[command]
    assert main([command, *more, "Ada [MASK]", "b [MASK]", "--json", "--model", model_file]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in lines] == ["Ada [MASK]", "b [MASK]"]


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_to_read(models, model_file, tmp_path, monkeypatch, capsys, command):
    more, _ = COMMANDS[command]
    line = [command, *more, "--model", model_file]
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    for arguments, words in ((["--file", str(tmp_path / "empty")], "found none"),
                             (["--file", str(tmp_path / "binary")], "UTF-8"),
                             (["--file", str(tmp_path / "nowhere")], "found none"),
                             (["--file", str(tmp_path)], "found none")):
        assert main([*line, *arguments]) == 1
        assert words in capsys.readouterr().err
    stdin(monkeypatch, b"")
    assert main(line) == 1 and "found none" in capsys.readouterr().err
    assert not models


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_of_the_model_is_one_line(models, model_file, capsys, command):
    more, _ = COMMANDS[command]
    assert main([command, *more, "an error", "--model", model_file]) == 1
    assert capsys.readouterr() == ("", "error: this text is wrong\n")


@pytest.mark.parametrize("command", [one for one in COMMANDS if one != "embed"])
def test_a_model_must_be_named(command, capsys):
    more, _ = COMMANDS[command]
    assert main([command, *more, "a text"]) == 1
    assert "needs a model" in capsys.readouterr().err


def test_many_texts_go_in_portions_with_progress(models, model_file, monkeypatch, capsys):
    monkeypatch.setattr(reading, "AT_ONCE", 4)
    monkeypatch.setattr("forwardpass.cli.progress.SECONDS_BEFORE", -1)
    monkeypatch.setattr("forwardpass.cli.progress.SECONDS_BETWEEN_LINES", -1)
    assert main(["classify", *"abcdefghij", "--json", "--model", model_file]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["text"] for line in out.splitlines()] == list("abcdefghij")
    assert [len(texts) for _, texts, _ in models[0].calls] == [4, 4, 2]
    assert err.splitlines() == [f"classifying ({n} of 10 texts)" for n in (4, 8, 10)]


# ---- embed


def test_vectors_for_people(models, model_file, capsys):
    assert main(["embed", "four", "\x1b[31m" + 200 * "x", "--model", model_file]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["four", "    8 numbers: 4, 8, 0.5, 1, 2, 3, ..."]
    assert len(out[2]) == 80 and out[2].startswith("\\x1b[31mxxx")


def test_an_empty_text_is_shown_as_one(models, model_file, capsys):
    assert main(["embed", "", "--model", model_file]) == 0
    assert capsys.readouterr().out.startswith("\n    8 numbers: 0, 0, ")


def test_only_ends_of_lines_end_texts(models, model_file, monkeypatch, capsys):
    stdin(monkeypatch, "one\u2028text\x0bhere\x85\r\ntwo\rthree\n".encode())
    assert main(["embed", "-", "--json", "--model", model_file]) == 0
    assert asked(models[0]) == ["one\u2028text\x0bhere\x85", "two", "three"]
    capsys.readouterr()


def test_options_reach_the_model(models, model_file, capsys):
    line = "--prompt query --pooling cls --no-normalize --dimensions 4 --output int8 --max-length 9 --truncation left"
    assert main(["embed", "a", "--overlap", "3", *line.split(), "--model", model_file]) == 0
    assert models[0].calls[0][2] == {
        "prompt": "query", "pooling": "cls", "normalize": False, "dimensions": 4, "output": "int8", "max_length": 9,
        "truncation": "left", "overlap": 3}
    assert main(["embed", "a", "--model", model_file]) == 0 and models[1].calls[0][2] == {}
    capsys.readouterr()


def test_the_nearest_texts(models, model_file, capsys):
    line = ["embed", "aaaaaaa", "aa", "aaaa", "aaa", "--nearest", "bbb", "--model", model_file]
    assert main([*line, "--top", "2"]) == 0
    assert capsys.readouterr().out == "0.0000  aaa\n-1.0000  aa\n"
    assert models[0].calls[-1] == ("embed", ["bbb"], {"prompt": "query"})
    assert main([*line, "--json", "--prompt", "x: "]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0] == {"index": 3, "score": 0.0, "text": "aaa"} and [one["index"] for one in found] == [3, 1, 2, 0]
    assert models[1].calls[-1][2] == {"prompt": "x: "}


def test_saving_vectors(models, model_file, tmp_path, capsys):
    path = tmp_path / "v.npy"
    assert main(["embed", "a", "bc", "--save", str(path), "--model", model_file]) == 0
    assert np.load(path)[:, :2].tolist() == [[1, 2], [2, 4]] and capsys.readouterr().out == ""


@pytest.mark.parametrize(("options", "words"), [
    (["--save", "x.npy", "--nearest", "y"], "one of them"), (["--save", "nowhere/x.npy"], "folder that exists"),
    (["--save", "."], "folder that exists"), (["--top", "3"], "--nearest"),
    (["--nearest", "y", "--top", "0"], "at least 1"),
    (["--nearest", "y", "--output", "int8"], "float32")])
def test_options_that_make_no_sense(models, model_file, capsys, options, words):
    assert main(["embed", "a", *options, "--model", model_file]) == 1
    assert words in capsys.readouterr().err and not models


def test_embedding_has_a_model_of_its_own(models, capsys):
    assert main(["embed", "a"]) in (0, 1)
    assert models or "minilm-l6" in capsys.readouterr().err


# ---- labels


def test_labels_for_people(models, model_file, capsys):
    assert main(["classify", "a text", "--model", model_file]) == 0
    assert capsys.readouterr().out == "0.7500  long\n0.2500  short\n"
    assert main(["classify", "a", "b", "--top", "1", "--activation", "none", "--model", model_file]) == 0
    assert capsys.readouterr().out == "a\n    0.7500  long\nb\n    0.7500  long\n"
    assert models[1].calls[0][2] == {"top_k": 1, "activation": "none"}


def test_pairs(models, model_file, capsys):
    line = ["classify", "a\tb", "--pairs", "--model", model_file, "--pair-truncation", "only_first"]
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "pair": ["a", "b"], "labels": [{"label": "long", "score": 0.75}, {"label": "short\n", "score": 0.25}]}
    assert models[0].calls[0][1:] == ([("a", "b")], {"pair_truncation": "only_first"})
    assert main(["classify", "a b", "--pairs", "--model", model_file]) == 1
    assert "tab" in capsys.readouterr().err


def test_reranking(models, model_file, monkeypatch, capsys):
    monkeypatch.setattr(reading, "AT_ONCE", 2)
    line = ["rerank", "the query", "aa", "a", "aaa", "bb", "--model", model_file]
    assert main([*line, "--top", "3"]) == 0
    assert capsys.readouterr().out == "3.0000  aaa\n2.0000  aa\n2.0000  bb\n"
    assert models[0].calls[0][2] == {"query": "the query"}
    assert main([*line, "--json", "--template", "{query} {document}", "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"index": 2, "score": 3.0, "text": "aaa"}
    assert main([*line, "--top", "0"]) == 1 and "--top" in capsys.readouterr().err
    assert main(["rerank"]) == 2
    capsys.readouterr()


def test_tags(models, model_file, capsys):
    line = ["tag", "Ada met nobody", "--aggregation", "first", "--ignore", "O", "--ignore", "LOC"]
    assert main([*line, "--model", model_file]) == 0
    assert capsys.readouterr().out == "0.5000  PER  Ada  (0-3)\n"
    assert models[0].calls[0][2] == {"aggregation": "first", "ignore": ["O", "LOC"]}
    assert main(["tag", "Ada", "bob", "--model", model_file]) == 0
    assert capsys.readouterr().out == "Ada\n    0.5000  PER  Ada  (0-3)\nbob\n    no entities\n"


def test_masks(models, model_file, capsys):
    assert main(["fill-mask", "a [MASK]", "--top", "2", "--model", model_file]) == 0
    assert capsys.readouterr().out == "0.9000  city\n" and models[0].calls[0][2] == {"top_k": 2}
    assert main(["fill-mask", "[MASK] [MASK]", "--model", model_file]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == [f"[MASK] [MASK] (mask {i})" for i in (1, 2)]
    assert main(["fill-mask", "a [MASK]", "--json", "--model", model_file]) == 0
    assert json.loads(capsys.readouterr().out)["masks"] == [
        [{"token": "city", "score": 0.9, "token_id": 7, "text": "a city"}]]


def test_labels_of_ones_own(models, model_file, capsys):
    line = ["zero-shot", "a text", "--label", "x", "--label", "y", "--hypothesis", "It is {}.", "--multi-label"]
    assert main([*line, "--model", model_file]) == 0
    assert capsys.readouterr().out == "0.5000  x\n0.5000  y\n"
    assert models[0].calls[0][2] == {"labels": ["x", "y"], "hypothesis_template": "It is {}.", "multi_label": True}
    assert main(["zero-shot", "a text", "--model", model_file]) == 1
    assert "--label" in capsys.readouterr().err
