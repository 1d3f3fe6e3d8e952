"""Requests and answers of the routes beside those that generate: vectors, relevance, labels, translations, tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forwardpass.server.schemas import MOST_INPUTS, Body, Computing, Prompts, Words
from forwardpass.server.schemas_generation import Message

LONGEST_TEMPLATE = 1 << 14
"""Characters of what is put around each text."""
Truncation = Annotated[Literal["error", "right", "left"], Meta(
    description="What is done with a text that the model can't read whole: refuse it, or cut the right or left end.")]
PairTruncation = Annotated[Literal["longest_first", "only_first", "only_second"], Meta(
    description="What is cut of a pair that is too long.")]
Activation = Annotated[Literal["softmax", "sigmoid", "none"], Meta(
    description="What makes scores of the head's raw ones. Default: as the model's files say.")]
Length = Annotated[int, Meta(ge=1, description="Tokens of a text at most, if less than the model reads.")]
Beams = Annotated[int, Meta(ge=1, le=32)]


class Usage(msgspec.Struct, kw_only=True):
    """Tokens that the model read, special ones included."""

    prompt_tokens: int
    total_tokens: int


class Noticed(msgspec.Struct, kw_only=True):
    """Any answer about texts. warnings: what the caller should know of it, such as texts that were cut."""

    warnings: list[str] | UnsetType = UNSET


# ---- /v1/embeddings


class EmbeddingsBody(Computing, kw_only=True):
    """Texts, or token ids that are read as they are."""

    input: Prompts
    encoding_format: Annotated[Literal["float", "base64"], Meta(
        description="base64: of the vector's little-endian float32 numbers.")] | None = None
    dimensions: Annotated[int, Meta(ge=1, description="Only the first so many numbers.")] | None = None
    truncation: Truncation | None = None
    normalize: Annotated[bool, Meta(description="Vectors of length 1. Default: as the model's files say.")
                         ] | None = None
    prompt_name: Annotated[str, Meta(max_length=256, description="One of the model's prompts, put before each text.")
                           ] | None = None
    prompt: Annotated[str, Meta(max_length=LONGEST_TEMPLATE, description='A text to put before each text, such as '
                                '"query: ".')] | None = None


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Noticed, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


# ---- /v1/rerank


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    text: Words


class RerankBody(Computing, kw_only=True):
    """A query and documents, which are scored by how relevant they are to it."""

    query: Words
    documents: Annotated[list[Words | Document], Meta(min_length=1, max_length=MOST_INPUTS)]
    top_n: Annotated[int, Meta(ge=1, description="Only so many, the most relevant ones.")] | None = None
    return_documents: bool | None = None
    activation: Activation | None = None
    template: Annotated[str, Meta(max_length=LONGEST_TEMPLATE, description="For models that read one text instead of a "
                                  "pair: that text, with {query} and {document} in it.")] | None = None
    truncation: Truncation | None = None
    pair_truncation: PairTruncation | None = None
    max_length: Length | None = None


class Relevance(msgspec.Struct, kw_only=True):
    """index: of the document in the request."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Reranked(Noticed, kw_only=True):
    """results: the most relevant one first."""

    id: str
    model: str
    results: list[Relevance]
    usage: Usage


# ---- /v1/classify


# A list of two, not a tuple: msgspec 0.23 crashes in the garbage collector over a str with a longest length | a tuple.
Pair = Annotated[list[Words], Meta(min_length=2, max_length=2)]
Classified = Annotated[Words | Annotated[list[Words | Pair], Meta(min_length=1, max_length=MOST_INPUTS)], Meta(
    description="A text, or a list of texts and of pairs of texts.")]


class ClassifyBody(Computing, kw_only=True):
    """Texts or pairs of texts."""

    input: Classified
    top_k: Annotated[int, Meta(ge=1, description="Only so many labels of each text, the likeliest ones.")] | None = None
    activation: Activation | None = None
    truncation: Truncation | None = None
    pair_truncation: PairTruncation | None = None
    max_length: Length | None = None


class Label(msgspec.Struct, kw_only=True):
    label: str
    score: float


class Labels(msgspec.Struct, kw_only=True):
    """labels: the likeliest one first."""

    index: int
    labels: list[Label]


class Classification(Noticed, kw_only=True):
    object: Literal["list"] = "list"
    id: str
    data: list[Labels]
    model: str
    usage: Usage


# ---- /v1/translate


Language = Annotated[str, Meta(min_length=1, max_length=64, description="A language: the model's code, another one or "
                               "its English name. It may be left out where the model leaves no choice.")]


class TranslateBody(Computing, kw_only=True):
    """Whole documents; they are translated by the sentence and put together as they were."""

    input: Annotated[Words | Annotated[list[Words], Meta(min_length=1, max_length=MOST_INPUTS)], Meta(
        description="A text or a list of texts.")]
    source: Language | None = None
    target: Language | None = None
    num_beams: Annotated[Beams, Meta(description="Default: as the model's files say.")] | None = None
    n: Annotated[Beams, Meta(description="Translations of each text, at most num_beams.")] | None = None
    max_tokens: Annotated[int, Meta(ge=1, description="Tokens of a sentence's translation at most.")] | None = None


class Translated(msgspec.Struct, kw_only=True):
    """score: of a beam, the mean of those of the sentences; null without beams.  lost: numbers, URLs, {braces} and tags
    of the source that it lacks, where there are such.  finish_reason: "length" if a sentence was cut short."""

    text: str
    score: float | None
    finish_reason: Literal["stop", "length"]
    lost: list[str] | UnsetType = UNSET


class Translations(msgspec.Struct, kw_only=True):
    """translations: the best one first."""

    index: int
    translations: list[Translated]


class TranslationUsage(Usage, kw_only=True):
    completion_tokens: int


class TranslationAnswer(Noticed, kw_only=True):
    object: Literal["list"] = "list"
    id: str
    data: list[Translations]
    model: str
    usage: TranslationUsage


# ---- /tokenize and /detokenize


class TokenizeBody(Body, kw_only=True):
    """prompt, or messages with what belongs to them: as /v1/completions and /v1/chat/completions have them."""

    prompt: Words | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: Annotated[bool, Meta(description="Put the model's own tokens around the prompt; true by "
                                             "default.")] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body, kw_only=True):
    tokens: list[int]


class Detokenized(msgspec.Struct, kw_only=True):
    prompt: str


class Tokens(msgspec.Struct, kw_only=True):
    """max_model_len: tokens that the model reads at most;  token_strs: as the vocabulary has them, if asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


# ---- /v1/models


class ModelCard(msgspec.Struct, kw_only=True):
    """root: the model's own name, where id is an alias;  tasks: what it can do;  max_model_len: tokens that it reads at
    most, together with those that it answers with (none if it reads no texts);  dtype: of its weights."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    tasks: list[str]
    max_model_len: int | UnsetType = UNSET
    dtype: str


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
