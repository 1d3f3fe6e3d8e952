"""The vocabularies of the other real models."""

import time

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protobuf
from transformers import Qwen2Tokenizer

import sentence_models
from forwardpass import catalog
from forwardpass.stages.text_stream import TextStream
from forwardpass.weights import gguf
from forwardpass.weights.fill_in_middle import fill_in_middle
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_gguf

pytestmark = pytest.mark.models

TEXTS = [*sentence_models.TEXTS, "<table>\t\t<tr>\n\n\n\n    x", "中国的首都是北京。", "def f(x):\n    return x\n"]


def read(name):
    with gguf.open_gguf(catalog.resolve(name)) as source:
        return dict(source.metadata)


@pytest.fixture(scope="module")
def gemma():
    return read("gemma3-270m")


@pytest.fixture(scope="module")
def qwen():
    return read("qwen2.5-coder-0.5b")


def test_gemma_equals_sentencepiece(gemma):
    """A SentencePiece model made of the same pieces and scores."""
    model = protobuf.ModelProto()
    columns = (gemma[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    for token, score, kind in zip(*columns, strict=True):
        # The conversion writes added tokens with spaces as they are, and knows no token of type "unknown".
        model.pieces.add(piece=token.replace(" ", "▁"), score=score, type=2 if token == "<unk>" else int(kind))
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = 2, True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    witness = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    tokenizer = tokenizer_from_gguf(gemma)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == witness.encode(text), text
        assert tokenizer.decode(ids) == text.replace("▁", " ")
        stream = TextStream(tokenizer)
        assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)
    assert tokenizer.encode("hi", add_special_tokens=True, parse_special=True)[0] == 2
    assert tokenizer.encode("<bos>hi", add_special_tokens=True, parse_special=True).count(2) == 1
    assert {tokenizer.id_to_token(i) for i in tokenizer.eos_token_ids} == {"<eos>", "<end_of_turn>"}
    assert fill_in_middle(tokenizer) is None


def test_qwen_equals_transformers(qwen):
    """transformers' own class, given the file's tokens and merges."""
    vocab = {token: i for i, token in enumerate(qwen["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in qwen["tokenizer.ggml.merges"]]
    witness = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer = tokenizer_from_gguf(qwen)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)
        if "<|" not in text:
            assert ids == witness(text)["input_ids"], text
        assert not tokenizer.special_ids & set(ids)
    assert {tokenizer.id_to_token(i) for i in tokenizer.eos_token_ids} == {"<|im_end|>", "<|endoftext|>"}
    fim = fill_in_middle(tokenizer)
    before, after = [3], [4]
    names = [tokenizer.id_to_token(i) for i in fim.prompt(before, after) if i > 4]
    assert names == ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    assert {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"} <= {tokenizer.id_to_token(i) for i in fim.ends}


@pytest.mark.parametrize(("name", "cold", "warm"), [("gemma", 3.0, 1.2), ("qwen", 1.0, 0.7)])
def test_time_to_load(request, name, cold, warm):
    """Processor seconds, twice what was measured: other programs share the machine."""
    metadata = request.getfixturevalue(name)

    def seconds(make):
        started = time.process_time()
        made = make()
        return time.process_time() - started, made

    first, tokenizer = seconds(lambda: tokenizer_from_gguf(metadata))
    text = tokenizer.to_json()
    again = min(seconds(lambda: Tokenizer.from_json(text))[0] for _ in range(3))
    assert first < cold and again < warm
