"""Fill-in-the-middle tokens, found in the vocabulary or named by the file's metadata."""

import pytest
from tokenizers import pre_tokenizers

import sentence_models
from forwardpass.weights.fill_in_middle import encode_around, fill_in_middle
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_gguf


def vocabulary(*special, **keys):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1] * 256 + [3] * len(special), **keys}
    return tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in values.items()})


QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


@pytest.mark.parametrize(
    ("tokens", "sequence"),
    [
        (QWEN, ["<|fim_prefix|>", 1, 2, "<|fim_suffix|>", 3, "<|fim_middle|>"]),
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"),
         ["<|fim_prefix|>", 1, 2, "<|fim_suffix|>", 3, "<|fim_middle|>"]),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"),
         ["<fim_prefix>", 1, 2, "<fim_suffix>", 3, "<fim_middle>"]),
        (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), ["<fim-prefix>", 1, 2, "<fim-suffix>", 3, "<fim-middle>"]),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
         ["<｜fim▁begin｜>", 1, 2, "<｜fim▁hole｜>", 3, "<｜fim▁end｜>"]),
        (("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"), ["▁<PRE>", 1, 2, "▁<SUF>", 3, "▁<MID>"]),
        (("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
         ["<|code_prefix|>", 1, 2, "<|code_suffix|>", 3, "<|code_middle|>"]),
        (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), ["[SUFFIX]", 3, "[PREFIX]", 1, 2]),
        (("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
         ["<[fim-suffix]>", 3, "<[fim-prefix]>", 1, 2, "<[fim-middle]>"]),
    ],
)  # fmt: skip
def test_forms(tokens, sequence):
    tokenizer = vocabulary(*tokens)
    fim = fill_in_middle(tokenizer)
    ids = [part if isinstance(part, int) else tokenizer.token_to_id(part) for part in sequence]
    assert fim.prompt([1, 2], [3]) == ids
    # Whatever else the vocabulary has for this ends a middle, and so do the marks themselves.
    assert {tokenizer.token_to_id(token) for token in tokens} - set(fim.ends) <= {tokenizer.token_to_id("[MIDDLE]")}


def test_roles_of_qwen():
    fim = fill_in_middle(vocabulary(*QWEN))
    assert (fim.prefix, fim.suffix, fim.middle, fim.repo, fim.file) == (256, 257, 258, 260, 261)
    assert fim.order == "psm" and fim.ends[0] == 259 and fim.opening == ()


def test_bos_comes_first():
    tokenizer = vocabulary("<s>", "▁<PRE>", "▁<SUF>", "▁<MID>", bos_token_id=256, add_bos_token=True)
    assert fill_in_middle(tokenizer).prompt([], []) == [256, 257, 258, 259]


def test_none():
    assert fill_in_middle(vocabulary("<s>")) is None
    assert fill_in_middle(vocabulary("<|fim_prefix|>", "<|fim_suffix|>")) is None


@pytest.mark.parametrize(
    "keys",
    [
        {"fim_pre_token_id": 256, "fim_suf_token_id": 257, "fim_mid_token_id": 258, "fim_pad_token_id": 259},
        {"prefix_token_id": 256, "suffix_token_id": 257, "middle_token_id": 258, "fim_pad_token_id": 259},
    ],
)
def test_metadata_names_them(keys):
    tokenizer = vocabulary("<A>", "<B>", "<C>", "<D>", **keys)
    for same in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        fim = fill_in_middle(same)
        assert (fim.prefix, fim.suffix, fim.middle, fim.order) == (256, 257, 258, "psm") and fim.ends[0] == 259
    assert fill_in_middle(vocabulary("<A>", "<B>", prefix_token_id=256, suffix_token_id=257)) is None


def test_metadata_confirms_a_form():
    keys = {"fim_pre_token_id": 256, "fim_suf_token_id": 257}
    assert fill_in_middle(vocabulary("[PREFIX]", "[SUFFIX]", "[MIDDLE]", **keys)).order == "spm"
    other = vocabulary("<x>", *QWEN[:3], fim_pre_token_id=256, fim_suf_token_id=258, fim_mid_token_id=259)
    assert fill_in_middle(other).prefix == 256  # the file knows better than the spelling


def test_text_after_the_hole_begins_no_text():
    blob = sentence_models.trained("llama", "plain")
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, "llama"))
    before, after = encode_around(tokenizer, "the", "the <s>")
    assert tokenizer.id_to_token(before[0]).startswith("▁") and not tokenizer.id_to_token(after[0]).startswith("▁")
    assert tokenizer.decode(after) == "the <s>" and tokenizer.bos_token_id not in after
    assert encode_around(tokenizer, "", "") == ([], [])
    bytes_ = vocabulary(*QWEN)
    assert encode_around(bytes_, "a", " b<|fim_pad|>")[1] == bytes_.encode(
        " b<|fim_pad|>", add_special_tokens=False, parse_special=False
    )
