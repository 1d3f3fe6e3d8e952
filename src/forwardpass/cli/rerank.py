"""`forwardpass rerank QUERY DOCUMENT...`: documents by their relevance to a query, best first."""

from __future__ import annotations

from .output import print_json, write
from .reading import answer_each, check_top, given, input_texts, load, shown


def run(query, document, model, dtype, threads, file, top, json, **options) -> int:
    check_top(top)
    documents = input_texts(document, file, "document")
    with load(model, "rerank", "a cross-encoder", dtype, threads) as loaded:
        asked, scores = given(options), []

        def work(some) -> list[float]:
            return [score for _, score in sorted(loaded.rerank(query, some, **asked))]

        answer_each(documents, work, lambda _, score: scores.append(score), what="reranking")
        for index in sorted(range(len(scores)), key=lambda i: -scores[i])[:top]:
            if json:
                print_json({"index": index, "score": scores[index], "text": documents[index]})
            else:
                write(f"{scores[index]:.4f}  {shown(documents[index], 1000)}\n")
    return 0
