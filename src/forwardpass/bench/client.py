"""A client of the OpenAI API that costs little: it shares the machine's CPUs with the server it measures.

Answers are streamed, split into lines as they come and stamped with the time of their arrival. Tokens are counted by
the server (`stream_options.include_usage`), or by pieces of text where it does not say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import perf_counter

from forwardpass.bench.records import Record
from forwardpass.errors import ForwardpassError, ParameterError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
OWN_FIELDS = ("model", "messages", "prompt", "input", "stream", "n")
LONGEST_MESSAGE = 300
CONNECT_S = 30.0
TOKENIZE_CHARACTERS = 32_000
"""Text in one request to /tokenize: servers limit the size of bodies."""


def library():
    """aiohttp, which only this part of the package needs."""
    try:
        import aiohttp
    except ImportError:
        raise ForwardpassError("bench serve needs aiohttp, which is not installed: "
                               "pip install 'forwardpass[bench]'") from None
    return aiohttp


class Client:
    """An asynchronous context manager.

    url: of the server, with or without /v1;  api: chat, completions or embeddings;  model: its name at the server
    (None: the first it lists);  key: an API key to send;  extra: fields for every request's body;  timeout: seconds for
    a whole answer;  ignore_eos: ask for answers of the wanted length. ParameterError where one of them makes no sense.
    """

    def __init__(self, url: str, *, api: str = "chat", model: str | None = None, key: str | None = None,
                 extra: Mapping | None = None, timeout: float = 600.0, ignore_eos: bool = True):
        if not url.startswith(("http://", "https://")):
            raise ParameterError(f"expected the server's URL, such as http://127.0.0.1:8000, found {url!r}")
        if api not in PATHS:
            raise ParameterError(f"api: expected {', '.join(PATHS)}, found {api!r}")
        if taken := [name for name in OWN_FIELDS if name in (extra or {})]:
            raise ParameterError(f"the extra body may not set {', '.join(taken)}: the load tool does")
        if not timeout > 0:
            raise ParameterError(f"timeout: expected seconds above 0, found {timeout}")
        self.root = url.rstrip("/").removesuffix("/v1")
        self.api, self.model, self.extra = api, model, dict(extra or {})
        self.ignore_eos = ignore_eos and api != "embeddings" and "ignore_eos" not in self.extra
        self._http = library()
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = self._http.ClientTimeout(total=timeout, sock_connect=min(CONNECT_S, timeout))
        self._session = None

    async def __aenter__(self) -> Client:
        # The load says how many connections there are at once. Each request has its own: one sent into a kept
        # connection that the server is just closing would be counted as the server's failure.
        connector = self._http.TCPConnector(limit=0, force_close=True)
        self._session = self._http.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *_) -> None:
        await self._session.close()

    async def call(self, path: str, body: Mapping | None = None) -> tuple[int, dict]:
        """(status, JSON object) of one request that is not measured. ForwardpassError where nobody answers."""
        method = "GET" if body is None else "POST"
        try:
            async with self._session.request(method, self.root + path, json=body) as response:
                raw = await response.read()
        except (self._http.ClientError, OSError) as error:
            raise ForwardpassError(f"{self.root}{path}: expected a server that answers, found: "
                                   f"{error or type(error).__name__}; start it, or check the URL") from None
        try:
            value = json.loads(raw)
        except ValueError:
            value = {}
        return response.status, value if isinstance(value, dict) else {}

    async def find_model(self) -> str:
        """The model's name, asked of the server if it was not given."""
        if self.model is None:
            status, listed = await self.call("/v1/models")
            try:
                self.model = listed["data"][0]["id"]
            except (LookupError, TypeError):
                raise ForwardpassError(f"{self.root}/v1/models: expected a list of models, found status {status}: "
                                       f"{_said(listed)}; name the model") from None
        return self.model

    async def tokens_of(self, text: str, most: int) -> list[int] | None:
        """At most about `most` token ids of a text by the server's /tokenize; None where it has none that is known."""
        shapes: tuple[dict, ...] = ({"model": self.model, "prompt": ..., "add_special_tokens": False},
                                    {"model": self.model, "prompt": ...}, {"content": ...})
        found: list[int] = []
        for at in range(0, len(text), TOKENIZE_CHARACTERS):
            part = text[at : at + TOKENIZE_CHARACTERS]
            for shape in shapes:
                body = {name: part if value is ... else value for name, value in shape.items()}
                status, value = await self.call("/tokenize", body)
                ids = value.get("tokens") if status == 200 else None
                if isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids):
                    shapes = (shape,)
                    found += ids
                    break
            else:
                return None
            if len(found) >= most:
                break
        return found

    async def text_of(self, ids: Sequence[int]) -> str | None:
        """The text of token ids by the server's /detokenize; None where it has none that is known."""
        for body in ({"model": self.model, "tokens": ids}, {"tokens": ids}):
            status, value = await self.call("/detokenize", body)
            for name in ("prompt", "content", "text"):
                if status == 200 and isinstance(value.get(name), str):
                    return value[name]
        return None

    # ---- measured requests

    def body(self, content, wanted: int) -> bytes:
        """content: messages, a prompt or a text, as the api takes them;  wanted: tokens of the answer."""
        name = {"chat": "messages", "completions": "prompt", "embeddings": "input"}[self.api]
        body = {"model": self.model, name: content}
        if self.api != "embeddings":
            body |= {"max_tokens": wanted, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
            if self.ignore_eos:
                body["ignore_eos"] = True
        return json.dumps(body | self.extra).encode()

    async def ask(self, content, wanted: int, *, planned: float | None = None, keep_text: bool = False,
                  record: Record | None = None) -> Record:
        """One request; whatever goes wrong with it is in its record.

        planned: when it should have been sent;  record: to fill, for who wants to see it before the request is done.
        """
        body = self.body(content, wanted)
        record = Record() if record is None else record
        record.wanted = wanted if self.api != "embeddings" else 0
        record.sent = perf_counter()
        record.planned = record.sent if planned is None else planned
        http = self._http
        try:
            async with self._session.post(self.root + PATHS[self.api], data=body) as response:
                if response.status != 200:
                    record.error, record.message = f"http {response.status}", _said(await response.read())
                elif self.api == "embeddings":
                    _whole(record, await response.read())
                elif response.content_type != "text/event-stream":
                    record.error, record.message = "no stream", _said(await response.read())
                else:
                    await _stream(record, response.content, keep_text)
        except TimeoutError:
            record.error = "timeout"
        except http.ClientConnectorError as error:
            record.error, record.message = "connect", _said(str(error))
        except (http.ClientError, OSError) as error:
            record.error, record.message = "disconnected", _said(str(error) or type(error).__name__)
        record.end = perf_counter()
        return record


async def _stream(record: Record, content, keep_text: bool) -> None:
    """Fill a record from server-sent events: lines with "data:" count, comments and names of events do not."""
    rest, done, usage, texts = b"", False, None, []
    async for data in content.iter_any():
        now = perf_counter()
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        arrived = False
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            line = line[5:].strip()
            if line == b"[DONE]":
                done = True
                continue
            try:
                event = json.loads(line.decode())  # from bytes it would guess the encoding first
                if event.get("error"):
                    record.error, record.message = "error event", _said(event["error"])
                    return
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    delta = choice.get("delta") or {}
                    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
                    record.finish = choice.get("finish_reason") or record.finish
                    if text:
                        texts.append(text)
                        arrived = True
            except (ValueError, AttributeError, TypeError):
                record.error, record.message = "bad answer", _said(line)
                return
        if arrived:
            record.times.append(now)
    if not done:
        record.error, record.message = "cut off", "the stream ended before data: [DONE]"
    _count(record, usage, len(texts))
    if keep_text:
        record.text = "".join(texts)


def _whole(record: Record, raw: bytes) -> None:
    """Fill a record from the answer to a request for embeddings."""
    try:
        value = json.loads(raw)
        if not value["data"][0]["embedding"]:
            raise ValueError
        _count(record, value.get("usage"), 0)
    except (ValueError, LookupError, TypeError, AttributeError):
        record.error, record.message = "bad answer", _said(raw)


def _count(record: Record, usage, pieces: int) -> None:
    usage = usage if isinstance(usage, dict) else {}
    record.prompt_tokens = usage.get("prompt_tokens") or 0
    record.output_tokens = usage.get("completion_tokens") or pieces
    details = usage.get("prompt_tokens_details")
    record.cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None


def _said(value) -> str:
    """The message of an error body, short."""
    if isinstance(value, bytes | str):
        try:
            value = json.loads(value)
        except ValueError:
            value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split())[:LONGEST_MESSAGE]
