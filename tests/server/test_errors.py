"""Every failure has OpenAI's shape and names what is wrong; bodies are hostile."""

import json
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from forwardpass.server.errors import ApiError, api_error, printable
from forwardpass.server.routes import ROUTES, Route


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    messages: list[Message] = []
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    temperature: float | None = None
    bias: dict[int, float] | None = None
    anything: Any = None


async def handler(call, body):
    return body


@pytest.fixture
def client(app):
    return app(routes=(*ROUTES, Route("POST", "/want", handler, "For a test.", body=Wanted, answer=Wanted)))


def refused(answer, status, code=None, param=None):
    """Its message. The shape is checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"].endswith("_error")
    assert (body["error"]["code"], body["error"]["param"]) == (code, param), body
    return body["error"]["message"]


def post(client, content, kind="application/json", **headers):
    return client.request("POST", "/want", content=content, headers={"content-type": kind, **headers})


@pytest.mark.parametrize("body, code, param", [
    ('{"model": 7}', "invalid_value", "model"),
    ('{}', "missing_field", "model"),
    ('{"model": "m", "modle": 1}', "unknown_field", "modle"),
    ('{"model": "m", "": 1}', "unknown_field", None),
    ('{"model": "m", "messages": {}}', "invalid_value", "messages"),
    ('{"model": "m", "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]}',
     "invalid_value", "messages[1].content"),
    ('{"model": "m", "messages": [{"role": "user"}]}', "missing_field", "messages[0].content"),
    ('{"model": "m", "messages": [{"role": "user", "content": "", "name": "x"}]}', "unknown_field", "messages[0].name"),
    ('{"model": "m", "n": 0}', "invalid_value", "n"),
    ('{"model": "m", "n": 129}', "invalid_value", "n"),
    ('{"model": "m", "n": 1.5}', "invalid_value", "n"),
    ('{"model": "m", "n": "2"}', "invalid_value", "n"),
    ('{"model": "m", "n": true}', "invalid_value", "n"),
    ('{"model": "m", "n": ' + "9" * 30 + "}", "invalid_value", "n"),
    ('{"model": "m", "n": ' + "9" * 100_000 + "}", "invalid_value", "n"),
    ('{"model": "m", "n": -9223372036854775809}', "invalid_value", "n"),
    ('{"model": "m", "temperature": 1e999}', "invalid_value", "temperature"),
    ('{"model": "m", "temperature": []}', "invalid_value", "temperature"),
    ('{"model": "m", "bias": {"a": 1}}', "invalid_value", "bias"),
    ('{"model": "m", "bias": {"7": "much"}}', "invalid_value", "bias"),
    ("[]", "invalid_value", None),
    ("null", "invalid_value", None),
    ('"text"', "invalid_value", None),
])
def test_what_does_not_fit_is_named(client, body, code, param):
    message = refused(post(client, body), 400, code, param)
    assert param is None or message.startswith(f"{param}: ")


@pytest.mark.parametrize("body, said", [
    ('{"model": "m", "n": 0}', "n: expected `int` >= 1, found 0"),
    ('{"model": "m", "n": 129}', ", found 129"),
    ('{"model": "m", "n": "2"}', "got `str`"),
    ('{"model": "m", "modle": 1}', "is it 'model' that you mean?"),
    ('{"model": "m", "temprature": 1}', "is it 'temperature' that you mean?"),
    ("", "the body is empty; send a JSON object"), (" \n", "the body is empty"),
])
def test_what_was_found_is_said(client, body, said):
    assert said in post(client, body).json()["error"]["message"]


def test_names_like_nothing_are_not_guessed_at(client):
    for name in ("zzzz", "model" * 100_000):
        answer = post(client, '{"model": "m", "' + name + '": 1}')
        assert answer.status_code == 400 and "you mean" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [
    b"", b"{", b'{"model": "m"', b'{"model": "m"} {}', b"model=m", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"model": NaN}',
    b'{"model": "m", "temperature": NaN}', b'{"model": "m", "temperature": Infinity}', b"{'model': 'm'}",
    b'{"model": "\xff"}', b'{"model": "caf\xe9"}', b'{"model": "\xed\xa0\x80"}', b'{"model": "a\nb"}',
    '{"model": "m"}'.encode("utf-16"), '{"model": "m"}'.encode("utf-32"), b"\x1f\x8b\x08\x00", b"\x00" * 100,
    b"[" * 100_000, b'{"model": "m", "anything": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model": "m", "anything": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
])
def test_what_is_no_json(client, body):
    refused(post(client, body), 400, "invalid_json" if body[:2] != b"[[" else "invalid_value")  # a list is no object
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("value, param", [
    ('"\\ud800"', "model"), ('"a\\udc00b"', "model"), ('"\\ude00\\ud83d"', "model"), ('"\\uD83D"', "model"),
    ('"m", "messages": [{"role": "user", "content": "x\\ud83dy"}]', "messages[0].content"),
    ('"m", "anything": {"deep": ["", "\\udfff"]}', "anything.deep[1]"),
    ('"m", "anything": {"k": {"\\ud83d": 1}}', "anything.k.\N{REPLACEMENT CHARACTER}"),
])
def test_half_of_a_surrogate_pair_is_named(client, value, param):
    message = refused(post(client, '{"model": ' + value + "}"), 400, "invalid_value", param)
    assert "surrogate" in message


def test_whole_pairs_and_escapes_arrive(client):
    answer = post(client, '{"model": "\\ud83d\\ude00 \\u00e9\\u0000 \\\\ud800"}')
    assert answer.json()["model"] == "\N{GRINNING FACE} é\0 \\ud800"


@pytest.mark.parametrize("kind, headers", [
    ("text/plain", {}), ("application/x-www-form-urlencoded", {}), ("", {}), ("application/json; charset=latin-1", {}),
    ("application/json; charset=utf-16", {}), ("application/jsonl", {}),
    ("application/json", {"content-encoding": "gzip"}), ("application/json", {"content-encoding": "br"}),
])
def test_other_kinds_of_bodies(client, kind, headers):
    refused(post(client, '{"model": "m"}', kind, **headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", 'Application/JSON ;charset="UTF-8"',
                                  "application/json; version=1"])
def test_json_by_other_spellings(client, kind):
    assert post(client, '{"model": "m"}', kind).status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/want/", "//want", "/Want", "/want%0A", "/want%00",
                                  "/%77ant%2f", "/want%E2%80%A8", "/want%0D%0A", "/é", "/" + "x" * 3000])
def test_paths_that_are_no_routes(client, path):
    refused(client.request("POST", path, json={"model": "m"}), 404, "unknown_route")


@pytest.mark.parametrize("method, path, allowed", [("GET", "/want", "POST"), ("PUT", "/want", "POST"),
                                                   ("DELETE", "/health", "GET"), ("OPTIONS", "/want", "POST"),
                                                   ("BREW", "/version", "GET")])
def test_methods_that_a_route_does_not_take(client, method, path, allowed):
    answer = client.request(method, path)
    refused(answer, 405, "method_not_allowed")
    assert allowed in answer.headers["allow"]


def test_long_values_are_not_echoed_whole(client):
    answer = post(client, json.dumps({"model": "m", "x" * 100_000: 1}))
    assert answer.status_code == 400 and len(answer.content) < 5000


def test_messages_can_always_be_encoded():
    assert printable("a\ud800b") == "a\N{REPLACEMENT CHARACTER}b"
    error = ApiError(400, "bad \udfff", param="x\ud800")
    assert json.loads(error.body())["error"]["message"] == "bad \N{REPLACEMENT CHARACTER}"


def test_an_error_stays_what_it_is():
    error = ApiError(418, "no", code="teapot")
    assert api_error(error) is error and error.type == "invalid_request_error"
