"""The frozen values that pass between the stages. Each is made by one stage and read by the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forwardpass.errors import ParameterError

if TYPE_CHECKING:
    from PIL.Image import Image

PAGE = 64
"""Positions in one block of the KV cache."""
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Packed:
    """Stage 1 -> 2. Several sequences side by side without padding.

    token_ids: int32 [tokens]
    positions: int32 [tokens], the position each token takes in its own text
    starts:    int32 [sequences + 1], row where each sequence begins, and the total
    types:     int32 [tokens], the segment of a pair that each token belongs to; None = 0 for all
    pixels:    of images in place of texts: float32 [height, width, channels] of each. A token is then a row that an
               image becomes, and its id says nothing
    """

    token_ids: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    types: np.ndarray | None = None
    pixels: tuple[np.ndarray, ...] | None = None

    @property
    def lengths(self) -> np.ndarray:
        return self.starts[1:] - self.starts[:-1]


@dataclass(frozen=True, slots=True)
class Padded:
    """The classic rectangle: real tokens where the mask is 1, padding where it is 0.

    input_ids, attention_mask: int32 [sequences, length];  token_type_ids: the same, or None = all 0
    """

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class EncoderText:
    """A text for an encoder. ids: of its tokens;  types: their types (segments), None = all 0."""

    ids: Sequence[int]
    types: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class EncoderImage:
    """An image for an encoder. pixels: float32 [height, width, channels], scaled and normalised as the model wants;
    name: what errors call it, "" = by its number."""

    pixels: np.ndarray
    name: str = ""


def unpad(padded: Padded) -> Packed:
    """The real tokens of a rectangle, packed. Position of a token = number of real tokens before it in its row, so
    padding on the left shifts nothing (mask 0,0,1,1,1 gives positions 0,1,2).

    Raises ParameterError for a mask of another shape, values other than 0 and 1, or a row without any token.
    """
    ids, mask = np.asarray(padded.input_ids), np.asarray(padded.attention_mask)
    if ids.ndim != 2 or mask.shape != ids.shape:
        raise ParameterError(
            f"attention_mask has shape {mask.shape} and input_ids {ids.shape}; expected the same [sequences, length]."
        )
    if not np.isin(mask, (0, 1)).all():
        raise ParameterError("attention_mask: expected only 0 and 1.")
    types = None if padded.token_type_ids is None else np.asarray(padded.token_type_ids)
    if types is not None and types.shape != ids.shape:
        raise ParameterError(f"token_type_ids has shape {types.shape} and input_ids {ids.shape}; expected the same "
                             "[sequences, length].")
    real = mask.astype(bool)
    lengths = real.sum(axis=1)
    if ids.shape[0] == 0 or not lengths.all():
        hidden = int(np.argmin(lengths)) if len(lengths) else 0
        raise ParameterError(f"attention_mask hides every token of row {hidden}.")
    positions = np.cumsum(real, axis=1, dtype=np.int32) - 1
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return Packed(int32("input_ids", ids[real]), positions[real].astype(np.int32), starts,
                  None if types is None else int32("token_type_ids", types[real]))


def packed_of(tokens: Packed | Padded) -> Packed:
    """The tokens themselves, whichever form they came in, as int32. Raises ParameterError if they are none."""
    if isinstance(tokens, Padded):
        return unpad(tokens)
    return Packed(int32("token_ids", tokens.token_ids), int32("positions", tokens.positions),
                  int32("starts", tokens.starts), None if tokens.types is None else int32("types", tokens.types),
                  tokens.pixels)


def int32(name: str, values: np.ndarray) -> np.ndarray:
    """int32 [n] as it is; other integers converted. ParameterError where that would change a number."""
    if isinstance(values, np.ndarray) and values.dtype == _INT32 and values.ndim == 1:
        return values
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ParameterError(f"{name}: expected int32 [n], found {array.dtype} {list(array.shape)}.")
    wrong = array[array != array.astype(np.int32)]
    if wrong.size:
        raise ParameterError(f"{name}: expected numbers that fit into 32 bits, found {wrong[0]}.")
    return array.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Stage 2 -> 3 and 3 -> 4. One vector a token.

    values: float32 [tokens, hidden_size];  packed: the tokens they belong to
    """

    values: np.ndarray
    packed: Packed


@dataclass(frozen=True, slots=True)
class CacheView:
    """What stage 3 needs to know of the KV cache: where each sequence's blocks lie, and how its positions are rotated.
    Models whose layers are not causal keep no cache.

    past:    int32 [sequences], positions already computed
    tables:  int32 [groups, sequences, blocks], block numbers in order of position, for each group of layers (see
             models/cache_groups.py); -1 = none.  [sequences, blocks]: the same numbers in every group
    regime:  int32 [sequences], 1 = rotated by the long frequencies of longrope
    lengths: int32 [sequences], the number of tokens that dynamic NTK factors follow
    Both are read only by models that have such factors. None = those of a text that ends with its new rows.
    sources: int32 [sequences], tokens of the source that each sequence's cross-attention sees; its keys and values lie
             in the last group. None in a model without an encoder
    """

    past: np.ndarray
    tables: np.ndarray
    regime: np.ndarray | None = None
    lengths: np.ndarray | None = None
    sources: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Logits:
    """Stage 4 -> 5. values: float32 [rows, vocab];  rows: int32 [rows], indices into the packed tokens."""

    values: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class Piece:
    """Stage 5 -> user, one generated token of a stream.

    text:     what this token adds to the answer; "" while a character or a possible stop string is incomplete
    token_id: the token
    logprob:  its natural-log probability in the raw model distribution, or None if not asked for
    """

    text: str
    token_id: int
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer.

    text:             the pieces' texts, joined; of an encoder-decoder without the tokens that begin or end an answer,
                      name its language or stand for what is unknown
    token_ids:        generated tokens only; the end token is included if it was generated
    prompt_token_ids: the prompt as the model saw it; of an encoder-decoder, what its encoder read
    finish_reason:    "stop" (end token or stop string), "length" or "cancelled"
    logprobs:         one raw natural-log probability a generated token; None unless asked for
    score:            of a beam: the processed, length-normalised score; else None
    timings:          seconds by stage
    prompt_index, choice_index: which prompt of the list, and which of its choices
    top_logprobs:     one dict a generated token, token id -> log-probability, most likely first; None unless asked for
    lost:             of a translation: numbers, URLs, {braces} and tags of the source that it lacks
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: list[float] | None = None
    score: float | None = None
    timings: dict[str, float] | None = None
    prompt_index: int = 0
    choice_index: int = 0
    top_logprobs: list[dict[int, float]] | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """How likely the model finds a text.

    log_likelihood: sum of the natural-log probabilities of the scored tokens
    perplexity:     exp(-log_likelihood / num_tokens)
    num_tokens:     tokens scored (the first token of a text has nothing before it and is not scored)
    """

    log_likelihood: float
    perplexity: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of a text with a label.

    score: its probability, the mean where it is made of several tokens;  start, end: characters of the original text,
    text[start:end] is `text`
    """

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may stand in a masked place.

    token: the token as text;  score: its probability;  token_id: its number;  text: the whole text with it in place
    """

    token: str
    score: float
    token_id: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class DrawingStep:
    """A denoising step of one picture that is being drawn.

    picture: its number among those of the call, from 0;  seed: its own;  step: which one this is, from 0;
    steps: how many there are;  timestep: of the noise that was left before it;  latents: float32 [channels, height,
    width] after it, read-only
    """

    picture: int
    seed: int
    step: int
    steps: int
    timestep: float
    latents: np.ndarray
    _look: Callable[[], Image]

    def preview(self) -> Image:
        """What the picture looks like now. Where the latents must be decoded for it, that takes as long as at the end
        of a picture."""
        return self._look()


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """Pictures, those of the first prompt first.

    images:     Pillow's images
    seeds:      of each picture; the same one gives the same picture again, alone or in any company
    prompts:    what each picture shows: its prompt, or the name of its label
    timings:    seconds by stage: "total" since the call began; "preprocess", "read" (prompts), "encode" (images to
                begin with), "denoise", "decode" and "postprocess" in the steps that these pictures took part in; and
                "steps", how many denoising steps there were
    parameters: all that they were drawn with, defaults included
    warnings:   sentences: a prompt was cut, something was not used
    """

    images: list[Image]
    seeds: list[int]
    prompts: list[str]
    timings: dict[str, float]
    parameters: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
