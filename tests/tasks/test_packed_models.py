"""Packed models: what `quantize` writes loads without any other file and gives the same bits; damage is noticed."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct

import numpy as np
import pytest

import forwardpass
import hf_packers
import tiny_encoders
import tiny_pairs
from forwardpass import catalog
from forwardpass.errors import ForwardpassError, ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.models import packed_model
from forwardpass.models.packed_model import open_packed
from forwardpass.quant.formats import DTYPES
from forwardpass.tasks.quantizing import quantize
from forwardpass.weights import packed_file

MESSAGES = [{"role": "user", "content": "Hello"}]
TEXT = list(range(60, 90))


def heads(path) -> tuple[dict, int]:
    """(head, its first data byte)."""
    head, start, _ = packed_file.read_head(path)
    return head, start


def rewrite(path, out, change) -> None:
    """The same file with another head and a checksum that fits it: what a hostile writer would do."""
    head, start = heads(path)
    changed = change(head)
    out.write_bytes(packed_file.beginning(head if changed is None else changed) + path.read_bytes()[start:])


@pytest.fixture(scope="module")
def folder(tiny_folder):
    made = tiny_folder()
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 259], "temperature": 0.5}))
    return made


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "m.fpk"
    quantize(folder, out, "int8", 2)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_gives_the_bits_of_its_source(folder, tmp_path, dtype):
    out = tmp_path / "elsewhere" / "m.fpk"
    out.parent.mkdir()
    nbytes = quantize(folder, out, dtype, 2)
    assert nbytes == out.stat().st_size and list(out.parent.iterdir()) == [out]
    with forwardpass.load(folder, dtype=dtype) as source, forwardpass.load(out) as model:
        assert (model.dtype, model.kv_dtype) == (dtype, source.kv_dtype)
        assert np.array_equal(model.logits(TEXT), source.logits(TEXT))
        assert model.spec == source.spec and model.facts == source.facts
        assert model.stored_bytes == source.stored_bytes and model.arithmetic == source.arithmetic
        ours = model.chat(MESSAGES, max_new_tokens=8, do_sample=True, seed=3)
        theirs = source.chat(MESSAGES, max_new_tokens=8, do_sample=True, seed=3)
        assert ours.token_ids == theirs.token_ids and ours.text == theirs.text
        assert model.tokenizer.chat_template == source.tokenizer.chat_template
        assert set(model.facts.end_ids) == {257, 259}


@pytest.mark.parametrize("dtype", ["float32", "int4"])
@pytest.mark.parametrize("case", ["albert-groups", "mpnet", "t5", "umt5", "marian"])
def test_encoders_and_encoder_decoders(case, dtype, tmp_path):
    """Layers that share weights, tables of relative biases, positions that are computed, and two halves."""
    if case in tiny_encoders.CASES:
        tiny_encoders.save(tiny_encoders.make(case, "labels"), tmp_path / "m")
    else:
        tiny_pairs.save(tiny_pairs.case(case), tmp_path / "m")
    quantize(tmp_path / "m", tmp_path / "m.fpk", dtype, 2)
    with (forwardpass.load(tmp_path / "m", dtype=dtype) as source,
          forwardpass.load(tmp_path / "m.fpk") as model):
        assert model.spec == source.spec
        ours, theirs = hidden_states(model), hidden_states(source)
        assert np.array_equal(ours, theirs) and np.isfinite(ours).all()
        if case in tiny_encoders.CASES:
            assert np.array_equal(model.network.head(ours), source.network.head(theirs))


def hidden_states(model):
    """Of TEXT, after twenty tokens of source where the model has an encoder for them."""
    rows, source = [], None if model.spec.encoder is None else TEXT[:20]
    model.engine.forward(TEXT, lambda first, values: rows.append(values.copy()), logits=False, source_ids=source)
    return np.concatenate(rows)


def test_a_gguf_file(smollm2_path, tmp_path):
    out = tmp_path / "m.fpk"
    quantize(smollm2_path, out, "auto", 2)
    with forwardpass.load(smollm2_path) as source, forwardpass.load(out) as model:
        assert np.array_equal(model.logits(TEXT), source.logits(TEXT))
        ours = model.chat(MESSAGES, max_new_tokens=12)
        assert ours.text == source.chat(MESSAGES, max_new_tokens=12).text


def test_a_quantised_checkpoint_and_one_without_a_tokenizer(tiny_folder, tiny_arrays, tmp_path):
    arrays = tiny_arrays()
    name = "model.layers.0.mlp.down_proj"
    codes = hf_packers.quantise(arrays.pop(name + ".weight"), 4, -1)
    arrays |= hf_packers.gptq(name, codes)
    source = tiny_folder(arrays={key: np.ascontiguousarray(one) for key, one in arrays.items()}, tokenizer=False,
                         quantization_config={"quant_method": "gptq", "bits": 4, "group_size": -1})
    quantize(source, tmp_path / "m.fpk", "auto", 2)
    with forwardpass.load(source) as model, forwardpass.load(tmp_path / "m.fpk") as again:
        assert again.tokenizer is None
        assert np.array_equal(model.logits(TEXT), again.logits(TEXT))


def test_a_renamed_copy_loads_and_the_source_is_not_needed(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    quantize(copy, tmp_path / "m.fpk", "int8", 2)
    shutil.rmtree(copy)
    (tmp_path / "m.fpk").rename(tmp_path / "another.name")
    with forwardpass.load(tmp_path / "another.name") as model:
        assert model.generate("Hi", max_new_tokens=3, eos_token_id=[]).token_ids


def test_dtype_of_a_packed_file(packed):
    for dtype in ("auto", "int8"):
        forwardpass.load(packed, dtype=dtype).close()
    with pytest.raises(ParameterError, match="packed with dtype 'int8' and cannot become 'int4'"):
        forwardpass.load(packed, dtype="int4")


# --- writing ----------------------------------------------------------------------------------------------------


def test_what_must_not_be_overwritten(folder, packed, tmp_path):
    out = tmp_path / "m.fpk"
    out.write_text("mine")
    with pytest.raises(ParameterError, match="--force"):
        quantize(folder, out, "int8", 1)
    assert out.read_text() == "mine"
    quantize(folder, out, "int8", 1, force=True)
    assert out.read_bytes() == packed.read_bytes()
    for target, match in ((folder / "model.safetensors", "belongs to the model"), (tmp_path, "is a folder"),
                          (tmp_path / "none" / "m.fpk", "no folder")):
        with pytest.raises(ParameterError, match=match):
            quantize(folder, target, "int8", 1, force=True)
    with pytest.raises(ParameterError, match="packed already"):
        quantize(packed, tmp_path / "x.fpk", "int8", 1)
    with pytest.raises(ParameterError, match="dtype must be one of"):
        quantize(folder, tmp_path / "x.fpk", "int3", 1)


def test_a_failure_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    out = tmp_path / "m.fpk"
    out.write_text("mine")

    def stop(what, done, total):
        if what == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(folder, out, "int8", 1, force=True, progress=stop)
    assert out.read_text() == "mine" and list(tmp_path.iterdir()) == [out]
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ModelFileError, match="could not be written: No space left"):
        quantize(folder, out, "int8", 1, force=True)
    assert out.read_text() == "mine" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_numbers(tiny_folder, tiny_arrays, tmp_path, value):
    for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        arrays = tiny_arrays()
        arrays[name].reshape(-1)[7] = value
        with pytest.raises(ModelFileError, match=f"{name} holds NaN or infinite"):
            quantize(tiny_folder(arrays=arrays), tmp_path / "m.fpk", "int8", 1)
    assert not list(tmp_path.iterdir())


# --- reading what is damaged or hostile -------------------------------------------------------------------------


def test_every_flipped_bit_is_noticed(packed, tmp_path):
    """In the head, in each matrix, in the vectors, in the tokenizer."""
    whole, out = bytearray(packed.read_bytes()), tmp_path / "m.fpk"
    model = open_packed(packed)
    text = 60 + struct.unpack_from("<Q", whole, 20)[0]
    places = [0, 17, 21, 30, 60, text - 1, text, model.start - 1]
    places += [model.start + one.offset + one.nbytes // 2 for one in model.places]
    places += [model.start + model.arena_bytes, model.start + model.arena_bytes + model.rest_bytes - 1]
    for at in places:
        whole[at] ^= 4
        out.write_bytes(whole)
        with pytest.raises(ForwardpassError) as caught:
            forwardpass.load(out)
        assert str(out) in str(caught.value), at
        whole[at] ^= 4


@pytest.mark.parametrize("change", [-1, -5000, +1, +4096])
def test_a_file_that_was_cut_or_grew(packed, tmp_path, change):
    whole = packed.read_bytes()
    (tmp_path / "m.fpk").write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    with pytest.raises(ModelFileError, match="bytes of data"):
        forwardpass.load(tmp_path / "m.fpk")


@pytest.mark.parametrize("length", [0, 15, 16, 40, 59, 60, 100])
def test_a_file_that_ends_early(packed, tmp_path, length):
    (tmp_path / "m.fpk").write_bytes(packed.read_bytes()[:length])
    with pytest.raises(ForwardpassError):
        forwardpass.load(tmp_path / "m.fpk")


def test_other_versions_and_cache_files(packed, tmp_path, monkeypatch):
    whole = bytearray(packed.read_bytes())
    whole[16] = 9
    (tmp_path / "m.fpk").write_bytes(whole)
    with pytest.raises(UnsupportedModelError, match="version 9, this program reads version 1"):
        forwardpass.load(tmp_path / "m.fpk")
    (tmp_path / "cache.fpk").write_bytes(packed_file.beginning({"cache": "a" * 64}) + bytes(100))
    with pytest.raises(UnsupportedModelError, match="layout"):
        forwardpass.load(tmp_path / "cache.fpk")
    monkeypatch.setattr(packed_model, "LAYOUT", 77)
    with pytest.raises(UnsupportedModelError, match="this program has 77"):
        forwardpass.load(packed)


def head_with(**values):
    return lambda head: {**head, **values}


def spec_with(**values):
    return lambda head: {**head, "spec": {**head["spec"], **values}}


def attention_with(**values):
    def change(head):
        head["spec"]["kinds"][0]["attention"] |= values

    return change


def swapped(head):
    head["matrices"][0][1], head["matrices"][1][1] = "F32", "nonsense"


def mixed(head):
    """q as integers, k and v as floats: no program can be recorded for these."""
    next(one for one in head["matrices"] if one[0].endswith("attention.q.weight"))[1] = "F32"


HOSTILE = {
    "a list": lambda head: [head],
    "no spec": lambda head: {key: value for key, value in head.items() if key != "spec"},
    "a spec of nothing": head_with(spec={}), "a spec that is a list": head_with(spec=[1]),
    "another width": spec_with(hidden_size=64), "a huge vocabulary": spec_with(vocab_size=2**23),
    "a width that is text": spec_with(hidden_size="48"), "a width that is true": spec_with(hidden_size=True),
    "an unknown field": spec_with(colour="red"), "no layers": spec_with(layers=[]),
    "many layers": spec_with(layers=[0] * 4096), "a layer that is not there": spec_with(layers=[0, 7]),
    "a negative layer": spec_with(layers=[0, -1]), "kinds that are text": spec_with(kinds="abc"),
    "a head of zero": attention_with(head_dim=0), "a scale of text": attention_with(scale="1"),
    "a rotary of text": attention_with(rotary="no"), "other heads": attention_with(num_heads=2),
    "a window below zero": attention_with(window=-1),
    "untied without a head": spec_with(tied=False),
    "no matrices": head_with(matrices=[]), "matrices of text": head_with(matrices="abc"),
    "a layout nobody knows": swapped, "layouts that do not fit": mixed,
    "a matrix twice": lambda head: {**head, "matrices": [head["matrices"][0], *head["matrices"][:-1]]},
    "vectors missing": head_with(vectors=[]), "vectors of numbers": head_with(vectors=[1, 2]),
    "a dtype nobody knows": head_with(dtype="int3"), "a dtype that is a list": head_with(dtype=[]),
    "a tokenizer of -1 bytes": head_with(tokenizer=-1), "a tokenizer of 2^70 bytes": head_with(tokenizer=2**70),
    "no digests": head_with(digests=[]), "digests of numbers": head_with(digests=[1, 2]),
    "wrong digests": head_with(digests=["a" * 64] * 2), "generation of text": head_with(generation="hot"),
    "ends of text": head_with(eos_token_ids=["a"]), "stored of nothing": head_with(stored={}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_heads(packed, tmp_path, name):
    rewrite(packed, tmp_path / "m.fpk", HOSTILE[name])
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        forwardpass.load(tmp_path / "m.fpk")
    assert str(tmp_path) in str(caught.value) or "contradicts itself" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b'{"a":NaN}', b"\xff", b'{"layout":' + b"9" * 5000 + b"}"])
def test_heads_that_are_no_json(tmp_path, text):
    start = packed_file._START.pack(packed_file.MAGIC, 1, len(text), hashlib.sha256(text).digest())
    (tmp_path / "m.fpk").write_bytes((start + text).ljust(4096, b"\0"))
    with pytest.raises(ForwardpassError):
        forwardpass.load(tmp_path / "m.fpk")
    (tmp_path / "m.fpk").write_bytes(packed_file._START.pack(packed_file.MAGIC, 1, 2**63, bytes(32)))
    with pytest.raises(ModelFileError, match="head of at most"):
        forwardpass.load(tmp_path / "m.fpk")


def test_a_pipeline_has_no_packed_form(tmp_path):
    with pytest.raises(UnsupportedModelError, match="pipeline of several models"):
        quantize(catalog.resolve("tiny-dit"), tmp_path / "p.fpk", "int8", 1)
    assert not list(tmp_path.iterdir())
