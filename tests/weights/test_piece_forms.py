"""SentencePiece models that encoder-decoders number anew, against SentencePiece itself and transformers' tokenizers."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from transformers import AutoTokenizer

import sentence_models
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.stages.text_stream import TextStream
from forwardpass.weights import language_codes
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import has_tokenizer, tokenizer_from_directory
from piece_files import FORMS, m2m100_vocabulary, marian_vocabulary, pieces, trained, write, write_files
from sentence_models import LINES, NASTY, WILD

COMMON = [*LINES[::5], *WILD[::3], *NASTY, "a</s>b", "x<unk>y"]


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    directory = write(tmp_path_factory.mktemp(request.param), request.param)
    return request.param, directory, tokenizer_from_directory(directory)


def ids_of(tokenizer, text, special=True):
    return tokenizer.encode(text, add_special_tokens=True, parse_special=special)


def same_in_transformers(name, text):
    """Without what its present tokenizers have given up: blanks at the end are dropped by SentencePiece, mBART has a
    table of replaced characters; and the library composes by whole grapheme, of at most five bytes."""
    prepared = unicodedata.normalize("NFKC", text).replace("▁", " ")
    ends = prepared[:1] + prepared[-1:]
    if name in ("pegasus", "mbart50", "nllb") and (not ends.isprintable() or ends.strip(" \ufffd") != ends or not ends):
        return False
    return "\u0300\u0301\u0302" not in text and (name != "mbart" or text.isascii())


@pytest.mark.filterwarnings("ignore:Recommended")
def test_ids_equal_transformers(form):
    name, directory, tokenizer = form
    assert has_tokenizer(directory)
    witness = AutoTokenizer.from_pretrained(directory)
    texts = [text for text in COMMON if same_in_transformers(name, text)]
    assert len(texts) > 200
    for text in texts:
        assert ids_of(tokenizer, text) == witness(text)["input_ids"], text
    assert tokenizer.pad_token_id == witness.pad_token_id and tokenizer.unk_token_id == witness.unk_token_id
    assert tokenizer.eos_token_ids == (witness.eos_token_id,)
    assert tokenizer.special_ids >= set(witness.all_special_ids) - {None}


@pytest.mark.parametrize(("name", "offset"), [("t5", 0), ("mt5", 0), ("pegasus", 103), ("mbart", 1), ("mbart50", 1),
                                              ("nllb", 1), ("xlm-roberta", 1)])
def test_ids_equal_sentencepiece(name, offset, tmp_path):
    """Its own numbers and so many, but for the unknown piece of fairseq's numbering, which is 3."""
    blob = next(iter(FORMS[name][0].values()))
    witness, tokenizer = sentence_models.processor(blob), tokenizer_from_directory(write(tmp_path, name))
    unknown = 3 if offset == 1 else 2 + offset
    for text in COMMON:
        if "\u0300\u0301\u0302" in text or "==" in text:
            continue  # composed by grapheme; segmentations that are equally likely
        expected = [unknown if i == witness.unk_id() else i + offset for i in witness.encode(text)]
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == expected, text
        if unknown not in ids:
            assert tokenizer.decode(ids) == witness.decode(witness.encode(text))


def test_sizes_and_ends(form):
    name, _, tokenizer = form
    rows = {"t5": 500, "mt5": 400, "pegasus": 503, "mbart": 427, "mbart50": 454, "nllb": 604, "xlm-roberta": 402,
            "m2m_100": len(m2m100_vocabulary()) + 100, "marian": len(marian_vocabulary()), "byt5": 384}
    around = {"mbart": ((), (2, 401 + language_codes.MBART.index("ro_RO"))),
              "mbart50": ((401 + language_codes.MBART.index("de_DE"),), (2,)),
              "nllb": ((401 + language_codes.NLLB.index("fra_Latn"),), (2,)),
              "m2m_100": ((len(m2m100_vocabulary()) + language_codes.M2M100.index("de"),), (2,)),
              "xlm-roberta": ((0,), (2,)), "marian": ((), (0,))}
    assert tokenizer.vocab_size == rows[name]
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == around.get(name, ((), (1,)))


def test_special_text_in_content_is_plain_text(form):
    _, _, tokenizer = form
    for text in ("a</s>b", "x <unk> y", "<pad>", "</s>"):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert not {tokenizer.pad_token_id, *tokenizer.eos_token_ids} & set(ids)


def test_streamed_text_and_stored_form(form):
    tokenizer = form[2]
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.facts == tokenizer.facts and again.special_ids == tokenizer.special_ids
    assert again.languages == tokenizer.languages and type(again) is type(tokenizer)
    rng = np.random.default_rng(0)
    samples = [ids_of(tokenizer, text) for text in COMMON[::6]]
    samples += [rng.integers(0, tokenizer.vocab_size, 30).tolist() for _ in range(20)]
    for text, ids in zip(COMMON[::6], samples, strict=False):
        assert ids_of(again, text) == ids and ids_of(again, text, False) == ids_of(tokenizer, text, False)
    for ids in samples:
        for skip in (False, True):
            stream = TextStream(tokenizer, skip=tokenizer.special_ids if skip else ())
            text = "".join(map(stream.push, ids)) + stream.finish()
            assert text == tokenizer.decode(ids, skip) == again.decode(ids, skip)


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("name", ["marian", "m2m_100"])
def test_answers_are_spelled_by_the_vocabulary(name, tmp_path):
    """Every token of vocab.json is text, whether or not a model has it."""
    directory = write(tmp_path, name)
    tokenizer, witness = tokenizer_from_directory(directory), AutoTokenizer.from_pretrained(directory)
    vocabulary = FORMS[name][0]["vocab.json"]
    for token, i in vocabulary.items():
        assert (tokenizer.token_to_id(token), tokenizer.id_to_token(i)) == (i, token)
    assert tokenizer.id_to_token(10**6) is None and tokenizer.token_to_id("\uffff") is None
    rng = np.random.default_rng(1)
    for _ in range(30):
        ids = rng.integers(4, len(vocabulary) - 1, 12).tolist()
        assert tokenizer.decode(ids).strip() == witness.decode(ids, skip_special_tokens=True).strip()


def test_what_the_model_does_not_know_is_looked_up(tmp_path):
    """By its spelling: one such sign has a number, two together have none."""
    for name, known in (("marian", marian_vocabulary()), ("m2m_100", m2m100_vocabulary())):
        tokenizer = tokenizer_from_directory(write(tmp_path, name))

        def middle(text, tokenizer=tokenizer):
            return tokenizer.encode(text, add_special_tokens=False, parse_special=False)[-1]

        assert middle("a ☃") == known["☃"] and middle("a ☃☃") == tokenizer.unk_token_id
        for file in tmp_path.iterdir():
            file.unlink()


def test_marians_token_of_a_target(tmp_path):
    tokenizer, known = tokenizer_from_directory(write(tmp_path, "marian")), marian_vocabulary()
    text = ids_of(tokenizer, "Hello there")
    assert ids_of(tokenizer, ">>fra<< Hello there") == [known[">>fra<<"], *text]
    assert ids_of(tokenizer, ">>xyz<<Hello there") == [known["<unk>"], *text]
    assert known[">>fra<<"] not in ids_of(tokenizer, ">>fra<< Hello there", special=False)


@pytest.mark.filterwarnings("ignore:Recommended")
def test_marian_with_a_vocabulary_for_each_side(tmp_path):
    source = {token: i for i, token in enumerate(["</s>", "<unk>", *pieces(trained("unigram"))[3:], "<pad>"])}
    target = {token: i for i, token in enumerate(["<pad>", "☃", *pieces(trained("unigram", 300))[3:], "<unk>", "</s>"])}
    directory = write(tmp_path, "marian", **{"vocab.json": source, "target_vocab.json": target,
                                             "tokenizer_config.json": {"separate_vocabs": True}})
    tokenizer, witness = tokenizer_from_directory(directory), AutoTokenizer.from_pretrained(directory)
    for text in LINES[::9]:
        assert ids_of(tokenizer, text) == witness(text)["input_ids"]
    assert tokenizer.vocab_size == len(target) and tokenizer.eos_token_ids == (target["</s>"],)
    assert tokenizer.special_ids == {target["</s>"], target["<unk>"], 0}
    ids = [5, 9, 40, 12, target["</s>"]]
    assert tokenizer.decode(ids, True) == "".join(list(target)[i] for i in ids[:-1]).replace("▁", " ").removeprefix(" ")
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.decode(ids) == tokenizer.decode(ids) and ids_of(again, LINES[0]) == ids_of(tokenizer, LINES[0])


def test_bytes_by_hand(tmp_path):
    """ByT5: a byte is its value and three."""
    tokenizer = tokenizer_from_directory(write(tmp_path, "byt5"))
    assert ids_of(tokenizer, "hé\n") == [104 + 3, 0xC3 + 3, 0xA9 + 3, 10 + 3, 1]
    assert ids_of(tokenizer, "a<extra_id_0>") == [97 + 3, 259, 1]
    assert tokenizer.decode([104 + 3, 0xC3 + 3, 0xA9 + 3, 1], True) == "hé"


def test_a_class_in_config_json_or_none_at_all(tmp_path):
    """Older directories name the tokenizer's class in the model's config, or only the model."""
    write(tmp_path, "mbart50", **{"config.json": {"model_type": "mbart", "tokenizer_class": "MBart50Tokenizer"}})
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizer_from_directory(tmp_path).vocab_size == 454
    write(tmp_path, "nllb", **{"tokenizer_config.json": {}})
    assert tokenizer_from_directory(tmp_path).vocab_size == 604
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}')
    with pytest.raises(UnsupportedModelError, match=r"sentencepiece\.bpe\.model but no tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def test_a_tokenizer_json_gets_the_class_s_frame(tmp_path):
    """The file may say something else of what goes around a text: the class and its source language decide."""
    witness = AutoTokenizer.from_pretrained(write(tmp_path, "nllb"))
    saved = tmp_path / "saved"
    witness.save_pretrained(saved)
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    for legacy, around in ((False, ([470], [2])), (True, ([], [2, 470]))):
        settings |= {"src_lang": "gla_Latn", "legacy_behaviour": legacy}
        (saved / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = tokenizer_from_directory(saved)
        code = tokenizer.token_to_id("gla_Latn")
        around = tuple(tuple(code if i == 470 else i for i in side) for side in around)
        assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == around
        assert ids_of(tokenizer, LINES[3]) == AutoTokenizer.from_pretrained(saved)(LINES[3])["input_ids"]


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("t5", {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": -1}}, "extra_ids: .*found -1"),
    ("byt5", {"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 10**9}}, "extra_ids"),
    ("pegasus", {"tokenizer_config.json": {"offset": "x"}}, "offset: expected a number from 3"),
    ("pegasus", {"spiece.model": b"\x0a\x03\x0a\x01a" b"\x0a\x03\x0a\x01b" b"\x0a\x03\x0a\x01c"},
     "expected 2 special tokens as the first pieces, found 'a', 'b'"),
    ("mbart", {"sentencepiece.bpe.model": b"\x0a\x05\x0a\x01a\x18\x03"}, "expected 3 special tokens"),
    ("m2m_100", {"vocab.json": {"<unk>": 0, "a": 1}}, "vocab.json lacks '</s>'"),
    ("m2m_100", {"vocab.json": {}}, "every token with an id of its own"),
    ("m2m_100", {"vocab.json": {"</s>": 0, "<unk>": 10**8}}, "below 65538"),
    ("m2m_100", {"vocab.json": {"</s>": 0, "<unk>": 1, "__de__": 2}}, "expected no tokens of languages in it"),
    ("m2m_100", {"tokenizer_config.json": {"language_codes": "all"}}, "expected m2m100 or wmt21, found 'all'"),
    ("marian", {"vocab.json": {"</s>": 0, "a": 1}}, "lacks '<unk>'"),
    ("marian", {"source.spm": b"noise"}, "not a SentencePiece model"),
    ("marian", {"source.spm": b"\x0a\x05\x0a\x01a\x18\x03"}, "no pieces of text"),
    ("marian", {"tokenizer_config.json": {"separate_vocabs": True}}, "target_vocab.json: expected every token"),
])
def test_damaged_files(name, changes, said, tmp_path):
    with pytest.raises(ModelFileError, match=said):
        tokenizer_from_directory(write(tmp_path, name, **changes))


def test_tokens_that_a_vocabulary_cannot_take(tmp_path):
    extra = {"added_tokens_decoder": {"9999": {"content": "<new>", "special": True}}}
    with pytest.raises(UnsupportedModelError, match="token 9999 is '<new>'"):
        tokenizer_from_directory(write(tmp_path, "marian", **{"tokenizer_config.json": extra}))


@pytest.mark.parametrize("name", FORMS)
def test_flipped_bytes(name, tmp_path):
    """A tokenizer, or an error of ours that names what is wrong."""
    files, config, settings = FORMS[name]
    whole = {file: value if isinstance(value, bytes) else json.dumps(value).encode()
             for file, value in {**files, "config.json": config, "tokenizer_config.json": settings}.items()}
    rng, refused = np.random.default_rng(7), 0
    for _ in range(12):
        changed = {file: bytearray(blob) for file, blob in whole.items()}
        for file in rng.choice(list(whole), size=2):
            blob = changed[str(file)]
            for place in rng.integers(0, len(blob), 3):
                blob[place] = rng.integers(256)
            del blob[len(blob) - int(rng.integers(4)) :]
        write_files(tmp_path, {file: bytes(blob) for file, blob in changed.items()})
        try:
            tokenizer = tokenizer_from_directory(tmp_path)
            for text in ("Hello there", ">>fra<< é☃", ""):
                ids_of(tokenizer, text)
        except (ModelFileError, UnsupportedModelError) as error:
            refused += 1
            assert len(str(error)) < 1000
    assert refused > 2


def test_siglip_reads_small_letters_without_punctuation(tmp_path):
    """Against transformers' own class; also where do_lower_case is off."""
    from transformers import SiglipTokenizer

    (tmp_path / "spiece.model").write_bytes(sentence_models.trained("t5", "plain"))
    for lower in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "SiglipTokenizer", "do_lower_case": lower, "pad_token": "</s>"}))
        theirs, ours = SiglipTokenizer.from_pretrained(tmp_path), tokenizer_from_directory(tmp_path)
        texts = ["This is a photo of a Cat.", "  two   words\t(in brackets)! ", "don't; e-mail: a_b@c.de",
                 "naïve CAFÉ 猫?", "", "...", *LINES[:200]]
        for text in texts:
            assert ours.encode_batch([text])[0].ids == theirs(text)["input_ids"], text
        assert ours.pad_token_id == theirs.pad_token_id
