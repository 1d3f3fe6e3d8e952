"""While a long text is encoded, other threads go on: a server has one event loop."""

import threading
import time

import pytest

from forwardpass import catalog
from forwardpass.errors import ParameterError
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.tokenizer import LONG
from forwardpass.weights.vocabulary import tokenizer_from_gguf


@pytest.fixture(scope="module")
def smollm2():
    with open_gguf(catalog.resolve("smollm2-135m")) as source:
        return tokenizer_from_gguf(source.metadata)


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_long_text_holds_no_other_thread_up(smollm2, parse_special):
    """Unless it does, nothing at all happens in this thread until the text is encoded."""
    text = " ".join(f"{number * 7919 % 100_003:x}" for number in range(120_000))
    thread = threading.Thread(target=smollm2.encode, args=(text,),
                              kwargs={"add_special_tokens": False, "parse_special": parse_special})
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20


@pytest.mark.parametrize("size", [LONG - 10, LONG + 10, 5 * LONG])
def test_texts_of_every_length_are_cut_alike(smollm2, size):
    text = ("The llama <|im_end|> é猫🌶 runs.\n" * size)[:size]
    for special in (True, False):
        whole = smollm2.encode(text, add_special_tokens=False, parse_special=special)
        assert smollm2.decode(whole) == text
        backend = smollm2.backend if special else smollm2.plain_backend
        assert whole == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("size", [10, 5 * LONG])
def test_a_text_that_is_none(smollm2, size):
    with pytest.raises(ParameterError, match="surrogate"):
        smollm2.encode("x" * size + "\ud800", add_special_tokens=False, parse_special=True)
    with pytest.raises(ParameterError, match="bytes"):
        smollm2.encode(b"x" * size, add_special_tokens=False, parse_special=True)
