"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from forwardpass.contracts import Piece
from forwardpass.errors import ParameterError, TemplateError
from forwardpass.server.errors import ApiError
from forwardpass.server.generation import Answers, Length, check_answers, encoded, fitted, head, parameters, wrong
from forwardpass.server.logprobs import TokenTexts
from forwardpass.server.schemas_generation import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    Message,
    TokenLogprob,
)
from forwardpass.server.sse import Events, EventStream, Told
from forwardpass.stages.postprocess import Choice
from forwardpass.stages.template import chat_ids

ROLES = ("developer", "system")
"""What the first is called in templates that don't know it."""
OWN = frozenset({"tokenizer", "messages", "template", "continues", "add_generation_prompt", "continue_final_message",
                 "tools", "documents"})
"""What chat_template_kwargs may not set, beside the special tokens that the model's files name: what is set elsewhere,
or would let a client bring a template."""


async def chat(call, body: ChatRequest) -> ChatCompletion | Response:
    """Answer a conversation."""
    check(body)
    model = call.find(body.model, "chat")
    answers = await call.prepare(_asked, call, model, body)
    if body.stream:
        return EventStream(ChatEvents(call, model, body, answers))
    await answers.finished()

    def whole() -> ChatCompletion:
        texts = TokenTexts(model.tokenizer)
        return ChatCompletion(**head(call, model, body, answers, "chat.completion"), usage=answers.usage(),
                              choices=[_choice(texts, choice) for choice in answers.requests[0].choices])

    return await call.prepare(encoded, whole) if body.logprobs else whole()


def _asked(call, model, body: ChatRequest) -> Answers:
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    tops = (body.top_logprobs or 0) + 1 if body.logprobs else 0
    length = Length(getattr(body, field), field, "messages", body.answers, tops, least=body.min_tokens or 0)
    params = parameters(model, body, length, tops - 1 if tops else None)
    ids = prompt_ids(model, body.messages, add_generation_prompt=body.add_generation_prompt,
                     continue_final_message=body.continue_final_message, variables=_variables(model, body))
    return Answers.ask(call, model, [ids], fitted(call, model, [ids], params, length))


def prompt_ids(model, messages: Sequence[Message], *, add_generation_prompt: bool | None = None,
               continue_final_message: bool | None = None, variables: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids of a conversation, as the model reads it. variables: chat_template_kwargs. ApiError, or what the
    template raises."""
    if continue_final_message and add_generation_prompt:
        raise wrong("add_generation_prompt", "no answer is opened behind a message that is continued: leave it out, or "
                    "set continue_final_message to false")
    for name in variables or ():
        if name in OWN or name in model.tokenizer.template_variables:
            raise wrong("chat_template_kwargs", f"{name!r} is no setting that a template leaves to a request")
    try:
        return chat_ids(model.tokenizer, [_plain(model, number, one) for number, one in enumerate(messages)],
                        add_generation_prompt=add_generation_prompt is not False,
                        continues=bool(continue_final_message), **(variables or {}))
    except (ParameterError, TemplateError) as error:
        silent = next((number for number, one in enumerate(messages) if one.content is None), None)
        if silent is None or not isinstance(error, TemplateError):
            raise ApiError(400, str(error), code="invalid_value", param="messages") from None
        where = f"messages[{silent}].content"
        raise ApiError(400, f"{where}: expected text, found none: {error}", code="invalid_value", param=where) from None


def _plain(model, number: int, message: Message) -> dict[str, Any]:
    """A message as templates know it."""
    for name in ("tool_calls", "annotations", "function_call", "audio", "refusal"):
        if getattr(message, name):
            raise _unsupported(f"messages[{number}].{name}", "this server calls no tools and answers in text: leave it "
                               "out, and put what matters into content")
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == ROLES[0] and ROLES[0] not in model.tokenizer.chat_template:
        plain["role"] = ROLES[1]
    if isinstance(message.content, list):
        for place, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                where = f"messages[{number}].content[{place}]"
                found = f"a part of type {part.type!r}" if part.type != "text" else "a part without text"
                raise _unsupported(where, 'the models here read text: expected {"type": "text", "text": ...}, found '
                                   + found)
        plain["content"] = [{"type": "text", "text": part.text} for part in message.content]
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    return plain


def _variables(model, body: ChatRequest) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        if "reasoning_effort" not in model.tokenizer.chat_template:
            raise _unsupported("reasoning_effort", "this model's template has no such setting; leave it out. What the "
                               "template does have is set in chat_template_kwargs")
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return variables


def check(body: ChatRequest) -> None:
    """Refuse what is not served, whatever the model, with what works instead."""
    check_answers(body, 1)
    if body.top_logprobs is not None and not body.logprobs:
        raise wrong("top_logprobs", "needs logprobs: true")
    for name in ("tools", "functions"):
        if getattr(body, name):
            raise _unsupported(name, "tools and functions are not supported; describe what you need in the messages, "
                               "and leave this out or empty")
    for name in ("tool_choice", "function_call"):
        if getattr(body, name) not in (None, "none", "auto"):
            raise _unsupported(name, 'there are no tools here to be chosen; leave it out, or say "none" or "auto"')
    if body.response_format is not None and (
            body.response_format.type != "text" or body.response_format.json_schema or body.response_format.schema):
        raise _unsupported("response_format", 'only {"type": "text"} is supported; ask for JSON in the messages, and '
                           "check what comes")
    for name in ("audio", "moderation", "web_search_options"):
        if getattr(body, name) is not None:
            raise _unsupported(name, "not supported: the models here read and write text, nothing else; leave it out")
    if body.modalities is not None and body.modalities != ["text"]:
        raise _unsupported("modalities", 'the models here answer in text: only ["text"] is supported')
    if body.verbosity not in (None, "medium"):
        raise _unsupported("verbosity", 'only "medium" is supported, which changes nothing; say in the messages how '
                           "long answers should be")


def _unsupported(param: str, message: str) -> ApiError:
    return wrong(param, message, "unsupported_value")


# ---- answers


def _choice(texts: TokenTexts, choice: Choice) -> ChatChoice:
    logprobs = None
    if choice.logprobs is not None:
        logprobs = ChatLogprobs([_entry(texts, choice, place) for place in range(len(choice.token_ids))])
    return ChatChoice(choice.index, ChatMessage("assistant", choice.text), logprobs, choice.finish_reason,
                      UNSET if choice.score is None else choice.score)


def _entry(texts: TokenTexts, choice: Choice, place: int) -> TokenLogprob:
    return texts.entry(choice.token_ids[place], choice.logprobs[place], choice.top_logprobs[place])


class ChatEvents(Events):
    """chat.completion.chunk: the first of each choice says whose answer it is."""

    OPEN, CLOSE, LAST = b'"delta":{"content":', b"}", b'"delta":{}'

    def __init__(self, call, model, body: ChatRequest, answers: Answers):
        self._texts = TokenTexts(model.tokenizer)
        super().__init__(answers, head(call, model, body, answers, "chat.completion.chunk"), body, bool(body.logprobs))

    def begin(self, told: Told, out: list[bytes]) -> None:
        told.held = []
        out.append(self.event(told.index, b'"delta":{"role":"assistant","content":""},"logprobs":null'))

    def note(self, told: Told, piece: Piece) -> None:
        told.held.append(_entry(self._texts, told.choice, told.seen))

    def logprobs(self, told: Told) -> bytes:
        if not told.held:
            return b"null"
        held, told.held = told.held, []
        return msgspec.json.encode(ChatLogprobs(held))
