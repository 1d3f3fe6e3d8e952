"""What a request may ask of decoding: names (Hugging Face's), defaults and the interval of every value.

A SamplingParams that exists is valid. from_user merges what generation_config.json says with what the caller says.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from forwardpass.decoding import _checks as check
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What decoding must know about a model's tokens.

    vocab_size:  ids 0 .. vocab_size - 1 may be generated: min(tokenizer size, rows of the logits)
    end_ids:     tokens that end a text (stops.union_of_end_ids)
    special_ids: tokens that are no text (<s>, <|im_start|>, ...); end tokens may be among them
    unk_id, pad_id: or None
    start_id:    the token that every answer of an encoder-decoder begins with; None without an encoder
    """

    vocab_size: int
    end_ids: tuple[int, ...] = ()
    special_ids: frozenset[int] = frozenset()
    unk_id: int | None = None
    pad_id: int | None = None
    start_id: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's decoding parameters. A wrong type or value is a ParameterError; None means the default.

    max_new_tokens        >= 1: tokens to generate at most, the end token included
    min_new_tokens        0 .. max_new_tokens: end tokens are impossible before (a stop string still stops)
    do_sample             False: always the most likely token; temperature and the filters then change nothing
    temperature           >= 0: divides the logits; 0 = always the most likely token
    top_k                 >= 0: keep the k most likely tokens; 0 = all
    top_p                 0 .. 1: keep the smallest set of likeliest tokens with this mass; 1 = all
    min_p                 0 .. 1: keep tokens at least this fraction as likely as the likeliest; 0 = all
    typical_p             above 0, to 1: keep the tokens of most typical surprise, up to this mass; 1 = all
    repetition_penalty    0.01 .. 100: logits of tokens in prompt or answer, divided if positive, else multiplied
    presence_penalty      -2 .. 2: subtracted from the logits of tokens in the answer
    frequency_penalty     -2 .. 2: subtracted once per occurrence in the answer
    no_repeat_ngram_size  >= 0: no run of this many tokens occurs twice in prompt and answer; 0 = off
    bad_words_ids         lists of token ids that never occur as a run
    bad_words             a string or strings that never occur in the answer's text, however it is cut into tokens
    suppress_tokens       token ids that are never generated
    logit_bias            {token id: -100 .. 100}, added to the logits
    eos_token_id          an id or a list: end tokens instead of the model's own; [] = none
    stop_token_ids        further end tokens
    ignore_eos            switch the model's own end tokens off (not those named here)
    stop                  a string or strings that end the answer and are not shown
    include_stop          show the stop string that was found
    seed                  0 .. 2**64 - 1, or None = a fresh one
    num_return_sequences  1 .. 128: answers a prompt
    logprobs              None, or 0 .. 20: raw log-probability of each token and of the n likeliest (True = 0)
    logits_processors     callables (token ids so far, float32 logits row) -> row; transformers' LogitsProcessors
    mask_special_tokens   never generate <unk>, padding and other special tokens; end tokens stay possible

    top_k is off unless asked for (transformers' generate() uses 50 when nothing says otherwise).
    """

    max_new_tokens: int = 256
    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[str, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] | None = None
    eos_token_id: tuple[int, ...] | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    seed: int | None = None
    num_return_sequences: int = 1
    logprobs: int | None = None
    logits_processors: tuple[Callable, ...] = ()
    mask_special_tokens: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            value = field.default if value is None else _CHECKS[field.name](field.name, value)
            object.__setattr__(self, field.name, value)
        if self.min_new_tokens > self.max_new_tokens:
            raise ParameterError(
                f"min_new_tokens must be in [0, max_new_tokens]; got {self.min_new_tokens} with max_new_tokens = "
                f"{self.max_new_tokens}. Lower one or raise the other."
            )

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return not self.do_sample or self.temperature == 0.0


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "max_new_tokens": check.integer(1),
    "min_new_tokens": check.integer(0),
    "do_sample": check.boolean,
    "temperature": check.number(0, note="0 = always the most likely token"),
    "top_k": check.integer(0, note="0 = all tokens"),
    "top_p": check.number(0, 1),
    "min_p": check.number(0, 1),
    "typical_p": check.number(0, 1, open_low=True),
    "repetition_penalty": check.number(0.01, 100, note="1 = no penalty"),
    "presence_penalty": check.number(-2, 2),
    "frequency_penalty": check.number(-2, 2),
    "no_repeat_ngram_size": check.integer(0, note="0 = off"),
    "bad_words_ids": check.token_runs,
    "bad_words": check.strings,
    "suppress_tokens": check.token_ids,
    "logit_bias": check.logit_bias,
    "eos_token_id": check.token_ids,
    "stop_token_ids": check.token_ids,
    "ignore_eos": check.boolean,
    "stop": check.strings,
    "include_stop": check.boolean,
    "seed": check.integer(0, 2**64 - 1),
    "num_return_sequences": check.integer(1, 128),
    "logprobs": check.logprobs,
    "logits_processors": check.callables,
    "mask_special_tokens": check.boolean,
}

_OTHER_NAMES = {  # what other programs call our parameters
    "n": "num_return_sequences", "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens", "min_tokens": "min_new_tokens", "min_length": "min_new_tokens",
    "stop_strings": "stop", "top_logprobs": "logprobs", "repeat_penalty": "repetition_penalty",
    "logits_processor": "logits_processors", "random_state": "seed", "include_stop_str_in_output": "include_stop",
}  # fmt: skip

_FROM_CONFIG = (  # what generation_config.json may set; its eos_token_id belongs to TokenFacts.end_ids
    "max_new_tokens", "min_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p",
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "num_return_sequences",
)  # fmt: skip

_NEUTRAL = {  # generation_config.json entries that change the tokens unless they have one of these values
    "num_beams": (1,), "num_beam_groups": (1,), "penalty_alpha": (0,), "sequence_bias": (), "guidance_scale": (1,),
    "exponential_decay_length_penalty": (), "encoder_repetition_penalty": (1,), "encoder_no_repeat_ngram_size": (0,),
    "forced_bos_token_id": (), "forced_eos_token_id": (), "begin_suppress_tokens": ([],), "min_length": (0,),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "watermarking_config": (), "forced_decoder_ids": (), "top_h": (1,),
    "constraints": (), "force_words_ids": (), "dola_layers": (),
}  # fmt: skip


def from_user(
    defaults: Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    *,
    vocab_size: int,
    encode: Callable[[str], list[int]] | None = None,
) -> SamplingParams:
    """The parameters of one request.

    defaults:   the contents of generation_config.json, or None
    overrides:  what the caller named; None means as if not named
    vocab_size: token ids must be below it (TokenFacts.vocab_size)
    encode:     text -> token ids without special tokens; needed for bad_words

    Raises ParameterError for an unknown name, a wrong type, a value outside its interval or a token id outside the
    vocabulary; ModelFileError if defaults hold such a value; UnsupportedModelError if they ask for something that is
    not implemented.
    """
    for name in overrides:
        if name not in _CHECKS:
            raise ParameterError(_unknown(name))
    given = {name: value for name, value in overrides.items() if value is not None}
    configured = _from_config(defaults or {}, vocab_size)
    shortest, longest = configured.get("min_new_tokens"), given.get("max_new_tokens")
    if shortest and isinstance(longest, int) and 0 < longest < shortest:
        configured["min_new_tokens"] = longest  # the caller's limit wins over the model's default
    params = SamplingParams(**{**configured, **given})
    _check_ids(params, vocab_size)
    if params.bad_words:
        if encode is None:
            raise ParameterError("bad_words needs the model's tokenizer; this model has none: use bad_words_ids.")
        # A word that is one token is ruled out before the filters see it. Other spellings are found in the text itself
        # (stages/postprocess.py), where the end of the prompt does not count.
        spellings = [tuple(encode(text)) for word in params.bad_words for text in (word, " " + word)]
        runs = dict.fromkeys([*params.bad_words_ids, *(ids for ids in spellings if len(ids) == 1)])
        params = replace(params, bad_words_ids=list(runs))
    return params


def _from_config(config: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    for name, neutral in _NEUTRAL.items():
        value = config.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(
                f"generation_config.json sets {name} = {value!r}, which is not implemented. Remove the entry to run "
                f"the model without it."
            )
    values = {name: config[name] for name in _FROM_CONFIG if config.get(name) is not None}
    if config.get("stop_strings") is not None:
        values["stop"] = config["stop_strings"]
    try:
        _check_ids(SamplingParams(**values), vocab_size)
    except ParameterError as error:
        raise ModelFileError(f"generation_config.json: {error}") from None
    return values


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    named: dict[str, Iterable[int]] = {
        "bad_words_ids": [i for run in params.bad_words_ids for i in run],
        "suppress_tokens": params.suppress_tokens,
        "logit_bias": params.logit_bias or (),
        "eos_token_id": params.eos_token_id or (),
        "stop_token_ids": params.stop_token_ids,
    }
    for name, ids in named.items():
        for token_id in ids:
            if token_id >= vocab_size:
                raise ParameterError(
                    f"{name}: token ids must be in [0, {vocab_size - 1}] (the model's vocabulary); got {token_id}."
                )


def _unknown(name: str) -> str:
    nearest = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(str(name), _CHECKS, 1, 0.5)), None)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"Unknown parameter {name!r}.{hint} Known: {', '.join(sorted(_CHECKS))}."
