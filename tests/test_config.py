"""The environment and memory sizes."""

from pathlib import Path

import pytest

from forwardpass import config
from forwardpass.errors import ParameterError


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("CACHE", "THREADS", "ISA", "TEXT"):
        monkeypatch.delenv(f"FORWARDPASS_{name}", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_cache_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(config.sys, "platform", "linux")
    assert config.cache_dir() == Path("/home/someone/.cache/forwardpass")
    monkeypatch.setattr(config.sys, "platform", "darwin")
    assert config.cache_dir() == Path("/home/someone/Library/Caches/forwardpass")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert config.cache_dir() == Path("/x/forwardpass")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative-is-ignored")
    assert config.cache_dir() == Path("/home/someone/Library/Caches/forwardpass")
    monkeypatch.setenv("FORWARDPASS_CACHE", "~/c")
    assert config.cache_dir() == Path("/home/someone/c")
    monkeypatch.setenv("FORWARDPASS_CACHE", "c")
    assert config.cache_dir() == Path.cwd() / "c"


def test_threads(monkeypatch):
    assert config.threads() is None
    monkeypatch.setenv("FORWARDPASS_THREADS", " 4 ")
    assert config.threads() == 4


@pytest.mark.parametrize("text", ["0", "-1", "1025", "two", "1.5", "9" * 5000])
def test_threads_out_of_range(monkeypatch, text):
    monkeypatch.setenv("FORWARDPASS_THREADS", text)
    with pytest.raises(ParameterError, match="FORWARDPASS_THREADS must be a whole number from 1 to 1024"):
        config.threads()


def test_isa(monkeypatch):
    assert config.isa() is None
    monkeypatch.setenv("FORWARDPASS_ISA", "avx2")
    assert config.isa() == "avx2"
    monkeypatch.setenv("FORWARDPASS_ISA", "sse9")
    with pytest.raises(ParameterError, match="one of scalar, avx2, avx512, amx, neon, got 'sse9'"):
        config.isa()


def test_text_path(monkeypatch, tmp_path):
    assert config.text_path() is None
    monkeypatch.setenv("FORWARDPASS_TEXT", str(tmp_path / "none.txt"))
    with pytest.raises(ParameterError, match="no file"):
        config.text_path()
    (tmp_path / "none.txt").write_text("text")
    assert config.text_path() == tmp_path / "none.txt"


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (1, 1),
        ("4096", 4096),
        ("512MiB", 512 * 1024**2),
        ("512 mb", 512 * 1000**2),
        ("1.5G", 3 * 512 * 1024**2),
        ("2GB", 2 * 10**9),
        ("1T", 1024**4),
        ("3kB", 3000),
        ("3KiB", 3072),
        ("7b", 7),
    ],
)
def test_memory_sizes(value, nbytes):
    assert config.parse_memory(value) == nbytes


@pytest.mark.parametrize(
    "value", [0, -1, True, None, 1.5, "", "G", "-1G", "1X", "1.2.3", ".", "0", "0.1", "1e9", "nan", 2**63]
)
def test_memory_sizes_that_are_none(value):
    with pytest.raises(ParameterError, match="expected a positive size"):
        config.parse_memory(value)


def test_memory_as_text_is_what_parse_memory_reads():
    for nbytes in (0, 1, 1023, 1024, 1500, 10**6, 2**30 - 1, 3 * 2**30, 5 * 2**40, 2**60):
        text = config.memory_text(nbytes, down=True)
        if nbytes:
            assert 0.9 * nbytes < config.parse_memory(text) <= nbytes
    assert [config.memory_text(one) for one in (1000, 1536, 2**30, 2**30 - 2**25)] == [
        "1000 B", "1.5 KiB", "1.0 GiB", "992.0 MiB"]


def test_cached_files_do_not_count_as_used_memory(monkeypatch):
    files = {"memory.max": "1000000", "memory.current": "900000", "memory.stat": "anon 5\ninactive_file 300000\nx 1\n"}
    monkeypatch.setattr(config, "_cgroup", files.get)
    assert config.available_memory() == 400000
    del files["memory.stat"]
    assert config.available_memory() == 100000
    files["memory.max"] = "max"
    assert config.available_memory() > 1 << 20
