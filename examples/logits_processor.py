"""Your own rule in the decoding chain: an answer without the letter "e".

    python examples/logits_processor.py [MODEL]

A logits processor is any callable (token ids so far, float32 logits row) -> row. It runs after the penalties and bans
and before temperature, top_k, top_p, min_p and typical_p. What it gets are copies: edit and return them. -inf makes a
token impossible. transformers' LogitsProcessor objects can be passed as well, where torch is installed.
"""

from __future__ import annotations

import sys

import numpy as np

import forwardpass

PROMPT = "My dog is"


class Without:
    """Bans every token whose text contains a letter, in either case."""

    def __init__(self, tokenizer, letter: str):
        unwanted = letter.lower().encode(), letter.upper().encode()
        texts = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.banned = np.array([any(one in text for one in unwanted) for text in texts])

    def __call__(self, token_ids: list[int], row: np.ndarray) -> np.ndarray:
        banned = np.flatnonzero(self.banned[: row.size])
        row[banned] = -np.inf
        return row


def discourage_repeats(token_ids: list[int], row: np.ndarray) -> np.ndarray:
    """A function does as well. token_ids: prompt and answer so far; here the last one becomes less likely."""
    row[token_ids[-1]] -= 5.0
    return row


def main(name: str = "smollm2-135m") -> None:
    with forwardpass.load(name) as model:
        usual = model.generate(PROMPT, max_new_tokens=24)
        rules = [Without(model.tokenizer, "e"), discourage_repeats]
        ruled = model.generate(PROMPT, max_new_tokens=24, logits_processors=rules)
        print(f"without rules: {PROMPT}{usual.text}\n")
        print(f"without e:     {PROMPT}{ruled.text}\n")
        print(f'"e" in the answer: {"e" in ruled.text.lower()}')


if __name__ == "__main__":
    main(*sys.argv[1:2])
