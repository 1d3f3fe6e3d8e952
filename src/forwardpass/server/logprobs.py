"""Log-probabilities as the API shows them: tokens as texts and bytes, in the forms of chats and of completions.

They are natural logarithms of the raw model's probabilities, before temperature, penalties and filters. Every generated
token has one, the end token as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from forwardpass.server.schemas_generation import CompletionLogprobs, TokenLogprob, TopLogprob
from forwardpass.stages.text_stream import TextStream

LEAST = -9999.0
"""What an impossible token has: JSON knows no infinity."""


def finite(logprob: float) -> float:
    return max(logprob, LEAST)


class TokenTexts:
    """How a model's tokens are written. tokenizer: None = it has none, and a token is known by its number alone."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token stands for; None where tokens are no pieces of text."""
        tokenizer = self.tokenizer
        return tokenizer.token_bytes(token_id) if tokenizer is not None and tokenizer.decodes_bytes else None

    def text(self, token_id: int) -> str:
        """With U+FFFD for what is no whole character."""
        known = self.bytes_of(token_id)
        if known is not None:
            return known.decode("utf-8", "replace")
        name = None if self.tokenizer is None else self.tokenizer.id_to_token(token_id)
        return f"token_id:{token_id}" if name is None else name

    def distinct(self, token_id: int) -> str:
        """With the bytes written out where they are no whole characters: b"\\\\xe7" is "bytes:\\\\xe7"."""
        known = self.bytes_of(token_id)
        if known is None:
            return self.text(token_id)
        try:
            return known.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in known)

    def entry(self, token_id: int, logprob: float, top: Mapping[int, float]) -> TokenLogprob:
        """One token of a chat's answer. top: token id -> log-probability, likeliest first."""
        likeliest = [TopLogprob(self.text(one), finite(value), self._listed(one)) for one, value in top.items()]
        return TokenLogprob(self.text(token_id), finite(logprob), self._listed(token_id), likeliest)

    def _listed(self, token_id: int) -> list[int] | None:
        known = self.bytes_of(token_id)
        return None if known is None else list(known)


class Offsets:
    """Where each of a list of tokens begins in its text, in characters. A token that goes on with a character begins
    where that one does. `at`: where the next one will."""

    def __init__(self, tokenizer, at: int = 0, *, skip: Collection[int] = (), continues: bool = True):
        texts = tokenizer is not None and tokenizer.decodes_bytes
        self._stream = TextStream(tokenizer, skip=skip, continues=continues) if texts else None
        self.at = at

    def push(self, token_id: int) -> int:
        before = self.at
        if self._stream is not None:
            self.at += len(self._stream.push(token_id))
        return before


class CompletionRows:
    """Entries of CompletionLogprobs, token by token. top: whether the likeliest were asked for."""

    def __init__(self, texts: TokenTexts, top: bool):
        self._texts = texts
        self._top = top
        self.clear()

    def __len__(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.tokens: list[str] = []
        self.values: list[float | None] = []
        self.tops: list[dict[str, float] | None] = []
        self.offsets: list[int] = []

    def add(self, token_id: int, logprob: float | None, top: Mapping[int, float] | None, offset: int) -> None:
        """top: token id -> log-probability, likeliest first. Of tokens that are written alike the likeliest is shown;
        the token itself always is."""
        name = self._texts.distinct(token_id)
        shown = None
        if logprob is not None and top is not None:
            shown = {}
            for one, value in (*top.items(), (token_id, logprob)):
                shown.setdefault(self._texts.distinct(one), finite(value))
        self.tokens.append(name)
        self.values.append(None if logprob is None else finite(logprob))
        self.tops.append(shown)
        self.offsets.append(offset)

    def take(self) -> CompletionLogprobs:
        """The entries so far, of which this keeps none."""
        out = CompletionLogprobs(self.tokens, self.values, self.tops if self._top else None, self.offsets)
        self.clear()
        return out


def prompt_offsets(tokenizer, prompt: str | None, ids: Sequence[int]) -> tuple[str, list[int]]:
    """(a prompt's text, where in it each token begins). prompt: what the client wrote, None = only ids, which are
    decoded. A token that the client did not write, such as a BOS in front, takes no room."""
    if tokenizer is None:
        return "", [0] * len(ids)
    if prompt is None:
        prompt, skip = tokenizer.decode(ids), ()
    else:
        begun = tokenizer.prefix_ids
        written = not begun or prompt.startswith(tokenizer.decode(begun[:1]))
        skip = () if written else begun[:1]
    offsets = Offsets(tokenizer, skip=skip, continues=False)
    return prompt, [min(offsets.push(token), len(prompt)) for token in ids]
