"""Whatever settings a request combines: it is answered or refused with the name of a field, and a stream of it comes to
the same answer."""

import json
import random
import tracemalloc

import pytest

import scripted
from forwardpass.errors import ParameterError
from forwardpass.server.errors import ApiError
from forwardpass.server.generation import fingerprint, renamed

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SETTINGS = {
    "n": [1, 2, 3], "temperature": [0, 1, 0.3], "top_p": [0.5, 1], "top_k": [5, -1], "min_p": [0.1], "typical_p": [0.5],
    "repetition_penalty": [1.2], "presence_penalty": [1], "frequency_penalty": [-1], "logit_bias": [{"5": 3}, {}],
    "stop": ["a", ["b", "cc"]], "stop_token_ids": [[5], []], "include_stop_str_in_output": [True], "ignore_eos": [True],
    "min_tokens": [1, 3], "num_beams": [2, 3], "length_penalty": [0.5], "early_stopping": [True, "never"],
    "cache_salt": ["s"], "priority": [3], "timeout": [30],
}
OWN = {
    CHAT: {"logprobs": [True, False], "top_logprobs": [0, 5], "max_completion_tokens": [4],
           "continue_final_message": [True], "add_generation_prompt": [False], "chat_template_kwargs": [{"a": [1]}]},
    COMPLETIONS: {"logprobs": [0, 3], "echo": [True], "suffix": ["x"], "best_of": [3], "max_tokens": [0]},
}
PROMPTS = {
    CHAT: [[{"role": "user", "content": "hi"}],
           [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]],
    COMPLETIONS: ["hi", [5, 6], ["a", "b"], [[1], [2, 3]]],
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_settings_of_all_kinds_together(client, host, path):
    rng = random.Random(path)
    known = SETTINGS | OWN[path]
    answered = 0
    for seed in range(120):
        body = {"model": "chat", "max_tokens": 5, "seed": seed,
                "messages" if path == CHAT else "prompt": rng.choice(PROMPTS[path])}
        body |= {name: rng.choice(known[name]) for name in rng.sample(sorted(known), rng.randint(0, 7))}
        whole = client.post(path, body)
        stream = client.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        if whole.status_code == 400:
            assert whole.json()["error"]["param"] in {*body, "n"}, (body, whole.text)
            assert stream.status_code == 400, body
            continue
        assert whole.status_code == 200, (body, whole.text)
        if stream.status_code == 400:
            assert "best_of" in body, (body, stream.text)
            continue
        answered += 1
        assert together(stream.text) == plain(whole.json()), body
    assert answered > 50
    engine = host.find("chat").engine
    assert not engine.busy and not engine.scheduler.running and not engine.scheduler.waiting


def plain(answer: dict) -> dict:
    """Of an answer, what its stream says as well."""
    return {choice["index"]: [choice["message"]["content"] if "message" in choice else choice["text"],
                              flat(choice["logprobs"]), choice["finish_reason"]]
            for choice in answer["choices"]} | {"usage": counted(answer["usage"])}


def together(text: str) -> dict:
    """The same of a stream."""
    *lines, done, _ = text.split("\n\n")
    assert done == "data: [DONE]", text
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    out: dict = {"usage": counted(last["usage"])}
    for chunk in chunks:
        for choice in chunk["choices"]:
            said = out.setdefault(choice["index"], ["", [], None])
            said[0] += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            said[1] += flat(choice["logprobs"])
            said[2] = choice["finish_reason"]
    return out


def flat(logprobs: dict | None) -> list:
    if logprobs is None:
        return []
    return logprobs["content"] if "content" in logprobs else list(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"] or logprobs["tokens"],
            logprobs["text_offset"], strict=True))


def counted(usage: dict) -> tuple[int, int]:
    """Without what the cache had, which the first of two requests leaves to the second."""
    return usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize(("fields", "tokens"), [({}, 192), ({"num_beams": 3}, 64), ({"n": 3}, 3 * 192)])
def test_by_default_an_answer_is_no_longer_than_the_cache(app, tmp_path, fields, tokens):
    """Three blocks, a context of 4,096: beams must fit side by side, answers may follow one another."""
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", blocks=3, end=())})
    client = app(host=host)
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], **fields}
    assert client.post(CHAT, body).json()["usage"]["completion_tokens"] == tokens
    refused = client.post(CHAT, {**body, "max_tokens": 300})
    assert refused.status_code == 400 and "KV cache" in refused.json()["error"]["message"]
    host.close()


@pytest.mark.parametrize(("message", "param", "words"), [
    ("min_new_tokens must be in [0, max_new_tokens]; got 5 with max_new_tokens = 4.", "min_tokens",
     "min_tokens must be in [0, max_tokens]; got 5 with max_tokens = 4."),
    ("num_return_sequences must be in [1, num_beams]; got 3", "n", "n must be in [1, num_beams]; got 3"),
    ("logit_bias: token ids must be in [0, 63]", "logit_bias", "logit_bias: token ids must be in [0, 63]"),
    ("the request needs room; lower max_new_tokens", None, "the request needs room; lower max_tokens"),
])
def test_errors_of_the_library_are_told_by_the_apis_names(message, param, words):
    error = renamed(ParameterError(message))
    assert isinstance(error, ApiError) and (error.status, error.param, error.message) == (400, param, words)


def test_a_fingerprint_is_that_of_what_changes_answers(tmp_path):
    one, same, other = (scripted.model(lambda text: 70, tmp_path / name, context=context)
                        for name, context in (("a", 100), ("b", 100), ("c", 200)))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    for model in (one, same, other):
        model.close()


def test_log_probabilities_are_few_bytes_until_they_are_sent(client):
    """What MAX_LOGPROBS promises: about 300 bytes each, so that the most that one request may ask for is some 80 MB."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 20,
            "n": 4, "max_tokens": 150, "ignore_eos": True, "temperature": 1}
    client.post(CHAT, {**body, "max_tokens": 1})
    tracemalloc.start()
    answer = client.post(CHAT, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    count = sum(len(one["logprobs"]["content"]) for one in answer.json()["choices"])
    assert count == 600 and peak < 400 * 21 * count + 2e6
