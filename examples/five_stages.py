"""Walks a prompt through the five stages of inference by hand, then builds the generation loop from them.

    python examples/five_stages.py [MODEL]          MODEL: a catalogue name (default smollm2-135m), a GGUF file, ...

Everything here is what the engine does for you, without scheduling: compare `answer` below with engine.py.
docs/five-stages.md explains each stage.
"""

from __future__ import annotations

import sys

import numpy as np

import forwardpass
from forwardpass.cache.blocks import blocks_for
from forwardpass.contracts import CacheView
from forwardpass.decoding.params import SamplingParams
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.postprocess import Choice
from forwardpass.stages.preprocess import encode_prompt, pack, pad
from forwardpass.stages.project import project

PROMPT = "The capital of France is"


class Cache:
    """A KV cache with room for `positions` tokens of each of `sequences` texts."""

    def __init__(self, network, sequences: int, positions: int):
        each = blocks_for(positions)  # blocks of 64 positions
        self.memory = network.kv_memory(sequences * each)  # for each group of layers; here all use the same blocks
        self.tables = np.arange(sequences * each, dtype=np.int32).reshape(sequences, each)
        self.past = np.zeros(sequences, np.int32)  # positions computed so far

    def view(self) -> CacheView:
        return CacheView(self.past, self.tables)


def walk(model) -> None:
    """One pass over the prompt, stage by stage."""
    network = model.network
    ids = encode_prompt(model.tokenizer, PROMPT)
    packed = pack([ids])
    print(f"1 preprocess   {PROMPT!r} -> token ids {packed.token_ids.tolist()}, positions {packed.positions.tolist()}")

    hidden = embed(network, packed)
    print(f"2 embed        -> hidden states {hidden.values.dtype} {list(hidden.values.shape)}")

    cache = Cache(network, 1, len(ids))
    hidden = decode(network, hidden, cache.view(), cache.memory)
    print(f"3 decode       -> hidden states {hidden.values.dtype} {list(hidden.values.shape)} after "
          f"{len(model.spec.layers)} layers and the final norm; a block of "
          f"{sum(group.block_bytes for group in cache.memory):,} bytes now holds their keys and values")

    logits = project(network, hidden)
    print(f"4 project      -> logits {logits.values.dtype} {list(logits.values.shape)} of row {logits.rows.tolist()}, "
          f"the last token's")

    choice = Choice(SamplingParams(max_new_tokens=1), model.facts, ids, model.tokenizer)
    piece = choice.accept(logits.values[0])
    print(f"5 postprocess  -> token {piece.token_id}, text {piece.text!r}\n")


def answer(model, prompt: str, params: SamplingParams):
    """The generation loop: the prompt's tokens go in first, then each new token by itself."""
    network, new = model.network, encode_prompt(model.tokenizer, prompt)
    choice = Choice(params, model.facts, new, model.tokenizer)
    cache = Cache(network, 1, len(new) + params.max_new_tokens)
    while choice.finish_reason is None:
        packed = pack([new], past=cache.past)
        hidden = decode(network, embed(network, packed), cache.view(), cache.memory)
        piece = choice.accept(project(network, hidden).values[0])
        print(piece.text, end="", flush=True)
        cache.past, new = cache.past + packed.lengths, [piece.token_id]
    return choice.completion()


def padded_form(model) -> bool:
    """The classic rectangle with its mask gives the real rows exactly what packing gives them."""
    texts = [encode_prompt(model.tokenizer, text) for text in ("Hello", "The sky is blue because")]
    rectangle = pad(texts, padding="max_length", max_length=8, side="left", pad_id=model.tokenizer.pad_token_id)
    print(f"input_ids\n{rectangle.input_ids}\nattention_mask\n{rectangle.attention_mask}")
    rows = []
    for tokens in (rectangle, pack(texts)):
        cache = Cache(model.network, len(texts), 8)
        hidden = decode(model.network, embed(model.network, tokens), cache.view(), cache.memory)
        rows.append(project(model.network, hidden).values)
    print(f"two rows of logits {list(rows[0].shape)}, padded or packed")
    return bool((rows[0] == rows[1]).all())


def main(name: str = "smollm2-135m") -> None:
    with forwardpass.load(name) as model:
        walk(model)
        params = SamplingParams(max_new_tokens=40)
        print(PROMPT, end="")
        by_hand = answer(model, PROMPT, params)
        from_engine = model.generate(PROMPT, max_new_tokens=40, do_sample=False)
        print(f"\n\nthe same tokens as model.generate: {by_hand.token_ids == from_engine.token_ids}\n")
        print(f"the same bits: {padded_form(model)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
