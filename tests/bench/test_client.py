"""What the client makes of answers, good and bad."""

import asyncio
import socket

import pytest
from aiohttp import web

from fake_openai import FakeServer, event
from forwardpass.bench import client as client_module
from forwardpass.bench.client import Client
from forwardpass.errors import ForwardpassError, ParameterError

HI = [{"role": "user", "content": "hi"}]
USAGE = event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2,
                                        "prompt_tokens_details": {"cached_tokens": 3}}})
DONE = b"data: [DONE]\n\n"


def asked(script=None, *, api="completions", wanted=3, server=None, **options):
    """The record of one request to a server with this script."""
    async def run():
        async with FakeServer(script=script, **(server or {})) as made, \
                Client(made.url, api=api, model="fake", **options) as client:
            record = await client.ask(HI if api == "chat" else "hi", wanted, keep_text=True)
            return record, made

    return asyncio.run(run())


def streamed(*parts, **options):
    return asked(lambda number, body: list(parts), **options)[0]


def word(text):
    return event({"choices": [{"text": text}]})


def test_an_answer():
    record, server = asked(server={"wait": 0.03, "gap": 0.02})
    assert record.error is None and record.text == " w0 w1 w2"
    assert (record.prompt_tokens, record.output_tokens, record.wanted, len(record.times)) == (2, 3, 3, 3)
    assert record.ttft >= 0.03 and min(record.gaps()) >= 0.01 and record.e2e >= 0.07
    path, _, body = server.seen[0]
    assert path == "/v1/completions" and body == {
        "model": "fake", "prompt": "hi", "max_tokens": 3, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True}


def test_the_role_is_no_token():
    """A chat's stream begins with a role and no text, before anything is computed."""
    record, server = asked(api="chat", server={"wait": 0.05, "gap": 0.02})
    assert len(record.times) == 3 and record.ttft >= 0.05 and server.seen[0][2]["messages"] == HI


def test_a_plan_is_what_times_count_from():
    async def run():
        async with FakeServer() as server, Client(server.url, api="completions", model="fake") as client:
            from time import perf_counter

            planned = perf_counter() - 7.0
            return await client.ask("hi", 1, planned=planned)

    record = asyncio.run(run())
    assert record.ttft > 7.0 and record.e2e > 7.0 and record.sent - record.planned >= 7.0


def test_events_may_be_cut_anywhere():
    whole = b": ping\r\n\r\n" + word("a") + word("\u732b") + b"event: x\ndata:" + USAGE[6:] + DONE
    for at in range(1, len(whole) - 1, 7):
        record = streamed(whole[:at], whole[at:])
        assert record.error is None and record.text == "a\u732b" and record.output_tokens == 2, at
        assert (record.prompt_tokens, record.cached_tokens) == (4, 3)
        assert 1 <= len(record.times) <= 2


def test_without_usage_pieces_are_counted():
    record = streamed(word("a"), word(""), word("b"), word("c") + word("d"), DONE)
    assert record.output_tokens == 4 and len(record.times) == 3  # two came together


@pytest.mark.parametrize("parts,error,message", [
    ([word("a"), word("b")], "cut off", "before data: [DONE]"),
    ([word("a"), event({"error": {"message": "out of room"}})], "error event", "out of room"),
    ([word("a"), b"data: {nonsense\n\n"], "bad answer", "{nonsense"),
    ([b"data: []\n\n"], "bad answer", "[]"),
    ([b"data: {\"choices\": [3]}\n\n"], "bad answer", "choices"),
    ([b"data: {\"choices\": 3}\n\n"], "bad answer", "choices"),
])
def test_streams_that_fail(parts, error, message):
    record = streamed(*parts)
    assert record.error == error and message in record.message


@pytest.mark.parametrize("response,error,message", [
    (lambda: web.json_response({"error": {"message": "too many"}}, status=429), "http 429", "too many"),
    (lambda: web.Response(text="<h1>oh\nno</h1>" * 100, status=500), "http 500", "<h1>oh no</h1>"),
    (lambda: web.json_response({"choices": []}), "no stream", "choices"),
])
def test_answers_that_are_no_stream(response, error, message):
    record, _ = asked(lambda number, body: response())
    assert record.error == error and message in record.message
    assert len(record.message) <= client_module.LONGEST_MESSAGE and record.end > record.sent


def test_nobody_there():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"  # bound, but nobody listens

        async def run():
            async with Client(url, model="fake") as client:
                with pytest.raises(ForwardpassError, match="expected a server that answers"):
                    await client.call("/health")
                return await client.ask(HI, 1)

        assert asyncio.run(run()).error == "connect"


def test_a_server_that_hangs():
    record, _ = asked(server={"wait": 30.0}, timeout=0.1)
    assert record.error == "timeout" and 0.1 <= record.e2e < 10


def test_a_server_that_hangs_up():
    async def run():
        async def hang_up(reader, writer):
            await reader.readline()
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server, Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", model="x") as client:
            return await client.ask(HI, 1)

    assert asyncio.run(run()).error == "disconnected"


def test_embeddings():
    record, server = asked(api="embeddings")
    assert record.error is None and record.prompt_tokens == 2 and record.ttft is None and record.wanted == 0
    assert server.seen[0][2] == {"model": "fake", "input": "hi"}
    record, _ = asked(lambda number, body: web.json_response({"data": []}), api="embeddings")
    assert record.error == "bad answer"


def test_keys_and_fields():
    record, server = asked(key="secret", extra={"temperature": 0.5, "min_tokens": 3}, ignore_eos=False)
    _, headers, body = server.seen[0]
    assert record.error is None and headers["Authorization"] == "Bearer secret"
    assert body["temperature"] == 0.5 and body["min_tokens"] == 3 and "ignore_eos" not in body
    _, server = asked(extra={"ignore_eos": False})
    assert server.seen[0][2]["ignore_eos"] is False


def test_the_first_listed_model():
    async def run(url_of):
        async with FakeServer() as server, Client(url_of(server.url)) as client:
            return await client.find_model()

    assert asyncio.run(run(lambda url: url)) == asyncio.run(run(lambda url: url + "/v1/")) == "fake"


@pytest.mark.parametrize("options,said", [
    ({"url": "127.0.0.1:8000"}, "the server's URL"), ({"api": "chats"}, "chat, completions, embeddings"),
    ({"extra": {"n": 2}}, "n: the load tool"), ({"extra": {"stream": False, "prompt": ""}}, "prompt, stream"),
    ({"timeout": 0}, "seconds above 0"), ({"timeout": float("nan")}, "seconds above 0")])
def test_bad_settings(options, said):
    with pytest.raises(ParameterError, match=said):
        Client(**{"url": "http://127.0.0.1:1", **options})


def test_without_aiohttp(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    with pytest.raises(ForwardpassError, match=r"needs aiohttp.*pip install 'forwardpass\[bench\]'"):
        Client("http://127.0.0.1:1")
