"""Prompts: as long as asked for, none like another."""

import asyncio

import pytest

from fake_openai import FakeServer
from forwardpass.bench import texts
from forwardpass.bench.client import Client
from forwardpass.errors import ParameterError

TEXT = " ".join(f"word{i}" for i in range(4000))


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text, add_special_tokens, parse_special):
        assert not add_special_tokens and not parse_special
        return list(map(ord, text))

    def decode(self, ids):
        return "".join(map(chr, ids))


def take(source, numbers, tokens):
    async def all_of_them():
        return [await source.take(number, tokens) for number in numbers]

    return asyncio.run(all_of_them())


def test_pieces_have_the_length_and_begin_differently():
    source = texts.from_tokenizer(Letters(), TEXT, 100)
    found = take(source, range(-2, 2000), 100)
    assert {len(one) for one in found} == {100} and all(one in TEXT for one in found)
    assert len(set(found)) == 2002
    assert take(source, [7, 7], 60) == [found[9][:60]] * 2  # the same number begins at the same place


def test_seeds_are_other_texts():
    one, other = (take(texts.from_tokenizer(Letters(), TEXT, 100, seed), range(50), 40) for seed in (0, 1))
    assert not set(one) & set(other)


def test_every_place_is_used_before_one_comes_again():
    """Also where the number of places is a multiple of the stride."""
    text = "".join(chr(0x4E00 + i) for i in range(texts.STRIDE + 10))
    source = texts.from_tokenizer(Letters(), text, 10)
    assert len({one[0] for one in take(source, range(texts.STRIDE - 1), 10)}) == texts.STRIDE - 1


def test_a_text_that_is_too_short():
    with pytest.raises(ParameterError, match="about 5 tokens, pieces of 6 are wanted: name a longer text"):
        texts.from_tokenizer(Letters(), "abcde", 6)


def test_the_server_cuts():
    async def run(**options):
        async with FakeServer(**options) as server, Client(server.url, model="fake") as client:
            source = await texts.from_server(client, TEXT, 50)
            return source, await source.take(3, 50)

    source, piece = asyncio.run(run())
    assert len(piece) == 50 and piece in TEXT and "server's tokenizer" in source.how
    source, piece = asyncio.run(run(tokenizes=False))
    assert len(piece) == 200 and piece in TEXT and "estimates, 4 characters a token" in source.how
