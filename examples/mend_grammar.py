"""Mends sentences by a model that labels each word with the edit it needs, until it finds nothing more to do.

    python examples/mend_grammar.py [MODEL]
"""

from __future__ import annotations

import sys

import forwardpass

SENTENCES = [
    "She have went home early .",
    "Their are many people in the room .",
    "I has two brothers and they is older then me .",
]


def mended(sentence: str, edits: list[forwardpass.Entity]) -> str:
    """The sentence with each edit done: a word replaced, left out, or followed by another. The last one comes first, so
    that the places of the others stay true."""
    for edit in reversed(edits):
        kind, _, text = edit.label.partition("_")
        word = sentence[edit.start : edit.end]
        new = {"$REPLACE": text, "$DELETE": "", "$APPEND": f"{word} {text}"}.get(kind)
        if kind == "$CASE":
            new = {"CAPITAL": word.capitalize(), "LOWER": word.lower(), "UPPER": word.upper()}[text]
        sentence = sentence[: edit.start] + new + sentence[edit.end :]
    return " ".join(sentence.split())


def main(name: str = "gector-distilbert") -> None:
    with forwardpass.load(name) as model:
        for sentence in SENTENCES:
            print(sentence)
            for _ in range(4):  # an edit may show what else is wrong
                edits = model.token_classify(sentence, aggregation="words", ignore=["$KEEP"])
                if not edits:
                    break
                sentence = mended(sentence, edits)
                print(f"  {', '.join(f'{edit.text} {edit.label} ({edit.score:.2f})' for edit in edits)}")
                print(f"  {sentence}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
