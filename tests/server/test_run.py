"""A server process: it starts, says what it serves, drains, and ends (TRAPS SRV-09)."""

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from forwardpass.cli import main
from forwardpass.server import run
from server_tools import read_all, wait_until

KEY = "sk-0123456789-abcdef"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "w1"}], "temperature": 0, "ignore_eos": True}


def events(answer):
    """The data of each event of a streamed answer."""
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def streamed(server, **more):
    return httpx.stream("POST", server.url + "/v1/chat/completions", json={**CHAT, "stream": True, **more}, timeout=60)


def listens(server):
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
        return True
    except ConnectionRefusedError:
        return False


def counted(server, name):
    """The sum of a metric over its labels."""
    text = httpx.get(server.url + "/metrics").text
    return sum(map(float, re.findall(rf"^forwardpass_{name}(?:{{.*}})? (\S+)", text, re.MULTILINE)))


def test_the_plan_is_said(server):
    one = server("--alias", "gpt=chat", "--kv-memory", "64MiB", "--max-tokens-in-flight", "90000", "--max-requests",
                 "7")
    said = one.err.read_text()
    for part in ("chat: ", "labels: ", "context 1,024 tokens", "64.0 MiB", "gpt = chat", "7 requests at a time",
                 "max tokens in flight 90,000", "no API keys", f"http://127.0.0.1:{one.port}"):
        assert part in said, said
    assert "warning" not in said
    listed = httpx.get(one.url + "/v1/models").json()["data"]
    assert {"chat", "labels", "gpt"} <= {model["id"] for model in listed}
    for model in listed:
        if model["id"] != "gpt":
            context = f"context {model['max_model_len']:,} tokens"
            assert re.search(rf"^{model['id']}: weights .*, {context}", said, re.M), said
    assert one.stop() == 0 and not listens(one)
    with socket.socket() as probe:  # the next server may listen there at once
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", one.port))
    assert "Traceback" not in one.log
    records = [json.loads(line) for line in one.out.read_text().splitlines()]
    assert records[-1]["path"] == "/v1/models" and records[-1]["status"] == 200


def test_the_example_streams_from_every_model_that_can_chat(server, folders):
    one = server("--alias", "other=chat")
    example = Path(__file__).parents[2] / "examples" / "stream_two_models.py"
    told = subprocess.run([sys.executable, example, one.url + "/v1"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert {line.split(":")[0] for line in told.stdout.splitlines()} == {"chat", "other"}  # and not "labels"
    assert one.stop() == 0


def test_a_file_with_keys_and_a_log(server, folders, tmp_path):
    (tmp_path / "keys").write_text(f"# people\nalice {KEY}\n")
    (tmp_path / "server.toml").write_text(
        f'[server]\napi-key-file = "{tmp_path}/keys"\nlog-file = "{tmp_path}/log"\nmax-tokens-per-key = 2000\n'
        f'[models.talk]\nmodel = "{folders["chat"]}"\ndtype = "float32"\naliases = ["gpt"]\n')
    (tmp_path / "keys").chmod(0o644)
    one = server("--config", str(tmp_path / "server.toml"), models=())
    assert "warning" in one.err.read_text() and "chmod o-r" in one.err.read_text()
    assert "API keys: 1" in one.err.read_text() and KEY not in one.log
    assert httpx.get(one.url + "/v1/models").status_code == 401
    key = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(one.url + "/v1/chat/completions", json={**CHAT, "model": "gpt", "max_tokens": 3}, headers=key)
    assert answer.json()["usage"]["completion_tokens"] == 3
    wait_until(lambda: "completions" in (tmp_path / "log").read_text())
    os.rename(tmp_path / "log", tmp_path / "old")
    one.signal(signal.SIGHUP)
    time.sleep(0.2)
    httpx.get(one.url + "/version", headers=key)
    assert one.stop() == 0
    refused, chat = [json.loads(line) for line in (tmp_path / "old").read_text().splitlines()
                     if '"path":"/health"' not in line]
    assert (refused["status"], refused["key"]) == (401, None)
    assert (chat["status"], chat["key"], chat["model"], chat["completion_tokens"], chat["finish"]) == (
        200, "alice", "gpt", 3, "length")
    assert json.loads((tmp_path / "log").read_text())["path"] == "/version"


def test_a_drain_lets_streams_finish(server):
    one = server("--drain-timeout", "20")
    idle = socket.create_connection(("127.0.0.1", one.port))
    with idle, streamed(one, max_tokens=900, n=4) as answer:
        told = events(answer)
        for _ in range(20):
            next(told)
        one.signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in one.err.read_text())
        idle.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        refused = read_all(idle)
        assert refused.startswith(b"HTTP/1.1 503") and b"connection: close" in refused.lower()
        assert json.loads(refused.split(b"\r\n\r\n")[1])["error"]["code"] == "shutting_down"
        rest = list(told)
    assert rest[-1] == "[DONE]"
    ends = [choice["finish_reason"] for event in rest[:-1] for choice in json.loads(event)["choices"]]
    assert [end for end in ends if end] == ["length"] * 4
    assert one.wait() == 0 and not listens(one)
    assert "Traceback" not in one.log


def test_a_drain_that_takes_too_long_ends_with_an_error_event(server):
    one = server("--drain-timeout", "0", "--kv-memory", "4MiB")
    whole = {**CHAT, "max_tokens": 1000, "n": 16}
    with ThreadPoolExecutor() as pool, streamed(one, max_tokens=1000, n=8) as answer:
        told = events(answer)
        queued = [pool.submit(httpx.post, one.url + "/v1/chat/completions", json=whole, timeout=60) for _ in range(3)]
        wait_until(lambda: counted(one, "requests_in_flight") == 4)
        one.signal(signal.SIGTERM)
        rest = list(told)
        for refused in queued:
            assert refused.result().status_code == 503
            assert refused.result().json()["error"]["code"] == "shutting_down"
    assert json.loads(rest[-1])["error"]["code"] == "shutting_down"
    assert one.wait() == 0 and not listens(one)
    assert "Traceback" not in one.log
    record = next(json.loads(line) for line in one.out.read_text().splitlines() if "completions" in line)
    assert record["error"]["code"] == "shutting_down" and not record["client_gone"]


def test_health_while_draining(server):
    one = server("--drain-timeout", "20", "--host", "0.0.0.0")
    assert "warning: 0.0.0.0 can be reached from other machines" in one.err.read_text()
    with streamed(one, max_tokens=1000, n=16) as answer:
        told = events(answer)
        next(told)
        one.signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in one.err.read_text())
        health = httpx.get(one.url + "/health")
        assert health.status_code == 503 and health.json() == {"status": "shutting down"}
        assert httpx.get(one.url + "/health/live").status_code == 200
        assert list(told)[-1] == "[DONE]"
    assert one.wait() == 0


def test_a_second_signal_ends_at_once(server):
    one = server("--drain-timeout", "60")
    with streamed(one, max_tokens=1000, n=16) as answer:
        next(events(answer))
        one.signal(signal.SIGINT)
        wait_until(lambda: "SIGINT" in one.err.read_text())
        begun = time.monotonic()
        one.signal(signal.SIGTERM)
        assert one.wait(10) == 130
        assert time.monotonic() - begun < 5
    assert not listens(one)


def test_clients_who_leave_free_everything(server):
    """TRAPS STR-07: streams and whole answers, queued, reading their prompts and in the middle. Meanwhile nobody takes
    the log's lines."""
    one = server("--kv-memory", "4MiB", "--log-file", "/dev/full")
    for number in range(20):
        body = {**CHAT, "messages": [{"role": "user", "content": "w1 " * 250}], "max_tokens": 200, "n": 16}
        if number % 2:
            with streamed(one, **body) as answer:
                told = events(answer)
                for _ in range(number):
                    next(told)
        else:
            with pytest.raises(httpx.TimeoutException):
                httpx.post(one.url + "/v1/chat/completions", json=body, timeout=0.002 * (number + 1))
    wait_until(lambda: counted(one, "tokens_in_flight") == counted(one, "engine_running") == 0, 2)
    assert counted(one, "requests_in_flight") == 0 and counted(one, "clients_gone_total") >= 10
    assert counted(one, "log_errors_total") >= 20
    assert httpx.post(one.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200
    assert one.stop() == 0


def test_a_port_that_is_taken(folders, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(folders["chat"]), "--port", str(port)]) == 1
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"error: cannot listen on 127.0.0.1 port {port}")


@pytest.mark.parametrize("arguments, said", [
    ((), "serve needs a model"),
    (("no-such-model",), "no-such-model"),
    (("CHAT", "--host", "no.such.host.invalid"), "no.such.host.invalid"),
    (("CHAT", "--api-key-file", "/nowhere"), "/nowhere"),
    (("CHAT", "--log-file", "/nowhere/log", "--port", "0"), "/nowhere/log"),
    (("CHAT", "--kv-memory", "900TiB", "--port", "0"), "kv_memory may be at most"),
    (("CHAT", "--host", "192.0.2.1"), "give --host an address of this machine"),
    (("CHAT", "--max-body", "5"), "--max-body must be from 1.0 KiB to 1.0 GiB, not '5'"),
    (("CHAT", "--config", "/nowhere.toml"), "--config: '/nowhere.toml' cannot be read: No such file"),
    (("CHAT", "--alias", "x=y", "--port", "0"), "'x' stands for 'y'"),
    (("a=CHAT", "a=CHAT", "--port", "0"), "two models are named 'a'"),
])
def test_what_is_wrong_is_one_line_and_status_1(folders, capfd, arguments, said):
    assert main(["serve", *(one.replace("CHAT", str(folders["chat"])) for one in arguments)]) == 1
    out, err = capfd.readouterr()
    assert out == "" and said in err and err.count("\n") == 1 and err.startswith("error: ")


def test_a_thread_that_heeds_nothing_does_not_hold_up_the_end(folders, monkeypatch, capfd):
    def leaves(app, listener):
        app.calls.add(object())
        return 0

    ended = []
    monkeypatch.setattr(run, "run", leaves)
    monkeypatch.setattr(run.os, "_exit", ended.append)
    interval = sys.getswitchinterval()
    try:
        assert main(["serve", str(folders["labels"]), "--port", "0", "--host", "localhost"]) == 0
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
    assert ended == [0] and "http://127.0.0.1:" in capfd.readouterr().err
