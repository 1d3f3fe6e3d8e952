"""From a text and the names of languages to an answer: tiny models with tokenizers, against transformers' own way."""

from __future__ import annotations

import re

import pytest
from transformers import AutoTokenizer

import forwardpass
import piece_files
import tiny_pairs
from forwardpass.tasks.quantizing import quantize

TEXT = "If you want to wrap the text, write 'naïve café' here."
SIZES = dict(max_new_tokens=10, num_beams=1, eos_token_id=[], no_repeat_ngram_size=1)
CASES = {  # form of tokenizer: (model, its changes, source, target)
    "marian": ("marian", {"pad_token_id": 390, "decoder_start_token_id": 390}, None, "French"),
    "m2m_100": ("m2m_100", {}, "German", "fr"),
    "nllb": ("m2m_100", {}, "de", "Egyptian Arabic"),
    "mbart": ("mbart", {}, "en", "Romanian"),
    "mbart50": ("mbart", {}, "Turkish", "pl_PL"),
    "t5": ("t5", {}, "English", "de"),
}
PREFIX = "translate English to German: "


def saved(form, directory):
    family, changes, *_ = CASES[form]
    rows = {"marian": 391, "m2m_100": 454, "nllb": 604, "mbart": 427, "mbart50": 454, "t5": 500}[form]
    reference = tiny_pairs.make(family, vocab_size=rows, **changes)
    if form == "t5":
        reference.config.task_specific_params = {"translation_en_to_de": {"prefix": PREFIX, "num_beams": 4}}
    tiny_pairs.save(reference, directory)
    files, _, settings = piece_files.FORMS[form]
    piece_files.write_files(directory, {**files, "tokenizer_config.json": settings})
    return reference


def expected(form, reference, directory):
    """What transformers' documentation says for each of these models."""
    import torch

    tokenizer, more, text = AutoTokenizer.from_pretrained(directory), {}, TEXT
    codes = {"marian": (None, None), "m2m_100": ("__de__", "__fr__"), "nllb": ("deu_Latn", "arz_Arab"),
             "mbart": ("en_XX", "ro_RO"), "mbart50": ("tr_TR", "pl_PL"), "t5": (None, None)}
    source, target = codes[form]
    if source:
        tokenizer.src_lang = source.strip("_")
        first = tokenizer.convert_tokens_to_ids(target)
        more = {"decoder_start_token_id" if form == "mbart" else "forced_bos_token_id": first}
    else:
        text = {"marian": ">>fra<< ", "t5": PREFIX}[form] + TEXT
    ids = tokenizer(text)["input_ids"]
    with torch.no_grad():
        found = reference.generate(torch.tensor([ids]), **SIZES, **more)[0].tolist()
    return ids, found[1:]


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("form", CASES)
def test_translate_equals_transformers(form, tmp_path):
    *_, source, target = CASES[form]
    directory = tmp_path / "model"
    reference = saved(form, directory)
    ids, answer = expected(form, reference, directory)
    with forwardpass.load(directory, dtype="float32") as model:
        done = model.translate(TEXT, source, target, **SIZES)
        facts, languages = model.facts, model.tokenizer.languages
        with pytest.raises(forwardpass.ParameterError, match="Klingon"):
            model.translate(TEXT, source, "Klingon")
    assert done.prompt_token_ids == ids and done.token_ids == answer
    text = AutoTokenizer.from_pretrained(directory).decode(
        answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # No language, nothing unknown; but T5's gaps have their names.
    assert re.sub("<extra_id_[0-9]+>", "", done.text).strip() == re.sub("__[a-z]+__", "", text).strip()
    quantize(directory, tmp_path / "model.fpk", "float32", 1)
    with forwardpass.load(tmp_path / "model.fpk") as model:
        assert model.facts == facts and model.tokenizer.languages == languages
        again = model.translate(TEXT, source, target, **SIZES)
    assert (again.token_ids, again.text) == (done.token_ids, done.text)
