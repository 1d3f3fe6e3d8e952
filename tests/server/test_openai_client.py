"""The official client, unchanged, against a server process: one way of using it after the other, and what it raises."""

import asyncio

import openai
import pytest

from forwardpass.stages.template import chat_ids
from server_tools import ServerProcess

HELLO = [{"role": "user", "content": "What is a llama?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory, folders):
    process = ServerProcess(tmp_path_factory.mktemp("openai"), f"chat={folders['chat']}", f"labels={folders['labels']}",
                            "--alias", "gpt-4o-mini=chat")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def model(host):
    """The same model in this process."""
    return host.find("chat")


def test_a_chat(client, model):
    expected = model.chat(HELLO, max_new_tokens=12)
    done = client.chat.completions.create(model="chat", messages=HELLO, max_completion_tokens=12)
    assert done.choices[0].message.content == expected.text and done.choices[0].message.role == "assistant"
    assert done.choices[0].finish_reason == expected.finish_reason
    assert done.usage.prompt_tokens == len(chat_ids(model.tokenizer, HELLO))
    assert done.usage.completion_tokens == len(expected.token_ids)
    assert done.usage.prompt_tokens_details.cached_tokens >= 0
    assert done.model == "chat" and done.id.startswith("chatcmpl-") and done.system_fingerprint.startswith("fp_")


def test_a_conversation_goes_on(client, model):
    """The message that came is appended as it is."""
    first = client.chat.completions.create(model="gpt-4o-mini", messages=HELLO, max_tokens=8).choices[0].message
    messages = [*HELLO, first, {"role": "user", "content": "Where?"}]
    again = client.chat.completions.create(model="chat", messages=messages, max_tokens=8)
    plain = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": "Where?"}]
    assert again.choices[0].message.content == model.chat(plain, max_new_tokens=8).text


def test_a_stream(client, model):
    expected = model.chat(HELLO, max_new_tokens=12, logprobs=2)
    stream = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=12, stream=True, logprobs=True,
                                            top_logprobs=2, stream_options={"include_usage": True})
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    logprobs = [chunk.choices[0].logprobs for chunk in chunks]
    entries = [one for some in logprobs if some for one in some.content]
    assert [one.logprob for one in entries] == expected.logprobs
    assert last.choices == [] and last.usage.completion_tokens == 12 and chunks[0].usage is None


def test_the_clients_own_stream_helper(client, model):
    """It puts the parts together itself, and checks them while it does."""
    stop = model.chat(HELLO, max_new_tokens=12).text[-1]
    with client.chat.completions.stream(model="chat", messages=HELLO, max_tokens=12, stop=stop) as stream:
        for _ in stream:
            pass
        done = stream.get_final_completion()
    expected = model.chat(HELLO, max_new_tokens=12, stop=stop)
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (expected.text, "stop")


def test_a_stream_that_is_left(client):
    for _ in range(3):
        stream = client.chat.completions.create(model="chat", messages=HELLO, stream=True)
        next(iter(stream))
        stream.close()
    assert client.chat.completions.create(model="chat", messages=HELLO, max_tokens=1).choices


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client, model, stream):
    expected = model.generate(["one", "two"], max_new_tokens=6, num_return_sequences=2, do_sample=True,
                              temperature=1.0, seed=4)
    found = client.completions.create(model="chat", prompt=["one", "two"], max_tokens=6, n=2, temperature=1, seed=4,
                                      stream=stream, user="u-1")
    texts = [""] * 4
    for part in found if stream else [found]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == [one.text for one in expected]


def test_fields_that_change_nothing_are_taken(client):
    done = client.chat.completions.create(
        model="chat", messages=HELLO, max_tokens=2, user="u", metadata={"a": "b"}, store=False, tools=[],
        tool_choice="none", response_format={"type": "text"}, service_tier="auto", safety_identifier="s",
        prompt_cache_key="k", parallel_tool_calls=True, modalities=["text"])
    assert done.choices[0].finish_reason == "length"


def test_our_own_fields(client, model):
    done = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=6, seed=1, extra_body={
        "min_p": 0.1, "top_k": 20, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 2, "priority": 3})
    expected = model.chat(HELLO, max_new_tokens=6, seed=1, do_sample=True, min_p=0.1, top_k=20, repetition_penalty=1.1,
                          ignore_eos=True, min_new_tokens=2)
    assert done.choices[0].message.content == expected.text


@pytest.mark.parametrize(("kind", "more", "param", "code"), [
    (openai.NotFoundError, {"model": "nobody"}, "model", "model_not_found"),
    (openai.BadRequestError, {"model": "labels"}, "model", "unsupported_by_model"),
    (openai.BadRequestError, {"temperature": -1}, "temperature", "invalid_value"),
    (openai.BadRequestError, {"max_tokens": 10**6}, "max_tokens", "context_length_exceeded"),
    (openai.BadRequestError, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools",
     "unsupported_value"),
    (openai.BadRequestError, {"messages": []}, "messages", "invalid_value"),
    (openai.BadRequestError, {"extra_body": {"grammar": "x"}}, "grammar", "unknown_field"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_raises(client, kind, more, param, code, stream):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "chat", "messages": HELLO, "stream": stream, **more})
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id.startswith("req-")


def test_many_at_once(served, model):
    """Streams and whole answers side by side, each what it is alone."""
    prompts = [[{"role": "user", "content": "x" * (5 + i)}] for i in range(12)]
    expected = [model.chat(messages, max_new_tokens=20).text for messages in prompts]

    async def run():
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            async def whole(messages):
                done = await client.chat.completions.create(model="chat", messages=messages, max_tokens=20)
                return done.choices[0].message.content

            async def parts(messages):
                stream = await client.chat.completions.create(model="chat", messages=messages, max_tokens=20,
                                                              stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[(whole, parts)[i % 2](messages) for i, messages in enumerate(prompts)])

    assert asyncio.run(run()) == expected


# ---- LangChain's classes, which bring settings of their own


def test_langchain_chats(served, model):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=served.url + "/v1", api_key="none", model="chat", max_retries=0, temperature=0,
                      max_tokens=12)
    expected = model.chat(HELLO, max_new_tokens=12)
    answer = chat.invoke(HELLO[0]["content"])
    assert answer.content == expected.text and answer.usage_metadata["output_tokens"] == len(expected.token_ids)
    assert "".join(chunk.content for chunk in chat.stream(HELLO[0]["content"])) == expected.text
    scored = chat.bind(logprobs=True, top_logprobs=1).invoke(HELLO[0]["content"]).response_metadata["logprobs"]
    assert len(scored["content"]) == len(expected.token_ids)


def test_langchain_completes(served, model):
    from langchain_openai import OpenAI

    texts = OpenAI(base_url=served.url + "/v1", api_key="none", model="chat", max_retries=0, temperature=0,
                   max_tokens=6)
    expected = [one.text for one in model.generate(["one", "two"], max_new_tokens=6)]
    assert [one[0].text for one in texts.generate(["one", "two"]).generations] == expected
    assert "".join(texts.stream("one")) == expected[0]
