"""Translate a text by the sentence, see what the beams thought, and whether anything was lost.

    python examples/translate_file.py [FILE] [--to LANGUAGE] [--model flan-t5-small]
"""

import argparse
from pathlib import Path

import forwardpass as fp

TEXT = """\
The house is wonderful and the weather is nice today.

Dear {name},
The train leaves at 9. We are at home.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="a text file (default: a few lines of English)")
    parser.add_argument("--to", default="German", help="language, by code or name (default %(default)s)")
    parser.add_argument("--model", default="flan-t5-small")
    options = parser.parse_args()
    text = Path(options.file).read_text("utf-8") if options.file else TEXT

    with fp.load(options.model) as model:
        # Sentence by sentence, as they come; lines, blanks and {braces} stay where they were.
        for sentence in model.translate(text, target=options.to, stream=True):
            print(sentence.text, end="", flush=True)
            if sentence.lost:
                print(f" [not found: {', '.join(sentence.lost)}]", end="")

        first = text.strip().splitlines()[0]
        print(f"\n\nWhat four beams made of {first!r}, with their scores (mean log-probability a token):")
        for one in model.translate(first, target=options.to, num_beams=4, num_return_sequences=4):
            print(f"  {one.score:.3f}  {one.text}")


if __name__ == "__main__":
    main()
