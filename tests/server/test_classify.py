"""/v1/classify: the library's labels."""

import pytest

from tiny_readers import some_words

PATH = "/v1/classify"


@pytest.fixture
def model(shelf):
    return shelf.models["labels"]


def ask(reading, **body):
    answer = reading.post(PATH, json={"model": "labels", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def labels(answer):
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [[(label["label"], label["score"]) for label in one["labels"]] for one in answer["data"]]


def test_the_labels_of_the_library(reading, model):
    texts = ["w1 w2", "unhappy", some_words(30)]
    answer = ask(reading, input=texts)
    assert labels(answer) == model.classify(texts) and len(answer["data"][0]["labels"]) == 3
    assert abs(sum(score for _, score in labels(answer)[0]) - 1) < 1e-12
    assert answer["object"] == "list" and answer["model"] == "labels" and "warnings" not in answer
    assert answer["usage"] == {"prompt_tokens": 4 + 4 + 32, "total_tokens": 40}  # un ##happy
    assert labels(ask(reading, input="w1 w2")) == model.classify("w1 w2")


def test_pairs(reading, model):
    """A list of two texts is two texts; a pair is a list inside."""
    assert labels(ask(reading, input=["w1", "w2"])) == model.classify(["w1", "w2"])
    mixed = ask(reading, input=[["w1", "w2"], "w1", ["w2", "w1"]])
    assert labels(mixed) == model.classify([("w1", "w2"), "w1", ("w2", "w1")])
    assert labels(mixed)[0] != labels(mixed)[2]


def test_options(reading, model):
    for change in ({"top_k": 1}, {"top_k": 99}, {"activation": "sigmoid"}, {"activation": "none"}, {"max_length": 9},
                   {"truncation": "left", "max_length": 5}):
        answer = ask(reading, input=["w1 w2", "w3"], **change)
        assert labels(answer) == model.classify(["w1 w2", "w3"], **change)


def test_what_is_too_long(reading, model):
    pair = [some_words(10), some_words(60)]
    answer = ask(reading, input=["w1", pair])
    assert "1 of 2 texts are longer than 40 tokens" in answer["warnings"][0]
    assert labels(answer)[1] == model.classify([(pair[0], " ".join(pair[1].split()[:27]))])[0]
    refused = reading.post(PATH, json={"model": "labels", "input": ["w1", pair], "truncation": "error"})
    assert refused.json()["error"]["param"] == "input[1]"


def test_a_model_without_labels(reading):
    answer = reading.post(PATH, json={"model": "vectors", "input": "w1"})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "model"
    assert "cannot classify" in error["message"] and "it can embed" in error["message"]


@pytest.mark.parametrize(("change", "param", "said"), [
    ({"input": []}, "input", ">= 1"), ({"input": None}, "input", "null"), ({"input": [5]}, "input[0]", "int"),
    ({"input": [["w1"]]}, "input[0]", ">= 2"), ({"input": [["w1", "w2", "w3"]]}, "input[0]", "<= 2"),
    ({"input": ["w1", ["w2", 5]]}, "input[1][1]", "int"), ({"input": ["a"] * 2049}, "input", "2048"),
    ({"top_k": 0}, "top_k", ">= 1"), ({"top_k": "all"}, "top_k", "str"), ({"activation": "relu"}, "activation", "relu"),
    ({"max_length": 41}, "max_length", "from 1 to 40"), ({"max_length": 1}, "input", "cannot be left out"),
    ({"pair_truncation": "first"}, "pair_truncation", "first"), ({"function_to_apply": "none"}, "function_to_apply",
                                                                 "unknown field")])
def test_wrong_fields_are_named(reading, change, param, said):
    answer = reading.post(PATH, json={"model": "labels", "input": "w1", **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and said in error["message"]
