"""/v1/completions: what it answers is what Model.generate and Model.complete answer, and prompts can be scored."""

import asyncio
import json
import re

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

import scripted
import tiny_chat
import tiny_pairs
from forwardpass.decoding import sampler
from forwardpass.tasks.host import Host

PATH = "/v1/completions"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
CONTEXT = 256


def ask(prompt, **more):
    return {"model": "code", "prompt": prompt, "max_tokens": 10, **more}


@pytest.fixture(scope="module")
def text_host(tmp_path_factory):
    """"code" has tokens for filling in a middle and a BOS; "pair" is an encoder-decoder without a tokenizer."""
    made = tmp_path_factory.mktemp("texts")
    tiny_chat.write(made / "code", bos=True, template=None, max_position_embeddings=CONTEXT)
    tokenizer = Tokenizer.from_file(str(made / "code" / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in MARKS])
    tokenizer.save(str(made / "code" / "tokenizer.json"))
    tiny_pairs.save(tiny_pairs.make("t5"), made / "pair", max_length=12)
    with Host([f"{name}={made / name}" for name in ("code", "pair")]) as host:
        yield host


@pytest.fixture
def client(app, text_host):
    return app(host=text_host)


@pytest.fixture(scope="module")
def model(text_host):
    return text_host.find("code")


def answer(client, body) -> dict:
    found = client.post(PATH, body)
    assert found.status_code == 200, found.text
    return found.json()


def streamed(client, body) -> list[dict]:
    """The choices that the events of a stream come to, as they would be in one answer."""
    found = client.post(PATH, {**body, "stream": True})
    assert found.status_code == 200, found.text
    lines = [line.removeprefix("data: ") for line in found.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    out: dict[int, dict] = {}
    for line in lines:
        for choice in json.loads(line)["choices"]:
            one = out.setdefault(choice["index"], {"text": "", "index": choice["index"], "logprobs": None})
            one["text"] += choice["text"]
            one["finish_reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                one["logprobs"] = one["logprobs"] or {}
                held = one["logprobs"].get(name)
                one["logprobs"][name] = values if held is None else held + values
    return [out[index] for index in sorted(out)]


def same(choice, expected, model, before="") -> None:
    """A choice is a Completion of the library's, to the last bit."""
    assert (choice["text"], choice["finish_reason"]) == (before + expected.text, expected.finish_reason)
    if choice["logprobs"] is not None:
        count = len(expected.token_ids)
        assert choice["logprobs"]["token_logprobs"][-count:] == expected.logprobs
        names = choice["logprobs"]["tokens"][-count:]
        assert [name.encode() if not name.startswith("bytes:") else bytes.fromhex(name[6:].replace("\\x", ""))
                for name in names] == [model.tokenizer.token_bytes(token) for token in expected.token_ids]
        for name, own, top, known in zip(names, expected.logprobs, choice["logprobs"]["top_logprobs"][-count:],
                                         expected.top_logprobs, strict=True):
            assert list(top.values())[: len(known)] == list(known.values()) and top[name] == own


# ---- prompts


@pytest.mark.parametrize("prompt", ["hello", "", "<s>hi", "a<|im_start|>b", [5, 6, 7], [0], ["one", "two", "three"],
                                    [[1, 2, 3], [4]], ["one"], [[7]]])
@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1, "seed": 4, "logprobs": 2}])
def test_prompts_of_all_kinds(client, model, prompt, fields):
    params = {"num_return_sequences": 2, "do_sample": True, "temperature": 1.0, "seed": 4} if fields else {}
    expected = model.generate(prompt, max_new_tokens=10, logprobs=2, **params)
    expected = expected if isinstance(expected, list) else [expected]
    found = answer(client, ask(prompt, **fields))
    assert [one["index"] for one in found["choices"]] == list(range(len(expected)))
    for choice, one in zip(found["choices"], expected, strict=True):
        same(choice, one, model)
    assert streamed(client, ask(prompt, **fields)) == found["choices"]
    prompts = {one.prompt_index: len(one.prompt_token_ids) for one in expected}
    assert found["usage"]["prompt_tokens"] == sum(prompts.values())
    assert found["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in expected)


def test_a_prompt_gets_one_bos(client):
    for prompt, tokens in (("hi", 3), ("<s>hi", 3), ("", 1), ([104], 1)):
        assert answer(client, ask(prompt))["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(("prompt", "param", "words"), [
    ([264], "prompt", "264.*263"), ([-1], "prompt", "-1"), ([2**63], "prompt", str(2**63)),
    ([[1], [300]], "prompt[1]", "300"),
    ([], "prompt", "empty list"), ([[]], "prompt[0]", "empty list"), (["a", [1]], "prompt[1]", "list of token ids"),
    ([1, "a"], "prompt[1]", "a text"), ([True], "prompt[0]", "bool"), ([1.5], "prompt[0]", "float"),
    ("x" * 300, "prompt", "301 tokens.*256"), (["ok", "x" * 300], "prompt", "301 tokens.*256"),
])
def test_prompts_that_are_refused(client, model, prompt, param, words):
    found = client.post(PATH, ask(prompt))
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, param) and re.search(words, error["message"]), error
    assert not model.engine.busy


def test_without_a_bos_an_empty_prompt_has_no_tokens(app, host):
    found = app(host=host).post(PATH, {"model": "chat", "prompt": ""})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, "prompt") and "BOS" in error["message"]


def test_one_prompt_that_cannot_be_leaves_none_behind(client, model):
    steps = model.engine.steps
    assert client.post(PATH, ask([[1], [2], [900]])).status_code == 400
    assert client.post(PATH, ask(["a", "b", "c" * 300])).status_code == 400
    assert not model.engine.busy and model.engine.steps == steps


# ---- fill in the middle


@pytest.mark.parametrize(("prefix", "suffix"), [("def f(x):\n    ", "\n    return y\n"), ("a", ""), ("", "b"),
                                                ("x = '<|fim_middle|>", "'</s>\n\n\nclass A:")])
@pytest.mark.parametrize("params", [{}, {"n": 2}])
def test_a_middle_is_that_of_complete(client, model, prefix, suffix, params):
    sampled = {"temperature": 1.5, "seed": 3}
    expected = model.complete(prefix, suffix, max_new_tokens=10, do_sample=True, logprobs=1,
                              num_return_sequences=params.get("n", 1), **sampled)
    expected = expected if isinstance(expected, list) else [expected]
    body = ask(prefix, suffix=suffix, logprobs=1, **params, **sampled)
    found = answer(client, body)
    for choice, one in zip(found["choices"], expected, strict=True):
        same(choice, one, model)
    assert found["usage"]["prompt_tokens"] == len(expected[0].prompt_token_ids)
    assert streamed(client, body) == found["choices"]


def test_a_middle_of_a_long_text(client, model):
    """Nothing is left out unless a number of tokens is given."""
    prefix, suffix = "p" * 1000, "s" * 1000
    found = client.post(PATH, ask(prefix, suffix=suffix))
    error = found.json()["error"]
    assert (found.status_code, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
    for tokens in (50, 10**6):
        expected = model.complete(prefix, suffix, max_new_tokens=10, context_tokens=tokens)
        found = answer(client, ask(prefix, suffix=suffix, context_tokens=tokens))
        same(found["choices"][0], expected, model)
        assert found["usage"]["prompt_tokens"] == len(expected.prompt_token_ids) <= min(tokens, CONTEXT - 10)


def test_models_that_fill_in_no_middle(client, app, host):
    for one, name in ((client, "pair"), (app(host=host), "chat")):
        found = one.post(PATH, {"model": name, "prompt": "x", "suffix": "y"})
        error = found.json()["error"]
        assert (found.status_code, error["code"]) == (400, "unsupported_by_model")


# ---- the best of several


def test_the_best_of_several_are_the_likeliest_by_the_token(client, model):
    sampled = {"temperature": 1.5, "seed": 2}
    every = model.generate("hello", max_new_tokens=10, logprobs=0, num_return_sequences=6, do_sample=True,
                           stop_token_ids=list(range(100, 130)), **sampled)
    assert len({len(one.token_ids) for one in every}) > 1
    best = sorted(every, key=lambda one: -sum(one.logprobs) / len(one.logprobs))
    body = ask("hello", n=2, best_of=6, stop_token_ids=list(range(100, 130)), **sampled)
    found = answer(client, body)
    assert [(one["index"], one["text"]) for one in found["choices"]] == [(i, best[i].text) for i in range(2)]
    assert all(one["logprobs"] is None for one in found["choices"])
    assert found["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in every)
    shown = answer(client, {**body, "logprobs": 1})["choices"]
    assert [one["logprobs"]["token_logprobs"] for one in shown] == [one.logprobs for one in best[:2]]
    assert answer(client, {**body, "best_of": 2})["choices"] == answer(client, {**body, "best_of": None})["choices"]


# ---- prompts echoed and scored


def scores_of(model, ids, top):
    """Log-probabilities of a prompt's tokens by a direct forward pass."""
    size = model.facts.vocab_size
    return [sampler.logprobs(row, token, top, size) for row, token in zip(model.logits(ids), ids[1:], strict=False)]


@pytest.mark.parametrize("filters", [{}, {"top_k": 1}, {"top_p": 0.1, "temperature": 0.3, "seed": 1},
                                     {"repetition_penalty": 2, "logit_bias": {"70": 100}}])
@pytest.mark.parametrize("new", [0, 1, 4])
def test_a_prompt_is_scored(client, model, filters, new):
    """As many entries as tokens, the first without a number, the others those of the raw model whatever the filters."""
    ids = model.tokenizer.encode("Hallo", add_special_tokens=True, parse_special=True)
    found = answer(client, ask("Hallo", echo=True, logprobs=2, max_tokens=new, **filters))
    (choice,), logprobs = found["choices"], found["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids) + new}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for place, (own, top) in enumerate(scores_of(model, ids, 2), 1):
        assert logprobs["token_logprobs"][place] == own
        shown = logprobs["top_logprobs"][place]
        assert list(shown.values())[:2] == list(top.values()) and shown[logprobs["tokens"][place]] == own
    assert logprobs["tokens"][: len(ids)] == ["<s>", *"Hallo"]
    assert logprobs["text_offset"][: len(ids)] == [0, 0, 1, 2, 3, 4]
    assert choice["text"].startswith("Hallo") and (choice["text"] == "Hallo") == (new == 0)
    assert choice["finish_reason"] == "length" and found["usage"]["completion_tokens"] == new
    assert streamed(client, ask("Hallo", echo=True, logprobs=2, max_tokens=new, **filters)) == found["choices"]


def test_an_echo_without_log_probabilities(client, model):
    plain = answer(client, ask("Hallo"))["choices"][0]["text"]
    assert answer(client, ask("Hallo", echo=True))["choices"][0]["text"] == "Hallo" + plain
    steps = model.engine.steps
    found = answer(client, ask(["Hallo", "du"], echo=True, max_tokens=0, n=2))
    assert [one["text"] for one in found["choices"]] == ["Hallo", "Hallo", "du", "du"]
    assert found["usage"]["prompt_tokens"] == 6 + 3 and model.engine.steps == steps


def test_prompts_are_scored_together(client, model):
    prompts = ["Hallo", [5, 6, 7, 8], "x" * 200]
    lists = [prompts[0:1], [prompts[1]], [prompts[2]]]
    each = [answer(client, ask(one[0], echo=True, logprobs=1, max_tokens=0))["choices"][0] for one in lists]
    found = answer(client, ask([prompts[0], prompts[2]], echo=True, logprobs=1, max_tokens=0))["choices"]
    assert [one["logprobs"] for one in found] == [each[0]["logprobs"], each[2]["logprobs"]]
    assert each[1]["text"] == model.tokenizer.decode([5, 6, 7, 8])


@pytest.mark.parametrize("top", [0, 20])
def test_a_prompt_as_long_as_the_context_is_scored(client, model, top):
    ids = np.random.default_rng(1).integers(0, 256, CONTEXT).tolist()
    logprobs = answer(client, ask(ids, echo=True, logprobs=top, max_tokens=0))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][1:] == [own for own, _ in scores_of(model, ids, top)]
    assert (logprobs["top_logprobs"] is None) == (top == 0)
    found = client.post(PATH, ask([1] * (CONTEXT + 1), echo=True, max_tokens=0))
    assert (found.status_code, found.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_scoring_is_cancelled_with_its_client(app, tmp_path):
    model = scripted.model(lambda text: 70, tmp_path / "m", end=())
    host = scripted.ScriptHost({"code": model})
    client, gate = app(host=host), model.network.gate

    async def run():
        gate.clear()
        task = asyncio.ensure_future(client.client.post(PATH, json=ask([5] * 900, echo=True, logprobs=1)))
        while not model.engine.busy:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        gate.set()
        while model.engine.busy:
            await asyncio.sleep(0.005)

    client.run(asyncio.wait_for(run(), 20))
    assert model.engine.cache.free == model.engine.cache.size
    host.close()


def test_offsets_say_where_each_tokens_text_begins(app, tmp_path):
    said = "ď猫🌶 x"
    host = scripted.ScriptHost({"code": scripted.model({"a": said.encode()}, tmp_path / "m")})
    client = app(host=host)
    for body in (ask("a", logprobs=0, max_tokens=20), ask("a", logprobs=0, max_tokens=20, echo=True)):
        choice = answer(client, body)["choices"][0]
        echoed = len(choice["text"]) - len(said)
        expected = [0] * echoed + [echoed + i for i, letter in enumerate(said) for _ in letter.encode()]
        assert choice["logprobs"]["text_offset"] == [*expected, echoed + len(said)]  # the last is the end token's
        assert streamed(client, body) == [choice]
    host.close()


# ---- encoder-decoders


def test_an_encoder_decoder_answers_to_its_prompt(client, text_host):
    """It has no tokenizer: prompts are ids, and the answer's tokens are numbers."""
    pair = text_host.find("pair")
    source = [5, 9, 23, 41]
    for fields, params in (({}, {}), ({"max_tokens": 5}, {"max_new_tokens": 5}),
                           ({"num_beams": 4, "n": 3, "length_penalty": 2}, {"num_beams": 4, "num_return_sequences": 3,
                                                                            "length_penalty": 2}),
                           ({"num_beams": 2, "early_stopping": "never"}, {"num_beams": 2, "early_stopping": "never"})):
        body = {"model": "pair", "prompt": source, "logprobs": 1, **fields}
        expected = pair.generate(source, logprobs=1, **params)
        expected = expected if isinstance(expected, list) else [expected]
        found = answer(client, body)
        for choice, one in zip(found["choices"], expected, strict=True):
            assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in one.token_ids]
            assert choice["logprobs"]["token_logprobs"] == one.logprobs and choice.get("score") == one.score
        assert found["usage"]["prompt_tokens"] == len(source)
        events = streamed(client, body)
        assert [one["logprobs"] for one in events] == [one["logprobs"] for one in found["choices"]]
    both = answer(client, {"model": "pair", "prompt": [source, [7]], "logprobs": 0})["choices"]
    expected = pair.generate([source, [7]])
    assert [len(one["logprobs"]["tokens"]) for one in both] == [len(one.token_ids) for one in expected]


@pytest.mark.parametrize(("fields", "param", "words"), [
    ({"prompt": "text"}, "prompt", "no tokenizer.*token ids"), ({"echo": True, "logprobs": 1}, "echo", "encoder"),
    ({"prompt": [96]}, "prompt", "96"), ({"max_tokens": 10**9}, "max_tokens", "context"),
    ({"stop": "x"}, "stop", "tokenizer"),
])
def test_what_an_encoder_decoder_refuses(client, fields, param, words):
    found = client.post(PATH, {"model": "pair", "prompt": [5, 9], **fields})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, param) and re.search(words, error["message"]), error


# ---- limits


@pytest.mark.parametrize(("fields", "param"), [
    ({"max_tokens": CONTEXT}, "max_tokens"), ({"max_tokens": 10**8}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
    ({"n": 128, "logprobs": 20, "max_tokens": 200}, "logprobs"), ({"logprobs": 21}, "logprobs"),
    ({"logit_bias": {"268": 1}}, "logit_bias"), ({"stop_token_ids": [300]}, "stop_token_ids"), ({"n": 129}, "n"),
    ({"prompt": ["a"] * 20, "n": 7}, "n"), ({"best_of": 200}, "best_of"), ({"timeout": 0}, "timeout"),
])
def test_limits(client, fields, param):
    found = client.post(PATH, {**ask("hi"), **fields})
    error = found.json()["error"]
    assert (found.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")


def test_without_a_number_an_answer_fills_the_context(client):
    found = answer(client, {"model": "code", "prompt": "hi", "ignore_eos": True})
    assert found["usage"]["total_tokens"] == CONTEXT and found["choices"][0]["finish_reason"] == "length"


def test_a_model_that_generates_nothing(app, host):
    found = app(host=host).post(PATH, {"model": "labels", "prompt": "x"})
    assert (found.status_code, found.json()["error"]["code"]) == (400, "unsupported_by_model")
