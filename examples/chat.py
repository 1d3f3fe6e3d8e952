"""A conversation in the terminal, answers streamed. End it with Ctrl-D.

    python examples/chat.py [MODEL]

Each turn sends the whole history, yet computes only what is new: the engine keeps the keys and values of finished
texts, and the new prompt begins with one of them. The last figure of each turn shows it.
"""

from __future__ import annotations

import sys

import forwardpass


def main(name: str = "smollm2-135m") -> None:
    messages = [{"role": "system", "content": "You are a helpful assistant. Answer in one or two sentences."}]
    with forwardpass.load(name) as model:
        while True:
            try:
                question = input("> ")
            except EOFError:
                break
            messages.append({"role": "user", "content": question})
            # drop_oldest: when the history no longer fits into the context, whole turns go, with a warning.
            with model.chat(messages, stream=True, on_overflow="drop_oldest", max_new_tokens=80) as stream:
                for piece in stream:
                    print(piece.text, end="", flush=True)
                done = stream.completion
            messages.append({"role": "assistant", "content": done.text})
            print(f"\n[{len(done.prompt_token_ids)} tokens of prompt, {len(done.token_ids)} new, "
                  f"first after {done.timings['first_token']:.3f} s]")


if __name__ == "__main__":
    main(*sys.argv[1:2])
