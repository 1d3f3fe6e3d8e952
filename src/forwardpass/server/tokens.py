"""POST /tokenize and /detokenize: what a prompt is to a model, and the way back."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from forwardpass.errors import UnsupportedModelError
from forwardpass.server.chat import prompt_ids
from forwardpass.server.errors import ApiError
from forwardpass.server.models import reads
from forwardpass.server.schemas_reading import DetokenizeBody, Detokenized, TokenizeBody, Tokens

CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
"""Fields that say how messages are written."""


async def tokenize(call, body: TokenizeBody) -> Tokens:
    """The token ids that the model reads of a prompt, or of a conversation through its template. Special tokens that
    are written out count as such in a prompt, in messages they are plain text."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "expected either prompt or messages", code="invalid_value", param="prompt")
    for name in ("add_special_tokens",) if body.prompt is None else CHAT:
        if getattr(body, name) is not None:
            kind = "a prompt" if body.prompt is None else "messages"
            raise ApiError(400, f"{name}: belongs to {kind}; leave it out", code="invalid_value", param=name)
    model = _with_tokenizer(call, body.model) if body.messages is None else call.find(body.model, "chat")
    ids, spelled = await call.prepare(_tokens, model, body)
    return Tokens(tokens=ids, count=len(ids), max_model_len=reads(model), token_strs=spelled)


async def detokenize(call, body: DetokenizeBody) -> Detokenized:
    """The text of token ids, special tokens written out. Bytes that are no UTF-8 become U+FFFD."""
    model = _with_tokenizer(call, body.model)
    return Detokenized(prompt=await call.prepare(_text, model, body.tokens))


def _tokens(model, body: TokenizeBody) -> tuple[list[int], list[str] | UnsetType]:
    tokenizer = model.tokenizer
    if body.messages is None:
        ids = tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False, parse_special=True)
    else:
        ids = prompt_ids(model, body.messages, add_generation_prompt=body.add_generation_prompt,
                         continue_final_message=body.continue_final_message, variables=body.chat_template_kwargs)
    return ids, [tokenizer.id_to_token(one) or "" for one in ids] if body.return_token_strs else UNSET


def _text(model, ids: list[int]) -> str:
    size = model.spec.vocab_size
    for place, one in enumerate(ids):
        if not 0 <= one < size:
            where = f"tokens[{place}]"
            raise ApiError(400, f"{where} is {one}; expected an id from 0 to {size - 1}", code="invalid_value",
                           param=where)
    return model.tokenizer.decode(ids)


def _with_tokenizer(call, name: str):
    model = call.host.find(name)
    call.log["model"] = name
    if model.tokenizer is None:
        raise UnsupportedModelError(f"the model {name!r} has no tokenizer")
    return model
