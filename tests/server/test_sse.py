"""Answers as streams of events: their texts, their ends, errors on the way, and readers who are slow or leave."""

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest

import scripted
from forwardpass.server.schemas_generation import ChatChunk, TextChunk
from forwardpass.server.sse import COMMENT, EventStream, Wire, one_line_each

SPLIT = "ď猫🌶 x\N{REPLACEMENT CHARACTER}!".encode()
ANSWERS = {
    "a": b"The answer.", "s": SPLIT, "h": SPLIT[:4], "t": b"abwxyz!q", "u": b"abwxq", "e": b"", "l": b"x" * 1000,
    "w": b"  two  spaces . and a line\n\nend ",
}
TEXT = {letter: said.decode("utf-8", "replace") for letter, said in ANSWERS.items()}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def script_host(tmp_path_factory):
    host = scripted.ScriptHost({"m": scripted.model(ANSWERS, tmp_path_factory.mktemp("script") / "m")})
    yield host
    host.close()


@pytest.fixture
def script(app, script_host):
    """The application over a model that says what ANSWERS has for a prompt of one letter."""
    return app(host=script_host)


def chat(letter, **more):
    return {"model": "m", "messages": [{"role": "user", "content": letter}], "stream": True, **more}


def completion(prompt, **more):
    return {"model": "m", "prompt": prompt, "stream": True, **more}


def events(answer) -> list:
    """The events' objects, checked strictly against what is documented; the stream must end as it should."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-accel-buffering"] == "no"
    *parts, done, nothing = answer.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    assert all(part.startswith("data: {") and "\n" not in part for part in parts)
    found = [json.loads(part.removeprefix("data: ")) for part in parts]
    for one in found:
        kind = ChatChunk if one["object"] == "chat.completion.chunk" else TextChunk
        again = msgspec.to_builtins(msgspec.json.decode(json.dumps(one), type=kind, strict=True))
        assert again == one
    assert len({(one["id"], one["created"], one["model"], one["system_fingerprint"]) for one in found}) == 1
    return found


def texts(found, index=0) -> list[str]:
    """Those of a choice's events that carry one."""
    choices = [one for event in found for one in event["choices"] if one["index"] == index]
    return [said for one in choices if (said := one["delta"].get("content") if "delta" in one else one["text"])]


def finishes(found, index=0) -> list[str]:
    return [one["finish_reason"] for event in found for one in event["choices"]
            if one["index"] == index and one["finish_reason"] is not None]


# ---- the events


def test_a_chat_is_a_role_then_texts_then_an_end(script):
    found = events(script.post(CHAT, chat("a")))
    deltas = [event["choices"][0]["delta"] for event in found]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert deltas[1:-1] == [{"content": letter} for letter in TEXT["a"]]
    assert finishes(found) == ["stop"] and found[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in event for event in found)


def test_a_completion_has_no_role(script):
    found = events(script.post(COMPLETIONS, completion("a", max_tokens=4)))
    assert [event["choices"][0]["text"] for event in found] == ["T", "h", "e", " ", ""]
    assert finishes(found) == ["length"]


def test_an_answer_without_text_still_has_a_role_and_an_end(script):
    found = events(script.post(CHAT, chat("e")))
    assert [event["choices"][0]["delta"] for event in found] == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("letter", ["s", "w"])
def test_no_event_has_half_a_character(script, letter):
    found = events(script.post(CHAT, chat(letter)))
    assert texts(found) == list(TEXT[letter])
    whole = script.post(CHAT, chat(letter, stream=False)).json()["choices"][0]["message"]["content"]
    assert whole == "".join(texts(found)) == TEXT[letter]


def test_an_incomplete_end_is_one_replacement_character(script):
    found = events(script.post(CHAT, chat("h")))
    assert texts(found) == ["ď", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(("letter", "more", "said"), [
    ("t", {"stop": "wxyz"}, ["a", "b"]), ("t", {"stop": ["yz", "wxyz"]}, ["a", "b"]), ("t", {"stop": "a"}, []),
    ("t", {"stop": ["wxyz"], "include_stop_str_in_output": True}, ["a", "b", "wxyz"]),
    ("u", {"stop": "wxyz"}, ["a", "b", "wxq"]), ("u", {"stop": "wxq", "max_tokens": 4}, ["a", "b", "wx"]),
    ("t", {"stop": "t"}, list("abwxyz!q")),  # the prompt's own text does not count
])
def test_nothing_of_a_stop_string_is_sent(script, letter, more, said):
    found = events(script.post(COMPLETIONS, completion(letter, **more)))
    assert texts(found) == said
    whole = script.post(COMPLETIONS, completion(letter, **{**more, "stream": False})).json()["choices"][0]
    assert (whole["text"], [whole["finish_reason"]]) == ("".join(said), finishes(found))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_last_and_only_when_asked_for(script, path, n):
    ask = chat if path == CHAT else completion
    found = events(script.post(path, ask("a", n=n, stream_options={"include_usage": True})))
    *others, last = found
    assert last["choices"] == [] and all(one["usage"] is None for one in others)
    whole = script.post(path, ask("a", n=n, stream=False)).json()["usage"]
    assert last["usage"] | {"prompt_tokens_details": {}} == whole | {"prompt_tokens_details": {}}
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["total_tokens"]) == (1, 12 * n, 1 + 12 * n)
    found = events(script.post(path, ask("a", stream_options={"include_usage": False})))
    assert not any("usage" in one for one in found)


def test_choices_come_side_by_side(script):
    found = events(script.post(CHAT, chat("a", n=3)))
    order = [event["choices"][0]["index"] for event in found]
    assert order[:6] == [0, 0, 1, 1, 2, 2]  # a role and a text each
    assert order[6:9] == [0, 1, 2]
    for index in range(3):
        assert (texts(found, index), finishes(found, index)) == (list(TEXT["a"]), ["stop"])


def test_several_prompts_in_one_stream(script):
    found = events(script.post(COMPLETIONS, completion(["a", "s", "e"], n=2)))
    for index, letter in enumerate("aassee"):
        assert ("".join(texts(found, index)), finishes(found, index)) == (TEXT[letter], ["stop"])


def test_log_probabilities_wait_for_the_text_of_their_token(script):
    found = events(script.post(CHAT, chat("s", logprobs=True, top_logprobs=1)))
    entries = [event["choices"][0]["logprobs"]["content"] for event in found[1:]]
    assert [len(one) for one in entries] == [2, 3, 4, 1, 1, 3, 1, 1]  # the last is the end token's
    assert bytes(byte for some in entries[:-1] for one in some for byte in one["bytes"]) == SPLIT
    assert entries[-1][0]["token"] == "</s>"
    whole = script.post(CHAT, chat("s", logprobs=True, top_logprobs=1, stream=False)).json()["choices"][0]
    assert [one for some in entries for one in some] == whole["logprobs"]["content"]


# ---- how they are sent


class Sent(list):
    """What an application sends. gate: while it is not set, a send does not return."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message):
        self.append(message)
        await self.gate.wait()

    @property
    def bodies(self):
        return [one["body"] for one in self if one["type"] == "http.response.body"]


def stream_of(host, letter, send, pause_s=15.0, **more):
    """The response of a chat, without an application around it."""
    from forwardpass.server.chat import ChatEvents
    from forwardpass.server.generation import Answers
    from forwardpass.server.schemas_generation import ChatRequest

    model = host.find("m")
    body = msgspec.convert(chat(letter, **more), ChatRequest)
    call = SimpleNamespace(id="req-1", started=None, log={}, came=[])
    call.news = call.came.append
    ids = model.tokenizer.encode(letter, add_special_tokens=False, parse_special=False)
    answers = Answers.ask(call, model, [ids], [model.answer_params({"max_new_tokens": 4000})])
    answers.call.started = answers.requests[0].started
    return EventStream(ChatEvents(call, model, body, answers), pause_s), answers


def test_what_a_step_brings_is_one_send(script_host):
    async def run():
        sent = Sent()
        stream, answers = stream_of(script_host, "a", sent)
        await stream({}, None, sent)
        return sent, answers

    sent, answers = asyncio.run(run())
    assert sent[0]["type"] == "http.response.start" and sent.bodies[0].count(b"data: ") >= 2  # role and first text
    assert [one["more_body"] for one in sent[1:]] == [True] * (len(sent) - 2) + [False]
    assert sent.bodies[-1].endswith(b"data: [DONE]\n\n")
    assert sum(answers.call.came) == 12
    assert answers.call.log["finish"] == "stop" and answers.call.log["completion_tokens"] == 12


def test_a_slow_reader_holds_nothing_up_but_itself(script_host):
    """While a send does not return nothing more is collected, and the engine goes on; afterwards all is there."""
    async def run():
        sent = Sent()
        sent.gate.clear()
        stream, answers = stream_of(script_host, "l", sent)
        task = asyncio.ensure_future(stream({}, None, sent))
        while not answers.requests[0].done:
            await asyncio.sleep(0.005)
        before = len(sent)
        waiting = len(answers.requests[0].pieces)
        sent.gate.set()
        await task
        return sent, before, waiting

    sent, before, waiting = asyncio.run(run())
    assert before == 1 and waiting > 900  # nothing but the start of the response; the pieces wait in the request
    assert len(sent.bodies) <= 3 and b"".join(sent.bodies).count(b'"content":"x"') == 1000


def test_a_reader_who_leaves_ends_the_work(script, script_host):
    model = script_host.find("m")
    gate = model.network.gate

    async def run():
        for _ in range(5):
            async with script.client.stream("POST", CHAT, json=chat("l", n=2)) as answer:
                async for _ in answer.aiter_raw():
                    break
        gate.clear()  # also before the first token
        task = asyncio.ensure_future(script.client.post(CHAT, json=chat("l")))
        await asyncio.sleep(0.05)
        task.cancel()
        gate.set()
        await asyncio.wait([task])
        while model.engine.busy:
            await asyncio.sleep(0.005)

    script.run(asyncio.wait_for(run(), 20))
    assert not model.engine.scheduler.running and not model.engine.scheduler.waiting


def test_comments_keep_a_quiet_connection_alive(script_host):
    gate = script_host.find("m").network.gate

    async def run():
        sent = Sent()
        gate.clear()
        stream, _ = stream_of(script_host, "a", sent, pause_s=0.02)
        task = asyncio.ensure_future(stream({}, None, sent))
        while len(sent.bodies) < 3:
            await asyncio.sleep(0.005)
        assert set(sent.bodies) == {COMMENT}
        gate.set()
        await task
        return sent

    sent = asyncio.run(run())
    assert [one["type"] for one in sent].count("http.response.start") == 1
    whole = b"".join(sent.bodies)
    assert whole.startswith(COMMENT * 3) and whole.endswith(b"data: [DONE]\n\n") and b'"content":"T"' in whole


def test_no_comment_goes_into_a_send(script_host):
    """To somebody who does not read, more would only pile up."""
    async def run():
        sent = Sent()
        wire = Wire(sent, 0.01)
        sent.gate.clear()
        task = asyncio.ensure_future(wire.send(b"data: 1\n\n"))
        await asyncio.sleep(0.05)
        sent.gate.set()
        await task
        wire.close()
        await asyncio.sleep(0.03)  # nor after it was closed
        return sent

    assert asyncio.run(run()).bodies == [b"data: 1\n\n"]


def test_a_send_waits_for_the_comment_that_is_on_its_way():
    async def run():
        sent = Sent()
        sent.gate.clear()
        wire = Wire(sent, 0.01)
        while len(sent) < 1:
            await asyncio.sleep(0.002)
        task = asyncio.ensure_future(wire.send(b"data: 1\n\n", last=True))
        await asyncio.sleep(0.01)
        assert len(sent) == 1
        sent.gate.set()
        await task
        wire.close()
        return sent

    assert asyncio.run(run()).bodies == [COMMENT, b"data: 1\n\n"]


# ---- errors


@pytest.fixture
def broken(app, tmp_path):
    """A model that fails with its third token, if the prompt is "x"."""
    def f(text):
        if len(text) > 2 and text[0] == f.bad:
            raise ValueError("somebody's text")
        return 70

    model = scripted.model(f, tmp_path / "m")
    f.bad = model.tokenizer.encode("x", add_special_tokens=False, parse_special=False)[0]
    host = scripted.ScriptHost({"m": model})
    client = app(host=host)
    client.letter = model.tokenizer.decode([70])
    yield client
    host.close()


def test_an_error_in_the_middle_is_the_last_event(broken):
    answer = broken.post(CHAT, chat("x", max_tokens=9))
    *parts, last, nothing = answer.text.split("\n\n")
    assert answer.status_code == 200 and nothing == "" and len(parts) >= 2
    error = json.loads(last.removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "server_error"
    assert "somebody" not in answer.text and "[DONE]" not in answer.text
    assert texts(events(broken.post(CHAT, chat("y", max_tokens=5)))) == 5 * [broken.letter]


def test_an_error_before_the_first_event_has_its_status(broken):
    for wrong in ({"temperature": -1}, {"logit_bias": {"264": 1}}, {"max_tokens": 5000}):
        answer = broken.post(CHAT, chat("y", **wrong))
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["param"] == next(iter(wrong))


def test_a_deadline_ends_a_stream_with_an_error(script, script_host):
    gate = script_host.find("m").network.gate
    gate.clear()
    try:
        answer = script.post(CHAT, chat("l", timeout=0.05))
    finally:
        gate.set()
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"


def test_no_character_of_a_text_ends_a_line():
    """Clients that split texts at every kind of line end, as str.splitlines does, still see whole events."""
    text = "a\u0085b\u2028c\u2029d é猫\n\r"
    data = one_line_each([b"data: ", msgspec.json.encode(text), b"\n\n"]).decode()
    line, rest = data.splitlines()
    assert msgspec.json.decode(line.removeprefix("data: ")) == text and rest == ""
