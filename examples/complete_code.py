"""Code completion: a model that was trained to fill in a middle writes what belongs at the cursor.

    python examples/complete_code.py [MODEL]

With the text behind the cursor the answer ends where the model says so, or where it would repeat that text. Without it
the model can only go on writing: it does not know where the code is going, nor when to stop.
"""

from __future__ import annotations

import ast
import sys

import forwardpass

BEFORE = '''\
def word_counts(path):
    """How often each word occurs in a file."""
    counts = {}
    with open(path) as file:
        for line in file:
'''
AFTER = '''
    return counts
'''


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def main(name: str = "qwen2.5-coder-0.5b") -> None:
    with forwardpass.load(name) as model:
        done = model.complete(BEFORE, AFTER, max_new_tokens=60)
        print(f"{BEFORE}{done.text}{AFTER}")
        print(f"ended: {done.finish_reason}, after {len(done.token_ids)} tokens; "
              f"the whole is Python: {parses(BEFORE + done.text + AFTER)}\n")

        print("without the text behind the cursor:")
        print(BEFORE, end="")
        with model.complete(BEFORE, max_new_tokens=60, stream=True) as stream:
            for piece in stream:
                print(piece.text, end="", flush=True)
        print(f"\n\nended: {stream.completion.finish_reason}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
