"""POST /v1/translate."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from forwardpass.contracts import Completion
from forwardpass.errors import CapacityError
from forwardpass.server.reading import run_task
from forwardpass.server.schemas_reading import (
    TranslateBody,
    Translated,
    TranslationAnswer,
    Translations,
    TranslationUsage,
)
from forwardpass.stages.texts import count_tokens
from forwardpass.tasks.languages import direction

NAMES = {"texts": "input", "num_return_sequences": "n", "max_new_tokens": "max_tokens"}


async def translate(call, body: TranslateBody) -> TranslationAnswer:
    """Texts in another language, whole documents as they stood. What a translation lacks of the source's numbers, URLs,
    {braces} and tags is in its `lost`."""
    model = call.find(body.model, "translate")
    texts = [body.input] if isinstance(body.input, str) else body.input
    done = await run_task(call, body, NAMES, _translated, model, texts, call.settings.max_tokens_per_request,
                          source=body.source, target=body.target, num_beams=body.num_beams,
                          num_return_sequences=body.n, max_new_tokens=body.max_tokens)
    data = [Translations(index=i, translations=[]) for i in range(len(texts))]
    for one in done.result:
        data[one.prompt_index].translations.append(Translated(
            text=one.text, score=one.score, finish_reason=one.finish_reason, lost=list(one.lost) or UNSET))
    read, written = done.usage.prompt_tokens, call.terms.tokens_generated
    return TranslationAnswer(id=call.id, data=data, model=body.model, usage=TranslationUsage(
        prompt_tokens=read, completion_tokens=written, total_tokens=read + written))


def _translated(model, texts: list[str], limit: int | None, source: str | None = None, target: str | None = None,
                **given: Any) -> list[Completion]:
    """A list, of one text too. n translations need as many beams, so that is the least where the request says nothing
    of beams. limit: tokens that a request may come to; sentences come to the engine one by one, so that it can't know.
    """
    wanted = given.get("num_return_sequences", 1)
    if limit is not None:
        _check(count_tokens(model.tokenizer, texts), wanted, limit)
    if wanted > 1 and "num_beams" not in given:
        way = direction(model.tokenizer, model.generation, source, target)
        given["num_beams"] = max(wanted, model.answer_params({}, way.settings).num_beams)
    return model.translate(texts, source, target, **given)


def _check(tokens: int, wanted: int, limit: int) -> None:
    """A translation is taken to be as long as its source."""
    if tokens * (1 + wanted) > limit:
        raise CapacityError(f"the texts have {tokens} tokens, and {wanted} x as many may be written; a request's limit "
                            f"is {limit}: send less text, or ask for fewer translations")
