"""`forwardpass translate --to LANGUAGE FILE|TEXT...`: documents in another language, shown sentence by sentence."""

from __future__ import annotations

import sys

from .documents import input_documents
from .output import answer_text, print_json, write
from .reading import given, load


def run(text, model, dtype, threads, to, json, **options) -> int:
    documents = input_documents(text)
    params = given({"target": to, **options})
    with load(model, "translate", "a model that translates", dtype, threads) as loaded:
        for document in documents:
            if json or params.get("num_return_sequences", 1) > 1:
                done = loaded.translate(document, **params)
                show_answers(document, done if isinstance(done, list) else [done], json)
            else:
                lost: list[str] = []
                ended = ""
                for sentence in loaded.translate(document, stream=True, **params):
                    write(answer_text(sentence.text))
                    lost += sentence.lost
                    ended = sentence.text
                if not ended.endswith("\n"):
                    write("\n")
                if lost:  # the library warns of it where it does not stream
                    print(f"not found in the translation: {', '.join(lost)}", file=sys.stderr)
    return 0


def show_answers(document: str, answers, json: bool) -> None:
    """Several answers to one text, best first, or any as JSON."""
    if json:
        print_json({"source": document, "answers": [
            {"text": one.text, "score": one.score, "finish_reason": one.finish_reason, "lost": list(one.lost)}
            for one in answers]})
        return
    for number, one in enumerate(answers, 1):
        score = "" if one.score is None else f" ({one.score:.3f})"
        write((f"{number}.{score} " if len(answers) > 1 else "") + answer_text(one.text) + "\n")
