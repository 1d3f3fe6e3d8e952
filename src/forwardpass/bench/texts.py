"""Prompts of real text with a wanted number of tokens, no two of which begin alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from forwardpass.bench.client import Client
from forwardpass.errors import ForwardpassError, ParameterError

STRIDE = 7919  # prime: pieces begin at places far from one another, each place once before one comes again
MOST_TOKENS = 60_000
CHARACTERS_A_TOKEN = 4


class Texts:
    """Pieces of one long text.

    cut: (first unit, number of units) -> that text;  units: how many there are;  a_token: units in a token;  how: a
    sentence that says how exact lengths are;  longest: tokens of the longest piece that will be wanted;  seed: other
    pieces for each.
    """

    def __init__(self, cut: Callable[[int, int], Awaitable[str]], units: int, a_token: int, how: str, longest: int,
                 seed: int = 0):
        self.how, self._cut, self._a_token = how, cut, a_token
        self._places = units - longest * a_token
        if self._places < 1:
            raise ParameterError(f"the text has about {units // a_token} tokens, pieces of {longest} are wanted: name "
                                 "a longer text in FORWARDPASS_TEXT")
        self._places -= self._places % STRIDE == 0 and self._places > 1
        self._first = seed * 104_729

    async def take(self, number: int, tokens: int) -> str:
        """Piece `number` of about so many tokens; with another number it begins elsewhere."""
        at = ((self._first + number) * STRIDE) % self._places
        return await self._cut(at, tokens * self._a_token)


def from_tokenizer(tokenizer, text: str, longest: int, seed: int = 0, most: int = MOST_TOKENS) -> Texts:
    """Cut by a tokenizer of this package."""
    ids = tokenizer.encode(text[: 16 * max(most, 2 * longest)], add_special_tokens=False, parse_special=False)

    async def cut(at: int, count: int) -> str:
        return tokenizer.decode(ids[at : at + count])

    return Texts(cut, len(ids), 1, "prompts are cut by the given tokenizer", longest, seed)


async def from_server(client: Client, text: str, longest: int, seed: int = 0) -> Texts:
    """Cut by the server's own /tokenize and /detokenize, or by an estimate where it has none."""
    ids = await client.tokens_of(text, max(MOST_TOKENS, 2 * longest))
    if ids and await client.text_of(ids[:8]):
        async def cut(at: int, count: int) -> str:
            found = await client.text_of(ids[at : at + count])
            if found is None:
                raise ForwardpassError("the server's /detokenize stopped answering")
            return found

        return Texts(cut, len(ids), 1, "prompts are cut by the server's tokenizer", longest, seed)
    return estimated(text, longest, seed)


def estimated(text: str, longest: int, seed: int = 0) -> Texts:
    async def cut(at: int, count: int) -> str:
        return text[at : at + count]

    return Texts(cut, len(text), CHARACTERS_A_TOKEN,
                 f"prompt lengths are estimates, {CHARACTERS_A_TOKEN} characters a token: the server has no /tokenize; "
                 "name a tokenizer for exact ones", longest, seed)
