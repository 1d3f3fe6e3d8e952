"""The catalogue's models that read texts: sentences found as torch finds them, grammar tagged as by the ONNX model."""

import json
import re

import numpy as np
import pytest

import forwardpass
from forwardpass import catalog
from forwardpass.cli import main
from forwardpass.tasks.quality import measuring_text

pytestmark = pytest.mark.models

QUESTIONS = ["how do I read a compressed file", "parse the arguments of a program", "what is the time in another zone",
             "send an electronic letter", "pick something at random", "a lock that several threads share"]
SENTENCES = 200
GRAMMAR = ["She have went to school yesterday .", "I has a apple in me bag .",
           "We was walking home when it start to rain .", "Their are many people which thinks so .",
           "Its a nice day , isnt it ?", "i live in paris with my too brothers .", "The dog wagged it's tail .",
           "There house is bigger then ours .", "He dont know weather it will rain .",
           "All of this is as it should be ."]


@pytest.fixture(scope="module")
def sentences():
    """First sentences of the standard library's docstrings."""
    found = dict.fromkeys(" ".join(text.split()) for text in re.findall(r"(?:^|\n\n)([A-Z][^.\n]{25,120}\.)",
                                                                        measuring_text()))
    chosen = list(found)[:: len(found) // SENTENCES][:SENTENCES]
    assert len(chosen) == SENTENCES
    return chosen


@pytest.fixture(scope="module")
def minilm_path():
    return catalog.resolve("minilm-l6")


@pytest.fixture(scope="module")
def torch_vectors(minilm_path):
    """Mean of the last hidden states of padded batches, of length 1."""
    import torch
    import transformers

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    model = transformers.AutoModel.from_pretrained(minilm_path, dtype=torch.float32).eval()

    def embed(texts):
        out = []
        for at in range(0, len(texts), 50):
            batch = tokenizer(texts[at : at + 50], padding=True, truncation=True, max_length=256, return_tensors="pt")
            with torch.no_grad():
                hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            out.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)))
        return torch.cat(out).numpy()

    return embed


@pytest.fixture(scope="module")
def theirs(torch_vectors, sentences):
    """(vectors of the sentences, of the questions)."""
    return torch_vectors(sentences), torch_vectors(QUESTIONS)


@pytest.mark.parametrize(("dtype", "cosine"), [("float32", 0.9999999), ("auto", 0.99999), ("bfloat16", 0.9995),
                                               ("int8", 0.995)])
def test_the_nearest_sentences_are_those_of_torch(minilm_path, sentences, theirs, dtype, cosine):
    vectors, questions = theirs
    expected = np.argsort(-(questions @ vectors.T), axis=1, kind="stable")[:, :5]
    with forwardpass.load(minilm_path, dtype=dtype) as model:
        ours, asked = model.embed(sentences), model.embed(QUESTIONS)
        found = model.similarity(asked, ours)
    assert (ours * vectors).sum(1).mean() > cosine
    for question, scores, best in zip(QUESTIONS, found, expected, strict=True):
        if dtype in ("float32", "auto"):
            assert np.argsort(-scores, kind="stable")[:5].tolist() == best.tolist(), question
        else:  # two sentences that are equally near may change places
            assert scores[best].min() > np.sort(scores)[-5] - 0.01, question


def test_a_vector_has_the_same_bits_in_any_company(minilm_path, sentences):
    for dtype in ("auto", "int8"):
        with forwardpass.load(minilm_path, dtype=dtype) as model:
            together = model.embed(sentences[:40])
            assert np.array_equal(np.concatenate([model.embed(one) for one in sentences[:40]]), together)
            assert np.array_equal(model.embed(sentences[39::-1])[::-1], together)


def test_nearest_from_the_command_line(sentences, theirs, tmp_path, capsys):
    vectors, questions = theirs
    (tmp_path / "s.txt").write_text("\n".join(sentences))
    assert main(["embed", "--file", str(tmp_path / "s.txt"), "--nearest", QUESTIONS[0], "--top", "3", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = questions[0] @ vectors.T
    best = np.argsort(-scores, kind="stable")[:3].tolist()
    assert [one["index"] for one in found] == best and [one["text"] for one in found] == [sentences[i] for i in best]
    assert np.allclose([one["score"] for one in found], scores[best], atol=1e-3)


def test_the_limit_is_that_of_the_sentence_model(minilm_path, torch_vectors):
    """256 tokens, whatever tokenizer.json (128) and config.json (512) have."""
    text = "the quick brown fox " * 100
    with forwardpass.load(minilm_path, dtype="float32") as model, pytest.warns(UserWarning, match="than 256 tokens"):
        assert (model.embed(text)[0] @ torch_vectors([text])[0]) > 0.9999999


@pytest.fixture(scope="module")
def tagger():
    with forwardpass.load("gector-distilbert") as model:
        yield model


def test_grammar_tags_are_those_of_the_onnx_model(tagger):
    """onnx's own evaluator runs the original file, whose activations are rounded to eight bits as well: where its two
    best tags are less than 1 apart that may decide, nowhere else."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    original = onnx.load(tagger.path / "tagger.onnx")
    original.opset_import[0].version = 21  # its version of quantisation means the same and is implemented there
    evaluator = ReferenceEvaluator(original)
    close = 0
    for text, ours in zip(GRAMMAR, tagger.token_classify(GRAMMAR, aggregation="none", ignore=()), strict=True):
        ids = np.array([tagger.tokenizer.encode_batch([text])[0].ids], np.int64)
        (scores,) = evaluator.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        rows = scores[0, 1:-1]
        assert len(rows) == len(ours)
        for row, one in zip(rows, ours, strict=True):
            second, first = np.sort(row)[-2:]
            same = one.label == tagger.settings.labels[int(row.argmax())]
            close += first - second < 1
            assert same or first - second < 1, (text, one)
    assert close <= 2


def test_grammar_from_the_command_line(capsys):
    line = ["tag", "Their are many people .", "--model", "gector-distilbert", "--aggregation", "words"]
    assert main([*line, "--ignore", "$KEEP", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["entities"]
    assert (found["label"], found["text"], found["start"], found["end"]) == ("$REPLACE_There", "Their", 0, 5)


@pytest.mark.parametrize("entry", [entry for entry in catalog.ENTRIES if entry.tasks], ids=lambda entry: entry.name)
def test_models_can_do_what_the_catalogue_says(entry):
    with forwardpass.load(entry.name) as model:
        assert set(entry.tasks) <= set(model.tasks)
