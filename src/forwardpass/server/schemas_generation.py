"""Bodies of /v1/chat/completions and /v1/completions, and what they answer.

Names and meanings are OpenAI's; what the API has no name for is called as vLLM calls it. Types and intervals are
checked here, while the body is decoded, what depends on the model in generation.py. Fields that cannot change an answer
are accepted; those that could, and that nothing here does anything about, are typed `Refused` or `Empty` and end in a
message that says what works instead (`refuse`). A null is a field left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from forwardpass.decoding._checks import MAX_STRING_LENGTH
from forwardpass.server.schemas import INSTEAD, Computing, Prompts, Words

MAX_ANSWERS = 128
"""Answers of one HTTP request: n or best_of, times prompts."""
MAX_STOPS = 16
MAX_TOP = 20
MAX_IDS = 1024

Text = Annotated[str, Meta(min_length=1, max_length=MAX_STRING_LENGTH)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=MAX_ANSWERS)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
Note = Annotated[str, Meta(max_length=512)]
Refused = Annotated[Any, Meta(extra_json_schema={INSTEAD: {"type": "null"}})]
Empty = Annotated[list[Any], Meta(extra_json_schema={INSTEAD: {"type": "array", "maxItems": 0}})]
OnlyText = Annotated[str, Meta(extra_json_schema={INSTEAD: {"const": "text"}})]
Untooled = Annotated[Any, Meta(extra_json_schema={INSTEAD: {"enum": ["none", "auto", None]}})]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """include_usage: a last event with the usage.  include_obfuscation: accepted; events are never padded."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Computing, kw_only=True):
    """What both endpoints let a client say about how the answers are chosen and sent.

    temperature 0 = always the likeliest token. Without temperature, top_p, top_k, min_p and typical_p the model's own
    files say whether answers are sampled, and with what; where they say nothing the likeliest token is taken.
    seed: the same seed gives the same answer, whatever else the server does.  top_k 0 or -1, all others at 1 or 0: off.
    """

    n: Count | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Tokens | None = None
    num_beams: Count | None = None
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logits_processors: Refused = None

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """Whether the last event of a stream has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Part(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message: text is what the models read. prompt_cache_breakpoint: accepted; prompts are cached anyway.
    """

    type: OnlyText
    text: Words | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None
    image_url: Refused = None
    input_audio: Refused = None
    video_url: Refused = None
    file: Refused = None
    refusal: Refused = None


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """One message of a conversation. The model's template says which roles it knows and in which order; "developer" is
    "system" unless the template knows it. The rest of what an assistant's message may have can only be empty."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: Words | list[Part] | None = None
    name: Note | None = None
    tool_call_id: Note | None = None
    tool_calls: Empty | None = None
    annotations: Empty | None = None
    function_call: Refused = None
    audio: Refused = None
    refusal: Refused = None


class ResponseFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    type: OnlyText
    json_schema: Refused = None
    schema: Refused = None


class ChatRequest(Sampling, kw_only=True):
    """max_completion_tokens goes before max_tokens; without both an answer may fill the context.

    add_generation_prompt: false = the template does not open an answer.  continue_final_message: go on with the last
    message.  chat_template_kwargs: further variables of the model's template ("enable_thinking": false).
    """

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Note | None = None
    # what cannot change an answer
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Note | None = None
    safety_identifier: Note | None = None
    prompt_cache_key: Note | None = None
    prompt_cache_retention: Note | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    # what can only have the value that changes nothing
    modalities: list[OnlyText] | None = None
    verbosity: Annotated[str, Meta(extra_json_schema={INSTEAD: {"const": "medium"}})] | None = None
    response_format: ResponseFormat | None = None
    tools: Empty | None = None
    tool_choice: Untooled = None
    functions: Empty | None = None
    function_call: Untooled = None
    audio: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None


class CompletionRequest(Sampling, kw_only=True):
    """prompt: text, in which special tokens may be written out, or token ids; or a list of either. Of an
    encoder-decoder, what its encoder reads.

    suffix: the text after the cursor; the answer is what belongs between. Special tokens in prompt and suffix are then
    plain text.  context_tokens: with a suffix, prompt tokens at most; what is furthest from the cursor is left out.
    max_tokens may be 0 with echo. Without it an answer may fill the context.  logprobs: how many of the likeliest
    tokens to report with each.  best_of: so many answers are computed, and the n likeliest sent.
    """

    prompt: Prompts
    suffix: Words | None = None
    context_tokens: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Top | None = None
    best_of: Count | None = None


# ---- answers

Finish = Literal["stop", "length"]


class CachedTokens(Struct):
    """cached_tokens: of the prompt, those whose keys and values an earlier request had left."""

    cached_tokens: int


class AnswerUsage(Struct):
    """prompt_tokens: of all prompts, each counted once;  completion_tokens: of all answers that were computed, with
    their end tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(Struct):
    """logprob: natural logarithm, of the raw model's probability.  bytes: what the token stands for; null where the
    vocabulary has no such thing."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    """A token of the answer, and the likeliest in its place, likeliest first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(Struct):
    """score: of beams, log-probability / length ** length_penalty."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    score: float | UnsetType = UNSET


class ChatCompletion(Struct):
    """id: unique;  created: seconds since 1970;  system_fingerprint: equal where the same request gets the same answer.
    """

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: AnswerUsage


class Delta(Struct):
    """The first of a choice has the role, the last neither."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(Struct):
    """An event of a stream. Where usage was asked for the last one has it and no choices, the others have null."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: AnswerUsage | UnsetType | None = UNSET


class CompletionLogprobs(Struct):
    """One entry a token; the first token of an echoed prompt has null.

    tokens: their texts, "bytes:\\\\xe7" where they are no whole characters;  top_logprobs: the likeliest and the token
    itself, null where none were asked for;  text_offset: where in the choice's text each begins, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct):
    """index: prompt by prompt, n each.  score: as of ChatChoice."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    score: float | UnsetType = UNSET


class TextCompletion(Struct):
    """id, created, system_fingerprint: as of ChatCompletion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: AnswerUsage


class TextChunkChoice(Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class TextChunk(Struct):
    """An event of a stream; usage as of ChatChunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChunkChoice]
    usage: AnswerUsage | UnsetType | None = UNSET
