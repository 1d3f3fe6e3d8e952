"""What bodies of /v1/chat/completions and /v1/completions may hold: every field of the API, and every wrong value."""

import json

import msgspec
import pytest

from forwardpass.server.body import decode_body
from forwardpass.server.chat import check
from forwardpass.server.completions import check as check_completion
from forwardpass.server.errors import ApiError
from forwardpass.server.schemas import prompts
from forwardpass.server.schemas_generation import ChatRequest, CompletionRequest, Message, Part, StreamOptions

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
CHATS, TEXTS = msgspec.json.Decoder(ChatRequest), msgspec.json.Decoder(CompletionRequest)


def chat(**fields):
    body = decode_body(json.dumps({**CHAT, **fields}).encode(), CHATS)
    check(body)
    return body


def completion(**fields):
    body = decode_body(json.dumps({**TEXT, **fields}).encode(), TEXTS)
    check_completion(body, len(prompts(body.prompt, "prompt")))
    return body


BOTH = pytest.mark.parametrize("ask", [chat, completion])


# ---- the API's own list of fields


def test_every_field_of_the_official_client_is_known():
    """Accepted or refused, but none is unknown: that would say nothing of what works instead."""
    from openai.types import completion_create_params as texts
    from openai.types.chat import (
        ChatCompletionAssistantMessageParam,
        ChatCompletionContentPartTextParam,
        ChatCompletionMessage,
        ChatCompletionStreamOptionsParam,
        ChatCompletionToolMessageParam,
        ChatCompletionUserMessageParam,
    )
    from openai.types.chat import completion_create_params as chats

    def fields(*kinds):
        return {name for kind in kinds for name in getattr(kind, "model_fields", None) or kind.__annotations__}

    assert fields(chats.CompletionCreateParamsBase) | {"stream"} <= set(ChatRequest.__struct_fields__)
    assert fields(texts.CompletionCreateParamsBase) | {"stream"} <= set(CompletionRequest.__struct_fields__)
    assert fields(ChatCompletionUserMessageParam, ChatCompletionAssistantMessageParam, ChatCompletionToolMessageParam,
                  ChatCompletionMessage) <= set(Message.__struct_fields__)
    assert fields(ChatCompletionContentPartTextParam) <= set(Part.__struct_fields__)
    assert fields(ChatCompletionStreamOptionsParam) <= set(StreamOptions.__struct_fields__)


@pytest.mark.parametrize("fields", [
    {"user": "u-1"}, {"metadata": {"a": "b"}}, {"store": True}, {"store": False}, {"service_tier": "auto"},
    {"safety_identifier": "s"}, {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}, {"tools": []}, {"tools": None}, {"functions": []},
    {"tool_choice": "none"}, {"tool_choice": "auto"}, {"function_call": "none"}, {"parallel_tool_calls": True},
    {"parallel_tool_calls": False}, {"response_format": {"type": "text"}}, {"modalities": ["text"]},
    {"verbosity": "medium"}, {"prediction": {"type": "content", "content": "x"}}, {"audio": None}, {"moderation": None},
    {"n": 1}, {"n": 128}, {"stop": "x"}, {"stop": ["x"] * 16}, {"stop": []}, {"temperature": 0}, {"temperature": 2.5},
    {"top_p": 0}, {"top_p": 1}, {"top_k": -1}, {"top_k": 0}, {"top_k": 5}, {"logit_bias": {}},
    {"logit_bias": {"5": -100, "6": 100}}, {"seed": 0}, {"seed": -1}, {"seed": 2**63}, {"seed": 2**64 - 1},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"logprobs": True, "top_logprobs": 20}, {"logprobs": False}, {"priority": -1000}, {"timeout": 0.5},
    {"cache_salt": "tenant"}, {"max_tokens": 1}, {"max_completion_tokens": 1, "max_tokens": 2},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"continue_final_message": True, "add_generation_prompt": False},
])
def test_values_of_a_chat_that_are_accepted(fields):
    chat(**fields)


def test_every_optional_field_may_be_null():
    for ask, kind, needed in ((chat, ChatRequest, CHAT), (completion, CompletionRequest, TEXT)):
        names = [field.name for field in msgspec.structs.fields(kind) if field.name not in {*needed, "priority"}]
        assert len(names) > 25
        body = ask(**dict.fromkeys(names))
        assert all(getattr(body, name) is None for name in names)


# ---- what is not served says what is


@pytest.mark.parametrize(("fields", "words"), [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools and functions are not supported"),
    ({"functions": [{"name": "f"}]}, "functions are not supported"),
    ({"tool_choice": "required"}, "no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "no tools"),
    ({"function_call": {"name": "f"}}, "no tools"),
    ({"response_format": {"type": "json_object"}}, '"text"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, '"text"'),
    ({"response_format": {"type": "text", "json_schema": {"a": 1}}}, '"text"'),
    ({"modalities": ["text", "audio"]}, r'\["text"\]'), ({"modalities": []}, r'\["text"\]'),
    ({"audio": {"voice": "x", "format": "mp3"}}, "text"), ({"web_search_options": {}}, "text"),
    ({"moderation": {"model": "m"}}, "text"),
    ({"verbosity": "low"}, "medium"), ({"logits_processors": ["x"]}, "logit_bias"),
])
def test_what_is_not_served_says_what_is(fields, words):
    with pytest.raises(ApiError, match=words) as caught:
        chat(**fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, next(iter(fields)), "unsupported_value")


@pytest.mark.parametrize("fields", [{"guided_json": {}}, {"best_of": 2}, {"Temperature": 1}, {"prompt": "x"}, {"": 1}])
def test_unknown_fields_are_named(fields):
    with pytest.raises(ApiError, match="unknown field") as caught:
        chat(**fields)
    assert caught.value.param == (next(iter(fields)) or None) and caught.value.code == "unknown_field"


# ---- wrong values


@BOTH
@pytest.mark.parametrize(("field", "value"), [
    *[("n", one) for one in (0, -1, 129, 10**6, 2**31, 2**63, 1.5, 1.0, "2", True, [1])],
    *[("temperature", one) for one in (-1, -0.1, "hot", True, [], {})],
    *[("top_p", one) for one in (-0.1, 1.1, "1", 2**70)],
    *[("top_k", one) for one in (-2, 1.5, "5", 2**31, True)],
    *[("min_p", one) for one in (-0.01, 1.01, "0")], *[("typical_p", one) for one in (0, -1, 1.5)],
    *[("repetition_penalty", one) for one in (0, -1, 101, "1")],
    *[("presence_penalty", one) for one in (-2.1, 2.1, "0")], *[("frequency_penalty", one) for one in (-3, 3)],
    *[("logit_bias", one) for one in ([1], "x", 5, [])],
    *[("logit_bias[5]", one) for one in (101, -101, "1", None, True)],
    *[("seed", one) for one in (1.5, "7", True, [1], 2**64, -(2**63) - 1, 10**40)],
    *[("stop", one) for one in ("", 5, {"a": 1}, True, ["x"] * 17, "x" * 1001)],
    *[("stop[0]", one) for one in ("", None, 5, "x" * 1001, ["x"])],
    *[("stop_token_ids", one) for one in (5, "5", {"a": 1}, [1] * 1025)],
    *[("stop_token_ids[0]", one) for one in (-1, "5", 1.5, None, True)],
    *[("min_tokens", one) for one in (-1, 1.5, "1", 2**31)], *[("ignore_eos", one) for one in (0, 1, "true")],
    *[("include_stop_str_in_output", one) for one in (1, "no")], *[("num_beams", one) for one in (0, 129, 1.5)],
    *[("length_penalty", one) for one in (-11, 11, "x")], *[("early_stopping", one) for one in ("always", 1)],
    *[("stream", one) for one in (1, "yes")], *[("stream_options", one) for one in (True, [], "x")],
    *[("stream_options.include_usage", one) for one in (1, "yes")], ("stream_options.other", True),
    *[("priority", one) for one in (-1001, 1001, 1.5, "high")], *[("timeout", one) for one in (0, -1, "5")],
    *[("cache_salt", one) for one in (5, "s" * 300)], *[("user", one) for one in (5, ["u"])],
    *[("model", one) for one in ("", None, 5, ["m"])],
    *[("max_tokens", one) for one in (-1, 1.0, 1.5, "5", True)],
])
def test_wrong_values_are_named(ask, field, value):
    head, _, tail = field.partition("[")
    if tail:
        sent = {head: [value] if head.startswith("stop") else {tail.rstrip("]"): value}}
    elif "." in field:
        head, tail = field.split(".")
        sent = {head: {tail: value}, "stream": True}
    else:
        sent = {field: value}
    with pytest.raises(ApiError) as caught:
        ask(**sent)
    named = field if head != "logit_bias" else head  # a dict's key is not part of the path
    assert (caught.value.status, caught.value.param) == (400, named)
    assert caught.value.message.startswith(named)


@pytest.mark.parametrize(("field", "value"), [
    *[("messages", one) for one in ([], None, "hi", {}, 5)],
    *[("messages[0]", one) for one in ("hi", None, 5, [])],
    *[("messages[0].role", one) for one in ("", None, 5, "r" * 65)],
    *[("messages[0].content", one) for one in (5, {"type": "text"}, True)],
    *[("messages[0].content[0]", one) for one in ("hi", 5, None)],
    *[("messages[0].name", one) for one in (5, "n" * 513)],
    *[("messages[0].unknown", one) for one in (1,)],
    *[("max_tokens", one) for one in (0,)], *[("max_completion_tokens", one) for one in (0, -1, 1.5, "5", True)],
    *[("logprobs", one) for one in (1, "yes", 5)],
    *[("top_logprobs", one) for one in (-1, 21, 128256, 10**9, 1.5, True)],
    *[("chat_template_kwargs", one) for one in ([], "x")], *[("metadata", one) for one in ("x", [])],
    *[("store", one) for one in ("yes",)], *[("response_format", one) for one in ("text", [])],
    *[("response_format.type", one) for one in (5, None)], *[("modalities", one) for one in ("text",)],
    *[("tools", one) for one in ("x", {})],
])
def test_wrong_values_of_a_chat_are_named(field, value):
    sent, at = {}, field
    if field.startswith("messages[0]"):
        message = {"role": "user", "content": "hi"}
        sent["messages"] = [value if field == "messages[0]" else message]
        if field.endswith("content[0]"):
            message["content"] = [value]
        elif "." in field:
            message[field.split(".")[1]] = value
    elif "." in field:
        head, tail = field.split(".")
        sent = {head: {tail: value}}
    else:
        sent = {field: value}
    with pytest.raises(ApiError) as caught:
        chat(**sent)
    assert (caught.value.status, caught.value.param) == (400, at)


@pytest.mark.parametrize(("field", "value"), [
    *[("prompt", one) for one in (None, 5, {}, [], True)],
    *[("prompt[0]", one) for one in (None, True, 1.5, {}, [])], ("prompt[0][0]", "a"), ("prompt[0][0]", None),
    *[("suffix", one) for one in (5, ["x"])], *[("echo", one) for one in (1, "yes")],
    *[("logprobs", one) for one in (True, -1, 21, 32000, 10**9, 1.5, "5")],
    *[("best_of", one) for one in (0, -1, 129, 10**6, 1.5, "2", True)],
    *[("context_tokens", one) for one in (0, -1, "5", True)],
])
def test_wrong_values_of_a_completion_are_named(field, value):
    name = field.split("[")[0]
    sent = {name: [[value]] if field.endswith("[0][0]") else [value] if field.endswith("[0]") else value}
    with pytest.raises(ApiError) as caught:
        completion(**sent)
    assert caught.value.status == 400 and caught.value.param == field


@pytest.mark.parametrize(("ask", "fields", "param", "words"), [
    (chat, {"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    (chat, {"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    (completion, {"stream_options": {}}, "stream_options", "stream"),
    (completion, {"n": 3, "best_of": 2}, "best_of", "at least n, which is 3"),
    (completion, {"best_of": 2, "stream": True}, "best_of", "stream must be false"),
    (completion, {"best_of": 2, "num_beams": 3}, "best_of", "num_beams"),
    (completion, {"max_tokens": 0}, "max_tokens", "echo"),
    (completion, {"suffix": "x", "prompt": ["a", "b"]}, "suffix", "one text"),
    (completion, {"suffix": "x", "prompt": [1, 2]}, "suffix", "one text"),
    (completion, {"suffix": "x", "echo": True}, "echo", "suffix"),
    (completion, {"context_tokens": 5}, "context_tokens", "suffix"),
    (completion, {"prompt": ["a"] * 65, "n": 2}, "n", "2 answers to each of 65 prompts.*128"),
    (completion, {"prompt": ["a"] * 129}, "n", "129 prompts.*128"),
    (completion, {"prompt": ["a", "b"], "best_of": 65}, "best_of", "65 answers to each of 2.*128"),
    (completion, {"prompt": ["a", 5]}, "prompt[1]", "token id"),
    (completion, {"prompt": [[1], []]}, "prompt[1]", "empty"),
])
def test_fields_that_contradict_each_other(ask, fields, param, words):
    with pytest.raises(ApiError, match=words) as caught:
        ask(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("raw", [
    b"", b"{", b"null", b"[]", b'"x"', b"{'model': 1}", b'{"model": "m", "prompt": "\xff"}', b'{"model": "m"}',
    b'{"model": "m", "prompt": "a", "temperature": NaN}', b'{"model": "m", "prompt": "a", "temperature": 1e999}',
    b'{"model": "m", "prompt": "a", "temperature": Infinity}', b'{"model": "m", "prompt": "a", "seed": 1e3}',
    b'{"model": "m", "prompt": "\\ud800"}', b'\xef\xbb\xbf{"model": "m", "prompt": "a"}', b"[" * 100_000,
    b'{"model": "m", "prompt": ' + b"[" * 100_000, b'{"model": "m", "prompt": "a", "logit_bias": {"3": NaN}}',
])
def test_bodies_that_are_none(raw):
    with pytest.raises(ApiError) as caught:
        decode_body(raw, TEXTS)
    assert caught.value.status == 400
