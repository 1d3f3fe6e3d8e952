"""The log: a line a request, what it says and what it does not, and targets that fail."""

import json
import os
import threading
import time
from datetime import datetime

import msgspec
import pytest
from starlette.responses import StreamingResponse

from forwardpass.server.errors import ApiError
from forwardpass.server.logs import RequestLog
from forwardpass.server.routes import ROUTES, Route

SECRET = "my bank is on fire"


class Ask(msgspec.Struct):
    text: str


async def answers(call, body):
    call.log |= {"model": "chat", "prompt_tokens": 7, "completion_tokens": 5, "finish": "stop"}
    call.news(1)
    call.news(4)
    return Ask(body.text)


async def refuses(call, body):
    raise ApiError(400, f"cannot read {body.text!r}", code="invalid_value", param="text")


async def fails(call, body):
    raise ValueError(f"in the middle of {body.text!r}")


async def streams(call, body):
    async def events():
        for _ in range(1000):
            yield b"data: 1\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


EXTRA = tuple(Route("POST", f"/{handler.__name__}", handler, "For a test.", body=Ask)
              for handler in (answers, refuses, fails, streams))


@pytest.fixture
def logged(app, tmp_path):
    """logged(**settings) -> (client, function that closes the log and returns its records)."""

    def make(**settings):
        log = RequestLog(str(tmp_path / "log"))
        client = app(routes=ROUTES + EXTRA, log=log, **settings)

        def records():
            log.close()
            return [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]

        return client, records

    return make


def test_a_line_a_request(logged):
    client, records = logged()
    client.post("/answers", {"text": SECRET}, headers={"X-Request-Id": "theirs"})
    client.post("/refuses", {"text": SECRET})
    client.post("/fails", {"text": SECRET})
    client.get("/nowhere?q=" + SECRET)
    client.post("/answers", {"text": 5})

    async def leave():
        async with client.client.stream("POST", "/streams", json={"text": SECRET}) as answer:
            await anext(answer.aiter_bytes())

    client.run(leave())
    good, refused, failed, lost, wrong, gone = records()
    assert good["id"].startswith("req-") and good["client_id"] == "theirs" and good["key"] is None
    assert (good["method"], good["path"], good["status"]) == ("POST", "/answers", 200)
    assert (good["model"], good["prompt_tokens"], good["completion_tokens"], good["finish"]) == ("chat", 7, 5, "stop")
    assert 0 <= good["ttft"] <= good["duration"] < 10 and good["client_gone"] is False
    assert abs(datetime.fromisoformat(good["time"]).timestamp() - time.time()) < 60
    assert refused["status"] == 400
    assert refused["error"] == {"type": "invalid_request_error", "code": "invalid_value", "param": "text"}
    assert failed["status"] == 500 and failed["error"]["exception"] == "ValueError"
    assert any("fails" in line and "test_logs.py" in line for line in failed["error"]["at"])
    assert lost["path"] == "/nowhere" and lost["status"] == 404
    assert wrong["error"]["param"] == "text"
    assert gone["status"] == 200 and gone["client_gone"] is True
    assert SECRET not in json.dumps([good, refused, failed, lost, wrong, gone])


def test_prompts_only_when_asked_for(logged):
    client, records = logged(log_prompts=True)
    client.request("POST", "/answers", content=b'{"text":\n "' + SECRET.encode() + b'"}',
                   headers={"content-type": "application/json"})
    client.post("/fails", {"text": SECRET})
    good, failed = records()
    assert good["request"] == {"text": SECRET} and SECRET in failed["error"]["message"]


def test_a_target_that_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(OSError):
        RequestLog(str(tmp_path / "no" / "log"))
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OSError, match="standard output is closed"):
        RequestLog("-")


def test_a_full_disk_is_survived_and_counted():
    log = RequestLog("/dev/full")
    for number in range(5):
        log.write({"n": number})
    log.close()
    assert log.errors == 5


def test_a_closed_pipe_is_survived_and_counted(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        log = RequestLog("-")
        log.write({"n": 1})
        assert json.loads(os.read(reader, 100)) == {"n": 1}
        os.close(reader)
        log.write({"n": 2})
        log.close()
    assert log.errors == 1


def test_a_pipe_that_nobody_reads_holds_up_nobody(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("forwardpass.server.logs.CLOSE_S", 0.1)
        log = RequestLog("-")
        begun = time.monotonic()
        for _ in range(6000):
            log.write({"text": "x" * 100})
        log.close()
        assert time.monotonic() - begun < 5
        assert 6000 - 4096 - 1000 < log.errors < 6000 - 4096 + 1  # the queue, and what the pipe took
        threading.Thread(target=_drain, args=(reader,), daemon=True).start()
        log.close()
        assert not log._thread.is_alive()
    os.close(reader)


def test_long_lines_that_wait_are_bounded_in_bytes(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        log = RequestLog("-")
        for _ in range(100):
            log.write({"text": "x" * (1 << 20)})
        assert 100 - 33 <= log.errors <= 100 - 31
        threading.Thread(target=_drain, args=(reader,), daemon=True).start()
        log.close()
        assert not log._thread.is_alive()
    os.close(reader)


def _drain(reader):
    try:
        while os.read(reader, 1 << 16):
            pass
    except OSError:
        pass


def test_what_is_no_json_costs_a_line_and_nothing_else(tmp_path):
    log = RequestLog(str(tmp_path / "log"))
    log.write({"bad": "\ud800"})
    log.write({"good": 1})
    log.close()
    assert log.errors == 1 and (tmp_path / "log").read_text() == '{"good":1}\n'


def test_a_line_that_broke_off_is_ended_before_the_next(tmp_path, monkeypatch):
    log = RequestLog(str(tmp_path / "log"))
    write, room = os.write, [8]

    def short(file, data):
        if room[0] is None:
            return write(file, data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken, room[0] = room[0], 0
        return write(file, data[:taken])

    monkeypatch.setattr("forwardpass.server.logs.os.write", short)
    log.write({"first": "lost"})
    while not log.errors:
        time.sleep(0.001)
    log.write({"second": "lost"})
    while log.errors < 2:
        time.sleep(0.001)
    room[0] = None
    log.write({"third": 3})
    log.close()
    assert (tmp_path / "log").read_text() == '{"first"\n{"third":3}\n' and log.errors == 2


def test_rotation(tmp_path):
    path = tmp_path / "log"
    log = RequestLog(str(path))
    log.write({"n": 1})
    while not path.read_text():
        time.sleep(0.001)
    path.rename(tmp_path / "old")
    log.reopen()
    log.write({"n": 2})
    log.close()
    assert (tmp_path / "old").read_text() == '{"n":1}\n' and path.read_text() == '{"n":2}\n'
