"""A server that speaks the OpenAI API and answers by a script, with delays, for tests of the load tool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

from aiohttp import web


class FakeServer:
    """Answers with as many words as tokens are asked for.

    wait: seconds before the first word;  gap: between words;  one_at_a_time: others wait;  script: (number of the
    request, its body) -> None for an ordinary answer, or a response, or bytes to stream instead;  knows_ignore_eos;
    tokenizes: a token a character.  seen: (path, headers, body) of every request;  most: requests at once, so far.
    """

    def __init__(self, *, wait=0.0, gap=0.0, one_at_a_time=False, script=None, knows_ignore_eos=True, tokenizes=True):
        self.wait, self.gap, self.script = wait, gap, script
        self.knows_ignore_eos, self.tokenizes = knows_ignore_eos, tokenizes
        self.seen, self.now, self.most = [], 0, 0
        self._turns = asyncio.Semaphore(1) if one_at_a_time else contextlib.nullcontext()
        self._runner = None

    async def __aenter__(self) -> FakeServer:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        for path in ("chat/completions", "completions", "embeddings"):
            app.router.add_post(f"/v1/{path}", self._answer)
        if self.tokenizes:
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_) -> None:
        await self._runner.cleanup()

    async def _models(self, request):
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _tokenize(self, request):
        body = await request.json()
        if "add_special_tokens" in body:
            return web.json_response({"error": {"message": "unknown field add_special_tokens"}}, status=400)
        return web.json_response({"tokens": list(map(ord, body["prompt"]))})

    async def _detokenize(self, request):
        body = await request.json()
        return web.json_response({"prompt": "".join(map(chr, body["tokens"]))})

    async def _answer(self, request):
        body = await request.json()
        number = len(self.seen)
        self.seen.append((request.path, dict(request.headers), body))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async with self._turns:
                if "ignore_eos" in body and not self.knows_ignore_eos:
                    return web.json_response({"error": {"message": "unknown field ignore_eos"}}, status=400)
                scripted = self.script(number, body) if self.script else None
                if isinstance(scripted, web.StreamResponse):
                    return scripted
                if request.path.endswith("embeddings"):
                    await asyncio.sleep(self.wait)
                    tokens = len(body["input"])
                    return web.json_response({"data": [{"embedding": [0.5, 0.5]}], "usage": {"prompt_tokens": tokens}})
                return await self._stream(request, body, scripted)
        finally:
            self.now -= 1

    async def _stream(self, request, body, scripted):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if scripted is not None:
            for part in scripted if isinstance(scripted, list) else [scripted]:
                await response.write(part)
                await asyncio.sleep(0.005)  # parts that follow one another at once would arrive as one
            return response
        chat = "messages" in body
        if chat:
            await response.write(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(self.wait)
        for i in range(body["max_tokens"]):
            if i:
                await asyncio.sleep(self.gap)
            text = f" w{i}"
            choice = {"delta": {"content": text}} if chat else {"text": text}
            await response.write(event({"choices": [choice]}))
        read = body["messages"] if chat else body["prompt"]
        prompt_tokens = sum(len(one["content"]) for one in read) if chat else len(read)
        await response.write(event({"choices": [], "usage": {
            "prompt_tokens": prompt_tokens, "completion_tokens": body["max_tokens"]}}) + b"data: [DONE]\n\n")
        return response


def event(value) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextlib.contextmanager
def in_thread(**options):
    """The server in an event loop of its own, for programs that block."""
    loop, made, done = asyncio.new_event_loop(), [], threading.Event()

    async def run():
        async with FakeServer(**options) as server:
            made.append(server)
            done.set()
            await end.wait()

    async def make_end():
        return asyncio.Event()

    end = loop.run_until_complete(make_end())
    thread = threading.Thread(target=lambda: (loop.run_until_complete(run()), loop.close()))
    thread.start()
    assert done.wait(20)
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
