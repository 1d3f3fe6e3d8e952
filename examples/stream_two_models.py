"""The models of one server that can chat answer at once, through OpenAI's client.

    forwardpass serve smollm2-135m qwen2.5-coder-0.5b    # in one terminal
    pip install openai
    python examples/stream_two_models.py                 # in another
"""

import asyncio
import sys

from openai import AsyncOpenAI

QUESTION = "What is a tide? Answer in one sentence."
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"


async def ask(client: AsyncOpenAI, model: str) -> None:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=60, stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(f"{model}: {chunk.choices[0].delta.content!r}", flush=True)


async def main() -> None:
    async with AsyncOpenAI(base_url=URL, api_key="none") as client:
        models = [model.id async for model in client.models.list() if "chat" in model.tasks]
        await asyncio.gather(*(ask(client, model) for model in models))


asyncio.run(main())
