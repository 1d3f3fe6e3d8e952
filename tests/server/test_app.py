"""The application around the handlers: who may come in, what handlers get, and how a request ends."""

import asyncio
import threading
import time

import httpx
import msgspec
import pytest
from starlette.responses import Response, StreamingResponse

import forwardpass
from forwardpass.errors import BusyError, CapacityError, ContextLengthError, DeadlineError, ForwardpassError
from forwardpass.scheduler.terms import TERMS
from forwardpass.server.routes import ROUTES, Route
from forwardpass.server.schemas import Computing


class Ask(Computing):
    model: str = "chat"
    text: str = ""


class Said(msgspec.Struct):
    said: str


def route(handler, body=Ask, path="/ask", method="POST", **more):
    return (Route(method, path, handler, "For a test.", body=body, **more),)


async def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.005)


def test_probes_and_versions(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/health/live").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": forwardpass.__version__, "models": ["chat", "labels"]}
    assert client.request("HEAD", "/health").status_code == 200


def test_not_ready_without_a_stepping_thread(app, host, monkeypatch):
    monkeypatch.setattr(type(host.driver), "alive", property(lambda self: False))
    monkeypatch.setattr(host.driver, "wake", lambda: None)  # would start another beside the one that does run
    client = app()
    answer = client.get("/health")
    assert answer.status_code == 503 and "thread" in answer.json()["status"]
    assert client.get("/health/live").status_code == 200


def test_a_handler_gets_its_body_and_answers_with_a_struct(app):
    async def handler(call, body):
        assert body == Ask(text="é猫", priority=3, cache_salt="s")
        assert TERMS.get() is call.terms and (call.terms.priority, call.terms.salt) == (3, "s")
        assert await call.run(lambda: TERMS.get() is call.terms)
        assert await call.prepare(lambda: TERMS.get() is call.terms)
        return Said(body.text)

    answer = app(routes=route(handler)).post("/ask", {"text": "é猫", "priority": 3, "cache_salt": "s"})
    assert answer.json() == {"said": "é猫"} and answer.headers["content-type"] == "application/json"


def test_find_says_what_there_is_and_what_a_model_can_do(app):
    async def handler(call, body):
        model = call.find(body.model, "classify")
        assert model is call.host.models["labels"]
        return Said(call.log["model"])

    client = app(routes=route(handler))
    assert client.post("/ask", {"model": "labels"}).json() == {"said": "labels"}
    missing = client.post("/ask", {"model": "gpt-9"})
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"
    assert missing.json()["error"]["param"] == "model"
    assert all(name in missing.json()["error"]["message"] for name in ("gpt-9", "chat", "labels", "small"))
    wrong = client.post("/ask", {"model": "small"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "model"
    assert "'small' cannot classify" in wrong.json()["error"]["message"]
    assert "generate" in wrong.json()["error"]["message"]


def test_request_ids(app):
    seen = []

    async def handler(call, body):
        seen.append(call.id)
        return Said("")

    client = app(routes=route(handler))
    first, second = (client.post("/ask", {}).headers["x-request-id"] for _ in range(2))
    assert [first, second] == seen and first != second
    assert client.post("/ask", {}, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert len(set(seen)) == 3 and "mine-1" not in seen
    for bad in ("x" * 129, "a\tb", "é".encode("latin-1"), ""):
        assert client.post("/ask", {}, headers={"X-Request-Id": bad}).headers["x-request-id"] == seen[-1]


@pytest.mark.parametrize("error, status, code", [
    (forwardpass.ParameterError("top_p must be small"), 400, None),
    (ContextLengthError("too long"), 400, "context_length_exceeded"),
    (CapacityError("never fits"), 400, None),
    (forwardpass.TemplateError("no critics"), 400, None),
    (forwardpass.UnsupportedModelError("has no middle"), 400, "unsupported_by_model"),
    (BusyError("wait", retry_after=2.2), 503, "engine_overloaded"),
    (BusyError("wait", retry_after=0.1, own=True), 429, "rate_limit_exceeded"),
    (DeadlineError("late"), 504, "deadline_exceeded"),
    (ForwardpassError("a step failed"), 500, None),
])
def test_errors_of_the_library(app, error, status, code):
    async def handler(call, body):
        raise error

    answer = app(routes=route(handler)).post("/ask", {})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"} and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["message"] == str(error) and answer.json()["error"]["code"] == code
    wait = {2.2: "3", 0.1: "1"}.get(getattr(error, "retry_after", None))
    assert answer.headers.get("retry-after") == wait


def test_a_bug_tells_nothing_to_the_client(app):
    async def handler(call, body):
        raise KeyError("secret prompt text")

    answer = app(routes=route(handler)).post("/ask", {})
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text and "KeyError" not in answer.text


def test_a_models_path_is_not_shown(app, folders):
    async def handler(call, body):
        raise forwardpass.UnsupportedModelError(f"{folders['chat']} has no tokens for that")

    answer = app(routes=route(handler)).post("/ask", {})
    assert answer.json()["error"]["message"] == "chat has no tokens for that"


def test_an_error_within_a_stream_is_its_last_event(app):
    async def events():
        yield b"data: 1\n\n"
        raise BusyError("no\u2028more")

    async def handler(call, body):
        return StreamingResponse(events(), media_type="text/event-stream")

    answer = app(routes=route(handler)).post("/ask", {})
    first, last, rest = answer.content.split(b"\n\n")
    assert answer.status_code == 200 and first == b"data: 1" and rest == b""
    error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"]) == ("engine_overloaded", "no\u2028more")
    assert last.decode().splitlines() == [last.decode()]


def test_an_error_before_a_stream_begins_keeps_its_status(app):
    class Lazy(Response):
        async def __call__(self, scope, receive, send):
            raise BusyError("no room")

    async def handler(call, body):
        return Lazy(media_type="text/event-stream")

    assert app(routes=route(handler)).post("/ask", {}).status_code == 503


def test_other_answers_that_break_off_are_no_answers(app):
    async def half():
        yield b"{"
        raise BusyError("no more")

    async def handler(call, body):
        return StreamingResponse(half(), media_type="application/json")

    with pytest.raises(httpx.RemoteProtocolError):
        app(routes=route(handler)).post("/ask", {})


def test_too_many_requests_at_a_time(app):
    gate = asyncio.Event()

    async def handler(call, body):
        await gate.wait()
        return Said("")

    client = app(routes=ROUTES + route(handler), max_requests=2)

    async def go():
        running = [asyncio.ensure_future(client.client.post("/ask", json={})) for _ in range(2)]
        await until(lambda: len(client.app.calls) == 2)
        refused = await client.client.post("/ask", json={})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "engine_overloaded"
        assert (await client.client.get("/health")).status_code == 200  # a probe is no request
        gate.set()
        assert [one.status_code for one in await asyncio.gather(*running)] == [200, 200]
        assert (await client.client.post("/ask", json={})).status_code == 200

    client.run(go())
    assert not client.app.calls


def waits_in_a_thread(log, begun=None):
    """A handler that waits in a thread until its terms are cancelled."""

    async def handler(call, body):
        stopped = threading.Event()
        cancel = call.terms.cancel
        call.terms.cancel = lambda *why: (log.append(call), stopped.set(), cancel(*why))
        if begun is not None:
            begun.append(call)
        await call.run(stopped.wait, 30)
        return Said("")

    return handler


def streams_forever(log, begun=None):
    async def events(call):
        cancel = call.terms.cancel
        call.terms.cancel = lambda *why: (log.append(call), cancel(*why))
        while True:
            yield b"data: 1\n\n"
            if begun is not None:
                begun.append(call)
            await asyncio.sleep(0.001)

    async def handler(call, body):
        return StreamingResponse(events(call), media_type="text/event-stream")

    return handler


@pytest.mark.parametrize("kind", [waits_in_a_thread, streams_forever])
def test_a_client_who_leaves_ends_the_work(app, kind):
    log = []
    client = app(routes=route(kind(log)))

    async def go():
        for _ in range(20):
            with pytest.raises((asyncio.TimeoutError, httpx.ReadTimeout, asyncio.CancelledError)):
                async with asyncio.timeout(0.03), client.client.stream("POST", "/ask", json={}) as answer:
                    async for _ in answer.aiter_bytes():
                        pass
            await until(lambda: not client.app.calls, 1)

    client.run(go())
    assert len(log) == 20 and all(call.client_gone and call.ended and not call.threads for call in log)


def test_what_a_thread_still_does_counts_until_it_ends(app):
    gate = threading.Event()

    async def handler(call, body):
        await call.run(gate.wait, 30)  # as deaf to being cancelled as a tokenizer is
        return Said("")

    client = app(routes=route(handler), max_requests=1)

    async def go():
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.05):
                await client.client.post("/ask", json={})
        assert len(client.app.calls) == 1
        gate.set()
        await until(lambda: not client.app.calls)

    client.run(go())


@pytest.mark.parametrize("kind", [waits_in_a_thread, streams_forever])
def test_a_deadline(app, kind):
    log = []
    client = app(routes=route(kind(log)))

    async def go():
        answer = await client.client.post("/ask", json={"timeout": 0.05})
        await until(lambda: not client.app.calls)
        return answer

    answer = client.run(go())
    error = msgspec.json.decode(answer.content.split(b"data: ")[-1])["error"]
    assert error["type"] == "timeout_error" and "0.05 s" in error["message"]
    assert answer.status_code == (504 if kind is waits_in_a_thread else 200)
    assert len(log) == 1 and log[0].terms.cancelled


def test_a_body_that_stops_coming(app):
    async def handler(call, body):
        return Said("")

    client = app(routes=route(handler), read_timeout=0.1)

    async def half():
        yield b'{"text": '
        await asyncio.sleep(10)

    async def go():
        return await client.client.post("/ask", content=half(), headers={"content-type": "application/json"})

    answer = client.run(go())
    assert answer.status_code == 408 and answer.headers["connection"] == "close"
    assert answer.json()["error"]["code"] == "request_timeout"


def test_bodies_have_a_limit_however_they_come(app):
    async def handler(call, body):
        return Said(str(len(body.text)))

    client = app(routes=route(handler), max_body=2048)
    room = client.app.bodies.left

    async def chunks(count):
        yield b'{"text": "'
        for _ in range(count):
            yield b"x" * 100
        yield b'"}'

    async def send(count, **headers):
        kind = {"content-type": "application/json", **headers}
        return await client.client.post("/ask", content=chunks(count), headers=kind)

    assert client.run(send(20)).json() == {"said": "2000"}
    for answer in (client.run(send(21)), client.post("/ask", {"text": "x" * 2040}),
                   client.run(send(1, **{"content-length": "99999999999999999999999999"}))):
        assert answer.status_code == 413 and "2.0 KiB" in answer.json()["error"]["message"]
    assert client.app.bodies.left == room


def test_bodies_of_all_requests_have_a_limit(app):
    gate = asyncio.Event()

    async def handler(call, body):
        await gate.wait()
        return Said("")

    client = app(routes=route(handler))
    client.app.bodies.left = 5000

    async def go():
        first = asyncio.ensure_future(client.client.post("/ask", json={"text": "x" * 4000}))
        await until(lambda: client.app.calls)
        second = await client.client.post("/ask", json={"text": "x" * 4000})
        assert second.status_code == 503 and second.json()["error"]["code"] == "engine_overloaded"
        gate.set()
        assert (await first).status_code == 200

    client.run(go())
    assert client.app.bodies.left == 5000


def test_draining(app):
    gate = asyncio.Event()

    async def handler(call, body):
        await gate.wait()
        return Said("whole")

    client = app(routes=ROUTES + route(handler))

    async def go():
        running = asyncio.ensure_future(client.client.post("/ask", json={}))
        await until(lambda: client.app.calls)
        client.app.drain()
        health = await client.client.get("/health")
        assert health.status_code == 503 and health.json() == {"status": "shutting down"}
        assert (await client.client.get("/health/live")).status_code == 200
        for path in ("/ask", "/version"):
            refused = await client.client.post(path, json={})
            assert refused.status_code == 503 and refused.headers["connection"] == "close"
            assert refused.json()["error"]["code"] == "shutting_down"
        gate.set()
        assert (await running).json() == {"said": "whole"}

    client.run(go())


@pytest.mark.parametrize("kind", [waits_in_a_thread, streams_forever])
def test_the_end_of_a_drain(app, kind):
    begun = []
    client = app(routes=route(kind([], begun)))

    async def go():
        running = asyncio.ensure_future(client.client.post("/ask", json={}))
        await until(lambda: begun)
        client.app.drain()
        client.app.end_all()
        answer = await running
        await until(lambda: not client.app.calls)
        return answer

    answer = client.run(go())
    error = msgspec.json.decode(answer.content.split(b"data: ")[-1])["error"]
    assert error["code"] == "shutting_down"
    assert answer.status_code == (503 if kind is waits_in_a_thread else 200)


def test_pages_of_other_origins_stay_out(app):
    client = app()
    for origin, status in (("https://evil.example", 403), ("null", 403), ("http://[", 403),
                           ("http://localhost:3000", 200), ("http://127.0.0.1:8000", 200)):
        answer = client.get("/version", headers={"Origin": origin})
        assert answer.status_code == status, origin
        assert "access-control-allow-origin" not in answer.headers
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert client.request("OPTIONS", "/version", headers=asked).status_code == 403


@pytest.mark.parametrize("allowed", ["https://chat.example", "*"])
def test_pages_that_may_come_in(app, allowed):
    client = app(cors_origin=(allowed,))
    asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}
    answer = client.request("OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status_code == 204 and not answer.content
    want = "https://chat.example" if allowed != "*" else "*"
    assert answer.headers["access-control-allow-origin"] == want
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    answer = client.get("/version", headers={"Origin": "https://chat.example"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == want
    assert ("vary" in answer.headers) == (allowed != "*")
    other = client.get("/version", headers={"Origin": "https://other.example"})
    assert other.status_code == (200 if allowed == "*" else 403)
    assert client.get("/nowhere", headers={"Origin": "https://chat.example"}).headers["access-control-allow-origin"]
