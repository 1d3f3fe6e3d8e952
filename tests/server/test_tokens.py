"""/tokenize and /detokenize."""

import asyncio

import pytest

from forwardpass.stages.preprocess import encode_prompt
from forwardpass.stages.template import chat_ids

HELLO = "Žluťoučký kůň 👍🏽 <|im_end|>\n"


def tokenize(served, **body):
    answer = served.post("/tokenize", json={"model": "chat", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def detokenize(served, tokens, model="chat"):
    answer = served.post("/detokenize", json={"model": model, "tokens": tokens})
    assert answer.status_code == 200, answer.text
    return answer.json()["prompt"]


def test_a_prompt_as_completions_read_it(reading, shelf):
    """Special tokens that are written out count as such."""
    answer = tokenize(reading, prompt=HELLO)
    assert answer["tokens"] == encode_prompt(shelf.models["chat"].tokenizer, HELLO)
    assert answer == {"tokens": answer["tokens"], "count": len(answer["tokens"]), "max_model_len": 128}
    assert answer["tokens"].count(259) == 1
    assert tokenize(reading, prompt="")["tokens"] == []


def test_special_tokens_around_it(reading):
    with_them = tokenize(reading, model="labels", prompt="w1 w2", return_token_strs=True)
    assert with_them["tokens"] == [2, 5, 6, 3] and with_them["token_strs"] == ["[CLS]", "w1", "w2", "[SEP]"]
    assert with_them["max_model_len"] == 40
    assert tokenize(reading, model="labels", prompt="w1 w2", add_special_tokens=False)["tokens"] == [5, 6]
    assert tokenize(reading, model="labels", prompt="w1 w2", add_special_tokens=None)["tokens"] == [2, 5, 6, 3]


def test_and_back(reading):
    assert detokenize(reading, tokenize(reading, prompt=HELLO)["tokens"]) == HELLO
    assert detokenize(reading, [2, 5, 6, 3], "labels") == "[CLS] w1 w2 [SEP]"
    assert detokenize(reading, []) == ""
    half = tokenize(reading, prompt="ů")["tokens"][:1]
    assert detokenize(reading, half) == "\N{REPLACEMENT CHARACTER}"


def test_a_conversation_as_chat_reads_it(reading, shelf):
    """Through the template, with an answer opened unless one is not wanted; special tokens inside are plain text."""
    model = shelf.models["chat"]
    messages = [{"role": "user", "content": "<s>hi<|im_end|>"}, {"role": "assistant", "content": "ho"}]
    for more, variables in (({}, {}), ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
                            ({"continue_final_message": True}, {"add_generation_prompt": False, "continues": True})):
        answer = tokenize(reading, messages=messages, **more)
        assert answer["tokens"] == chat_ids(model.tokenizer, messages, **{"add_generation_prompt": True, **variables})
        assert answer["count"] == len(answer["tokens"])
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert tokenize(reading, messages=parts)["tokens"] == tokenize(
        reading, messages=[{"role": "user", "content": "hi"}])["tokens"]
    assert answer["tokens"].count(256) == 0  # <s> was written by a user


@pytest.mark.parametrize(("change", "param", "said"), [
    ({"prompt": "a"}, "prompt", "either prompt or messages"), ({"messages": None}, "prompt", "either"),
    ({"messages": []}, "messages", ">= 1"), ({"messages": [{"content": "a"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "critic", "content": "a"}]}, "messages", "no critics"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "image_url"),
    ({"add_special_tokens": True}, "add_special_tokens", "belongs to a prompt"),
    ({"model": "labels"}, "model", "cannot chat"), ({"model": "translator"}, "model", "cannot chat"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "messages"),
    ({"add_generation_prompt": True, "messages": None, "prompt": "a"}, "add_generation_prompt", "belongs to messages"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt", "continued")])
def test_wrong_conversations(reading, change, param, said):
    usual = {"model": "chat", "messages": [{"role": "user", "content": "a"}]}
    answer = reading.post("/tokenize", json=usual | change)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and said in error["message"]


@pytest.mark.parametrize(("path", "change", "param", "said"), [
    ("tokenize", {"prompt": 5}, "prompt", "int"), ("tokenize", {"prompt": ["a"]}, "prompt", "array"),
    ("tokenize", {"add_special_tokens": 1}, "add_special_tokens", "int"),
    ("tokenize", {"text": "a"}, "text", "unknown"), ("tokenize", {"model": "gpt-4"}, "model", "chat"),
    ("detokenize", {"tokens": None}, "tokens", "null"), ("detokenize", {"tokens": "a"}, "tokens", "str"),
    ("detokenize", {"tokens": [1, "a"]}, "tokens[1]", "str"),
    ("detokenize", {"tokens": [1, 2.5]}, "tokens[1]", "float"),
    ("detokenize", {"tokens": [5, 264]}, "tokens[1]", "from 0 to 263"),
    ("detokenize", {"tokens": [-1]}, "tokens[0]", "from 0 to 263"),
    ("detokenize", {"tokens": [2**63]}, "tokens[0]", "from 0 to 263"),
    ("detokenize", {"tokens": [10**30]}, "tokens[0]", "from 0 to 263"),
    ("detokenize", {"tokens": [True]}, "tokens[0]", "bool"), ("detokenize", {"model": "gpt-4"}, "model", "chat")])
def test_wrong_fields_are_named(reading, path, change, param, said):
    usual = {"model": "chat", "prompt": "a"} if path == "tokenize" else {"model": "chat", "tokens": [1]}
    answer = reading.post("/" + path, json=usual | change)
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400)
    assert error["param"] == param and said in error["message"]


def test_a_large_text_holds_nobody_up(reading):
    """Probes are answered while it is tokenised."""
    async def both():
        body = {"model": "chat", "prompt": "word " * 60_000}
        large, probes = asyncio.ensure_future(reading.client.post("/tokenize", json=body)), 0
        while not large.done():
            assert (await reading.client.get("/health/live")).status_code == 200
            probes += 1
        return (await large).json(), probes

    answer, probes = reading.run(both())
    assert answer["count"] == 300_000 and probes > 3
