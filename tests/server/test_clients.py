"""A server process and the clients that people have: the official one with the real model beside a tiny one, what it
makes of limits, LangChain's embeddings, curl.

test_openai_client.py has one way of using the official client after the other."""

import asyncio
import json
import shutil
import subprocess

import httpx
import numpy as np
import openai
import pytest

import forwardpass
import tiny_chat
import tiny_shelf
from server_tools import ServerProcess

HELLO = [{"role": "user", "content": "Name three colours."}]
KEY, SMALL_KEY = "a-key-of-nobody-in-particular", "another-key-with-little-room"
CURL = shutil.which("curl")


@pytest.fixture(scope="module")
def paths(tmp_path_factory, smollm2_path):
    made = tmp_path_factory.mktemp("clients")
    (made / "shelf").mkdir()
    return {"smollm2-135m": smollm2_path, "tiny": tiny_chat.write(made / "tiny", max_position_embeddings=1024),
            "vectors": tiny_shelf.write(made / "shelf")["vectors"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys").write_text(f"alice {KEY}\nbob {SMALL_KEY} max_tokens_in_flight=200\n")
    (folder / "keys").chmod(0o600)
    process = ServerProcess(folder, *(f"{name}={path}" for name, path in paths.items()), "--api-key-file",
                            str(folder / "keys"), "--kv-memory", "64MiB")
    yield process
    assert process.stop() == 0 and "Traceback" not in process.log


@pytest.fixture(scope="module")
def models(paths):
    """The same models in this process."""
    made = {name: forwardpass.load(path) for name, path in paths.items()}
    yield made
    for model in made.values():
        model.close()


def official(served, key=KEY, **more):
    return openai.OpenAI(base_url=served.url + "/v1", api_key=key, timeout=60, **{"max_retries": 0} | more)


def test_two_models_stream_at_the_same_time(served, models):
    """Each its own text, exactly, and neither waits until the other one has finished."""
    news: list[str] = []

    async def listen(client, name, **more):
        stream = await client.chat.completions.create(model=name, messages=HELLO, max_tokens=40, temperature=0,
                                                      stream=True, **more)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            news.append(name)
        return text

    async def both():
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0, timeout=60) as client:
            many = [listen(client, "tiny", extra_body={"ignore_eos": True}) for _ in range(3)]
            return await asyncio.gather(listen(client, "smollm2-135m"), *many)

    real, *tiny = asyncio.run(both())
    assert real == models["smollm2-135m"].chat(HELLO, max_new_tokens=40, temperature=0).text
    assert set(tiny) == {models["tiny"].chat(HELLO, max_new_tokens=40, temperature=0, ignore_eos=True).text}
    assert news.index("tiny") < len(news) - 1 - news[::-1].index("smollm2-135m")
    assert news.index("smollm2-135m") < len(news) - 1 - news[::-1].index("tiny")


def test_the_real_model_whole_and_streamed(served, models):
    expected = models["smollm2-135m"].chat(HELLO, max_new_tokens=20, do_sample=True, temperature=0.8, top_p=0.9, seed=5,
                                           logprobs=2)
    with official(served) as client:
        asked = dict(model="smollm2-135m", messages=HELLO, max_tokens=20, temperature=0.8, top_p=0.9, seed=5,
                     logprobs=True, top_logprobs=2)
        whole = client.chat.completions.create(**asked).choices[0]
        parts = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert whole.message.content == expected.text == "".join(part.delta.content or "" for part in parts)
    assert whole.finish_reason == expected.finish_reason == parts[-1].finish_reason
    streamed = [one for part in parts if part.logprobs for one in part.logprobs.content]
    for entries in (whole.logprobs.content, streamed):
        assert [one.logprob for one in entries] == expected.logprobs
        assert [[top.logprob for top in one.top_logprobs] for one in entries] == [
            list(top.values()) for top in expected.top_logprobs]


def test_the_second_turn_is_cached(served):
    with official(served) as client:
        talk = [{"role": "system", "content": "Answer in one word. " * 20}, *HELLO]
        first = client.chat.completions.create(model="smollm2-135m", messages=talk, max_tokens=8)
        talk += [first.choices[0].message, {"role": "user", "content": "And the largest planet?"}]
        usage = client.chat.completions.create(model="smollm2-135m", messages=talk, max_tokens=8).usage
    assert usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
    assert usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_keys(served):
    for key in ("wrong-but-long-enough-to-be-one", KEY + "x", KEY[:-1]):
        with official(served, key) as client, pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
    with official(served) as client:
        assert {model.id for model in client.models.list()} == {"smollm2-135m", "tiny", "vectors"}


def test_the_limit_of_a_key_is_its_own(served):
    """What Bob has under way takes almost all that he may: the next is a 429, which the client by itself tries again
    until it is answered. Alice notices nothing."""
    asked = dict(model="smollm2-135m", prompt="Once upon a time", extra_body={"ignore_eos": True})
    with official(served, SMALL_KEY) as bob, official(served) as alice:
        stream = bob.completions.create(**asked, max_tokens=180, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            bob.completions.create(**asked, max_tokens=60)
        assert caught.value.code == "rate_limit_exceeded" and "bob" in caught.value.message
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert alice.completions.create(**asked, max_tokens=60).usage.completion_tokens == 60
        patient = bob.with_options(max_retries=20)
        assert patient.completions.create(**asked, max_tokens=60).usage.completion_tokens == 60
        assert len(list(stream)) >= 170  # it went on meanwhile
        with pytest.raises(openai.BadRequestError) as never:
            bob.completions.create(**asked, max_tokens=200)
        assert never.value.code == "token_limit_exceeded"


def test_deadlines_of_both_sides(served):
    asked = dict(model="smollm2-135m", prompt="Once upon a time", max_tokens=1000, n=8)
    with official(served) as client:
        with pytest.raises(openai.InternalServerError) as late:
            client.completions.create(**asked, extra_body={"timeout": 0.05})
        assert late.value.status_code == 504 and late.value.code == "deadline_exceeded"
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).completions.create(**asked)
        assert client.completions.create(**asked | {"max_tokens": 1, "n": 1}).choices


def test_embeddings(served, models):
    texts = ["w1 w2 w3", "w4", "w5 w6"]
    expected = models["vectors"].embed(texts)
    with official(served) as client:
        found = client.embeddings.create(model="vectors", input=texts)
    assert np.array_equal(np.array([one.embedding for one in found.data], np.float32), expected)


def test_langchain(served, models):
    """With clients of ours underneath, which are closed at the end."""
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    async def run():
        async with httpx.AsyncClient(timeout=60) as waits:
            with httpx.Client(timeout=60) as blocks:
                own = dict(base_url=served.url + "/v1", api_key=KEY, max_retries=0, http_client=blocks,
                           http_async_client=waits)
                vectors = OpenAIEmbeddings(model="vectors", check_embedding_ctx_length=False, **own)
                chat = ChatOpenAI(model="smollm2-135m", temperature=0, max_tokens=12, stream_usage=True, **own)
                found = vectors.embed_documents(["w3 w4", "w9"]), await vectors.aembed_query("w7")
                return *found, [chunk async for chunk in chat.astream(HELLO[0]["content"])]

    documents, query, chunks = asyncio.run(run())
    assert np.array_equal(np.float32(documents), models["vectors"].embed(["w3 w4", "w9"]))
    assert np.array_equal(np.float32(query), models["vectors"].embed("w7")[0])
    expected = models["smollm2-135m"].chat(HELLO, max_new_tokens=12, temperature=0)
    assert "".join(chunk.content for chunk in chunks) == expected.text
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == len(
        expected.token_ids)


# ---- curl


def curl(*arguments: str) -> str:
    assert CURL, "this test needs curl: install it"
    return subprocess.run([CURL, "-sS", "--max-time", "60", *arguments], check=True, capture_output=True,
                          text=True).stdout


def asking(served, path, body, *more):
    return curl(served.url + path, "-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json",
                "-d", json.dumps(body), *more)


def test_curl(served, models):
    body = {"model": "smollm2-135m", "messages": HELLO, "max_tokens": 10, "temperature": 0}
    expected = models["smollm2-135m"].chat(HELLO, max_new_tokens=10, temperature=0).text
    assert json.loads(asking(served, "/v1/chat/completions", body))["choices"][0]["message"]["content"] == expected
    lines = asking(served, "/v1/chat/completions", body | {"stream": True}, "-N").split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == expected


def test_curl_and_a_large_body(served):
    """Above 1024 bytes curl asks whether it may send the body, and waits for 100 Continue."""
    body = {"model": "vectors", "input": ["w1 " * 18] * 200}
    found = json.loads(asking(served, "/v1/embeddings", body, "-H", "Expect: 100-continue"))
    assert len(found["data"]) == 200


def test_curl_and_what_goes_wrong(served):
    answer = asking(served, "/v1/completions", {"model": "tiny", "prompt": "x", "best": 1}, "-w", " %{http_code}")
    body, _, status = answer.rpartition(" ")
    assert status == "400" and json.loads(body)["error"]["param"] == "best"
    assert curl(served.url + "/v1/models", "-o", "/dev/null", "-w", "%{http_code}") == "401"
    assert curl(served.url + "/health", "-w", " %{http_code}").endswith(" 200")
    assert "forwardpass_requests_total" in curl(served.url + "/metrics", "-H", f"Authorization: Bearer {KEY}")
