"""Vocabularies from GGUF metadata and from Hugging Face directories, against transformers and by hand."""

import json
import threading
import time

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from forwardpass import catalog
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_directory, tokenizer_from_gguf
from sentence_models import NASTY


@pytest.fixture(scope="module")
def smollm2_path():
    return catalog.resolve("smollm2-135m")


@pytest.fixture(scope="module")
def metadata(smollm2_path):
    with open_gguf(smollm2_path) as source:
        return dict(source.metadata)


@pytest.fixture(scope="module")
def smollm2(metadata):
    return tokenizer_from_gguf(metadata)


def byte_vocabulary(*more, pre="gpt-2", types=None, merges=(), **keys):
    """Metadata of a vocabulary of 256 bytes and `more`, all of the latter control tokens unless `types` tells."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["".join(merge.split(" ")) for merge in merges]
    tokens = [*alphabet, *words, *more]
    kinds = [1] * (256 + len(words)) + list(types or [3] * len(more))
    base = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": list(merges), "token_type": kinds}
    return {f"tokenizer.ggml.{key}": value for key, value in {**base, **keys}.items()}


# -- against transformers


def test_smollm2_ids_equal_transformers(smollm2, smollm2_path):
    """transformers reads the file on its own but not tokenizer.ggml.pre, so it is given SmolLM2's published cutter."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    theirs._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in [*NASTY, "²³½ ٣٤٥ 一二三 ⅷ"]:
        ids = smollm2.encode(text, add_special_tokens=True, parse_special=True)
        assert ids == theirs(text)["input_ids"], text
        assert smollm2.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text
    messages = [{"role": "user", "content": "> what's 2+2?"}]
    from forwardpass.stages.template import chat_ids

    assert chat_ids(smollm2, messages) == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_smollm2_ids_from_another_engine(smollm2):
    """Ids that llama.cpp gives for the same file."""
    cases = {
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "<|im_end|>\nhi": [2, 198, 6004],
    }
    for text, ids in cases.items():
        assert smollm2.encode(text, add_special_tokens=False, parse_special=True) == ids
    plain = smollm2.encode("<|im_end|>\nhi", add_special_tokens=False, parse_special=False)
    assert plain == [44, 108, 306, 79, 486, 108, 46, 198, 6004]


# -- what is refused


def test_unknown_cutter_is_named():
    with pytest.raises(UnsupportedModelError, match=r"'qwen9'.*nearest: 'qwen2'.*smollm"):
        tokenizer_from_gguf(byte_vocabulary(pre="qwen9"))
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer\.ggml\.pre"):
        tokenizer_from_gguf({**byte_vocabulary(), "tokenizer.ggml.pre": None})


@pytest.mark.parametrize("kind", ["gemma4", "rwkv", "x"])
def test_other_vocabularies_are_named(kind):
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'; expected one of 'gpt2'.*'llama'.*'t5'.*'bert'"):
        tokenizer_from_gguf({"tokenizer.ggml.model": kind})
    with pytest.raises(UnsupportedModelError, match="no vocabulary"):
        tokenizer_from_gguf({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "missing or empty"),
        ({"tokens": ["a", "b", "a"]}, "'a' twice, as 0 and 2"),
        ({"tokens": ["a", b"b"]}, "list of strings"),
        ({"tokens": "abc"}, "list of strings"),
        ({"merges": ["ab"]}, "merges.*'ab'"),
        ({"merges": ["a b c"]}, "merges.*'a b c'"),
        ({"merges": ["a q̃"]}, "contradict"),
        ({"token_type": [1, 2]}, "token_type.*expected 256"),
        ({"bos_token_id": 256}, "from 0 to 255"),
        ({"eos_token_id": -2}, "from 0 to 255"),
        ({"bos_token_id": "0"}, "from 0 to 255"),
        ({"add_bos_token": "yes"}, "true or false"),
        ({"model": 3}, "expected a string"),
    ],
)
def test_contradictions_are_our_error(change, message):
    with pytest.raises(ModelFileError, match=message):
        tokenizer_from_gguf(byte_vocabulary(**change))


def test_text_that_is_no_text(smollm2):
    with pytest.raises(ParameterError, match="surrogate"):
        smollm2.encode("a\ud800", add_special_tokens=True, parse_special=True)
    with pytest.raises(ParameterError, match="found int"):
        smollm2.encode(3, add_special_tokens=True, parse_special=True)


# -- special tokens


def test_facts_of_smollm2(smollm2, metadata):
    assert (smollm2.vocab_size, smollm2.bos_token_id, smollm2.eos_token_id, smollm2.pad_token_id) == (49152, 1, 2, 2)
    assert smollm2.special_ids == frozenset(range(17))
    assert not smollm2.add_bos and not smollm2.add_eos and smollm2.prefix_ids == ()
    assert smollm2.chat_template == metadata["tokenizer.chat_template"]
    assert smollm2.template_variables["bos_token"] == "<|im_start|>"
    assert smollm2.token_to_id("<|im_end|>") == 2 and smollm2.id_to_token(2) == "<|im_end|>"
    assert smollm2.token_to_id("no such token") is smollm2.id_to_token(10**9) is smollm2.id_to_token(-1) is None


def test_exactly_one_bos_in_raw_prompts():
    """BOS by default, none when the file says so, and no second one for a text that begins with it."""

    def ids(text, **keys):
        tokenizer = tokenizer_from_gguf(byte_vocabulary("<s>", "</s>", bos_token_id=256, eos_token_id=257, **keys))
        return tokenizer.encode(text, add_special_tokens=True, parse_special=True)

    assert ids("hi", add_bos_token=True)[0] == 256 and ids("hi", add_bos_token=True).count(256) == 1
    assert ids("<s>hi", add_bos_token=True) == ids("hi", add_bos_token=True)
    assert ids("<s><s>hi", add_bos_token=True).count(256) == 2
    assert ids("hi", add_bos_token=True, add_eos_token=True)[-1] == 257
    assert 256 not in ids("hi") and 256 not in ids("hi", add_bos_token=False)
    assert ids("hi", pre="llama-bpe")[0] == 256  # this generation expects BOS unless the file says no
    assert 256 not in ids("hi", pre="llama-bpe", add_bos_token=False)
    assert ids("", add_bos_token=True) == [256] and ids("") == []


@pytest.mark.parametrize(("left", "right"), [(False, False), (True, False), (False, True), (True, True)])
def test_spaces_next_to_added_tokens(tmp_path, left, right):
    """Lstrip eats the spaces on the left, rstrip those on the right, and eaten spaces make no ids."""
    backend = byte_backend()
    backend.add_special_tokens([AddedToken("<T>", lstrip=left, rstrip=right, special=True)])
    tokenizer = save(tmp_path, backend)
    ids = tokenizer.encode("a   <T>  b", add_special_tokens=False, parse_special=True)
    space, token = tokenizer.token_to_id("Ġ"), tokenizer.token_to_id("<T>")
    before, after = ids[: ids.index(token)], ids[ids.index(token) + 1 :]
    assert before.count(space) == (0 if left else 3)
    assert after.count(space) == (0 if right else 2)


def test_every_end_the_files_name():
    """End of text, of turn and of message, and control tokens spelled like them."""
    more = ("<|a|>", "<|b|>", "<|c|>", "<|im_end|>", "<|end|>")
    keys = byte_vocabulary(*more, types=[3, 3, 3, 3, 4], eos_token_id=257, eot_token_id=256, eom_token_id=258)
    assert tokenizer_from_gguf(keys).eos_token_ids == (257, 256, 258, 259)  # <|end|> is ordinary text here
    none = byte_vocabulary(eos_token_id=2**32 - 1, bos_token_id=-1)
    assert tokenizer_from_gguf(none).eos_token_ids == () and tokenizer_from_gguf(none).eos_token_id is None


def test_user_defined_tokens_are_found_but_not_special():
    tokenizer = tokenizer_from_gguf(byte_vocabulary("<think>", "<x>", types=[4, 3]))
    assert tokenizer.special_ids == {257}
    for parse_special in (True, False):
        assert tokenizer.encode("<think>", add_special_tokens=False, parse_special=parse_special) == [256]
    assert len(tokenizer.encode("<x>", add_special_tokens=False, parse_special=False)) == 3


def test_special_spans(smollm2):
    assert smollm2.special_spans("é🌶 <|im_end|>x<|im_start|>") == [(3, 13, 2), (14, 26, 1)]


# -- ids to text


def test_decode_equals_tokenizers_on_text(smollm2):
    for text in NASTY:
        ids = smollm2.encode(text, add_special_tokens=False, parse_special=True)
        for skip in (False, True):
            assert smollm2.decode(ids, skip) == smollm2.backend.decode(ids, skip_special_tokens=skip)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 49152, 3000).tolist()  # random bytes: also the same number of U+FFFD
    assert smollm2.decode(ids) == smollm2.backend.decode(ids, skip_special_tokens=False)


def test_decode_ignores_ids_outside_the_vocabulary(smollm2):
    assert smollm2.decode([6004, 49152, 2**31, 2**40, -1]) == "hi"
    assert smollm2.decode(np.array([6004, 2]), skip_special_tokens=True) == "hi"


def test_added_tokens_decode_to_their_own_text():
    """Their text is no byte alphabet: 'é' stands for itself here, not for the byte E9."""
    assert tokenizer_from_gguf(byte_vocabulary("<é Ġ>")).decode([256]) == "<é Ġ>"


# -- Hugging Face directory


def byte_backend():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def save(path, backend, **config):
    backend.save(str(path / "tokenizer.json"))
    if config:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer_from_directory(path)


def test_directory_like_transformers(tmp_path, smollm2):
    from transformers import AutoTokenizer

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "model_max_length": 8192,
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
        "chat_template": smollm2.chat_template,
        "added_tokens_decoder": {"49152": {"content": "<new>", "special": True}},
    }  # fmt: skip
    smollm2.backend.enable_truncation(48)  # some published files bake this in
    try:
        tokenizer = save(tmp_path, smollm2.backend, **config)
    finally:
        smollm2.backend.no_truncation()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*NASTY, "x<new>y"]:
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=True)
        assert ids == theirs(text)["input_ids"], text
    assert tokenizer.eos_token_ids == (2,) and tokenizer.bos_token_id == 1 and tokenizer.vocab_size == 49153
    assert tokenizer.chat_template == smollm2.chat_template and tokenizer.model_max_length == 8192
    assert tokenizer.encode("x<new>y", add_special_tokens=False, parse_special=False)[1] != 49152


def test_bos_switch_overrules_tokenizer_json(tmp_path):
    backend = byte_backend()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    tokenizer = save(tmp_path, backend, bos_token="<s>", eos_token="</s>")
    assert tokenizer.add_bos and tokenizer.prefix_ids == (256,)
    tokenizer = save(tmp_path, backend, bos_token="<s>", eos_token="</s>", add_bos_token=False, add_eos_token=True)
    assert not tokenizer.add_bos and tokenizer.add_eos and tokenizer.suffix_ids == (257,)
    tokenizer = save(tmp_path, backend, bos_token="<s>", add_bos_token=False)
    assert tokenizer.encode("a", add_special_tokens=True, parse_special=True) == [tokenizer.token_to_id("a")]


def test_chat_template_places(tmp_path):
    assert save(tmp_path, byte_backend()).chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert save(tmp_path, byte_backend(), chat_template=named).chat_template == "D"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "J"}')
    assert tokenizer_from_directory(tmp_path).chat_template == "J"
    (tmp_path / "chat_template.jinja").write_text("file é")
    assert tokenizer_from_directory(tmp_path).chat_template == "file é"


def test_special_tokens_map_is_read(tmp_path):
    backend = byte_backend()
    backend.add_tokens(["</s>"])
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}, "unk_token": "!"}')
    tokenizer = save(tmp_path, backend)
    assert tokenizer.eos_token_ids == (256,) and tokenizer.unk_token_id == tokenizer.token_to_id("!")


def test_damaged_directories(tmp_path):
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match=r"bpe\.model but no tokenizer\.json"):
        tokenizer_from_directory(tmp_path)
    for text in ("", "{", "[]", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', '{"model": null}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelFileError):
            tokenizer_from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="cannot be read"):
        tokenizer_from_directory(tmp_path)
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    for text in ("[1]", "{", '{"added_tokens_decoder": {"x": {}}}', '{"added_tokens_decoder": [3]}'):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(ModelFileError, match="tokenizer_config"):
            tokenizer_from_directory(tmp_path)


def test_ids_with_holes_count_up_to_the_greatest(tmp_path):
    """Answers may use every id below vocab_size."""
    backend = byte_backend()
    content = json.loads(backend.to_str())
    names = content["model"]["vocab"]
    last = max(names, key=names.get)
    names[last] += 5
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = tokenizer_from_directory(tmp_path)
    assert tokenizer.token_to_id(last) == names[last] == tokenizer.vocab_size - 1
    names[last] = 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="token ids below"):
        tokenizer_from_directory(tmp_path)


def test_names_that_no_token_has(tmp_path):
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    for changes in ({"add_bos_token": True, "bos_token": "<none>"}, {"add_eos_token": True, "eos_token": "<none>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(changes))
        with pytest.raises(ModelFileError, match=r"<none>.*token of the vocabulary"):
            tokenizer_from_directory(tmp_path)
    content = json.loads(byte_backend().to_str())
    content["model"]["unk_token"] = "<none>"
    del content["model"]["vocab"]["a"]
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="<none>"):  # found when a text has an unknown character
        tokenizer_from_directory(tmp_path).encode("a", add_special_tokens=False, parse_special=False)


# -- the stored form, speed, threads


def test_stored_form(smollm2, tmp_path):
    again = Tokenizer.from_json(smollm2.to_json())
    assert again.facts == smollm2.facts and again.special_ids == smollm2.special_ids
    directory = save(tmp_path, smollm2.backend, eos_token="<|im_end|>")
    stored = Tokenizer.from_json(directory.to_json())
    assert stored.facts == directory.facts
    for text in NASTY:
        for special in (True, False):
            ids = smollm2.encode(text, add_special_tokens=True, parse_special=special)
            assert again.encode(text, add_special_tokens=True, parse_special=special) == ids
            assert stored.encode(text, add_special_tokens=True, parse_special=special) == ids
    for damaged in ("", "{}", "{}\n{}", smollm2.to_json()[:-5], "[]\n[]"):
        with pytest.raises(ModelFileError):
            Tokenizer.from_json(damaged)


def test_building_is_quick(metadata, smollm2):
    """Start-up pays for it: under 0.25 s from the file's metadata, and under 0.1 s on an idle machine when stored."""

    def seconds(build):
        times = []
        for _ in range(5):
            started = time.thread_time()
            build()
            times.append(time.thread_time() - started)
        return min(times)

    text = smollm2.to_json()
    assert seconds(lambda: tokenizer_from_gguf(metadata)) < 0.25
    assert seconds(lambda: Tokenizer.from_json(text)) < 0.2  # twice the aim: other programs share this machine


def test_threads_mix_plain_and_special(smollm2):
    """Encoding with and without special tokens at once: neither may change the other's mode."""
    wrong = []

    def work(special):
        for _ in range(200):
            ids = smollm2.encode("<|im_end|> x", add_special_tokens=False, parse_special=special)
            if (2 in ids) is not special:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
