"""Languages of models that translate: how they are found, and where a text and its answer have them."""

from __future__ import annotations

import pytest

from forwardpass.errors import ParameterError
from forwardpass.weights import language_codes, language_names
from forwardpass.weights.languages import Languages, languages_of

TEXT = [50, 51, 52]


def vocabulary(form, codes, first=100):
    return {form.format(code): first + i for i, code in enumerate(codes)}


@pytest.fixture(scope="module")
def nllb():
    return languages_of("Nllb", {}, vocabulary("{}", language_codes.NLLB), 2)


@pytest.fixture(scope="module")
def marian():
    return languages_of("Marian", {"source_lang": "eng"}, {"▁a": 3, ">>fra<<": 9, ">>deu<<": 10, ">>zho_Hans<<": 11}, 0)


def test_the_order_of_codes_is_that_of_transformers():
    from transformers.models.m2m_100 import tokenization_m2m_100 as m2m100
    from transformers.models.mbart import tokenization_mbart as mbart
    from transformers.models.mbart50 import tokenization_mbart50 as mbart50
    from transformers.models.nllb import tokenization_nllb as nllb

    assert m2m100.FAIRSEQ_LANGUAGE_CODES == {"m2m100": language_codes.M2M100, "wmt21": language_codes.WMT21}
    assert language_codes.NLLB == nllb.FAIRSEQ_LANGUAGE_CODES
    assert language_codes.MBART == mbart.FAIRSEQ_LANGUAGE_CODES
    assert language_codes.MBART50 == mbart50.FAIRSEQ_LANGUAGE_CODES


def test_every_code_has_a_name():
    for code in (*language_codes.M2M100, *language_codes.NLLB, *language_codes.MBART50):
        assert language_names.name_of(code), code
    assert [language_names.name_of(code) for code in ("de", "deu_Latn", "pt_BR", "zho_Hant", "xx")] == [
        "German", "German", "Portuguese", "Chinese", None]


@pytest.mark.parametrize(("said", "found"), [
    ("deu_Latn", "deu_Latn"), ("de", "deu_Latn"), ("deu", "deu_Latn"), ("ger", "deu_Latn"), ("German", "deu_Latn"),
    ("gERMAN", "deu_Latn"), (" de-AT ", "deu_Latn"), ("DE_de", "deu_Latn"), ("__de__", "deu_Latn"),
    (">>deu<<", "deu_Latn"), ("zh", "zho_Hans"), ("zh-Hant", "zho_Hant"), ("zho_hant", "zho_Hant"),
    ("Traditional Chinese", "zho_Hant"), ("ar", "arb_Arab"), ("fa", "pes_Arab"), ("no", "nob_Latn"),
    ("Norwegian Nynorsk", "nno_Latn"), ("sr", "srp_Cyrl"), ("pt-BR", "por_Latn"), ("ks-Deva", "kas_Deva"),
])
def test_a_language_by_code_or_name(nllb, said, found):
    assert nllb.find(said) == found


def test_of_the_other_models():
    mbart = languages_of("MBart50", {}, vocabulary("{}", language_codes.MBART50), 2)
    assert [mbart.find(one) for one in ("de", "deu_Latn", "Portuguese", "zh", "Tagalog")] == [
        "de_DE", "de_DE", "pt_XX", "zh_CN", "tl_XX"]
    m2m = languages_of("M2M100", {}, vocabulary("__{}__", language_codes.M2M100), 2)
    assert [m2m.find(one) for one in ("deu", "zho_Hans", "Northern Sotho", "ast")] == ["de", "zh", "ns", "ast"]


@pytest.mark.parametrize("said", ["Klingon", "", "xx", "deutsch"])
def test_an_unknown_language_lists_what_is_known(marian, said):
    with pytest.raises(ParameterError, match=r"it knows fra \(French\), deu \(German\), zho_Hans \(Chinese\)"):
        marian.find(said)


def test_a_language_that_is_no_text(marian):
    with pytest.raises(ParameterError, match="found int"):
        marian.find(5)


def test_the_source_before_the_text_and_the_target_as_the_first_token(nllb):
    english, german = nllb.tokens["eng_Latn"], nllb.tokens["deu_Latn"]
    assert nllb.source_ids(TEXT) == [english, *TEXT, 2]  # the usual source
    assert nllb.source_ids(TEXT, "German", "en") == [german, *TEXT, 2]
    assert nllb.first_id("German") == german and nllb.start_id("German") is None
    with pytest.raises(ParameterError, match="target: this model must be told the target language; it knows ace_Arab"):
        nllb.first_id()
    with pytest.raises(ParameterError, match="'xx' is unknown"):
        nllb.source_ids(TEXT, "en", "xx")
    said = languages_of("Nllb", {"src_lang": "fra_Latn", "tgt_lang": "deu_Latn"}, nllb.tokens, 2)
    assert said.first_id() == german and said.source_ids(TEXT)[0] == nllb.tokens["fra_Latn"]


def test_the_source_after_the_end():
    mbart = languages_of("MBart", {"src_lang": "de_DE"}, vocabulary("{}", language_codes.MBART), 2)
    german, romanian = mbart.tokens["de_DE"], mbart.tokens["ro_RO"]
    assert mbart.source_ids(TEXT, target="ro") == [*TEXT, 2, german]
    assert mbart.start_id("Romanian") == romanian and mbart.first_id("Romanian") is None
    old = languages_of("Nllb", {"legacy_behaviour": True}, vocabulary("{}", language_codes.NLLB), 2)
    assert old.source_ids(TEXT, "fra_Latn", "de") == [*TEXT, 2, old.tokens["fra_Latn"]]


def test_the_target_before_the_text(marian):
    assert marian.source_ids(TEXT, target="French") == [9, *TEXT, 0]
    assert marian.source_ids(TEXT, "en", "de") == [10, *TEXT, 0]
    assert marian.start_id("fr") is None and marian.first_id("fr") is None
    with pytest.raises(ParameterError, match="the target language"):
        marian.source_ids(TEXT)
    with pytest.raises(ParameterError, match=r"'French' is unknown to this model; it knows eng \(English\)"):
        marian.source_ids(TEXT, "French", "de")


def test_one_pair_of_languages():
    """Nothing can be said to such a model, and what contradicts its files is an error."""
    pair = languages_of("Marian", {"source_lang": "en", "target_lang": "de"}, {"▁a": 3}, 0)
    assert pair == Languages(0, source="en", target="de") and pair.codes == ("en", "de")
    assert pair.source_ids(TEXT) == pair.source_ids(TEXT, "English", "deu") == [*TEXT, 0]
    assert pair.start_id("de") is None and pair.first_id("de") is None
    with pytest.raises(ParameterError, match=r"'fr' is unknown to this model; it knows de \(German\)"):
        pair.first_id("fr")
    groups = languages_of("Marian", {"source_lang": "ROMANCE", "target_lang": "en"}, {}, 0)
    assert groups.source_ids(TEXT, "French", "en") == [*TEXT, 0]
    silent = languages_of("Marian", {}, {}, 0)
    assert silent.source_ids(TEXT, "French", "en") == [*TEXT, 0] and silent.codes == ()


def test_vocabularies_without_languages():
    assert languages_of("T5", {}, {"de_DE": 3}, 1) is None
    assert languages_of("Nllb", {}, {"a": 3}, 1) is None and languages_of("Nllb", {}, {"deu_Latn": 3}, None) is None
    strange = languages_of("Nllb", {"src_lang": "xxx_Latn"}, {"deu_Latn": 3, "fra_Latn": 4}, 1)
    assert strange.source is None  # of two that the files name none is there
    with pytest.raises(ParameterError, match="source: this model must be told the source language"):
        strange.source_ids(TEXT, target="de")
