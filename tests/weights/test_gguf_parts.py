"""Models split over several GGUF files: written by the gguf package, and parts that don't fit together."""

from __future__ import annotations

import os

import gguf
import numpy as np
import pytest

from forwardpass.errors import ModelFileError
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.gguf_parts import gguf_files


@pytest.fixture
def split(tmp_path):
    """Five tensors in three files."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((2, 3), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.iterdir())


def test_any_part_opens_the_whole_model(split):
    assert [path.name for path in split] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for path in split:
        assert gguf_files(path) == split
        with open_gguf(path) as source:
            assert source.path == path and source.metadata["llama.block_count"] == 2
            assert sorted(source.tensors) == ["t0", "t1", "t2", "t3", "t4"]
            for i in range(5):
                assert (source.data(f"t{i}").view("<f4") == i).all()
                source.release(f"t{i}")
        with pytest.raises(ModelFileError, match="closed"):
            source.data("t4")


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_part_is_named(split, refuses, gone):
    split[gone].unlink()
    for path in split:
        if path.exists():
            message = refuses(open_gguf, path, f"found no {split[gone].name}", ModelFileError)
            assert str(path) in message
            assert gguf_files(path) == [part for part in split if part.exists()]


def test_a_part_under_another_name(split, refuses):
    other = split[1].rename(split[1].with_name("second.gguf"))
    refuses(open_gguf, other, r"ends in -00002-of-00003\.gguf", ModelFileError)
    other.rename(split[1])
    split[2].rename(split[2].with_name("3"))
    split[1].rename(split[2])  # part 2 in the place of 3
    split[2].with_name("3").rename(split[1])
    refuses(open_gguf, split[0], "split.no 1, as its name says", ModelFileError)


def parts(tmp_path, b, pairs_of, tensors_of=lambda i: ["a", "b"][i]):
    """Two hand-made parts with a tensor each."""
    paths = [tmp_path / f"h-0000{i + 1}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        path.write_bytes(b.file(pairs_of(i), [b.tensor(tensors_of(i), [8])], bytes(32)))
    return paths


def test_hand_made_parts(tmp_path, gguf_bytes):
    b = gguf_bytes
    for path in parts(tmp_path, b, lambda i: [b.pair("split.no", "u16", i), b.pair("split.count", "u16", 2)]):
        with open_gguf(path) as source:  # no count of the tensors: nothing to compare it with
            assert set(source.tensors) == {"a", "b"}


def keys(b, no, count=2, tensors=2, arch="llama"):
    return [b.pair("split.no", "u16", no), b.pair("split.count", "u16", count),
            b.pair("split.tensors.count", "i32", tensors), b.pair("general.architecture", "string", arch)]


CONTRADICTIONS = {
    "another model": (lambda b, i: keys(b, i, arch=["llama", "qwen2"][i]), "different models"),
    "another count of tensors": (lambda b, i: keys(b, i, tensors=2 + i), "different models"),
    "a wrong count of tensors": (lambda b, i: keys(b, i, tensors=3), "expected 3 tensors"),
    "a negative count of tensors": (lambda b, i: keys(b, i, tensors=-1), "expected -1 tensors"),
    "another count of parts": (lambda b, i: keys(b, i, count=2 + i), "split.count 2|ends in"),
    "the same number": (lambda b, i: keys(b, 0), "split.no 1|ends in"),
    "a part that isn't one": (lambda b, i: keys(b, i) if i == 0 else [], "split.no 1, as"),
    "a first part that isn't one": (lambda b, i: keys(b, i) if i == 1 else [], "split.no 0, as"),
    "parts without end": (lambda b, i: keys(b, i, count=65_535), "ends in -0000[12]-of-65535"),
    "a number past the count": (lambda b, i: keys(b, 7), "split.no 7"),
    "a number without a count": (lambda b, i: [b.pair("split.no", "u16", 1)], "split.count 0"),
    "a count of 2^63": (lambda b, i: [b.pair("split.count", "u64", 1 << 63)], "at most 99999"),
    "a count that is text": (lambda b, i: [b.pair("split.count", "string", "2")], "of type uint8 or"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_parts_that_contradict_each_other(name, tmp_path, gguf_bytes, refuses):
    pairs_of, match = CONTRADICTIONS[name]
    paths = parts(tmp_path, gguf_bytes, lambda i: pairs_of(gguf_bytes, i))
    whole = {"a part that isn't one": paths[1], "a first part that isn't one": paths[0]}.get(name)
    for path in paths:
        if path == whole:
            open_gguf(path).close()
            continue
        refuses(open_gguf, path, match, ModelFileError)


def test_a_tensor_in_two_parts(tmp_path, gguf_bytes, refuses):
    path, _ = parts(tmp_path, gguf_bytes, lambda i: keys(gguf_bytes, i), lambda i: "same")
    refuses(open_gguf, path, "'same' again", ModelFileError)


def test_many_parts_of_which_one_is_there(tmp_path, gguf_bytes, refuses):
    path = tmp_path / "x-00001-of-65535.gguf"
    path.write_bytes(gguf_bytes.file(keys(gguf_bytes, 0, count=65_535)))
    refuses(open_gguf, path, "found no x-00002-of-65535.gguf", ModelFileError)


def test_a_damaged_part_closes_the_others(split, refuses):
    split[2].write_bytes(split[2].read_bytes()[:-40])
    refuses(open_gguf, split[0], "truncated", ModelFileError)
    if os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            assert str(split[0].parent) not in maps.read()


def test_a_whole_file_may_say_that_it_is_one_part(tmp_path, gguf_bytes):
    b = gguf_bytes
    path = tmp_path / "whole.gguf"
    path.write_bytes(b.file(keys(b, 0, count=1, tensors=1), [b.tensor("a", [8])], bytes(32)))
    with open_gguf(path) as source:
        assert set(source.tensors) == {"a"} and gguf_files(path) == [path]
