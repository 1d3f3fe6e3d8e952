"""The commands that look at images, against a fake model: where images come from, what is printed, what bad ones do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from forwardpass.cli import main

COMMANDS = {"classify-image": ([], "classify_image"), "embed-image": ([], "embed_image"),
            "zero-shot-image": (["--labels", "cat, dog"], "zero_shot_image")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Names only: the fake model opens nothing. Commands run beside the folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.png", "a.JPG", "notes.txt", ".hidden.png", "sub/deep/c.webp", "sub/bad.gif", ".git/d.png", "plain"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return "in"


def given(models):
    return models[-1].calls[-1][1]


@pytest.mark.parametrize("command", COMMANDS)
def test_where_images_come_from(models, model_file, folder, monkeypatch, capsys, command):
    more, kind = COMMANDS[command]
    line = [command, *more, "--model", model_file]
    below = ["in/a.JPG", "in/b.png", "in/sub/bad.gif", "in/sub/deep/c.webp"]
    main([*line, folder])
    assert given(models) == below and models[-1].calls[-1][0] == kind and models[-1].closed
    assert main([*line, "in/plain", "in/notes.txt", "nowhere.png"]) == 0  # what is named is not judged by its name
    assert given(models) == ["in/plain", "in/notes.txt", "nowhere.png"]
    main([*line, "in/*.png", "in/**/*.webp", "in/su?"])
    assert given(models) == ["in/b.png", "in/sub/deep/c.webp", "in/sub/bad.gif", "in/sub/deep/c.webp"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x89PNG")))
    assert main([*line, "-"]) == 0 and given(models) == ["standard input"]
    capsys.readouterr()


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_to_look_at(models, model_file, folder, capsys, command):
    more, _ = COMMANDS[command]
    line = [command, *more, "--model", model_file]
    os.makedirs("empty/still")
    for words, said in (([], "found none: name files or folders"), (["empty"], "empty: expected images, found none"),
                        (["in/*.bmp"], "in/*.bmp: expected images, found none")):
        assert main([*line, *words]) == 1
        assert said in capsys.readouterr().err
    assert not models


def test_labels_for_people(models, model_file, capsys):
    assert main(["classify-image", "shoe.png", "--model", model_file]) == 0
    assert capsys.readouterr().out == "0.0800  boot\n0.2500  bag\n"
    assert main(["classify-image", "a\x1b.png", "longer.png", "--top", "1", "--model", model_file]) == 0
    assert capsys.readouterr().out == "a\\x1b.png\n    0.0600  boot\nlonger.png\n    0.1000  boot\n"
    assert models[1].calls[0][2] == {"top_k": 1}


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_images_are_told_of_and_the_others_go_on(models, model_file, capsys, command):
    more, _ = COMMANDS[command]
    line = [command, "a.png", "bad.png", "c.png", *more, "--model", model_file]
    assert main(line) == 1
    out, err = capsys.readouterr()
    assert err == "error: bad.png: expected an image\n" and "bad" not in out and "a.png\n" in out and "c.png\n" in out
    assert main([*line, "--json"]) == 1
    out, err = capsys.readouterr()
    lines = [json.loads(one) for one in out.splitlines()]
    assert [one["image"] for one in lines] == ["a.png", "bad.png", "c.png"] and err == ""
    assert lines[1] == {"image": "bad.png", "error": "bad.png: expected an\nimage"}
    assert {*lines[0]} == {"image", "vector" if command == "embed-image" else "labels"}
    assert main([command, "bad.png", *more, "--model", model_file]) == 1
    capsys.readouterr()


def test_labels_of_ones_own(models, model_file, capsys):
    line = ["zero-shot-image", "x.png", "--label", "a, b", "--labels", "cat,, dog ", "--hypothesis", "It is {}."]
    assert main([*line, "--top", "2", "--json", "--model", model_file]) == 0
    assert models[0].calls[0][2] == {"labels": ["a, b", "cat", "dog"], "hypothesis_template": "It is {}."}
    assert [one["label"] for one in json.loads(capsys.readouterr().out)["labels"]] == ["a, b", "cat"]
    for more, said in ((["--labels", " , "], "found none"), ([], "found none"),
                       (["--label", "a", "--top", "0"], "least")):
        assert main(["zero-shot-image", "x.png", *more, "--model", model_file]) == 1
        assert said in capsys.readouterr().err
    assert main(["zero-shot-image", "x.png", "--label", "a"]) == 1
    assert "needs a model: name a CLIP or SigLIP model" in capsys.readouterr().err


def test_vectors(models, model_file, tmp_path, capsys):
    line = ["embed-image", "--pooling", "mean", "--no-normalize", "--model", model_file]
    assert main([*line, "abcd"]) == 0
    assert capsys.readouterr().out == "abcd\n    3 numbers: 4, 8, 1\n"
    assert models[0].calls[0][2] == {"pooling": "mean", "normalize": False}
    assert main([*line, "ab", "bad", "abcd", "--save", str(tmp_path / "v.npy")]) == 1
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), [[2, 4, 1], [4, 8, 1]])
    capsys.readouterr()
    assert main([*line, "ab", "abcdef", "abc", "--nearest", "abcd", "--top", "2"]) == 0
    assert capsys.readouterr().out == "-1.0000  abc\n-2.0000  ab\n"
    assert [names for _, names, _ in models[2].calls] == [["abcd"], ["ab", "abcdef", "abc"]]
    assert main([*line, "ab", "--nearest", "abcd", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"image": "ab", "score": -2.0}
    assert main([*line, "bad", "--nearest", "abcd"]) == 1
    assert capsys.readouterr().out == ""
    for more, said in ((["--top", "3"], "--nearest"), (["--nearest", "a", "--save", "b.npy"], "one of them"),
                       (["--save", "nowhere/x.npy"], "a folder that exists"),
                       (["--nearest", "a", "--top", "0"], "least")):
        assert main([*line, "ab", *more]) == 1
        assert said in capsys.readouterr().err


def test_models_of_their_own():
    from forwardpass.cli.options import COMMANDS as ALL

    assert {one.name: one.model for one in ALL if one.name in COMMANDS} == {
        "classify-image": "fashion-dinov2", "embed-image": "dinov2-small", "zero-shot-image": None}


def test_progress_is_on_stderr(models, model_file, monkeypatch, capsys):
    monkeypatch.setattr("forwardpass.cli.progress.SECONDS_BEFORE", -1)
    monkeypatch.setattr("forwardpass.cli.progress.SECONDS_BETWEEN_LINES", -1)
    assert main(["classify-image", "a", "bad", "c", "--json", "--model", model_file]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines() == [f"classifying ({n} of 3 images)" for n in (1, 2, 3)]


def test_a_bar_on_a_terminal_leaves_a_piped_stdout_alone():
    """stderr is a terminal, stdout a file: what is printed while the bar is shown must reach the file."""
    import pty

    script = ("from forwardpass.cli import progress\n"
              "progress.SECONDS_BEFORE = -1\n"
              "with progress.Progress('images') as bar:\n"
              "    for n in range(3):\n        bar('looking', n + 1, 3)\n        print('line', n, flush=True)\n")
    main_end, terminal = pty.openpty()
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=terminal, timeout=60,
                          text=True, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    shown = os.read(main_end, 100_000).decode()
    os.close(main_end)
    assert done.stdout == "line 0\nline 1\nline 2\n" and "looking" in shown
