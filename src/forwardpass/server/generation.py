"""What both endpoints of generation do with a request: parameters, limits, the requests to the engine, their usage."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from starlette.responses import Response

import forwardpass
from forwardpass.asynchronous import finished
from forwardpass.decoding.params import SamplingParams
from forwardpass.errors import CapacityError, ContextLengthError, ForwardpassError, ParameterError
from forwardpass.scheduler.request import Request
from forwardpass.server.errors import ApiError
from forwardpass.server.schemas_generation import MAX_ANSWERS, AnswerUsage, CachedTokens, Sampling

MAX_LOGPROBS = 1 << 18
"""Log-probabilities that one HTTP request may ask for, those of the likeliest tokens among them. One takes about 300
bytes until it is sent, so that all together stay below 80 MiB."""
CONTEXT = "context_length_exceeded"
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "num_return_sequences": "n",
          "include_stop": "include_stop_str_in_output"}
"""Our parameters -> the API's."""
_OURS = re.compile(rf"\b({'|'.join(_NAMES)})\b")
_FIELDS = {*Sampling.__struct_fields__, "max_tokens"}


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 about one field."""
    return ApiError(400, f"{param}: {message}", code=code, param=param)


# ---- parameters


def sampling(body: Sampling) -> dict[str, Any]:
    """What a client says about choosing, by our names. Length and number of answers are not among it.

    An answer is sampled if a temperature above 0 or one of the filters is given, the likeliest if the temperature is 0;
    if nothing is said the model's files decide.
    """
    filters = (body.top_p, body.top_k, body.min_p, body.typical_p)
    sampled = None
    if body.temperature is not None:
        sampled = body.temperature > 0
    elif any(one is not None for one in filters):
        sampled = True
    given = {
        "do_sample": sampled, "temperature": body.temperature, "top_p": body.top_p, "min_p": body.min_p,
        "top_k": None if body.top_k is None else max(0, body.top_k), "typical_p": body.typical_p,
        "repetition_penalty": body.repetition_penalty, "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty, "logit_bias": body.logit_bias, "seed": _seed(body.seed),
        "stop": body.stop, "stop_token_ids": body.stop_token_ids, "include_stop": body.include_stop_str_in_output,
        "ignore_eos": body.ignore_eos, "min_new_tokens": body.min_tokens, "num_beams": body.num_beams,
        "length_penalty": body.length_penalty, "early_stopping": body.early_stopping,
    }
    return {name: value for name, value in given.items() if value is not None}


def _seed(seed: int | None) -> int | None:
    """OpenAI's seeds have a sign, ours have none: -1 is the same as 2**64 - 1."""
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise wrong("seed", f"expected an integer from -2**63 to 2**64 - 1, found one of {seed.bit_length()} bits")
    return None if seed is None else seed % 2**64


def parameters(model, body: Sampling, length: Length, logprobs: int | None) -> SamplingParams:
    """The parameters of a request. logprobs: how many of the likeliest tokens are reported with each token, None = not
    even its own. ApiError that names the API's field."""
    longest, context = length.asked or None, model.spec.max_position_embeddings
    if longest is not None or not _says_length(model):
        longest = min(longest or context, context)  # `fitted` says what fits, once the prompt is known
    given = {"max_new_tokens": longest, "num_return_sequences": length.answers, "logprobs": logprobs}
    try:
        return model.answer_params({**sampling(body), **given})
    except ParameterError as error:
        raise renamed(error) from None


def renamed(error: ForwardpassError) -> ApiError:
    """What the engine finds wrong with a request, by the API's names."""
    message = _OURS.sub(lambda match: _NAMES[match[1]], str(error))
    first = re.match(r"\w+", message)
    param = first[0] if first and first[0] in _FIELDS else None
    return ApiError(400, message, code="invalid_value", param=param)


# ---- how long answers may be


@dataclass(frozen=True, slots=True)
class Length:
    """asked: new tokens that the client wants, None = as many as there is room for;  field: what it calls them;
    source: the field with the prompt;  answers: to each prompt;  tops: log-probabilities of each token, 0 = none;
    echoed: so many copies of each prompt are shown with theirs;  least: new tokens that the client insists on."""

    asked: int | None
    field: str
    source: str
    answers: int
    tops: int = 0
    echoed: int = 0
    least: int = 0


def fitted(call, model, prompts: Sequence[Sequence[int]], params: SamplingParams, length: Length
           ) -> list[SamplingParams]:
    """The parameters of each prompt, with a number of new tokens that the context, the cache and the operator's limits
    have room for. ApiError, with the numbers, if they have none for what is asked, or for one token."""
    rooms = [_room(model, ids, params, length) for ids in prompts]
    read = sum(map(len, prompts))
    share = min(_share(call, read, len(prompts) * max(length.answers, params.num_beams), length),
                _share_of_logprobs(read, len(prompts) * length.answers, length))
    if length.asked is not None:
        return [params] * len(prompts)
    each = [max(1, min(share, room, params.max_new_tokens)) for room in rooms]
    if length.least > min(each):
        raise wrong("min_tokens", f"an answer has room for {min(each)} tokens; got {length.least}")
    return [replace(params, max_new_tokens=new, min_new_tokens=min(params.min_new_tokens, new)) for new in each]


def _says_length(model) -> bool:
    """Whether the model's files, or for want of a context that ends our own default, say how long answers are."""
    return model.spec.encoder is not None or model.generation.get("max_new_tokens") is not None


def _room(model, ids: Sequence[int], params: SamplingParams, length: Length) -> int:
    """New tokens that fit behind a prompt."""
    context, begins = model.spec.max_position_embeddings, len(ids)
    if model.spec.encoder:
        reads, begins = model.spec.encoder.max_position_embeddings, len(params.begins(model.facts))
        if len(ids) > reads:
            raise wrong(length.source, f"has {len(ids)} tokens; the model's encoder reads at most {reads}: shorten it",
                        CONTEXT)
    if begins + (1 if length.asked is None else length.asked) > context:
        if length.asked is None or begins > context:
            raise wrong(length.source, f"has {begins} tokens, and an answer needs one more at least; the model's "
                        f"context is {context} tokens: shorten it", CONTEXT)
        raise wrong(length.field, f"{length.asked} new tokens do not fit behind a prompt of {begins}: the model's "
                    f"context is {context} tokens. Ask for {context - begins} at most, or shorten the prompt", CONTEXT)
    room = context - begins
    if model.spec.encoder is None:  # of an encoder-decoder the engine says so itself
        cache = model.engine.cache
        room = min(room, cache.room(context, cache.size // params.num_beams) + 1 - begins)  # the last is never computed
    return room


def _limits(call) -> Iterator[tuple[int, str]]:
    """(tokens, whose limit that is) of all that limits what one request may come to."""
    if call.settings.max_tokens_per_request is not None:
        yield call.settings.max_tokens_per_request, "a request's"
    account = call.terms.account
    while account is not None:
        if account.limit is not None:
            yield account.limit, "a key's" if account.above is not None else "the engine's"
        account = account.above


def _share(call, read: int, answers: int, length: Length) -> int:
    """New tokens that each of so many answers may have if `read` tokens are read for them."""
    share = 2**31
    for limit, whose in _limits(call):
        share = min(share, (limit - read) // answers)
        if share < (length.asked or 1):
            asked = length.asked or 1
            raise wrong(length.field, f"the request may come to {read + answers * asked} tokens, {read} of prompts and "
                        f"{answers} x {asked} of answers; {whose} limit is {limit}. Ask for fewer or shorter answers, "
                        "or shorten the prompt", "token_limit_exceeded")
    return share


def _share_of_logprobs(read: int, answers: int, length: Length) -> int:
    if not length.tops:
        return 2**31
    least = 1 if length.asked is None else length.asked
    share = (MAX_LOGPROBS // length.tops - read * length.echoed) // answers
    if share < least:
        echoed = f" and {length.echoed} x {read} of prompts" if length.echoed else ""
        raise wrong("logprobs", f"{length.tops} for each of {answers} x {least} tokens{echoed} are more than the "
                    f"{MAX_LOGPROBS} of one request: ask for fewer, or for fewer or shorter answers")
    return share


# ---- answers


class Answers:
    """The answers to one HTTP request while they are computed.

    requests: one a prompt;  read: tokens of all prompts;  created: seconds since 1970.
    """

    def __init__(self, call, model, requests: list[Request], read: int):
        self.call = call
        self.model = model
        self.requests = requests
        self.read = read
        self.created = int(time.time())

    @classmethod
    def ask(cls, call, model, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Answers:
        """Queue a request for each prompt, or none if one of them is refused. Many answers take a moment to prepare:
        better not in the event loop."""
        requests: list[Request] = []
        try:
            for number, (ids, one) in enumerate(zip(prompts, params, strict=True)):
                requests.append(model.ask(ids, one, call.started, number))
        except BaseException as error:
            for request in requests:
                model.engine.cancel(request, wait=False)
            if isinstance(error, ParameterError | CapacityError) and not isinstance(error, ContextLengthError):
                raise renamed(error) from None
            raise
        return cls(call, model, requests, sum(map(len, prompts)))

    async def finished(self) -> None:
        """Until all of them are there. Raises their first error; whatever happens, nothing goes on afterwards."""
        try:
            await finished(*self.requests)
        finally:
            self.note()

    def cancel(self) -> None:
        """Whoever asked has gone. Harmless for what has ended."""
        for request in self.requests:
            self.model.engine.cancel(request, wait=False)

    def usage(self) -> AnswerUsage:
        """So far."""
        said = sum(len(choice.token_ids) for one in self.requests for choice in one.choices)
        cached = sum(one.cached or 0 for one in self.requests)
        return AnswerUsage(self.read, said, self.read + said, CachedTokens(cached))

    def note(self) -> None:
        """What the log says of them, however they ended."""
        usage = self.usage()
        first = [one.first_token for one in self.requests if one.first_token is not None]
        ends = {choice.finish_reason or "cancelled" for one in self.requests for choice in one.choices} or {"length"}
        self.call.log.update(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens,
                             cached_tokens=usage.prompt_tokens_details.cached_tokens, finish=",".join(sorted(ends)))
        if first:  # of a stream it is known already
            self.call.log.setdefault("ttft", round(min(first) - self.call.started, 6))


def check_answers(body: Sampling, prompts: int, best_of: int | None = None) -> None:
    """Refuse too many answers before anything is made for them, and what makes no sense of streams."""
    if best_of is not None and best_of < body.answers:
        raise wrong("best_of", f"must be at least n, which is {body.answers}; got {best_of}")
    each = best_of or body.answers
    if prompts * each > MAX_ANSWERS:
        raise wrong("n" if best_of is None else "best_of", f"{each} answers to each of {prompts} prompts are more than "
                    f"the {MAX_ANSWERS} of one request; send several requests")
    if best_of is not None and best_of > body.answers:
        if body.stream:
            raise wrong("best_of", "which answers are the best is known only at their end: stream must be false")
        if (body.num_beams or 1) > 1:
            raise wrong("best_of", "beams are the best answers already: use n with num_beams")
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options", "only a stream has them: set stream to true, or leave them out")
    _seed(body.seed)
    if body.logits_processors is not None:
        raise wrong("logits_processors", "code is not taken from clients; logit_bias, stop_token_ids, min_tokens, "
                    "repetition_penalty and the filters work", "unsupported_value")


def head(call, model, body: Sampling, answers: Answers, kind: str) -> dict[str, Any]:
    """How every answer and every event begins. kind: what it is an object of."""
    name = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {"id": f"{name}-{call.id.removeprefix('req-')}", "object": kind, "created": answers.created,
            "model": body.model, "system_fingerprint": fingerprint(model)}


def encoded(whole: Callable[[], Any]) -> Response:
    """The response that has what `whole` makes. With many log-probabilities that is work for a thread, both parts."""
    return Response(msgspec.json.encode(whole()), media_type="application/json")


_FINGERPRINTS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def fingerprint(model) -> str:
    """The same wherever a request gets the same answer: of the version, the model's structure and its number formats.
    Which processor it runs on makes no difference."""
    known = _FINGERPRINTS.get(model)
    if known is None:
        what = (forwardpass.__version__, model.spec, model.dtype, model.kv_dtype, model.stored_bytes)
        known = _FINGERPRINTS[model] = "fp_" + hashlib.sha256(repr(what).encode()).hexdigest()[:12]
    return known
