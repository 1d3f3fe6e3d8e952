import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forwardpass

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("fake_model", HERE / "fake_model.py")
fake_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_model)

# A process of its own with the fake model in place of a real one. It says which modules it ended with when asked.
PROGRAM = """
import sys, threading
sys.path.insert(0, {here!r})
import forwardpass
def load(path, **options):
    import fake_model
    return fake_model.load(path, wait=threading.Event().wait, **options)
forwardpass.load = load
from forwardpass.cli import main
status = main(sys.argv[1:])
if {modules!r}:
    print(*sorted(sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Every test has a cache folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FORWARDPASS_CACHE", str(folder))
    return folder


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "some.gguf"
    path.write_bytes(b"")
    return str(path)


@pytest.fixture
def models(monkeypatch):
    """The models that commands loaded, in order."""
    loaded = []

    def load(path, **options):
        loaded.append(fake_model.load(path, **options))
        return loaded[-1]

    monkeypatch.setattr(forwardpass, "load", load, raising=False)
    return loaded


@pytest.fixture
def program():
    """program(arguments, modules=False, **Popen options) starts `forwardpass` with the fake model."""

    def start(*arguments, modules=False, **options):
        code = PROGRAM.format(here=str(HERE), modules=modules)
        pipes = {name: options.pop(name, subprocess.PIPE) for name in ("stdin", "stdout", "stderr")}
        environment = {**os.environ, **options.pop("env", {})}
        return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, **pipes, **options)

    return start
