"""Random mixes of requests, and what each of them answers alone on an idle engine.

A wish is one request, with what happens to it: when it comes, whether it leaves early, its terms. What is compared is
all that whoever asked can see: tokens, text, log-probabilities, finish reasons, scores.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from forwardpass.backends.native import NativeBackend
from forwardpass.engine import Engine
from forwardpass.tasks.model import Model, open_named, thread_count

EOS, IM_END = 257, 259
LETTERS = 256
BLOCK = 64


@dataclass
class Wish:
    """ids: the prompt;  params: by the library's names;  priority, salt: its terms;  after: steps, or pieces of others,
    before it comes;  leaves: pieces after which it is given up, None = never;  deadline: seconds, None = none."""

    number: int
    ids: list[int]
    params: dict[str, Any]
    priority: int = 0
    salt: str = ""
    after: int = 0
    leaves: int | None = None
    deadline: float | None = None
    expected: list[tuple] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return len(self.ids) + self.params["max_new_tokens"]

    @property
    def beams(self) -> int:
        return self.params.get("num_beams", 1)


class Alone:
    """The answers of a model to single requests, each computed by an engine of its own that was never asked before."""

    def __init__(self, path, threads: int | None = 1):
        self.opened = open_named(path, "auto", "auto", lambda: NativeBackend(thread_count(threads)))
        self.model = Model(self.opened)
        self.context = self.model.spec.max_position_embeddings

    def close(self) -> None:
        self.model.close()

    def answers(self, wish: Wish) -> list[tuple]:
        """What is seen of each choice."""
        engine = self.engine(4 * self.blocks(wish) + 8)
        request = engine.add(wish.ids, self.model.answer_params(wish.params))
        engine.run([request])
        engine.close()
        return seen(request)

    def engine(self, blocks: int) -> Engine:
        """A fresh one. blocks: its KV cache."""
        return Engine(self.opened.network, self.opened.facts, self.opened.tokenizer, blocks)

    @staticmethod
    def blocks(wish: Wish) -> int:
        """KV blocks without which it is refused."""
        return -(-(wish.longest - 1) // BLOCK) * wish.beams

    def block_bytes(self) -> int:
        return sum(self.opened.network.block_bytes())


def seen(request) -> list[tuple]:
    """All of a request's answers that can be seen."""
    return [(one.token_ids, one.text, one.finish_reason, one.logprobs, one.top_logprobs, one.score)
            for one in request.completions()]


class Mixer:
    """Makes wishes. alone: of the model that they are for;  longest: tokens of prompt and answer at most;
    answer: tokens of an answer at most.

    Some mixes are crowds: short prompts with long answers. All of them start in a memory that is little more than what
    one of them comes to, grow, and have to yield to one another."""

    def __init__(self, rng: random.Random, alone: Alone, longest: int = 400, answer: int | None = None):
        self.rng = rng
        self.alone = alone
        self.crowd = rng.random() < 0.4
        self.longest = longest
        self.answer = (190 if self.crowd else 40) if answer is None else answer
        self.shared = [self.letters(n) for n in (30, 64, 70, 128, 200) if n < longest // 2]

    def blocks(self, wishes: list[Wish]) -> int:
        """KV blocks for the greatest of the wishes, and perhaps a little more."""
        return max(map(self.alone.blocks, wishes)) + self.rng.choice([0, 1, 2] if self.crowd else [0, 1, 5, 60])

    def letters(self, count: int) -> list[int]:
        return [self.rng.randrange(LETTERS) for _ in range(count)]

    def wishes(self, count: int, leaving: float = 0.3) -> list[Wish]:
        """leaving: the part of them that is given up."""
        made = [self.wish(number) for number in range(count)]
        spread = self.rng.choice([3, 30])
        for one in made:
            one.after = self.rng.choice([0, self.rng.randrange(spread)])
            one.priority = self.rng.choice([0, 0, 0, -1, 3])
            one.salt = self.rng.choice(["", "", "", "s", "t"])
            if self.rng.random() < leaving:
                one.leaves = self.rng.choice([0, 0, 1, self.rng.randrange(30)])
        return made

    def wish(self, number: int) -> Wish:
        rng = self.rng
        if self.crowd:
            ids = self.letters(rng.randrange(1, 60))
        else:
            ids = [*self.prefix(), *self.letters(rng.choice([1, 2, 5, 17, 63, 64, 65, rng.randrange(1, 100)]))]
        most = max(1, min(self.answer, self.longest - len(ids)))
        params: dict[str, Any] = {"max_new_tokens": rng.choice([1, rng.randint(1, most), most, most])}
        kind = rng.random()
        if kind < (0.05 if self.crowd else 0.15):
            params |= self.beams()
        elif kind < 0.6:
            params |= self.chance()
        if rng.random() < 0.25 and "num_beams" not in params:
            params["num_return_sequences"] = rng.choice([2, 3])
        if rng.random() < 0.6:
            params["logprobs"] = rng.choice([0, 1, 5])
        if rng.random() < 0.3:
            params |= rng.choice([{"repetition_penalty": 1.3}, {"presence_penalty": 0.7, "frequency_penalty": 0.4},
                                  {"logit_bias": {rng.randrange(LETTERS): 5.0, rng.randrange(LETTERS): -100.0}},
                                  {"ignore_eos": True}, {"min_new_tokens": rng.randint(0, params["max_new_tokens"])},
                                  {"stop_token_ids": [rng.randrange(LETTERS) for _ in range(8)]}])
        wish = Wish(number, ids, params)
        wish.expected = self.alone.answers(wish)
        if rng.random() < 0.35:
            self.stop(wish)
        return wish

    def prefix(self) -> list[int]:
        """What several prompts begin with: nothing, a text, a part of one, or two."""
        rng = self.rng
        if rng.random() < 0.25:
            return []
        one = rng.choice(self.shared)
        if rng.random() < 0.3:
            one = one[: rng.randrange(len(one))]
        elif rng.random() < 0.2:
            one = one + rng.choice(self.shared)
        return one[: self.longest // 2]

    def chance(self) -> dict[str, Any]:
        rng = self.rng
        filters = rng.choice([{}, {"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.05}, {"top_p": 0.9, "top_k": 40},
                              {"typical_p": 0.7}])
        return {"do_sample": True, "seed": rng.randrange(2**63), "temperature": rng.choice([0.3, 0.9, 1.4]), **filters}

    def beams(self) -> dict[str, Any]:
        rng = self.rng
        count = rng.choice([2, 3, 4])
        return {"num_beams": count, "num_return_sequences": rng.randint(1, count),
                "length_penalty": rng.choice([0.0, 1.0, 1.7]), "early_stopping": rng.choice([True, False, "never"])}

    def stop(self, wish: Wish) -> None:
        """Let a piece of what it would say end it, if that can be written."""
        text = wish.expected[0][1].replace("\N{REPLACEMENT CHARACTER}", " ")
        begin = self.rng.randrange(len(text)) if text else 0
        piece = text[begin : begin + self.rng.randint(1, 3)]
        if piece.strip():
            wish.params["stop"] = [piece, "never said"]
            wish.params["include_stop"] = self.rng.random() < 0.5
            wish.expected = self.alone.answers(wish)


def begins_alike(pieces: list[tuple[int, int]], expected: list[tuple]) -> bool:
    """Whether (choice, token id) pairs are a beginning of what was expected of each choice."""
    for index, choice in enumerate(expected):
        tokens = [token for number, token in pieces if number == index]
        if tokens != choice[0][: len(tokens)]:
            return False
    return True
