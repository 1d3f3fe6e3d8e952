"""What a request may ask of decoding: names (Hugging Face's), defaults and the interval of every value.

A SamplingParams that exists is valid. from_user merges what generation_config.json says with what the caller says.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from forwardpass.decoding import _checks as check
from forwardpass.decoding.stops import effective_end_ids
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
    num_return_sequences  1 .. 128: answers a prompt; with beams at most num_beams
    logprobs              None, or 0 .. 20: raw log-probability of each token and of the n likeliest (True = 0)
    logits_processors     callables (token ids so far, float32 logits row) -> row; transformers' LogitsProcessors
    mask_special_tokens   never generate <unk>, padding and other special tokens; end tokens stay possible
    forced_bos_token_id   the only token possible after a single first token (an encoder-decoder's start token)
    forced_eos_token_id   an id or a list: the only tokens possible as the last of max_new_tokens
    begin_suppress_tokens token ids that are never generated first (or second, after a forced one)
    min_length            >= 0: as min_new_tokens, counting the prompt or, with an encoder, what the answer begins with
    encoder_repetition_penalty    0.01 .. 100: above 1 makes the source's tokens (without an encoder: the prompt's)
                          likelier
    encoder_no_repeat_ngram_size  >= 0: no run of this many tokens of the source, or prompt, is generated; 0 = off
    prefix_allowed_tokens_fn      callable (index of the prompt, token ids so far) -> the token ids possible next
    decoder_start_token_id  the token that an encoder-decoder's answer begins with, instead of the model's own
    decoder_input_ids     what an encoder-decoder's answer begins with, its start token included or not

    Beam search (decoding/beams.py):
    num_beams             1 .. 128: continuations kept at each step; 1 = no beam search
    length_penalty        -10 .. 10: a score is a sum of log-probabilities / (tokens generated ** length_penalty)
    early_stopping        True: end with num_beams finished; False: when no better is likely; "never": when none can be
    num_beam_groups       1 .. num_beams, a divisor of it: groups of beams that avoid each other's tokens
    diversity_penalty     0 .. 100: subtracted for each earlier group's beam that chose the same token in this step
    renormalize_logits    make probabilities of what the processors left, before they are added to the beams' scores

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
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    min_length: int = 0
    encoder_repetition_penalty: float = 1.0
    encoder_no_repeat_ngram_size: int = 0
    prefix_allowed_tokens_fn: Callable | None = None
    decoder_start_token_id: int | None = None
    decoder_input_ids: tuple[int, ...] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    renormalize_logits: bool = False

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
        self._check_beams()

    def _check_beams(self) -> None:
        beams, groups = self.num_beams, self.num_beam_groups
        if beams > 1 and self.num_return_sequences > beams:
            raise ParameterError(
                f"num_return_sequences must be in [1, num_beams]; got {self.num_return_sequences} with num_beams = "
                f"{beams}. Ask for fewer or search with more beams."
            )
        if beams % groups:  # or groups > beams
            raise ParameterError(
                f"num_beam_groups must divide num_beams; got {groups} with num_beams = {beams}. Every group has "
                f"equally many beams."
            )
        if (groups > 1) != (self.diversity_penalty > 0):
            raise ParameterError(
                f"diversity_penalty must be above 0 with several num_beam_groups, which would all find the same, and "
                f"0 without; got {self.diversity_penalty} with num_beam_groups = {groups}."
            )
        if groups > 1 and not self.greedy:
            raise ParameterError(f"num_beam_groups must be 1 when sampling; got {groups}. "
                                 "Set do_sample=False.")

    def begins(self, facts: TokenFacts) -> list[int]:
        """What an encoder-decoder's answer to this request begins with."""
        start = facts.start_id if self.decoder_start_token_id is None else self.decoder_start_token_id
        return decoder_prompt(start, self.decoder_input_ids)

    def end_ids(self, facts: TokenFacts) -> frozenset[int]:
        """The tokens that end an answer to this request."""
        return effective_end_ids(
            facts.end_ids,
            eos_token_id=self.eos_token_id,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )

    @property
    def greedy(self) -> bool:
        """True if nothing is left to chance."""
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
    "forced_bos_token_id": check.token_id,
    "forced_eos_token_id": check.token_ids,
    "begin_suppress_tokens": check.token_ids,
    "min_length": check.integer(0, note="0 = no minimum"),
    "encoder_repetition_penalty": check.number(0.01, 100, note="1 = no penalty"),
    "encoder_no_repeat_ngram_size": check.integer(0, note="0 = off"),
    "prefix_allowed_tokens_fn": check.function,
    "decoder_start_token_id": check.token_id,
    "decoder_input_ids": check.token_ids,
    "num_beams": check.integer(1, 128, note="1 = no beam search"),
    "length_penalty": check.number(-10, 10, note="0 = scores are sums"),
    "early_stopping": check.early_stopping,
    "num_beam_groups": check.integer(1, 128),
    "diversity_penalty": check.number(0, 100),
    "renormalize_logits": check.boolean,
}

_OTHER_NAMES = {  # what other programs call our parameters
    "n": "num_return_sequences", "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens", "min_tokens": "min_new_tokens", "beam_size": "num_beams", "beams": "num_beams",
    "stop_strings": "stop", "top_logprobs": "logprobs", "repeat_penalty": "repetition_penalty",
    "logits_processor": "logits_processors", "random_state": "seed", "include_stop_str_in_output": "include_stop",
}  # fmt: skip

_FROM_CONFIG = (  # what generation_config.json may set; its eos_token_id belongs to TokenFacts.end_ids
    "max_new_tokens", "min_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p",
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "num_return_sequences",
    "forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens", "min_length", "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size", "num_beams", "length_penalty", "early_stopping", "num_beam_groups",
    "diversity_penalty", "renormalize_logits",
)  # fmt: skip

_NEUTRAL = {  # generation_config.json entries that change the tokens unless they have one of these values
    "penalty_alpha": (0,), "sequence_bias": (), "guidance_scale": (1,), "exponential_decay_length_penalty": (),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "watermarking_config": (), "forced_decoder_ids": (), "top_h": (1,),
    "constraints": (), "force_words_ids": (), "dola_layers": (),
}  # fmt: skip


def from_user(
    defaults: Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    *,
    vocab_size: int,
    encode: Callable[[str], list[int]] | None = None,
    decoder_start: int | None = None,
) -> SamplingParams:
    """The parameters of one request.

    defaults:      the contents of generation_config.json, or None
    overrides:     what the caller named; None means as if not named
    vocab_size:    token ids must be below it (TokenFacts.vocab_size)
    encode:        text -> token ids without special tokens; needed for bad_words
    decoder_start: the token that every answer of an encoder-decoder begins with; None = the model has no encoder

    defaults' max_length, which counts what the answer begins with, is the default of max_new_tokens for
    encoder-decoders. Other models write the size of their context there: it is not read for them.

    Raises ParameterError for an unknown name, a wrong type, a value outside its interval, a token id outside the
    vocabulary or values that contradict each other; ModelFileError if defaults hold such a value;
    UnsupportedModelError if they ask for something that is not implemented.
    """
    for name in overrides:
        if name not in _CHECKS:
            raise ParameterError(_unknown(name))
    given = {name: value for name, value in overrides.items() if value is not None}
    configured = _yielding(_from_config(defaults or {}, vocab_size), given)
    longest = (defaults or {}).get("max_length")
    if decoder_start is not None and longest is not None:
        begins = check.token_ids("decoder_input_ids", given.get("decoder_input_ids", ()))
        start = given.get("decoder_start_token_id", decoder_start)
        configured.setdefault("max_new_tokens", max(1, longest - len(decoder_prompt(start, begins))))
    shortest, longest = configured.get("min_new_tokens"), given.get("max_new_tokens")
    if shortest and isinstance(longest, int) and 0 < longest < shortest:
        configured["min_new_tokens"] = longest  # the caller's limit wins over the model's default
    params = SamplingParams(**{**configured, **given})
    _check_ids(params, vocab_size)
    for name in ("decoder_start_token_id", "decoder_input_ids"):
        if getattr(params, name) not in (None, ()) and decoder_start is None:
            raise ParameterError(f"{name} is for models with an encoder; this one has none: put the beginning of the "
                                 "answer at the end of the prompt.")
    if params.bad_words:
        if encode is None:
            raise ParameterError("bad_words needs the model's tokenizer; this model has none: use bad_words_ids.")
        # A word that is one token is ruled out before the filters see it. Other spellings are found in the text itself
        # (stages/postprocess.py), where the end of the prompt does not count.
        spellings = [tuple(encode(text)) for word in params.bad_words for text in (word, " " + word)]
        runs = dict.fromkeys([*params.bad_words_ids, *(ids for ids in spellings if len(ids) == 1)])
        params = replace(params, bad_words_ids=list(runs))
    return params


def decoder_prompt(start: int, begins: Iterable[int] = ()) -> list[int]:
    """What an encoder-decoder's answer begins with: its start token, then the given ones, which may include it."""
    given = list(begins)
    return given if given[:1] == [start] else [start, *given]


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
        if config.get("max_length") is not None:
            check.integer(1)("max_length", config["max_length"])
    except ParameterError as error:
        raise ModelFileError(f"generation_config.json: {error}") from None
    return values


def _yielding(configured: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The model's settings without those that what the caller names replaces."""
    out = dict(configured)
    if "min_new_tokens" in given:
        out.pop("min_length", None)
    if "num_beams" in given:
        if "num_beam_groups" not in given:
            out.pop("num_beam_groups", None)
        if isinstance(given["num_beams"], int) and given["num_beams"] > 1 and "num_return_sequences" in out:
            out["num_return_sequences"] = min(out["num_return_sequences"], given["num_beams"])
    if "diversity_penalty" not in given and given.get("num_beam_groups", out.get("num_beam_groups", 1)) == 1:
        out.pop("diversity_penalty", None)
    return out


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    named: dict[str, Iterable[int]] = {
        "bad_words_ids": [i for run in params.bad_words_ids for i in run],
        "suppress_tokens": params.suppress_tokens,
        "logit_bias": params.logit_bias or (),
        "eos_token_id": params.eos_token_id or (),
        "stop_token_ids": params.stop_token_ids,
        "forced_bos_token_id": () if params.forced_bos_token_id is None else (params.forced_bos_token_id,),
        "forced_eos_token_id": params.forced_eos_token_id,
        "begin_suppress_tokens": params.begin_suppress_tokens,
        "decoder_start_token_id": () if params.decoder_start_token_id is None else (params.decoder_start_token_id,),
        "decoder_input_ids": params.decoder_input_ids,
    }
    for name, ids in named.items():
        for token_id in ids:
            if token_id >= vocab_size:
                raise ParameterError(
                    f"{name}: token ids must be in [0, {vocab_size - 1}] (the model's vocabulary); got {token_id}."
                )
    if params.num_beams > vocab_size:
        raise ParameterError(
            f"num_beams must be at most the model's vocabulary, {vocab_size} tokens; got {params.num_beams}."
        )


def _unknown(name: str) -> str:
    nearest = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(str(name), _CHECKS, 1, 0.5)), None)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"Unknown parameter {name!r}.{hint} Known: {', '.join(sorted(_CHECKS))}."
