"""`forwardpass summarize FILE|TEXT...`: shorter texts that say the same."""

from __future__ import annotations

from .documents import input_documents
from .reading import given, load
from .translate import show_answers


def run(text, model, dtype, threads, json, **options) -> int:
    documents, params = input_documents(text), given(options)
    with load(model, "summarize", "a model that summarises", dtype, threads) as loaded:
        for document in documents:
            done = loaded.summarize(document, **params)
            show_answers(document, done if isinstance(done, list) else [done], json)
    return 0
