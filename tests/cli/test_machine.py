"""`forwardpass machine` and the cache of what was measured."""

import json

import pytest

from forwardpass.cli import main
from forwardpass.explain import measured

LIMITS = {"isa": "scalar", "threads": 2, "read_bytes_s": {"1MiB": 20.5e9}, "matrix_ops_s": {"int8": 5.0e12}}


@pytest.fixture
def measurements(monkeypatch):
    """Replaces measuring; the list counts how often it happened."""
    times = []

    def measure(progress=None):
        times.append(progress)
        return LIMITS

    monkeypatch.setattr("forwardpass.explain.machine.measure", measure)
    monkeypatch.setattr("forwardpass.backends.native.chosen_isa", lambda: "scalar")
    return times


def test_measures_once(measurements, cache, capsys):
    assert main(["machine"]) == 0
    out = capsys.readouterr().out
    assert (
        "instruction set" in out
        and "scalar" in out
        and "read_bytes_s.1MiB" in out
        and "20.5 GB/s" in out
        and "5000 Gop/s" in out
    )
    assert main(["machine", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["limits"] == LIMITS
    assert facts["cpus"] >= 1 and facts["isa"] == "scalar"
    assert len(measurements) == 1
    assert main(["machine", "--measure"]) == 0
    assert len(measurements) == 2
    assert [path.name for path in cache.iterdir()] == ["machine.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"identity": 1}', b"\xff"])
def test_a_damaged_cache_costs_a_measurement(measurements, cache, content):
    cache.mkdir()
    (cache / "machine.json").write_bytes(content)
    assert measured.measured() == LIMITS
    assert measured.measured() == LIMITS
    assert len(measurements) == 1


def test_another_machine_isa_or_thread_count_is_measured_again(measurements, monkeypatch):
    measured.measured()
    monkeypatch.setenv("FORWARDPASS_ISA", "avx2")
    measured.measured()
    monkeypatch.setenv("FORWARDPASS_THREADS", "1")
    measured.measured()
    monkeypatch.setattr(measured, "cpu_name", lambda: "another CPU")
    measured.measured()
    assert len(measurements) == 4


def test_old_results_are_measured_again(measurements, monkeypatch):
    measured.measured()
    now = measured.time.time()
    monkeypatch.setattr(measured.time, "time", lambda: now + measured.MAX_AGE_S + 1)
    measured.measured()
    assert len(measurements) == 2


def test_a_cache_that_cannot_be_written(measurements, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORWARDPASS_CACHE", str(tmp_path / "file"))
    assert measured.measured() == LIMITS
