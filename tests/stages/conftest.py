"""The real SmolLM2 tokenizer, and a tokenizer of single bytes whose every id is known by hand."""

import pytest
from tokenizers import pre_tokenizers

from forwardpass import catalog
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.recipes import BytePairs
from forwardpass.weights.tokenizer import Tokenizer, VocabularyFacts
from forwardpass.weights.vocabulary import tokenizer_from_gguf

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def smollm2():
    with open_gguf(catalog.resolve("smollm2-135m")) as source:
        return tokenizer_from_gguf(source.metadata)


@pytest.fixture(scope="session")
def byte_tokenizer():
    """byte_tokenizer(add_bos=False, template=None): an id is a byte, then come the four of SPECIALS from 256 on."""
    plain = {b: chr(b) for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174}
    letters = iter(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(plain.values())))
    alphabet = [plain[b] if b in plain else next(letters) for b in range(256)]

    def make(add_bos=False, template=None):
        added = dict.fromkeys(range(256, 260), True)
        pairs = BytePairs(alphabet + SPECIALS, [], "gpt-2", added, (256,) if add_bos else ())
        facts = VocabularyFacts(
            260, bos_token_id=256, eos_token_ids=(257,), chat_template=template, variables={"bos_token": "<s>"}
        )
        return Tokenizer(pairs.build(), facts, pairs)

    return make
