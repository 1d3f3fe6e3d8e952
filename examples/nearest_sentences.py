"""Sentences that mean something like a question, by the angle between their vectors; and how vectors become smaller.

    python examples/nearest_sentences.py [MODEL]
"""

from __future__ import annotations

import sys

import numpy as np

import forwardpass

SENTENCES = [
    "You can change your password under Settings, Security.",
    "Our shops are open from nine to six, on Saturdays until one.",
    "Parcels to other countries take up to ten days.",
    "If you lost access to your account, ask for a link by e-mail.",
    "Bread is best kept in a bag of cloth.",
    "The invoice is attached to the confirmation of your order.",
]
QUESTION = "How do I log in again when I forgot my password?"


def main(name: str = "minilm-l6") -> None:
    with forwardpass.load(name) as model:
        print("model can:", ", ".join(model.tasks))
        vectors = model.embed(SENTENCES)
        question = model.embed(QUESTION)
        print("vectors:", vectors.dtype, list(vectors.shape))
        scores = model.similarity(question, vectors)[0]
        order = np.argsort(-scores)
        for i in order[:3]:
            print(f"{scores[i]:.3f}  {SENTENCES[i]}")

        # A text's vector has the same bits alone and in any batch.
        alone = np.concatenate([model.embed(sentence) for sentence in SENTENCES])
        print("the same bits one by one:", np.array_equal(alone, vectors))

        # A bit a number instead of 32: 48 bytes a sentence. Nearest is now what differs in the fewest bits.
        small = model.embed(SENTENCES, output="binary")
        differ = np.unpackbits(small ^ model.embed(QUESTION, output="binary"), axis=1).sum(axis=1)
        print("bytes of a vector:", vectors[0].nbytes, "and", small[0].nbytes)
        print("the same sentence is nearest:", bool(differ.argmin() == order[0]))


if __name__ == "__main__":
    main(*sys.argv[1:2])
