"""`forwardpass models` and `forwardpass pull`. How fetching itself fails is in tests/test_catalog.py."""

import dataclasses
import hashlib
import json

import pytest

from forwardpass import catalog
from forwardpass.catalog import Entry, Wheel
from forwardpass.cli import main, progress

CONTENT = b"model"


@pytest.fixture(autouse=True)
def entry(monkeypatch):
    wheel = Wheel("fp-test==1.0", "1" * 64, 2000, "m.gguf")
    row = Entry("tiny", "a test", "MIT", (wheel,), "m.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(catalog, "ENTRIES", (row,))
    return row


@pytest.fixture(autouse=True)
def progress_at_once(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BEFORE", 0.0)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "given.gguf"
    path.write_bytes(CONTENT)
    return str(path)


def test_models(entry, file, capsys):
    assert main(["models"]) == 0
    assert capsys.readouterr().out == (
        f"tiny: a test\n    5 B, MIT, fp-test==1.0, sha256 {entry.sha256[:16]}..., not fetched\n"
    )
    assert main(["models", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["name"] == "tiny" and record["path"] is None and record["sha256"] == entry.sha256
    main(["pull", "tiny", "--from", file])
    capsys.readouterr()
    main(["models", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["path"] == str(entry.path())
    main(["models"])
    assert capsys.readouterr().out.endswith(f", {entry.path()}\n")


def test_models_tell_what_they_are_for(monkeypatch, entry, capsys):
    monkeypatch.setattr(catalog, "ENTRIES", (dataclasses.replace(entry, tasks=("embed", "classify")),))
    assert main(["models"]) == 0
    assert "    for embed and classify, 5 B, MIT" in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tasks"] == ["embed", "classify"]


def test_pull_prints_where_the_model_lies(entry, file, capsys):
    assert main(["pull", "tiny", "--from", file]) == 0
    out, err = capsys.readouterr()
    assert out == f"{entry.path()}\n"
    assert "verifying" in err and err.endswith("tiny: licence MIT\n")
    assert main(["pull", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "tiny", "path": str(entry.path()), "licence": "MIT"}


def test_pull_fails_in_one_line(file, tmp_path, capsys):
    other = tmp_path / "other"
    other.write_bytes(b"other")
    assert main(["pull", "tiny", "--from", str(other)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ") and "is not tiny" in lines[-1]
    assert sum(line.startswith("error") for line in lines) == 1
    assert main(["pull", "tinny"]) == 1
    assert "did you mean tiny?" in capsys.readouterr().err


def test_run_fetches_an_absent_model(models, entry, capsys, monkeypatch):
    asked = []

    def install(row, sources, progress, others):
        asked.append(row)
        progress("fetching", 0, 10)
        return entry.path()

    monkeypatch.setattr("forwardpass.catalog.fetch.install", install)
    assert main(["run", "hello", "--model", "tiny"]) == 0
    assert asked == [entry]
    assert models[0].path == entry.path()
    assert "fetching" in capsys.readouterr().err
