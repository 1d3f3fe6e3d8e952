"""What the two files of an encoder-decoder say about its answers."""

from __future__ import annotations

import json

import pytest

import tiny_pairs
from forwardpass.errors import ModelFileError
from forwardpass.models import hf_generation
from forwardpass.models.hf_config import read_config
from forwardpass.models.hf_generation import NamedTask, decoder_start, generation_settings, named_tasks

OLD = {  # a summariser as it was published before generation_config.json
    "model_type": "bart", "is_encoder_decoder": True, "decoder_start_token_id": 2, "bos_token_id": 0, "num_beams": 4,
    "max_length": 142, "min_length": 56, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "early_stopping": True,
    "forced_bos_token_id": 0, "d_model": 1024,
    "task_specific_params": {"summarization": {"num_beams": 6, "early_stopping": True, "unknown": 1}},
}


def test_every_pair_is_known():
    assert set(hf_generation.DEFAULTS) == set(tiny_pairs.FAMILIES)


def test_settings_of_an_older_config():
    found = generation_settings(OLD, None)
    assert found["num_beams"] == 4 and found["max_length"] == 142 and found["min_length"] == 56
    assert found["forced_bos_token_id"] == 0 and found["forced_eos_token_id"] == 2  # the second is the family's
    assert "d_model" not in found and decoder_start(found, 50) == 2


def test_a_file_of_its_own_is_all_that_counts():
    """As in transformers: what config.json says besides is not read any more, except the first token."""
    found = generation_settings(OLD, {"num_beams": 2})
    assert found == {"num_beams": 2, "decoder_start_token_id": 2, "task_specific_params": OLD["task_specific_params"]}
    assert generation_settings(OLD, {"decoder_start_token_id": 5})["decoder_start_token_id"] == 5


@pytest.mark.parametrize(("config", "file", "start"), [
    ({"model_type": "t5", "decoder_start_token_id": 0}, {}, 0),
    ({"model_type": "t5", "pad_token_id": 0}, {}, None),
    ({"model_type": "mbart", "bos_token_id": 7}, None, 7),
    ({"model_type": "mbart", "bos_token_id": 7}, {"bos_token_id": 8}, 8),
    ({"model_type": "pegasus", "bos_token_id": 7}, None, 0),
    ({"model_type": "m2m_100"}, None, 2),
])
def test_where_the_first_token_stands(config, file, start):
    assert generation_settings(config, file).get("decoder_start_token_id") == start


@pytest.mark.parametrize(("settings", "said"), [
    ({}, "decoder_start_token_id is missing"),
    ({"decoder_start_token_id": 96}, "decoder_start_token_id: expected a whole number from 0 to 95, found 96"),
    ({"decoder_start_token_id": -1}, "found -1"),
    ({"decoder_start_token_id": [3]}, r"found \[3\]"),
    ({"decoder_start_token_id": True}, "found True"),
])
def test_a_bad_first_token(settings, said):
    with pytest.raises(ModelFileError, match=said):
        decoder_start(settings, 96)


def test_named_tasks():
    tasks = named_tasks(generation_settings(OLD, {}))
    assert tasks == {"summarization": NamedTask("", {"num_beams": 6, "early_stopping": True})}
    t5 = {"task_specific_params": {"translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 4}}}
    assert named_tasks(t5)["translation_en_to_de"].prefix == "translate English to German: "
    assert named_tasks({}) == {} == named_tasks({"task_specific_params": None})
    for wrong in ([1], {"x": 3}, {"x": {"prefix": 3}}):
        with pytest.raises(ModelFileError, match="task_specific_params"):
            named_tasks({"task_specific_params": wrong})


def test_of_a_directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(OLD))
    assert read_config(tmp_path).generation["num_beams"] == 4
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 3, "eos_token_id": 9}))
    settings = read_config(tmp_path)
    assert settings.generation["num_beams"] == 3 and settings.eos_token_ids == (9,)
    (tmp_path / "config.json").write_text(json.dumps(OLD | {"model_type": "gpt2"}))
    assert read_config(tmp_path).generation == {"num_beams": 3, "eos_token_id": 9}
    (tmp_path / "generation_config.json").unlink()
    assert read_config(tmp_path).generation == {}  # only encoder-decoders' settings are looked for in config.json
