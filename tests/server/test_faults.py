"""What goes wrong around a server that answers: after each of these it is alive, the others' answers were exact, and
nothing is left behind.

Where the entries of TRAPS.md that need a server or several requests at once have their tests:

CHT-01  stages/test_template.py, server/test_chat.py (templates that misbehave), server/test_rerank.py
CHT-03  server/test_chat.py (messages and templates that refuse)
KVC-05  engine/test_threads.py, engine/test_driver.py, server/test_exact_mixes.py; equal request ids: here
SMP-05  server/test_schemas_generation.py, server/test_chat.py (bad requests beside a stream), test_exact_mixes.py
SMP-09  server/test_chat.py, test_exact_mixes.py
SMP-11  server/test_completions.py (a prompt is scored)
STR-05  server/test_sse.py, test_openai_client.py
STR-07  server/test_run.py, test_app.py, test_protocol.py; while others are answered, queued and reading: here
SRV-01  server/test_chat.py, test_schemas_generation.py, test_embeddings.py
SRV-03  server/test_keys.py
SRV-05  server/test_chat.py, test_completions.py (limits)
SRV-07  server/test_logprobs.py, test_generation.py
SRV-09  server/test_run.py; requests that wait: here

Heads and connections that are wrong, slow, idle or many are in test_protocol.py, a full disk in test_logs.py and
test_run.py.
"""

import asyncio
import ctypes
import json
import random
import re
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import httpx
import pytest

import forwardpass
import tiny_chat
from forwardpass.tasks.host import Host
from http_mixes import fetch
from server_tools import Listening, ServerProcess, read_all, wait_until

CONTEXT = 1024
NAMES = ("one", "two")
LONG = {"prompt": "x" * 300, "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    made = tmp_path_factory.mktemp("faults")
    return {name: tiny_chat.write(made / name, arrays=tiny_chat.tensors(seed), max_position_embeddings=CONTEXT)
            for seed, name in enumerate(NAMES, 5)}


@pytest.fixture
def own(paths):
    """A host that nobody else uses, since it is mistreated. Both of its models together have room for little."""
    with Host({name: str(path) for name, path in paths.items()}, kv_memory="2MiB", threads=1) as host:
        yield host


@pytest.fixture
def server(own):
    server = Listening(own)
    yield server
    server.close()


class Asked:
    """Requests of all kinds, and what they are answered alone."""

    def __init__(self, host):
        self.bodies = [("/v1/completions", {"model": name, "prompt": f"{name} {number} " * 9, "max_tokens": 60, "n": n,
                                            "temperature": 1, "seed": number, "logprobs": 1, "ignore_eos": True,
                                            "stream": bool(number % 2)})
                       for name in NAMES for number, n in enumerate((1, 2, 1, 3))]
        self.expected = []
        for _, body in self.bodies:
            model = host.find(body["model"])
            done = model.generate(body["prompt"], max_new_tokens=60, num_return_sequences=body["n"], do_sample=True,
                                  temperature=1.0, seed=body["seed"], logprobs=1, ignore_eos=True)
            done = done if isinstance(done, list) else [done]
            self.expected.append([(one.text, one.finish_reason, one.logprobs) for one in done])
            model.engine.prefixes.clear()

    async def all(self, client) -> list:
        """What came of each."""
        return await asyncio.gather(*(fetch(client, path, body) for path, body in self.bodies))

    def exact(self, number: int, got) -> bool:
        found = [got.choices[index] for index in sorted(got.choices)]
        return got.end == "" and [(one["text"], one["finish_reason"], one["logprobs"]) for one in found] == \
            self.expected[number]


@pytest.fixture
def asked(own):
    return Asked(own)


def alive(server, host, asked):
    """It takes requests, answers as ever, and has nothing of the others left."""
    wait_until(lambda: not server.app.calls and host.account.taken == 0, 20)
    assert httpx.get(server.url + "/health").status_code == 200

    async def again():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asked.all(client)

    for number, got in enumerate(asyncio.run(again())):
        assert asked.exact(number, got), (asked.bodies[number], got.status, got.end)
    wait_until(lambda: not any(model.engine.busy for model in host.models.values()))
    for model in host.models.values():
        model.engine.prefixes.clear()
    assert all(model.engine.cache.free == model.engine.cache.size for model in host.models.values())


def run_with(server, asked, fault):
    """All requests at once, and fault() as soon as the engines work; what came of each."""

    async def both():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            going = asyncio.ensure_future(asked.all(client))
            while not any(model.engine.scheduler.running for model in server.app.host.models.values()):
                await asyncio.sleep(0)
            await asyncio.to_thread(fault)
            return await going

    return asyncio.run(both())


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, KeyboardInterrupt])
def test_a_step_that_raises(server, own, asked, monkeypatch, kind):
    """Whoever was in it is told so; the other model's requests notice nothing."""
    computing = own.models["one"].engine._computing
    step, done = computing.step, threading.Event()

    def broken(plan, scheduler):
        monkeypatch.setattr(computing, "step", step)
        done.set()
        raise kind("a secret of the engine")

    def fault():
        monkeypatch.setattr(computing, "step", broken)
        assert done.wait(10)

    failed = 0
    for number, got in enumerate(run_with(server, asked, fault)):
        if not asked.exact(number, got):
            assert asked.bodies[number][1]["model"] == "one"
            assert "failed" in got.end and "secret" not in got.end, got.end
            assert got.status == 500 or asked.bodies[number][1]["stream"]
            failed += 1
    assert failed and own.driver.restarts == 0
    alive(server, own, asked)


def test_a_stepping_thread_that_dies_between_steps(server, own, asked, monkeypatch):
    """Another one takes its place and goes on where it was: nobody notices."""
    round_, done = own.driver._round, threading.Event()

    def dies():
        if not done.is_set():
            done.set()
            raise SystemExit
        return round_()

    def fault():
        monkeypatch.setattr(own.driver, "_round", dies)
        own.driver.wake()
        assert done.wait(10)

    for number, got in enumerate(run_with(server, asked, fault)):
        assert asked.exact(number, got), (got.status, got.end)
    assert own.driver.restarts == 1 and own.driver.alive
    assert "forwardpass_driver_restarts_total 1.0" in httpx.get(server.url + "/metrics").text
    alive(server, own, asked)


@pytest.mark.parametrize("seed", range(2))
def test_a_stepping_thread_that_is_hit_anywhere(server, own, asked, seed):
    """An exception out of nowhere, as a debugger or the system may throw one into a thread: those whom it hits are
    told, everybody else's answers are exact, and none is lost."""
    rng = random.Random(seed)

    def fault():
        time.sleep(rng.random() * 0.02)
        ident = own.driver._thread.ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))

    for number, got in enumerate(run_with(server, asked, fault)):
        assert asked.exact(number, got) or got.end, (got.status, got.choices)
    wait_until(lambda: own.driver.alive)
    alive(server, own, asked)


@pytest.mark.parametrize("stream", [False, True])
def test_a_storm_of_clients_who_leave(server, own, asked, stream):
    """While prompts are read, while they wait for room, in the middle of answers; some hang up rudely. Those who stay
    get exact answers meanwhile."""
    rng = random.Random(stream)
    over = threading.Event()

    def storm():
        while not over.is_set():
            body = json.dumps({**LONG, "model": rng.choice(NAMES), "stream": stream, "n": rng.choice([1, 8])}).encode()
            with server.connect(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as made:
                time.sleep(rng.choice([0, 0.001, 0.01, 0.03]))
                if rng.random() < 0.5:  # a reset instead of a good-bye
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    threads = [threading.Thread(target=storm) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.1)
        gots = run_with(server, asked, lambda: None)
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    for number, got in enumerate(gots):
        assert asked.exact(number, got), (got.status, got.end)
    assert sum(model.engine.stats().ended.get("cancelled", 0) for model in own.models.values()) > 3
    alive(server, own, asked)


def test_two_requests_with_one_id(server, own, asked):
    """The client's id is an echo and nothing else."""

    async def both():
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers={"X-Request-Id": "same"}) as client:
            return await asked.all(client)

    for number, got in enumerate(asyncio.run(both())):
        assert asked.exact(number, got)


def test_clocks_that_jump(server, own, asked, monkeypatch):
    """A day forward, ten years back: deadlines, pauses and idle times are measured by clocks that only go on."""
    true, jumps = time.time, random.Random(3)
    monkeypatch.setattr(time, "time", lambda: true() + jumps.choice([-3e8, -60.0, 0.0, 60.0, 86400.0]))
    for _, body in asked.bodies:
        body["timeout"] = 60
    alive(server, own, asked)
    answer = httpx.post(server.url + "/v1/completions", json={**LONG, "model": "one", "n": 16, "timeout": 0.05})
    assert answer.status_code == 504
    alive(server, own, asked)


def test_only_stamps_are_of_the_clock_on_the_wall():
    """What measures a time must not use a clock that can be set."""
    allowed = {"server/generation.py": 1, "server/models.py": 1, "server/call.py": 1, "server/images.py": 1}
    root = Path(forwardpass.__file__).parent
    files = [*root.glob("server/*.py"), *root.glob("scheduler/*.py"), *root.glob("cache/*.py"),
             *(root / name for name in ("engine.py", "driver.py", "asynchronous.py", "tasks/host.py"))]
    for path in files:
        uses = re.findall(r"\btime\.time\(|\bdatetime\.(?:now|utcnow)\(|import time\b.*\btime\b", path.read_text())
        assert len(uses) <= allowed.get(str(path.relative_to(root)), 0), (path, uses)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /version HTTP/1.1\r\nHost: hidden\r\n\r\n"


@pytest.mark.parametrize("data", [
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    HEAD + b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    HEAD + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    HEAD + b"Content-Length: 0x0\r\n\r\n" + HIDDEN,
    HEAD + b"Content-Length : 0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n" + HIDDEN,
    HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"X: a\rContent-Length: 5\r\n\r\n" + HIDDEN,
    HEAD + b"\x00X: a\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
])
def test_no_request_hides_in_another(server, data):
    """Whatever a proxy in front may take for one message is never two here: at the first thing that can be read in two
    ways the connection ends."""
    with server.connect(data) as made:
        made.shutdown(socket.SHUT_WR)
        answer = read_all(made)
    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
    assert len(statuses) == 1 and 400 <= int(statuses[0]) < 500, answer[:1000]
    assert httpx.get(server.url + "/health").status_code == 200


def test_a_reader_who_stops_holds_nobody_up(own, asked):
    """What it does not take waits for it in its request and in the system, not in the server's memory; in the end it is
    cut off, and its request with it."""
    server = Listening(own, write_timeout=1)
    body = json.dumps({**LONG, "model": "one", "stream": True, "n": 8, "logprobs": 5, "max_tokens": 700}).encode()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(server.address)
        reader.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert reader.recv(20).startswith(b"HTTP/1.1 200")
        for number, got in enumerate(run_with(server, asked, lambda: None)):
            assert asked.exact(number, got), (got.status, got.end)
        wait_until(lambda: not server.app.calls, 30)
    alive(server, own, asked)
    server.close()


# ---- the end of a process


def posted(port, body):
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    data = json.dumps(body).encode()
    made.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    return made


@pytest.mark.parametrize("seconds, whole", [pytest.param("60", True, marks=pytest.mark.soak), ("0", False)])
def test_the_end_of_requests_that_wait(tmp_path, paths, seconds, whole):
    """SIGTERM while one is answered and others wait for room: with time all of them are answered, without it all are
    told why not. Nothing remains of the process."""
    one = ServerProcess(tmp_path, f"one={paths['one']}", "--kv-memory", "512KiB", "--drain-timeout", seconds)
    body = {**LONG, "model": "one", "n": 1, "max_tokens": 600}
    try:
        first = posted(one.port, {**body, "stream": True})
        assert first.recv(20).startswith(b"HTTP/1.1 200")
        others = [posted(one.port, {**body, "prompt": str(number) * 300}) for number in range(4)]
        wait_until(lambda: "forwardpass_requests_in_flight 5" in httpx.get(one.url + "/metrics").text)
        one.signal(signal.SIGTERM)
        answers = [read_all(connection) for connection in (first, *others)]
        assert one.wait(60) == 0
    finally:
        one.stop()
        for connection in (first, *others):
            connection.close()
    stream, *rest = answers
    if whole:
        assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in rest)
    else:
        assert b'"code":"shutting_down"' in stream.split(b"data: ")[-1]
        assert sum(answer.startswith(b"HTTP/1.1 503") for answer in rest) >= 3
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", one.port))
    assert "Traceback" not in one.log
