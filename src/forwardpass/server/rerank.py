"""POST /v1/rerank."""

from __future__ import annotations

from msgspec import UNSET

from forwardpass.server.reading import run_task
from forwardpass.server.schemas_reading import Document, Relevance, RerankBody, Reranked


async def rerank(call, body: RerankBody) -> Reranked:
    """Documents by their relevance to a query. What is too long is cut, with a warning in the answer, unless
    `truncation` says otherwise."""
    model = call.find(body.model, "rerank")
    documents = [one.text if isinstance(one, Document) else one for one in body.documents]
    done = await run_task(
        call, body, {"texts": "documents", "top_k": "top_n"}, model.rerank, body.query, documents, top_k=body.top_n,
        activation=body.activation, template=body.template, truncation=body.truncation,
        pair_truncation=body.pair_truncation, max_length=body.max_length)
    results = [Relevance(index=i, relevance_score=score,
                         document=Document(text=documents[i]) if body.return_documents else UNSET)
               for i, score in done.result]
    return Reranked(id=call.id, model=body.model, results=results, usage=done.usage, warnings=done.warnings)
