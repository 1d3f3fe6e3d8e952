"""Many users and one engine, without a server: answers of an event loop share steps, and each is what it is alone."""

import asyncio

import forwardpass as fp

QUESTIONS = ["What is a tide?", "Why is the sky blue?", "Who was Ada Lovelace?", "What is a prime number?"]


async def answer(model: fp.AsyncModel, question: str) -> str:
    done = await model.chat([{"role": "user", "content": question}], max_new_tokens=24)
    print(f"{question}  {done.text!r}")
    return done.text


async def impatient(model: fp.AsyncModel) -> None:
    """Whoever leaves ends what was computed for them, within a step."""
    async for piece in await model.chat([{"role": "user", "content": "Tell me a long story."}], stream=True):
        print(f"somebody leaves after {piece.text!r}")
        return


async def main(host: fp.Host) -> None:
    model = fp.AsyncModel(host.find("smollm2-135m"))
    *answers, _ = await asyncio.gather(*(answer(model, question) for question in QUESTIONS), impatient(model))
    alone = [await answer(model, question) for question in QUESTIONS]
    print("the same answers alone:", answers == alone)


with fp.Host(["smollm2-135m"], kv_memory="256MiB") as host:
    for line in host.plan.lines():
        print(line)
    asyncio.run(main(host))
