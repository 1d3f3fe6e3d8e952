"""/v1/chat/completions: what it answers is what Model.chat answers, and what it refuses harms nobody."""

import asyncio
import json
import re
import tracemalloc
from time import perf_counter

import pytest

import scripted
from forwardpass.server.generation import sampling
from forwardpass.server.schemas_generation import ChatRequest
from forwardpass.stages.template import chat_ids

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "What is a llama?"}]


def ask(messages=HELLO, **more):
    return {"model": "chat", "messages": messages, "max_tokens": 12, **more}


@pytest.fixture(scope="module")
def model(host):
    return host.find("chat")


def streamed(answer) -> dict[int, dict]:
    """What the events of a stream come to: by index, text, entries of log-probabilities and finish_reason."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    out: dict[int, dict] = {}
    for line in lines:
        for choice in json.loads(line)["choices"]:
            one = out.setdefault(choice["index"], {"text": "", "logprobs": [], "finish_reason": None})
            one["text"] += choice["delta"].get("content", "")
            one["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            one["finish_reason"] = choice["finish_reason"] or one["finish_reason"]
    return out


# ---- the same answers as the library's


SETTINGS = [
    ({}, {}),
    ({"temperature": 0}, {"do_sample": False}),
    ({"temperature": 0.8, "seed": 7}, {"do_sample": True, "temperature": 0.8, "seed": 7}),
    ({"temperature": 1e-5, "seed": 1}, {}),
    ({"temperature": 1e9, "seed": 1}, {"do_sample": True, "temperature": 1e9, "seed": 1}),
    ({"top_p": 0.9, "seed": 3}, {"do_sample": True, "top_p": 0.9, "seed": 3}),
    ({"top_k": 5, "seed": -1}, {"do_sample": True, "top_k": 5, "seed": 2**64 - 1}),
    ({"top_k": -1, "seed": 2**63}, {"do_sample": True, "seed": 2**63}),
    ({"min_p": 0.05, "typical_p": 0.9, "seed": 0}, {"do_sample": True, "min_p": 0.05, "typical_p": 0.9, "seed": 0}),
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"presence_penalty": 1.5, "frequency_penalty": 0.7}, {"presence_penalty": 1.5, "frequency_penalty": 0.7}),
    ({"logit_bias": {"70": 100}}, {"logit_bias": {70: 100}}),
    ({"n": 3, "temperature": 1.2, "seed": 7},
     {"num_return_sequences": 3, "do_sample": True, "temperature": 1.2, "seed": 7}),
    ({"stop_token_ids": [70, 71, 72, 73]}, {"stop_token_ids": [70, 71, 72, 73]}),
    ({"ignore_eos": True, "min_tokens": 5}, {"ignore_eos": True, "min_new_tokens": 5}),
    ({"num_beams": 3, "n": 2, "length_penalty": 0.5},
     {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5}),
]


@pytest.mark.parametrize(("fields", "params"), SETTINGS)
def test_answers_are_those_of_the_library(client, model, fields, params):
    """Whole and streamed: texts, reasons, log-probabilities of every token and of the likeliest, to the last bit."""
    done = model.chat(HELLO, max_new_tokens=12, logprobs=2, **params)
    done = done if isinstance(done, list) else [done]
    body = ask(logprobs=True, top_logprobs=2, **fields)
    answer = client.post(PATH, body).json()
    parts = streamed(client.post(PATH, {**body, "stream": True}))
    assert len(answer["choices"]) == len(done) == len(parts)
    for index, (choice, expected) in enumerate(zip(answer["choices"], done, strict=True)):
        assert choice["index"] == index and choice["message"] == {
            "role": "assistant", "content": expected.text, "refusal": None}
        assert choice["finish_reason"] == expected.finish_reason
        entries = choice["logprobs"]["content"]
        assert [one["logprob"] for one in entries] == expected.logprobs
        assert [[top["logprob"] for top in one["top_logprobs"]] for one in entries] == [
            list(top.values()) for top in expected.top_logprobs]
        assert [bytes(one["bytes"]) for one in entries] == [model.tokenizer.token_bytes(i) for i in expected.token_ids]
        assert choice.get("score") == expected.score
        assert parts[index] == {"text": expected.text, "logprobs": entries, "finish_reason": expected.finish_reason}
    prompt, said = len(done[0].prompt_token_ids), sum(len(one.token_ids) for one in done)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (prompt, said, prompt + said)


def test_the_answer_around_the_text(client):
    answer = client.post(PATH, ask())
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion" and body["model"] == "chat"
    assert body["system_fingerprint"].startswith("fp_") and isinstance(body["created"], int)
    assert body["choices"][0]["logprobs"] is None and "score" not in body["choices"][0]
    again = client.post(PATH, ask()).json()
    assert again["id"] != body["id"] and again["system_fingerprint"] == body["system_fingerprint"]


def test_an_alias_is_the_name_that_was_asked_for(client):
    assert client.post(PATH, {**ask(), "model": "small"}).json()["model"] == "small"


def test_a_seed_means_the_same_whoever_else_is_served(client):
    """Alone, twice at once, beside others that come in another order and have no seed."""
    body = ask(temperature=1, seed=7, n=2)
    alone = client.post(PATH, body).json()["choices"]

    async def together(bodies):
        answers = await asyncio.gather(*[client.client.post(PATH, json=one) for one in bodies])
        return [answer.json()["choices"] for answer in answers]

    others = [ask([{"role": "user", "content": "x" * i}], temperature=1.5, max_tokens=30) for i in range(6)]
    for bodies in ([body, body], [*others, body], [body, *others], [others[2], body, others[1]]):
        found = client.run(together(bodies))
        assert all(one == alone for one, sent in zip(found, bodies, strict=True) if sent is body)
    assert alone[0] != alone[1]
    assert client.post(PATH, {**body, "n": 1}).json()["choices"][0] == alone[0]


@pytest.mark.parametrize(("fields", "expected"), [
    ({}, None), ({"temperature": 0}, False), ({"temperature": 0, "top_p": 0.5}, False), ({"temperature": 0.1}, True),
    ({"top_p": 1}, True), ({"top_k": 5}, True), ({"min_p": 0}, True), ({"typical_p": 1}, True), ({"seed": 5}, None),
])
def test_when_answers_are_sampled(fields, expected):
    body = ChatRequest(model="m", messages=[], **fields)
    assert sampling(body).get("do_sample") is expected


def test_the_models_files_say_what_the_client_does_not(app, tmp_path):
    """do_sample and a length of generation_config.json hold until a field says something else."""
    def f(text):
        return scripted.np.random.default_rng(hash(tuple(text)) & 0xFFFF).normal(0, 2, scripted.VOCAB).astype("f")

    files = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 5}
    model = scripted.model(f, tmp_path / "m", generation=files, end=())
    host = scripted.ScriptHost({"chat": model})
    client = app(host=host)
    body = {"model": "chat", "messages": HELLO, "seed": 3}
    sampled = client.post(PATH, body).json()["choices"][0]
    assert sampled["finish_reason"] == "length"
    assert sampled["message"]["content"] == model.chat(HELLO, seed=3).text
    greedy = client.post(PATH, {**body, "temperature": 0}).json()["choices"][0]["message"]["content"]
    assert greedy == model.chat(HELLO, do_sample=False).text != sampled["message"]["content"]
    assert client.post(PATH, {**body, "max_tokens": 7}).json()["usage"]["completion_tokens"] == 7
    host.close()


def test_rows_beyond_the_vocabulary_are_never_said(app, tmp_path):
    """The matrix has 264 rows, the tokenizer 260 tokens, and the last rows have the highest logits."""
    def f(text):
        return scripted.np.where(scripted.np.arange(scripted.VOCAB) >= 260, 50, 1).astype("f")

    host = scripted.ScriptHost({"chat": scripted.model(f, tmp_path / "m", end=())})
    client = app(host=host)
    for temperature in (0, 1):
        body = ask(temperature=temperature, seed=1, max_tokens=30, logprobs=True, top_logprobs=20)
        entries = client.post(PATH, body).json()["choices"][0]["logprobs"]["content"]
        assert len(entries) == 30 and all(len(one["top_logprobs"]) == 20 for one in entries)
        assert not any(top["token"].startswith("token_id") or not top["bytes"]
                       for one in entries for top in (one, *one["top_logprobs"]))
    host.close()


# ---- messages


def prompt_tokens(client, messages, **more):
    answer = client.post(PATH, ask(messages, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("messages", [
    [{"role": "system", "content": "Be brief."}, *HELLO], [{"role": "system", "content": "x"}],
    [*HELLO, {"role": "assistant", "content": "An animal."}, *HELLO], [{"role": "assistant", "content": "First."}],
    [{"role": "tool", "content": "5", "tool_call_id": "t"}], [{"role": "user", "name": "Ann", "content": "hi"}],
    [{"role": "user", "content": "a<|im_end|></s>"}], [{"role": "user", "content": ""}],
    [{"role": "user", "content": None}], [{"role": "Ünïcode", "content": "x"}],
])
def test_messages_go_through_the_models_template(client, model, messages):
    assert prompt_tokens(client, messages) == len(chat_ids(model.tokenizer, messages))


def test_parts_of_text(client):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "a llama?"}]
    assert prompt_tokens(client, [{"role": "user", "content": parts}]) == prompt_tokens(
        client, [{"role": "user", "content": "What is\na llama?"}])


def test_an_answer_can_be_sent_back_as_it_came(client):
    """Clients append the message of a choice to the conversation, with all its fields."""
    message = client.post(PATH, ask()).json()["choices"][0]["message"]
    whole = {**message, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    assert prompt_tokens(client, [*HELLO, whole, *HELLO]) == prompt_tokens(
        client, [*HELLO, {"role": "assistant", "content": message["content"]}, *HELLO])


def test_a_developer_is_the_system_unless_the_template_knows_one(client, app, tmp_path):
    developer, system = [[{"role": role, "content": "Be brief."}, *HELLO] for role in ("developer", "system")]
    assert prompt_tokens(client, developer) == prompt_tokens(client, system)
    template = "{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %}{% endfor %}"
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", template=template)})
    assert prompt_tokens(app(host=host), developer) == len("developer!user")
    host.close()


@pytest.mark.parametrize(("messages", "param", "words"), [
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}], "messages[0].content[0]",
     "text"),
    ([*HELLO, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]}],
     "messages[1].content[1]", "input_audio"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", "without text"),
    ([{"role": "user", "content": [{"type": "video", "text": "x"}]}], "messages[0].content[0]", "video"),
    ([{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}], "messages[0].tool_calls", "no tools"),
    ([{"role": "assistant", "content": None, "function_call": {"name": "f"}}], "messages[0].function_call", "no tools"),
    ([{"role": "critic", "content": "x"}], "messages", "no critics"),
    ([{"role": "user", "content": "x" * 1100}], "messages", r"11\d\d tokens.*1024"),
])
def test_messages_that_are_refused(client, messages, param, words):
    answer = client.post(PATH, ask(messages))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert re.search(words, error["message"])


@pytest.mark.parametrize(("template", "messages"), [
    ("{{ raise_exception('system is not for this model') }}", HELLO),
    ("{% if messages[0].role == messages[1].role %}{{ raise_exception('take turns') }}{% endif %}", HELLO * 2),
    ("{{ ''.__class__.__mro__ }}", HELLO), ("{{ messages.append(1) }}", HELLO), ("{% include 'x' %}", HELLO),
    ("{{ 'a' * 3000000000 }}", HELLO), ("{% for i in range(99999999) %}{% endfor %}", HELLO), ("{% if %}", HELLO),
    ("{{ namespace.__init__.__globals__ }}", HELLO),
])
def test_templates_that_refuse_or_misbehave(app, tmp_path, template, messages):
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", template=template)})
    client = app(host=host)
    answer = client.post(PATH, ask(messages))
    assert answer.status_code == 400 and "template" in answer.json()["error"]["message"]
    assert client.post("/v1/completions", {"model": "chat", "prompt": "x", "max_tokens": 2}).status_code == 200
    host.close()


def test_a_message_without_content_is_named_where_the_template_needs_it(app, tmp_path):
    template = "{% for one in messages %}{{ one['content'] + '.' }}{% endfor %}"
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", template=template)})
    error = app(host=host).post(PATH, ask([*HELLO, {"role": "user"}])).json()["error"]
    assert error["param"] == "messages[1].content" and "expected text, found none" in error["message"]
    host.close()


def test_the_last_message_is_continued(client, model):
    begun = [*HELLO, {"role": "assistant", "content": "It is an"}]
    ids = chat_ids(model.tokenizer, begun, continues=True)
    expected = model.generate(ids, max_new_tokens=12)
    for more in ({}, {"add_generation_prompt": False}):
        answer = client.post(PATH, ask(begun, continue_final_message=True, **more)).json()
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["usage"]["prompt_tokens"] == len(ids)
    answer = client.post(PATH, ask(begun, continue_final_message=True, add_generation_prompt=True))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "add_generation_prompt")


def test_no_answer_is_opened_if_none_is_wanted(client, model):
    ids = chat_ids(model.tokenizer, HELLO, add_generation_prompt=False)
    assert prompt_tokens(client, HELLO, add_generation_prompt=False) == len(ids)


def test_variables_of_the_template(app, tmp_path):
    template = "{{ messages[0].content }}{% if thinking %}T{% endif %}{{ reasoning_effort or '' }}"
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", template=template)})
    client = app(host=host)
    hi = [{"role": "user", "content": "hi"}]
    assert prompt_tokens(client, hi) == 2
    assert prompt_tokens(client, hi, chat_template_kwargs={"thinking": True}) == 3
    assert prompt_tokens(client, hi, reasoning_effort="low") == 5
    assert prompt_tokens(client, hi, chat_template_kwargs={"a b": {"": None}, "": 1, "self": 5}) == 2
    for name in ("messages", "add_generation_prompt", "tools", "template", "tokenizer", "continues", "bos_token"):
        answer = client.post(PATH, ask(hi, chat_template_kwargs={name: "<|im_end|>"}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")
    host.close()


def test_a_template_without_a_setting_refuses_it(client):
    answer = client.post(PATH, ask(reasoning_effort="low"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")


# ---- models


@pytest.mark.parametrize(("name", "status", "code"), [("nobody", 404, "model_not_found"),
                                                      ("labels", 400, "unsupported_by_model")])
def test_models_that_cannot(client, name, status, code):
    answer = client.post(PATH, {**ask(), "model": name})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, "model")
    assert ("chat" in error["message"]) or ("classify" in error["message"])


# ---- how long an answer may be


@pytest.mark.parametrize(("fields", "tokens"), [
    ({"max_tokens": 1}, 1), ({"max_tokens": None}, None), ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
    ({"max_completion_tokens": 2}, 2), ({"max_completion_tokens": None, "max_tokens": 4}, 4),
])
def test_how_long_answers_become(client, model, fields, tokens):
    usage = client.post(PATH, ask(ignore_eos=True, **fields)).json()["usage"]
    assert usage["completion_tokens"] == (1024 - usage["prompt_tokens"] if tokens is None else tokens)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_does_not_fit_is_refused_with_the_numbers(client, model, field):
    used = len(chat_ids(model.tokenizer, HELLO))
    room = 1024 - used
    body = {"model": "chat", "messages": HELLO, "ignore_eos": True}
    assert client.post(PATH, {**body, field: room}).json()["usage"]["completion_tokens"] == room
    for asked in (room + 1, 10**8, 2**63, 10**30):
        answer = client.post(PATH, {**body, field: asked})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
        assert all(str(number) in error["message"] for number in (asked, used, 1024, room))


@pytest.mark.parametrize(("length", "fits"), [(1023, True), (1024, False), (1500, False)])
def test_prompts_at_the_edge_of_the_context(client, model, length, fits):
    frame = len(chat_ids(model.tokenizer, [{"role": "user", "content": ""}]))
    body = {"model": "chat", "messages": [{"role": "user", "content": "x" * (length - frame)}]}
    answer = client.post(PATH, body)
    if fits:
        assert answer.json()["usage"]["completion_tokens"] == 1
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
        assert str(length) in error["message"] and "1024" in error["message"]


def test_the_operators_limit_always_holds(app, model):
    client = app(max_tokens_per_request=100)
    used = len(chat_ids(model.tokenizer, HELLO))
    body = {"model": "chat", "messages": HELLO, "ignore_eos": True}
    assert client.post(PATH, body).json()["usage"]["completion_tokens"] == 100 - used
    assert client.post(PATH, {**body, "n": 2}).json()["usage"]["completion_tokens"] == 2 * ((100 - used) // 2)
    for more in ({"max_tokens": 101 - used}, {"max_tokens": 60, "n": 2}, {"n": 100}):
        answer = client.post(PATH, {**body, **more})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "token_limit_exceeded"
        assert "100" in answer.json()["error"]["message"]


def test_by_default_a_request_asks_for_no_more_than_is_ever_granted(app, tmp_path):
    """Of the tokens in flight: otherwise it would be refused, and again whenever it came back."""
    host = scripted.ScriptHost({"chat": scripted.model(lambda text: 70, tmp_path / "m", end=())}, limit=50)
    client = app(host=host)
    hi = [{"role": "user", "content": "hi"}]
    assert client.post(PATH, {"model": "chat", "messages": hi}).json()["usage"]["completion_tokens"] == 48
    answer = client.post(PATH, {"model": "chat", "messages": hi, "max_tokens": 49})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "token_limit_exceeded")
    host.close()


def test_min_tokens(client):
    answer = client.post(PATH, ask(min_tokens=13))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")
    assert "max_tokens" in answer.json()["error"]["message"]
    answer = client.post(PATH, {"model": "chat", "messages": HELLO, "min_tokens": 1010})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")


def test_end_tokens(app, tmp_path):
    """The model's own all end an answer; ignore_eos switches them off, but not what the client names."""
    def f(text):
        return {"a": 75, "b": 257, "c": 258}.get(f.scripts[text[0]], 75) if len(text) == 2 else 74

    model = scripted.model(f, tmp_path / "m", end=(257, 258))
    f.scripts = dict(zip(scripted.tokens_of(model.tokenizer, b"abc"), "abc", strict=True))
    host = scripted.ScriptHost({"chat": model})
    client = app(host=host)

    def said(letter, **more):
        body = ask([{"role": "user", "content": letter}], max_tokens=4, **more)
        choice = client.post(PATH, body).json()["choices"][0]
        return len(choice["message"]["content"]), choice["finish_reason"]

    assert said("b") == said("c") == (1, "stop") and said("a") == (4, "length")
    assert said("b", ignore_eos=True)[1] == "length"
    assert said("a", ignore_eos=True, stop_token_ids=[75]) == (1, "stop")
    host.close()


# ---- what the cache had


def test_usage_says_what_of_the_prompt_was_cached(client, model):
    """A second turn finds the first one; the same text under another salt finds nothing."""
    long = [{"role": "user", "content": "What is a llama? " * 20}]

    def cached(messages, **more):
        answer = client.post(PATH, ask(messages, **more)).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["message"]["content"]

    first, said = cached(long, cache_salt="one")
    assert first == 0
    for more in ({}, {"n": 2}, {"num_beams": 2}):
        found, again = cached(long, cache_salt="one", **more)
        assert 320 <= found < len(chat_ids(model.tokenizer, long)) and (more.get("num_beams") or again == said)
    turn = [*long, {"role": "assistant", "content": said}, {"role": "user", "content": "Where?"}]
    assert cached(turn, cache_salt="one")[0] >= found
    assert cached(long, cache_salt="two") == (0, said)
    *_, last = [json.loads(line.removeprefix("data: ")) for line in client.post(PATH, ask(
        long, cache_salt="one", stream=True, stream_options={"include_usage": True})).text.split("\n\n")[:-2]]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == found


# ---- bad requests beside a good one


BAD = [
    {"n": 10**6}, {"n": 0}, {"n": True}, {"max_tokens": 0}, {"max_tokens": "5"}, {"temperature": -1},
    {"temperature": "hot"}, {"top_p": 2}, {"logit_bias": {"264": 5}}, {"logit_bias": {"-1": 5}},
    {"logit_bias": {"x": 1}}, {"logit_bias": {"3": 101}}, {"logit_bias": {"9" * 400: 1}}, {"seed": 1.5},
    {"stop_token_ids": [264], "min_tokens": 2}, {"stop_token_ids": [-1], "min_tokens": 2}, {"stop_token_ids": [2**63]},
    {"stop": ""}, {"stop": [""]}, {"stop": [None]}, {"stop": ["x"] * 1000}, {"tools": [{}]}, {"unknown": 1},
    {"top_logprobs": 21, "logprobs": True}, {"top_logprobs": 5}, {"messages": []},
    {"messages": [{"role": "critic", "content": "x"}]}, {"messages": [{"role": "user", "content": "x" * 5000}]},
    {"num_beams": 3, "n": 4}, {"num_beams": 2, "early_stopping": "often"},
    {"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 900},
]


BAD_TEXTS = [
    {"prompt": [264]}, {"prompt": [-1]}, {"prompt": [2**63]}, {"prompt": [[1], [64, 300]]}, {"prompt": []},
    {"prompt": ["a", 1]}, {"prompt": "x" * 2000}, {"prompt": [5] * 100_000}, {"logprobs": 10**9}, {"best_of": 10**6},
    {"echo": "yes"}, {"suffix": 5}, {"max_tokens": 0}, {"max_tokens": 10**8}, {"logit_bias": {"260": 1}},
]


def test_bad_requests_leave_a_stream_beside_them_alone(client, model):
    body = ask(max_tokens=300, ignore_eos=True, temperature=1, seed=5)
    alone = client.post(PATH, body).json()["choices"][0]["message"]["content"]

    async def run():
        text = ""
        async with client.client.stream("POST", PATH, json={**body, "stream": True}) as stream:
            lines = stream.aiter_lines()
            for wrong in [*BAD, *[{**one, "stream": True} for one in BAD]]:
                answer = await client.client.post(PATH, json={**ask(), **wrong})
                error = answer.json()["error"]
                assert answer.status_code == 400 and error["type"] == "invalid_request_error", wrong
                if "messages" not in wrong:
                    assert (error["param"] or "").split("[")[0].split(".")[0] in wrong, (wrong, error)
            for wrong in [*BAD_TEXTS, *[{**one, "stream": True} for one in BAD_TEXTS]]:
                answer = await client.client.post("/v1/completions", json={"model": "chat", "prompt": "x", **wrong})
                error = answer.json()["error"]
                assert answer.status_code == 400 and error["param"].split("[")[0] in wrong, (wrong, error)
            async for line in lines:
                if line.startswith("data: {"):
                    choice = json.loads(line.removeprefix("data: "))["choices"][0]
                    text += choice["delta"].get("content", "")
        return text

    assert client.run(run()) == alone
    assert not model.engine.busy


def test_too_many_answers_are_refused_before_anything_is_made_for_them(client):
    client.post(PATH, ask())
    tracemalloc.start()
    start = perf_counter()
    for wrong in ({"n": 2**31}, {"n": 10**6}):
        assert client.post(PATH, ask(**wrong)).status_code == 400
    assert client.post("/v1/completions", {"model": "chat", "prompt": ["x"] * 100_000}).status_code == 400
    assert client.post("/v1/completions", {"model": "chat", "prompt": "x", "best_of": 10**6}).status_code == 400
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6 and perf_counter() - start < 10
