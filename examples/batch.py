"""Many prompts at once: one packed batch without padding, and for each prompt exactly the answer it gets alone.

    python examples/batch.py [MODEL]
"""

from __future__ import annotations

import sys
from time import perf_counter

import forwardpass

PROMPTS = [
    "Once upon a time",
    "The three primary colours are",
    "Water boils at",
    "A short list of things to pack for a week in the mountains in winter, when the huts are closed:",
    "def fibonacci(n):",
    "My favourite season is",
]


def main(name: str = "smollm2-135m") -> None:
    with forwardpass.load(name) as model:
        model.generate("warm up", max_new_tokens=1)

        start = perf_counter()
        together = model.generate(PROMPTS, max_new_tokens=24)
        batch_seconds = perf_counter() - start
        for completion in together:
            print(f"{PROMPTS[completion.prompt_index]!r} -> {completion.text!r}")

        start = perf_counter()
        alone = [model.generate(prompt, max_new_tokens=24) for prompt in PROMPTS]
        solo_seconds = perf_counter() - start

        same = [a.token_ids for a in alone] == [b.token_ids for b in together]
        print(f"\n{len(PROMPTS)} prompts: {batch_seconds:.2f} s together, {solo_seconds:.2f} s one after the other; "
              f"the same tokens: {same}")

        # Several answers to one prompt share the prompt's computation. Answer i is the same however many there are.
        several = model.generate("The best thing about rain is", max_new_tokens=16, do_sample=True, temperature=0.9,
                                 top_p=0.95, seed=7, num_return_sequences=3)
        for completion in several:
            print(f"choice {completion.choice_index}: {completion.text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
