"""A Model over script_lm.ScriptLM that says what a test wants, byte by byte, and a host of it.

Tokens are those of tiny_chat: 256 bytes and four special ones. Its template is nothing but the messages' contents, so
that a chat of one letter is a prompt of one token.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import tiny_chat
from forwardpass.decoding.params import TokenFacts
from forwardpass.driver import Driver
from forwardpass.errors import UnknownModelError
from forwardpass.models.task_settings import TaskSettings
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.tasks.model import Model
from forwardpass.tasks.opening import Opened
from forwardpass.weights.vocabulary import tokenizer_from_directory
from script_lm import Memory, ScriptLM

VOCAB, END = 264, 257
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


class BytesLM(ScriptLM):
    """f(tokens so far) -> the next token, or a row of logits. gate: while it is not set, no step is computed."""

    kv_dtype = "float32"

    def __init__(self, f, max_positions=4096):
        super().__init__(f, max_positions)
        self.spec = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=max_positions, causal=True,
                                    head=self.spec.head, encoder=None, images=None, patches=None)
        self.gate = threading.Event()
        self.gate.set()
        self.before = self._wait

    def _wait(self):
        assert self.gate.wait(30)

    def project(self, hidden, rows):
        out = np.zeros((rows.size, VOCAB), np.float32)
        for row, index in enumerate(hidden[rows, 0].astype(int)):
            wanted = self.f(self.texts[index])
            out[row] = wanted if isinstance(wanted, np.ndarray) else 9.0 * (np.arange(VOCAB) == wanted)
        return out


def tokens_of(tokenizer, data: bytes) -> list[int]:
    """One token a byte."""
    by_bytes = {tokenizer.token_bytes(i): i for i in range(256)}
    return [by_bytes[bytes([byte])] for byte in data]


def model(answers, folder: Path, template=TEMPLATE, context=4096, generation=None, end=(END,), bos=False,
          blocks=1000) -> Model:
    """answers: of a prompt of one letter, {letter: bytes of the answer, then the end token follows}; or a function as
    of BytesLM.  blocks: of the cache."""
    tiny_chat.write(folder, template=template, bos=bos)
    tokenizer = tokenizer_from_directory(folder)
    f = answers
    if isinstance(answers, dict):
        scripts = {tokens_of(tokenizer, letter.encode())[0]: [*tokens_of(tokenizer, said), END]
                   for letter, said in answers.items()}

        def f(text):
            return scripts[text[0]][len(text) - 1]

    facts = TokenFacts(260, end_ids=end, special_ids=tokenizer.special_ids)
    return Model(Opened(path=folder, dtype="float32", network=BytesLM(f, context), tokenizer=tokenizer, facts=facts,
                        generation=generation or {}, stored={}, arithmetic="float32", warnings=(),
                        settings=TaskSettings(), dense=(), weights_bytes=0), SharedBudget(blocks * Memory.block_bytes))


class ScriptHost:
    """What the server needs of a Host. limit: of the tokens in flight."""

    def __init__(self, models: dict[str, Model], limit: int | None = None):
        self.models, self.aliases = models, {}
        self.account = TokensInFlight(limit)
        self.driver = Driver()
        for one in models.values():
            self.driver.attach(one.engine)

    def find(self, name: str) -> Model:
        if name not in self.models:
            raise UnknownModelError(f"there is no model {name!r} here; there are: {', '.join(self.models)}")
        return self.models[name]

    def close(self):
        for one in self.models.values():
            one.network.gate.set()
            one.close()
        self.driver.close()
