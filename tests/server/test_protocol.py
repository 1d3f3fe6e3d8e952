"""HTTP on real sockets: heads that are too large, too slow or malformed, idle connections, readers who do not read."""

import asyncio
import contextlib
import json
import socket
import time

import httpx
import msgspec
import pytest
from starlette.responses import StreamingResponse

import forwardpass
from forwardpass.server import protocol
from forwardpass.server.routes import ROUTES, Route
from server_tools import read_all, wait_until

HEAD = b"GET /version HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n\r\n"


class Ask(msgspec.Struct):
    text: str = ""


async def sizes(call, body):
    return Ask(str(len(body.text)))


async def waits(call, body):
    await asyncio.sleep(60)


async def endless(call, body):
    async def events():
        while True:
            yield b"data: " + b"x" * 10_000 + b"\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(events(), media_type="text/event-stream")


EXTRA = tuple(Route("POST", f"/{handler.__name__}", handler, "For a test.", body=Ask)
              for handler in (sizes, waits, endless))
ALL = (*ROUTES, *EXTRA)


def post(path, body=b"{}", more=b""):
    return (b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
            % (path, len(body), more, body))


def chunked(more=b""):
    return post(b"/sizes", b"", b"Transfer-Encoding: chunked\r\n" + more).replace(b"Content-Length: 0\r\n", b"")


def read_answer(connection):
    """One answer of a connection that stays open."""
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        if end and len(body) == int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return answer
        answer += connection.recv(1 << 16)


def error_of(answer, status):
    """The error of a raw answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    return json.loads(body)["error"]


@pytest.mark.parametrize("data", [
    b"NONSENSE\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n",
    HEAD + b"no colon\r\n\r\n", HEAD + b"a b: c\r\n\r\n", HEAD + b"x: \x00\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n", HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + b"Content-Length: 9" + b"9" * 30 + b"\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET caf\xc3\xa9 HTTP/1.1\r\n\r\n", b"GET /caf\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http:// HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
])
def test_malformed_requests(listening, data):
    server = listening(read_timeout=1)
    error = error_of(server.exchange(data), 400)
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == "invalid_http"
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("data", [
    HEAD + b"x: " + b"y" * 70_000, HEAD + b"y" * 70_000, HEAD + b"x: yyyyyyyyyy\r\n" * 129,
    HEAD + b"x: " + b"y" * 200 + b"\r\n", b"GET /" + b"x" * 70_000, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    chunked() + b"0\r\nx: " + b"y" * 70_000,
], ids=["value", "name", "many", "some", "target", "whole target", "trailer"])
def test_heads_that_are_too_large(listening, data):
    server = listening(routes=ALL)
    if len(data) < 1000:
        data = HEAD + data[len(HEAD) :] * 200
    with server.connect() as made:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(0, len(data), 10_000):  # not more at a time than a packet or a few
                made.sendall(data[at : at + 10_000])
                time.sleep(0.01)
        assert error_of(read_all(made), 431)["code"] == "request_head_too_large"


def test_a_head_may_be_large(listening):
    server = listening()
    with server.connect(HEAD + b"x: " + b"y" * 30_000 + b"\r\n" + CLOSE) as made:
        assert read_all(made).startswith(b"HTTP/1.1 200")


def test_a_head_that_trickles_in(listening):
    server = listening(read_timeout=0.4)
    begun = time.monotonic()
    with server.connect(HEAD + b"x: y") as made:
        made.settimeout(0.05)
        answer = b""
        while not answer:
            assert time.monotonic() - begun < 5
            try:
                made.sendall(b"x")
                answer = made.recv(1000)
            except TimeoutError:
                pass
        assert error_of(answer, 408)["code"] == "request_timeout" and time.monotonic() - begun >= 0.4
    wait_until(lambda: server.connections == 0)


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", HEAD + b"\r\n"])
def test_idle_connections_are_closed(listening, data):
    server = listening(keep_alive=0.3)
    with server.connect(data) as made:
        begun = time.monotonic()
        answer = read_all(made)
        assert 0.25 < time.monotonic() - begun < 5
        assert answer.startswith(b"HTTP/1.1 200") == (data == HEAD + b"\r\n")


def test_many_idle_connections_stop_nobody(listening):
    server = listening(routes=ALL)
    idle = [server.connect(b"" if number % 2 else b"GET /ver") for number in range(500)]
    try:
        wait_until(lambda: server.connections == 500)
        for _ in range(5):
            assert server.exchange(post(b"/sizes", b'{"text": "abc"}', CLOSE[:-2]), 5).endswith(b'{"text":"3"}')
    finally:
        for one in idle:
            one.close()
    wait_until(lambda: server.connections == 0)


def test_the_longest_idle_connection_makes_room(listening):
    server = listening(routes=ALL)
    server.app.max_connections = 3
    idle = [server.connect() for _ in range(3)]
    wait_until(lambda: server.connections == 3)
    assert httpx.get(server.url + "/health").status_code == 200
    assert idle[0].recv(10) == b""
    wait_until(lambda: server.connections == 2)
    busy = [server.connect(post(b"/waits")) for _ in range(3)]
    wait_until(lambda: len(server.app.calls) == 3)
    error = error_of(server.exchange(b""), 503)
    assert error["code"] == "too_many_connections"
    for one in [*idle, *busy]:
        one.close()
    wait_until(lambda: not server.app.calls)


def test_a_body_that_is_too_large_is_answered_and_the_connection_goes_on(listening):
    server = listening(routes=ALL, max_body=4096)
    with server.connect() as made:
        made.sendall(post(b"/sizes", b"x" * 3_000_000))
        assert error_of(read_answer(made), 413)["code"] == "request_too_large"
        made.sendall(post(b"/sizes", b'{"text": "ab"}', CLOSE[:-2]))
        assert read_all(made).endswith(b'{"text":"2"}')


def test_a_body_without_end_is_not_read_for_ever(listening, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_DISCARDED", 1 << 20)
    server = listening(routes=ALL, max_body=4096)
    made = server.connect(chunked())
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(1000):
            made.sendall(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
            time.sleep(0.001)
    wait_until(lambda: server.connections == 0)


def test_asking_before_a_body_is_sent(listening):
    server = listening(routes=ALL, max_body=4096)
    expect = b"Expect: 100-continue\r\n"
    head, body = post(b"/sizes", b'{"text": "abcd"}', expect + CLOSE[:-2]).split(b"\r\n\r\n")
    with server.connect(head + b"\r\n\r\n") as made:
        assert made.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.sendall(body)
        assert read_all(made).endswith(b'{"text":"4"}')
    with server.connect(post(b"/sizes", b"x" * 5000, expect)[:-5000]) as made:
        assert error_of(read_answer(made), 413)


def test_a_chunked_body(listening):
    server = listening(routes=ALL)
    body = b'3;ext=1\r\n{"t\r\n7\r\next":"a\r\n4\r\nbc"}\r\n0\r\nTrailer: x\r\n\r\n'
    assert server.exchange(chunked(CLOSE[:-2]) + body).endswith(b'{"text":"3"}')


def test_pipelined_requests_are_answered_in_order(listening):
    server = listening(routes=ALL)
    data = b"".join(post(b"/sizes", b'{"text": "%b"}' % (b"x" * n)) for n in range(20)) + HEAD + CLOSE
    answers = server.exchange(data)
    assert answers.count(b"HTTP/1.1 200") == 21
    found = [int(part.split(b'"')[0]) for part in answers.split(b'{"text":"')[1:]]
    assert found == list(range(20))


@pytest.mark.parametrize("behind", [b"", post(b"/sizes"), post(b"/waits"), b"GET /vers"])
def test_a_client_who_leaves_ends_what_runs(listening, behind):
    server = listening(routes=ALL)
    for _ in range(5):
        with server.connect(post(b"/waits") + behind):
            wait_until(lambda: len(server.app.calls) == 1)
        wait_until(lambda: not server.app.calls and server.connections == 0, 2)
    assert httpx.get(server.url + "/health").status_code == 200


def test_nonsense_behind_a_request_never_gets_into_its_answer(listening):
    server = listening(routes=ALL)
    with server.connect(post(b"/waits") + b"\x00nonsense\r\n\r\n") as made:
        assert read_all(made) == b""
    wait_until(lambda: not server.app.calls)


def test_a_storm_of_clients_who_leave(listening):
    server = listening(routes=ALL)
    for _ in range(3):
        storm = [server.connect(post(b"/endless" if number % 2 else b"/waits")) for number in range(50)]
        wait_until(lambda: server.app.calls)
        for one in storm:
            one.close()
    wait_until(lambda: not server.app.calls and server.connections == 0)
    assert httpx.post(server.url + "/sizes", json={"text": "ab"}).json() == {"text": "2"}


def small(server, path):
    """A connection that takes little at a time, with a request on it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(server.address)
    made.sendall(post(path))
    return made


def test_who_reads_nothing_is_cut_off(listening):
    server = listening(routes=ALL, write_timeout=0.4)
    with small(server, b"/endless"):
        wait_until(lambda: server.app.calls)
        begun = time.monotonic()
        wait_until(lambda: not server.app.calls and server.connections == 0)
        assert time.monotonic() - begun > 0.3


def test_who_reads_slowly_is_not(listening):
    server = listening(routes=ALL, write_timeout=0.4)
    with small(server, b"/endless") as made:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert made.recv(2000)
            time.sleep(0.01)
        assert len(server.app.calls) == 1
    wait_until(lambda: not server.app.calls)


def test_an_answer_that_nobody_fetches_does_not_stay(listening):
    async def large(call, body):
        return Ask("x" * 3_000_000)

    server = listening(routes=(Route("POST", "/large", large, "For a test.", body=Ask),), write_timeout=0.3,
                       keep_alive=0.3)
    with small(server, b"/large"):
        wait_until(lambda: server.connections == 1)
        wait_until(lambda: server.connections == 0)


def test_an_answer_that_breaks_off_closes_the_connection_and_shows_no_words(listening, caplog):
    async def half():
        yield b"{"
        raise forwardpass.ParameterError("my bank is on fire")

    async def handler(call, body):
        return StreamingResponse(half(), media_type="application/json")

    server = listening(routes=(Route("POST", "/half", handler, "For a test.", body=Ask),))
    answer = server.exchange(post(b"/half"))
    assert answer.startswith(b"HTTP/1.1 200") and not answer.endswith(b"0\r\n\r\n")
    wait_until(lambda: server.connections == 0)
    assert "broke off" in caplog.text and "bank" not in caplog.text
