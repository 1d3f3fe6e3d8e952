"""POST /v1/classify."""

from __future__ import annotations

from forwardpass.server.reading import run_task
from forwardpass.server.schemas_reading import Classification, ClassifyBody, Label, Labels


async def classify(call, body: ClassifyBody) -> Classification:
    """Labels of texts or pairs of texts. What is too long is cut, with a warning in the answer, unless `truncation`
    says otherwise."""
    model = call.find(body.model, "classify")
    done = await run_task(
        call, body, {"texts": "input"}, model.classify, body.input, top_k=body.top_k, activation=body.activation,
        truncation=body.truncation, pair_truncation=body.pair_truncation, max_length=body.max_length)
    data = [Labels(index=i, labels=[Label(label=label, score=score) for label, score in one])
            for i, one in enumerate(done.result)]
    return Classification(id=call.id, data=data, model=body.model, usage=done.usage, warnings=done.warnings)
