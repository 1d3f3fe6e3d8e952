"""/v1/rerank: the library's scores in the shape that Cohere's and Jina's clients read."""

import asyncio

import pytest

from tiny_readers import some_words, words

PATH = "/v1/rerank"
DOCUMENTS = [words(4, 5), "paris is in france", words(9), some_words(20, 3), words(4, 5)]


@pytest.fixture
def relevance(shelf):
    return shelf.models["relevance"]


def body(**more):
    return {"model": "relevance", "query": "w1 w2", "documents": DOCUMENTS, **more}


def ask(reading, **more):
    answer = reading.post(PATH, json=body(**more))
    assert answer.status_code == 200, answer.text
    return answer.json()


def pairs(answer):
    return [(one["index"], one["relevance_score"]) for one in answer["results"]]


def test_the_scores_of_the_library(reading, relevance):
    expected = relevance.rerank("w1 w2", DOCUMENTS)
    answer = ask(reading)
    assert pairs(answer) == expected and [score for _, score in expected] == sorted((s for _, s in expected))[::-1]
    assert answer["model"] == "relevance" and answer["id"] and "warnings" not in answer
    assert all("document" not in one for one in answer["results"])
    assert pairs(ask(reading, top_n=2)) == expected[:2] and pairs(ask(reading, top_n=99)) == expected
    assert pairs(ask(reading, activation="none")) == relevance.rerank("w1 w2", DOCUMENTS, activation="none")
    read = sum(len(one) for one in relevance.tokenizer.encode_batch([("w1 w2", one) for one in DOCUMENTS]))
    assert answer["usage"] == {"prompt_tokens": read, "total_tokens": read}


def test_documents_come_back_with_their_numbers(reading):
    mixed = [{"text": one} if i % 2 else one for i, one in enumerate(DOCUMENTS)]
    answer = ask(reading, documents=mixed, return_documents=True)
    assert [one["document"] for one in answer["results"]] == [{"text": DOCUMENTS[one["index"]]}
                                                              for one in answer["results"]]
    assert pairs(answer) == pairs(ask(reading, return_documents=False))


def test_equal_documents_keep_their_order(reading):
    results = [one["index"] for one in ask(reading)["results"]]
    assert results.index(0) < results.index(4)


def test_a_template_is_text_and_no_program(reading, relevance):
    """Its braces are places for two texts. What looks like a program is text, in documents as well."""
    template = "{query} w9 {document} {{ ''.__class__ }}{% include 'x' %}"
    documents = ["{{ 7 * 7 }}", "{query}", "w1"]
    answer = ask(reading, template=template, documents=documents)
    assert pairs(answer) == relevance.rerank("w1 w2", documents, template=template)


def test_what_is_too_long(reading, relevance):
    """Forty tokens with [CLS], [SEP] twice and a query of two words leave 35 to a document."""
    documents = ["w1", some_words(50)]
    answer = ask(reading, documents=documents)
    assert "1 of 2 texts are longer than 40 tokens" in answer["warnings"][0]
    cut = " ".join(some_words(50).split()[:35])
    assert pairs(answer) == relevance.rerank("w1 w2", ["w1", cut])
    assert answer["usage"]["prompt_tokens"] == 6 + 40
    refused = reading.post(PATH, json=body(documents=documents, truncation="error")).json()["error"]
    assert refused["param"] == "documents[1]" and refused["code"] == "context_length_exceeded"


def test_the_limit_of_a_request(app, shelf):
    """The operator's, of the tokens of all pairs: the same request with one document less is let in."""
    served = app(host=shelf, max_tokens_per_request=50)
    answer = served.post(PATH, json=body())
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "documents" and "a request's limit is 50" in error["message"]
    assert served.post(PATH, json=body(documents=DOCUMENTS[:3])).status_code == 200


def test_a_model_that_scores_no_pairs(reading):
    for name, able in (("labels", "classify"), ("chat", "generate")):
        answer = reading.post(PATH, json=body(model=name))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "model" and error["code"] == "unsupported_by_model"
        assert "cannot rerank" in error["message"] and able in error["message"]


@pytest.mark.parametrize(("change", "param", "said"), [
    ({"query": None}, "query", "null"), ({"query": ["w1"]}, "query", "array"), ({"documents": []}, "documents", ">= 1"),
    ({"documents": "w1"}, "documents", "str"), ({"documents": ["w1", 5]}, "documents[1]", "int"),
    ({"documents": [{"txt": "w1"}]}, "documents[0].txt", "unknown field"),
    ({"documents": [{"text": 5}]}, "documents[0].text", "int"), ({"documents": [{}]}, "documents[0].text", "required"),
    ({"documents": ["a"] * 2049}, "documents", "2048"), ({"top_n": 0}, "top_n", ">= 1"),
    ({"top_n": -1}, "top_n", ">= 1"), ({"top_n": 1.5}, "top_n", "float"), ({"top_n": True}, "top_n", "bool"),
    ({"activation": "tanh"}, "activation", "tanh"), ({"template": "{query}"}, "template", "one {query} and one"),
    ({"max_length": 41}, "max_length", "from 1 to 40"), ({"max_length": 0}, "max_length", ">= 1"),
    ({"pair_truncation": "both"}, "pair_truncation", "both"), ({"return_documents": 1}, "return_documents", "int"),
    ({"max_length": 2}, "documents[0]", "cannot be left out"), ({"rank_fields": ["a"]}, "rank_fields", "unknown"),
    ({"query": some_words(60), "pair_truncation": "only_second"}, "documents[0]", "cannot be left out")])
def test_wrong_fields_are_named(reading, change, param, said):
    answer = reading.post(PATH, json=body(**change))
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and said in error["message"]


def test_a_neighbour_notices_nothing(reading, relevance):
    async def both():
        return await asyncio.gather(*(reading.client.post(PATH, json=body(**change)) for change in
                                      [{}, {"template": "{query}"}, {}, {"truncation": "error", "documents": [
                                          some_words(60)]}, {}]))

    first, *others = reading.run(both())
    assert [one.status_code for one in others] == [400, 200, 400, 200]
    assert pairs(first.json()) == pairs(others[1].json()) == relevance.rerank("w1 w2", DOCUMENTS)
