"""/v1/embeddings: the library's vectors, for the clients that people use, and what is wrong with a request."""

import asyncio
import base64

import numpy as np
import openai
import pytest

import tiny_shelf
from tiny_readers import some_words, words

PATH = "/v1/embeddings"
TEXTS = ["w1", "w2 w3 unhappy, w4.", some_words(15), "paris is in france", "w1"]


@pytest.fixture
def vectors(shelf):
    return shelf.models["vectors"]


def ask(reading, **body):
    answer = reading.post(PATH, json={"model": "vectors", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(answer):
    return np.array([one["embedding"] for one in answer["data"]])


def decoded(answer):
    return np.stack([np.frombuffer(base64.b64decode(one["embedding"], validate=True), "<f4")
                     for one in answer["data"]])


def test_the_vectors_of_the_library(reading, vectors):
    expected = vectors.embed(TEXTS)
    answer = ask(reading, input=TEXTS)
    assert np.array_equal(numbers(answer), expected.astype(np.float64))  # every digit
    assert [one["index"] for one in answer["data"]] == list(range(len(TEXTS)))
    assert answer["object"] == "list" and {one["object"] for one in answer["data"]} == {"embedding"}
    assert answer["model"] == "vectors" and "warnings" not in answer
    same = ask(reading, input=TEXTS, encoding_format="base64")
    assert decoded(same).tobytes() == expected.tobytes() and same["usage"] == answer["usage"]
    assert np.array_equal(numbers(ask(reading, input=TEXTS[1], model="meaning")), expected[1:2])


def test_usage_counts_what_was_read(reading):
    """[CLS] and [SEP] around each text, and a prompt of two words before it."""
    assert ask(reading, input=["w1", "w2 w3"])["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert ask(reading, input="w1", prompt_name="query")["usage"]["prompt_tokens"] == 5
    assert ask(reading, input=some_words(60), truncation="left")["usage"]["prompt_tokens"] == tiny_shelf.LIMIT
    assert ask(reading, input=[[5, 6, 7]])["usage"]["total_tokens"] == 3


def test_token_ids_are_read_as_they_are(reading, vectors):
    whole = [2, 5, 6, 3]
    for given in (whole, [whole], [whole, [7]]):
        assert np.array_equal(numbers(ask(reading, input=given))[0], vectors.embed("w1 w2")[0])
    assert np.array_equal(numbers(ask(reading, input=[5, 6]))[0], vectors.embed([5, 6])[0])


def test_options(reading, vectors):
    for change in ({"dimensions": 7}, {"normalize": False}, {"dimensions": 24, "normalize": False}, {"prompt": "w5: "},
                   {"prompt": ""}):
        assert np.array_equal(numbers(ask(reading, input=TEXTS, **change)), vectors.embed(TEXTS, **change))
    named = ask(reading, input=TEXTS, prompt_name="query", user="me", priority=3, timeout=60, cache_salt="x")
    assert np.array_equal(numbers(named), vectors.embed(TEXTS, prompt="query"))
    empty = {name: None for name in ("encoding_format", "dimensions", "truncation", "normalize", "prompt", "user",
                                     "prompt_name", "timeout", "cache_salt")}
    assert ask(reading, input=TEXTS, **empty) == ask(reading, input=TEXTS)


def test_texts_that_are_too_long(reading, vectors):
    text = some_words(30)
    refused = reading.post(PATH, json={"model": "vectors", "input": ["w1", text]})
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["code"] == "context_length_exceeded"
    assert error["param"] == "input[1]" and "32 tokens, the limit is 20" in error["message"]
    single = reading.post(PATH, json={"model": "vectors", "input": text, "truncation": "error"})
    assert single.json()["error"]["param"] == "input"
    for side in ("right", "left"):
        answer = ask(reading, input=["w1", text], truncation=side)
        read = text.split()[:18] if side == "right" else text.split()[-18:]
        assert np.array_equal(numbers(answer)[1], vectors.embed(" ".join(read))[0])
        assert answer["warnings"] == [f"1 of 2 texts are longer than 20 tokens: cut on the {side}, 12 tokens left out; "
                                      "max_length and truncation say what is done"]


def test_a_model_without_a_pooling_says_so_each_time(reading):
    for _ in range(2):
        (warning,) = ask(reading, model="labels", input="w1")["warnings"]
        assert "1_Pooling" in warning and "/" not in warning.split(" does")[0]  # no path of the server's


def test_many_at_once_are_each_as_if_alone(reading, vectors):
    """Forty requests side by side, some of them wrong, each with its own usage."""
    texts = [[some_words(1 + (7 * i + n) % 17, i + n) for n in range(1 + i % 4)] for i in range(40)]

    async def all_of_them():
        return await asyncio.gather(*(
            reading.client.post(PATH, json={"model": "vectors", "input": some_words(30) if i % 8 == 5 else some})
            for i, some in enumerate(texts)))

    for i, answer in enumerate(reading.run(all_of_them())):
        if i % 8 == 5:
            assert answer.status_code == 400
        else:
            assert np.array_equal(numbers(answer.json()), vectors.embed(texts[i]))
            assert answer.json()["usage"]["prompt_tokens"] == sum(len(one.split()) + 2 for one in texts[i])


def test_a_client_that_leaves(reading, vectors):
    """Whatever it had asked for is gone within a moment, and the next one is answered."""
    body = {"model": "vectors", "input": [some_words(18, i) for i in range(2048)]}

    async def leave():
        for i in range(10):
            asked = asyncio.ensure_future(reading.client.post(PATH, json=body))
            await asyncio.sleep(0.01 * i)
            asked.cancel()
            await asyncio.wait({asked})
        for _ in range(200):
            if not vectors.engine.stats().requests and not reading.app.calls:
                break
            await asyncio.sleep(0.01)

    reading.run(leave())
    assert vectors.engine.stats().requests == 0 and not reading.app.calls
    assert np.array_equal(numbers(ask(reading, input="w1")), vectors.embed("w1"))


def test_a_request_that_has_no_time(reading):
    answer = reading.post(PATH, json={"model": "vectors", "input": ["w1"] * 2048, "timeout": 1e-6})
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"
    ask(reading, input="w1", timeout=30)


# ---- clients


def client_of(reading):
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=reading.client, max_retries=0)


def test_the_openai_client_decodes_both(reading, vectors):
    """It asks for base64 by itself, and decodes that; floats it passes on."""
    expected = vectors.embed(TEXTS)

    async def both():
        client = client_of(reading)
        return (await client.embeddings.create(model="vectors", input=TEXTS),
                await client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float"),
                await client.embeddings.create(model="vectors", input=[[2, 5, 3]], dimensions=5))

    packed, plain, short = reading.run(both())
    for answer in (packed, plain):
        assert np.array_equal(np.array([one.embedding for one in answer.data], np.float32), expected)
        assert answer.usage.prompt_tokens == sum(len(vectors.tokenizer.encode_batch([text])[0]) for text in TEXTS)
    assert np.array_equal(np.float32(short.data[0].embedding), vectors.embed("w1", dimensions=5)[0])


def test_errors_reach_the_openai_client(reading):
    async def wrong(**body):
        await client_of(reading).embeddings.create(**{"model": "vectors", "input": "w1", **body})

    with pytest.raises(openai.BadRequestError) as caught:
        reading.run(wrong(dimensions=25))
    assert caught.value.param == "dimensions" and "from 1 to 24, not 25" in caught.value.message
    with pytest.raises(openai.NotFoundError) as caught:
        reading.run(wrong(model="gpt-4"))
    assert caught.value.code == "model_not_found" and "vectors" in caught.value.message


def test_langchain(reading, vectors):
    from langchain_openai import OpenAIEmbeddings

    made = OpenAIEmbeddings(model="vectors", base_url="http://test/v1", api_key="none",
                            http_async_client=reading.client, check_embedding_ctx_length=False)
    found = reading.run(made.aembed_documents(TEXTS))
    assert np.array_equal(np.array(found, np.float32), vectors.embed(TEXTS))
    assert np.array_equal(np.float32(reading.run(made.aembed_query("w4"))), vectors.embed("w4")[0])


# ---- what is wrong


@pytest.mark.parametrize(("change", "param", "said"), [
    ({"input": []}, "input", "at least one"), ({"input": ""}, None, None), ({"input": None}, "input", "null"),
    ({"input": 5}, "input", "int"), ({"input": {"a": 1}}, "input", "object"),
    ({"input": ["w1", 3]}, "input[1]", "expected a text like the first one, found a token id"),
    ({"input": [3, "w1"]}, "input[1]", "expected a token id"), ({"input": [[3], "w1"]}, "input[1]", "found a text"),
    ({"input": [[3], []]}, "input[1]", "an empty list"), ({"input": [[]]}, "input[0]", "an empty list"),
    ({"input": ["w1", None]}, "input[1]", "null"), ({"input": ["w1", ["w2"]]}, "input[1][0]", "str"),
    ({"input": [1.5]}, "input[0]", "float"), ({"input": [True]}, "input[0]", "bool"),
    ({"input": [[2, 46]]}, "input[0]", "expected an id from 0 to 45"), ({"input": [46]}, "input", "0 to 45"),
    ({"input": [-1]}, "input", "token 0"), ({"input": [2**63]}, "input", "token 0"),
    ({"input": ["a"] * 2049}, "input", "at most 2048 texts, found 2049"),
    ({"input": [[5]] * 2049}, "input", "at most 2048"),
    ({"dimensions": 0}, "dimensions", ">= 1"), ({"dimensions": 25}, "dimensions", "from 1 to 24"),
    ({"dimensions": 2.5}, "dimensions", "int"), ({"dimensions": "7"}, "dimensions", "int"),
    ({"dimensions": 2**64}, "dimensions", "from 1 to 24"), ({"encoding_format": "hex"}, "encoding_format", "hex"),
    ({"truncation": "middle"}, "truncation", "middle"), ({"normalize": "yes"}, "normalize", "bool"),
    ({"prompt_name": "title"}, "prompt_name", "query, passage"), ({"prompt": "title"}, "prompt", "query, passage"),
    ({"prompt": "a: ", "prompt_name": "query"}, "prompt_name", "leave it out"),
    ({"prompt": "a: ", "input": [5]}, "prompt", "token ids"),
    ({"prompt_name": "query", "input": [5]}, "prompt_name", "token ids"),
    ({"priority": 1001}, "priority", "<= 1000"), ({"timeout": 0}, "timeout", "> 0"),
    ({"timeout": -1}, "timeout", "> 0"), ({"timeout": 1e9}, "timeout", "<= 86400"),
    ({"cache_salt": "x" * 257}, "cache_salt", "256"), ({"user": 5}, "user", "str"),
    ({"model": "chat7"}, "model", "vectors"), ({"model": ""}, "model", "length"), ({"model": 5}, "model", "str"),
    ({"model": "x" * 300}, "model", "256"), ({"inputs": "w1"}, "inputs", "unknown field")])
def test_wrong_fields_are_named(reading, change, param, said):
    answer = reading.post(PATH, json={"model": "vectors", "input": "w1", **change})
    if param is None:  # an empty text is one: its special tokens are read
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert answer.status_code == (404 if error["code"] == "model_not_found" else 400)
    assert error["param"] == param and said in error["message"] and error["type"] == "invalid_request_error"


def test_a_missing_field(reading):
    for field, body in (("input", {"model": "vectors"}), ("model", {"input": "w1"})):
        error = reading.post(PATH, json=body).json()["error"]
        assert error["param"] == field and error["code"] == "missing_field"


def test_a_hundred_thousand_texts_are_refused_at_once(reading):
    answer = reading.post(PATH, json={"model": "vectors", "input": ["w"] * 100_000})
    assert answer.status_code == 400 and len(answer.content) < 500


def test_a_text_of_megabytes_is_refused_at_once(reading):
    error = reading.post(PATH, json={"model": "vectors", "input": ["w1", "w1 " * 400_000]}).json()["error"]
    assert error["param"] == "input[1]" and "1048576" in error["message"]


def test_the_largest_request(reading, vectors):
    texts = [words(1 + i % 30) for i in range(2048)]
    assert np.array_equal(decoded(ask(reading, input=texts, encoding_format="base64")), vectors.embed(texts))
