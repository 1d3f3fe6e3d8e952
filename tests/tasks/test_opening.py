"""What is kept of a model between two starts: packed weights and a vocabulary, both made anew when they do not fit."""

from __future__ import annotations

import pytest

import forwardpass
from few import few

TEXT = "The quick brown fox 猫 1234<|im_end|>"


def answer(path):
    with forwardpass.load(path) as model:
        ids = model.tokenizer.encode(TEXT, add_special_tokens=True, parse_special=True)
        return ids, model.generate("Hello", max_new_tokens=4, eos_token_id=[]).token_ids


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FORWARDPASS_CACHE", str(tmp_path))
    return tmp_path / "packed"


def test_the_second_start_reads_what_the_first_kept(smollm2_path, cache):
    first = answer(smollm2_path)
    kept = {file.suffix: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert set(kept) == {".fpk", ".vocabulary"}
    assert answer(smollm2_path) == first
    [vocabulary] = cache.glob("*.vocabulary")
    assert vocabulary.stat().st_mtime_ns == kept[".vocabulary"]


@pytest.mark.parametrize("damage", few([b"", b"x", b"\xff" * 5000], 2))
@pytest.mark.parametrize("suffix", [".fpk", ".vocabulary"])
def test_what_is_damaged_is_made_anew(smollm2_path, cache, suffix, damage):
    first = answer(smollm2_path)
    [file] = cache.glob("*" + suffix)
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert answer(smollm2_path) == first
    assert file.read_bytes() == whole
    file.write_bytes(whole[:4096] + damage)  # the header fits, the rest does not
    assert answer(smollm2_path) == first


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(smollm2_path, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FORWARDPASS_CACHE", str(blocked))
    assert answer(smollm2_path)[1]
