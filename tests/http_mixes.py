"""Wishes of mixes.py as a client asks for them over HTTP, and what it must get."""

from __future__ import annotations

import json
from typing import Any

import httpx

from forwardpass.server.logprobs import TokenTexts
from forwardpass.stages.template import chat_ids
from mixes import Alone, Mixer, Wish

NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "num_return_sequences": "n",
         "include_stop": "include_stop_str_in_output"}
LATE, BROKEN, GONE = "deadline_exceeded", "broken off", "left"
"""How an answer may end for those who asked for it."""


class HttpWish:
    """One HTTP request: which endpoint, whether it streams, and the wish behind it."""

    def __init__(self, mixer: Mixer, wish: Wish, model: str):
        rng = mixer.rng
        self.wish = wish
        self.alone: Alone = mixer.alone
        self.streams = rng.random() < 0.6
        self.chats = rng.random() < 0.4
        self.with_usage = self.streams and rng.random() < 0.5
        if self.chats:
            letters = "".join(rng.choice("abcdefgh é猫") for _ in range(rng.randrange(1, 60)))
            self.messages = [{"role": "system", "content": "s" * rng.choice([10, 70])},
                             {"role": "user", "content": letters}]
            wish.ids = chat_ids(self.alone.model.tokenizer, self.messages)
            wish.expected = self.alone.answers(wish)
        self.path = "/v1/chat/completions" if self.chats else "/v1/completions"
        self.body = self._body(model)

    def _body(self, model: str) -> dict[str, Any]:
        wish, params = self.wish, dict(self.wish.params)
        body: dict[str, Any] = {"model": model, "priority": wish.priority}
        if wish.salt:
            body["cache_salt"] = wish.salt
        if wish.deadline is not None:
            body["timeout"] = wish.deadline
        if not params.pop("do_sample", False):
            body["temperature"] = 0
        logprobs = params.pop("logprobs", None)
        if logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": logprobs} if self.chats else {"logprobs": logprobs}
        if "logit_bias" in params:
            params["logit_bias"] = {str(token): value for token, value in params["logit_bias"].items()}
        body |= {NAMES.get(name, name): value for name, value in params.items()}
        body |= {"messages": self.messages} if self.chats else {"prompt": wish.ids}
        if self.streams:
            body["stream"] = True
            if self.with_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def expected(self) -> list[dict[str, Any]]:
        """Of each choice what a client sees, by the names below."""
        texts, tops = TokenTexts(self.alone.model.tokenizer), self.wish.params.get("logprobs")
        found = [_expected(texts, choice, self.chats, tops) for choice in self.wish.expected]
        if self.streams:
            for one in found:
                one.pop("score", None)  # events have none
        return found

    def usage(self) -> tuple[int, int]:
        return len(self.wish.ids), sum(len(choice[0]) for choice in self.wish.expected)


def _expected(texts: TokenTexts, choice: tuple, chats: bool, tops: int | None) -> dict[str, Any]:
    ids, text, finish, logprobs, top_logprobs, score = choice
    seen: dict[str, Any] = {"text": text, "finish_reason": finish, "logprobs": logprobs, "tops": None}
    if tops:
        seen["tops"] = []
        for token, value, top in zip(ids, logprobs, top_logprobs, strict=True):
            # Completions show the token itself as well. Of tokens that are written alike the likeliest counts.
            shown = [*top.items()] if chats else [*top.items(), (token, value)]
            seen["tops"].append({texts.distinct(one): logprob for one, logprob in reversed(shown)})
    if score is not None:
        seen["score"] = score
    return seen


class Got:
    """What came of one HTTP request. status: HTTP's;  end: how it ended, "" = whole;  choices: by index."""

    def __init__(self) -> None:
        self.status = 0
        self.end = ""
        self.events = 0
        self.choices: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, Any] | None = None

    def choice(self, index: int) -> dict[str, Any]:
        return self.choices.setdefault(index, {"text": "", "finish_reason": None, "logprobs": None, "tops": None})

    def whole(self, data: dict[str, Any]) -> None:
        for one in data["choices"]:
            mine = self.choice(one["index"])
            mine["text"] = one["message"]["content"] if "message" in one else one["text"]
            self._note(mine, one)
        self.usage = data["usage"]

    def event(self, data: dict[str, Any]) -> None:
        if "error" in data:
            self.end = data["error"]["code"] or data["error"]["message"]
            return
        self.events += 1
        for one in data["choices"]:
            mine = self.choice(one["index"])
            assert mine["finish_reason"] is None, "something follows the end of a choice"
            mine["text"] += one["delta"].get("content", "") if "delta" in one else one["text"]
            self._note(mine, one)
        self.usage = data.get("usage") or self.usage

    @staticmethod
    def _note(mine: dict[str, Any], one: dict[str, Any]) -> None:
        mine["finish_reason"] = one["finish_reason"]
        if "score" in one:
            mine["score"] = one["score"]
        found = one["logprobs"]
        if found is None:
            return
        if "content" in found:
            values = [entry["logprob"] for entry in found["content"]]
            tops = [{_name(top): top["logprob"] for top in reversed(entry["top_logprobs"])}
                    for entry in found["content"]]
        else:
            values, tops = found["token_logprobs"], found["top_logprobs"]
        mine["logprobs"] = (mine["logprobs"] or []) + values
        if tops and any(tops):
            mine["tops"] = (mine["tops"] or []) + tops


def _name(entry: dict[str, Any]) -> str:
    """A token of a chat by the name that completions give it."""
    if entry["bytes"] is None:
        return entry["token"]
    try:
        return bytes(entry["bytes"]).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry["bytes"])


async def fetch(client: httpx.AsyncClient, path: str, body: dict[str, Any], leaves: int | None = None, **more) -> Got:
    """One request, whole or streamed. leaves: events after which the client goes away, None = it stays."""
    got = Got()
    async with client.stream("POST", path, json=body, **more) as answer:
        got.status = answer.status_code
        if not answer.headers["content-type"].startswith("text/event-stream"):
            data = json.loads(await answer.aread())
            if got.status == 200:
                got.whole(data)
            else:
                got.end = data["error"]["code"] or data["error"]["message"]
            return got
        done = False
        async for line in answer.aiter_lines():
            if leaves is not None and got.events >= leaves:
                got.end = GONE
                return got
            if line.startswith("data: "):
                assert not done, "something follows [DONE]"
                done = line == "data: [DONE]"
                if not done:
                    got.event(json.loads(line.removeprefix("data: ")))
        if not done and not got.end:
            got.end = BROKEN
    return got


def check_answer(asked: HttpWish, got: Got) -> None:
    """A whole answer is the expected one; one that broke off, for a reason that the wish has, is a beginning of it."""
    expected = asked.expected()
    if got.end == "":
        assert got.status == 200
        for index, choice in enumerate(expected):
            mine = got.choices.pop(index)
            assert mine == choice, f"choice {index} of {asked.body}: expected {choice}, found {mine}"
        assert not got.choices
        if got.usage is not None:
            assert (got.usage["prompt_tokens"], got.usage["completion_tokens"]) == asked.usage()
        assert (got.usage is not None) == (asked.with_usage or not asked.streams)
        return
    assert got.end == GONE or (got.end == LATE and asked.wish.deadline is not None), (got.status, got.end)
    for index, mine in got.choices.items():
        assert expected[index]["text"].startswith(mine["text"])
