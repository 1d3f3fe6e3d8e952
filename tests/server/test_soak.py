"""Half an hour of everything at once, against a server process: all endpoints, several models, clients who leave, bad
requests, bodies that are too large, readers who do not read, idle connections.

    FORWARDPASS_SOAK_S=1800 python -m pytest -m soak -s tests/server/test_soak.py

No error that was not asked for; every whole answer is what it is alone; memory stays flat; nothing is left behind.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import time
from collections import Counter

import httpx
import pytest

import tiny_chat
import tiny_shelf
from http_mixes import GONE, LATE, HttpWish, check_answer, fetch
from mixes import Alone, Mixer
from server_tools import ServerProcess

SECONDS = float(os.environ.get("FORWARDPASS_SOAK_S", "1800"))
USERS = 10
WARM = 0.3
"""Part of the time after which memory must not grow any more."""
FLAT = 1.02
MEMORY = 24 << 20
LARGE = 1 << 20
CHATTING = {"model": "smollm2-135m", "max_tokens": 24, "temperature": 0}
FIXED = [  # (path, body) whose answers are known from before
    *(("/v1/chat/completions", {**CHATTING, "messages": [
        {"role": "system", "content": "Answer in one sentence. " * 12}, {"role": "user", "content": question}]})
      for question in ("Why is the sky blue?", "What is a tide?", "Who was Ada Lovelace?")),
    ("/v1/completions", {**CHATTING, "prompt": "The three primary colours are", "logprobs": 2, "echo": True}),
    ("/v1/completions", {**CHATTING, "prompt": ["One, two,", "Red, green,"], "n": 2, "temperature": 1, "seed": 7}),
    ("/v1/completions", {**CHATTING, "prompt": "Once", "max_tokens": 0, "echo": True, "logprobs": 0}),
    ("/v1/embeddings", {"model": "vectors", "input": ["w1 w2 w3", "w4", "w5 w6"]}),
    ("/v1/embeddings", {"model": "vectors", "input": "w9 w8", "encoding_format": "base64"}),
    ("/v1/classify", {"model": "labels", "input": [f"w{i} w{i + 1}" for i in range(1, 20)]}),
    ("/v1/rerank", {"model": "relevance", "query": "w3", "documents": [f"w{i}" for i in range(1, 25)]}),
    ("/v1/translate", {"model": "translator", "input": "w5 w6 w7 .", "source": "en", "target": "de"}),
    ("/tokenize", {"model": "smollm2-135m", "prompt": "Hello, world! " * 40}),
    ("/detokenize", {"model": "smollm2-135m", "tokens": [19556, 28, 905]}),
]
WRONG = [  # (path, body, status)
    ("/v1/chat/completions", {"model": "smollm2-135m", "messages": []}, 400),
    ("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}, 404),
    ("/v1/chat/completions", {**CHATTING, "messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400),
    ("/v1/completions", {"model": "llama", "prompt": [264]}, 400),
    ("/v1/completions", {"model": "llama", "prompt": "x", "n": 10**6}, 400),
    ("/v1/completions", {"model": "llama", "prompt": "x", "max_tokens": 10**8}, 400),
    ("/v1/completions", {"model": "labels", "prompt": "x"}, 400),
    ("/v1/embeddings", {"model": "vectors", "input": ["w1", 5]}, 400),
    ("/v1/classify", {"model": "labels"}, 400), ("/v1/nothing", {}, 404),
]


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_soak(tmp_path, smollm2_path, capsys):
    paths = {name: path for name, path in tiny_shelf.write(tmp_path).items() if name != "chat"}
    paths |= {"llama": tiny_chat.write(tmp_path / "llama", max_position_embeddings=1024), "smollm2-135m": smollm2_path}
    alone = Alone(paths["llama"])
    server = ServerProcess(tmp_path, *(f"{name}={path}" for name, path in paths.items()), "--kv-memory", str(MEMORY),
                           "--max-body", str(LARGE), "--log-file", str(tmp_path / "log"), "--read-timeout", "4",
                           "--write-timeout", "4", "--keep-alive", "8")
    try:
        soak = Soak(server, alone)
        asyncio.run(soak.run())
        assert server.stop() == 0
        assert "Traceback" not in server.log
    finally:
        server.stop()
        alone.close()
        with capsys.disabled():
            print("\n" + soak.summary())
    soak.check()
    statuses = Counter(json.loads(line)["status"] for line in (tmp_path / "log").read_text().splitlines())
    assert not [status for status in statuses if status >= 500 and status != 504], statuses


class Soak:
    def __init__(self, server, alone):
        self.server = server
        self.alone = alone
        self.rng = random.Random(20)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.memory = [(0.0, resident(server.process.pid))]
        self.known: dict[int, dict] = {}
        self.figures: dict[str, float] = {}
        self.begun = 0.0

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120,
                                     limits=httpx.Limits(max_connections=200)) as client:
            for number, (path, body) in enumerate(FIXED):
                self.known[number] = _stripped((await client.post(path, json=body)).raise_for_status().json())
            self.begun = time.monotonic()
            await asyncio.gather(self.watch(), *(self.user(client) for _ in range(USERS)))
            await self.end(client)

    @property
    def age(self) -> float:
        return time.monotonic() - self.begun

    async def watch(self) -> None:
        pause = min(5.0, SECONDS / 60)
        while self.age < SECONDS:
            self.memory.append((self.age, resident(self.server.process.pid)))
            await asyncio.sleep(pause)

    async def user(self, client) -> None:
        acts = [(self.wish, 6), (self.fixed, 6), (self.wrong, 2), (self.oversized, 1), (self.unread, 1), (self.idle, 1),
                (self.broken, 1)]
        while self.age < SECONDS and len(self.failures) < 5:
            act = self.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
            try:
                await act(client)
            except Exception as error:
                self.failures.append(f"{act.__name__} after {self.age:.1f} s: {type(error).__name__}: {error}"[:2000])
            self.done[act.__name__] += 1

    async def wish(self, client) -> None:
        """Something random, and perhaps its client leaves, or it has little time."""
        mixer = Mixer(self.rng, self.alone)
        asked = HttpWish(mixer, mixer.wishes(1)[0], "llama")
        if self.rng.random() < 0.1:
            asked.body["timeout"] = asked.wish.deadline = 0.001 + self.rng.random() * 0.3
        leaves = asked.wish.leaves
        if asked.streams or leaves is None:
            got = await fetch(client, asked.path, asked.body, leaves)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(fetch(client, asked.path, asked.body), leaves * 2e-3)
            self.done["left"] += 1
            return
        check_answer(asked, got)
        self.done[{GONE: "left", LATE: "late"}.get(got.end, "exact")] += 1

    async def fixed(self, client) -> None:
        number = self.rng.randrange(len(FIXED))
        path, body = FIXED[number]
        more = self.rng.choice([{}, {"priority": self.rng.randint(-5, 5)}, {"cache_salt": str(self.rng.random())}])
        if path.startswith("/v1") and self.rng.random() < 0.2:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.post(path, json=body | more), self.rng.random() * 0.3)
            self.done["left"] += 1
            return
        answer = await client.post(path, json=body if path.endswith("tokenize") else body | more)
        assert answer.status_code == 200, answer.text
        found = _stripped(answer.json())
        assert found == self.known[number], f"{path}: expected {self.known[number]}, found {found}"
        self.done["exact"] += 1

    async def wrong(self, client) -> None:
        path, body, status = self.rng.choice(WRONG)
        answer = await client.post(path, json=body)
        assert answer.status_code == status and answer.json()["error"]["message"], answer.text

    async def oversized(self, client) -> None:
        body = b'{"model": "llama", "prompt": "' + b"x" * self.rng.choice([LARGE, 3 * LARGE]) + b'"}'
        answer = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413, answer.text

    async def unread(self, client) -> None:
        """A reader who takes a little of a stream, then nothing, for a while or for ever."""
        body = json.dumps({"model": "llama", "prompt": "x", "max_tokens": 900, "n": 4, "logprobs": 5, "stream": True})
        reader, writer = await self.connected()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%b" % (len(body), body.encode()))
        first = await reader.read(100)
        assert first.startswith(b"HTTP/1.1 200"), first
        await asyncio.sleep(self.rng.random() * 3)
        if self.rng.random() < 0.5:
            whole = first + await reader.readuntil(b"data: [DONE]\n\n")
            assert whole.endswith(b"data: [DONE]\n\n")
        await closed(writer)

    async def idle(self, client) -> None:
        """A connection on which nothing happens, or half a request."""
        _, writer = await self.connected()
        writer.write(self.rng.choice([b"", b"POST /v1/comple", b"GET /version HTTP/1.1\r\nHost: x\r\nx: "]))
        await asyncio.sleep(self.rng.random() * 6)
        await closed(writer)

    async def broken(self, client) -> None:
        """What is no HTTP, or no JSON."""
        reader, writer = await self.connected()
        writer.write(self.rng.choice([
            b"\x00\xff nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
            b"Connection: close\r\n\r\n[[[[["]))
        answer = await reader.read(1 << 16)
        assert answer.startswith(b"HTTP/1.1 400"), answer
        await closed(writer)

    async def connected(self):
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 22)

    async def end(self, client) -> None:
        """Wait until everybody has gone, and read the figures."""
        deadline = time.monotonic() + 30
        while True:
            self.figures = figures(await (await client.get("/metrics")).aread())
            left = [self.figures[name] for name in ("requests_in_flight", "tokens_in_flight", "engine_running",
                                                    "engine_waiting")]
            if not any(left) and self.figures["engine_kv_bytes_held"] == self.figures["engine_kv_bytes_kept"]:
                break
            if time.monotonic() > deadline:
                self.failures.append(f"something is left: {self.figures}")
                break
            await asyncio.sleep(0.05)
        for number, (path, body) in enumerate(FIXED):
            found = _stripped((await client.post(path, json=body)).json())
            if found != self.known[number]:
                self.failures.append(f"afterwards {path} answers {found}, not {self.known[number]}")

    def growth(self) -> float:
        """The memory of the last part of the time beside that after warming up."""
        warm = [size for age, size in self.memory if WARM * SECONDS <= age < (WARM + 0.2) * SECONDS]
        last = [size for age, size in self.memory if age >= 0.8 * SECONDS]
        return statistics.median(last) / statistics.median(warm) if warm and last else 1.0

    def summary(self) -> str:
        at = self.figures.get
        asked = at("engine_prefix_tokens_asked_total", 0) or 1
        parts = [f"soak: {self.age:.0f} s", f"{sum(self.done[act] for act in ACTS)} acts "
                 f"({', '.join(f'{self.done[act]} {act}' for act in ACTS)})",
                 f"{self.done['exact']} exact, {self.done['left']} left, {self.done['late']} late",
                 f"{len(self.failures)} failures",
                 f"memory {self.memory[0][1] >> 20} -> {self.memory[-1][1] >> 20} MiB, "
                 f"{100 * (self.growth() - 1):+.2f}% after warming up",
                 f"{at('engine_steps_total', 0):.0f} steps, {at('engine_generated_total', 0):.0f} tokens, "
                 f"{at('engine_preemptions_total', 0):.0f} preemptions, prefix hits "
                 f"{100 * at('engine_prefix_tokens_found_total', 0) / asked:.0f}%"]
        return "; ".join(parts)

    def check(self) -> None:
        assert not self.failures, "\n".join(self.failures)
        assert self.done["exact"] > 20 and self.done["left"] > 5
        assert self.figures["driver_restarts_total"] == 0 and self.figures["log_errors_total"] == 0
        if SECONDS >= 300:  # before that caches still fill
            assert self.growth() <= FLAT, [size >> 10 for _, size in self.memory]


ACTS = ("wish", "fixed", "wrong", "oversized", "unread", "idle", "broken")


def _stripped(answer: dict) -> dict:
    """Without what is of this one request: its id, its time, what was cached of it."""
    out = {name: value for name, value in answer.items() if name not in ("id", "created", "usage")}
    usage = answer.get("usage")
    return out | ({"usage": {name: value for name, value in usage.items() if name != "prompt_tokens_details"}}
                  if usage else {})


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/status") as file:
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])


def figures(text: bytes) -> dict[str, float]:
    """Each metric summed over its labels, without the name's beginning."""
    found: Counter[str] = Counter()
    for name, value in re.findall(r"^forwardpass_(\w+)(?:{.*})? (\S+)$", text.decode(), re.MULTILINE):
        found[name] += float(value)
    return found


async def closed(writer) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        await writer.wait_closed()
