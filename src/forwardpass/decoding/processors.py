"""What happens to a row of logits before a token is drawn, in this order:

    penalties: encoder repetition, repetition, presence and frequency
    logit_bias
    bans: no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids, mask_special_tokens, min_length,
        min_new_tokens
    prefix_allowed_tokens_fn, forced_bos_token_id, forced_eos_token_id
    bans: suppress_tokens, begin_suppress_tokens
    the user's logits_processors, in the order given
    temperature -> top_k -> top_p -> min_p -> typical_p        (only when sampling)

The functions and their order are those of Hugging Face transformers, for one row. Those of the first half edit the
float32 row they are given and return it; a banned token's logit is -inf, and a forced one may be a banned one. The
filters (keep_*) only read, and return a mask: they are applied to ever fewer candidates. Rows of the logits beyond the
tokenizer's vocabulary are banned before and after. Beam search gives the same functions rows of log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from forwardpass.decoding import _rows
from forwardpass.decoding.history import History, Runs
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.user_processors import adapt, allowed, call

NEVER = np.float32(-np.inf)
_COOLEST, _HOTTEST = 1e-30, 1e30


def penalize_repetition(row: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """Logits of the token ids in seen (int64, each once): divided by penalty if positive, multiplied if negative."""
    values = row[seen]
    row[seen] = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))
    return row


def penalize_counts(
    row: np.ndarray, ids: np.ndarray, counts: np.ndarray, presence: float, frequency: float
) -> np.ndarray:
    """logit - presence - frequency * count for the ids (int64, each once) that were generated count times."""
    row[ids] -= (presence + frequency * counts).astype(np.float32)
    return row


def add_bias(row: np.ndarray, ids: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """Adds float32 amounts to the logits of the ids (int64, each once)."""
    row[ids] += amounts
    return row


def ban(row: np.ndarray, ids: Iterable[int] | np.ndarray) -> np.ndarray:
    """Makes the tokens impossible."""
    row[ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)] = NEVER
    return row


def force(row: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Makes all other tokens impossible, and these equally likely whatever they were."""
    row[:] = NEVER
    row[ids] = 0
    return row


def completed_runs(token_ids: Sequence[int], runs: Iterable[tuple[int, ...]]) -> list[int]:
    """The tokens that would complete one of the runs (two tokens or longer) at the end of token_ids."""
    found = []
    for run in runs:
        before = len(run) - 1
        if before <= len(token_ids) and tuple(token_ids[len(token_ids) - before :]) == run[:-1]:
            found.append(run[-1])
    return found


def apply_temperature(
    row: np.ndarray, temperature: float, out: np.ndarray | None = None, *, absolute: bool = False
) -> np.ndarray:
    """row / temperature, in a new row or in out (which may be row). The largest logit must be finite.

    For very small temperatures the largest logit is subtracted first, which changes no probability: the quotient of
    the likeliest token is then 0 instead of an overflow, and the others go to -inf. absolute: it is not, because the
    row will be added to others.
    """
    divisor = np.float32(min(max(temperature, _COOLEST), _HOTTEST))
    if temperature >= 0.01 or absolute:
        with np.errstate(over="ignore"):
            return np.divide(row, divisor, out=out)
    with np.errstate(over="ignore"):
        return np.divide(row - row.max(), divisor, out=out)


def keep_top_k(logits: np.ndarray, k: int, least: int = 1) -> np.ndarray:
    """Mask of the logits that are not below the k-th largest: more than k if some are equal to it."""
    return logits >= _rows.kth_largest(logits, min(max(k, least), logits.size))


def keep_top_p(logits: np.ndarray, top_p: float, least: int = 1) -> np.ndarray:
    """Mask of the smallest set of most likely tokens whose probabilities add up to top_p or more; at least one.

    From the unlikely end, tokens are dropped while their sum stays at or below 1 - top_p. Example: probabilities
    .5 .3 .15 .05 with top_p .7: .05 and .05 + .15 are at most .3, so two remain. Among equals at the border the lower
    ids stay, as with the most likely token.
    """
    probable = _rows.weights(logits)
    total = float(probable.sum(dtype=np.float64))
    dropped_mass = (1.0 - top_p) * total
    # Tokens this improbable are dropped even if all n were: only the others need sorting. The likeliest has weight 1.
    near = np.flatnonzero((probable > dropped_mass / logits.size) | (probable == 1.0))
    ascending = np.sort(logits[near])
    weight = _rows.weights(ascending)
    mass = np.cumsum(weight, dtype=np.float64) + (total - float(weight.sum(dtype=np.float64)))
    dropped = min(int(np.searchsorted(mass, dropped_mass, side="right")), near.size - 1)
    border = ascending[dropped]
    keep = logits > border
    equals = np.flatnonzero(logits == border)
    keep[equals[: near.size - dropped - int(np.count_nonzero(keep))]] = True
    return _with_likeliest(keep, logits, least)


def keep_min_p(logits: np.ndarray, min_p: float, least: int = 1) -> np.ndarray:
    """Mask of the tokens at least min_p times as likely as the likeliest."""
    return _with_likeliest(_rows.weights(logits) >= np.float32(min_p), logits, least)


def _with_likeliest(keep: np.ndarray, logits: np.ndarray, least: int) -> np.ndarray:
    """The mask with the `least` largest logits in any case. The largest one is in it already."""
    if least > 1:
        keep[_rows.top_k_indices(logits, least)] = True
    return keep


def keep_typical(logits: np.ndarray, mass: float, least: int = 1) -> np.ndarray:
    """Mask of locally typical tokens (Meister et al., 2022): surprise closest to the entropy, up to this mass."""
    log_p = logits - np.float32(_rows.log_sum_exp(logits))
    p = np.exp(log_p)
    possible = p > 0
    entropy = -float(np.sum(p[possible] * log_p[possible], dtype=np.float64))
    distance = np.abs(-log_p - np.float32(entropy))
    order = np.argsort(distance)
    last = max(int(np.count_nonzero(np.cumsum(p[order], dtype=np.float64) < mass)), least - 1)
    last = min(last, logits.size - 1)
    return distance <= distance[order[last]]


Edit = Callable[[np.ndarray, History], object]


class Chain:
    """The processors of one request, and the memory of its tokens that they need.

    build() makes it. history: of the request's first sequence;  vocab_size: of the rows that candidates() takes;
    before, after: functions (row, history) that edit a row, in order, on both sides of prefix_allowed_tokens_fn;
    users: the user's processors.
    """

    def __init__(
        self,
        params: SamplingParams,
        facts: TokenFacts,
        history: History,
        before: Iterable[Edit],
        after: Iterable[Edit],
        users: Iterable[Callable],
        prompt_index: int = 0,
    ):
        self._params = params
        self.vocab_size = facts.vocab_size
        self._before, self._after, self._users = tuple(before), tuple(after), tuple(users)
        self._prompt_index = prompt_index
        self._filters = () if params.greedy else tuple(_filters(params))
        # Of a beam's tokens one that ends nothing must be left, as transformers has it.
        self._least = 1 if params.num_beams == 1 else max(2, 1 + len(params.end_ids(facts)))
        # One buffer for the sequence's life: fresh arrays of this size cost more in page faults than the arithmetic.
        self._buffer = np.empty(0, np.float32)
        self.history = history

    @property
    def edits_logits(self) -> bool:
        """False if adjust() would return the row unchanged (but for the rows beyond the vocabulary)."""
        return bool(self._before or self._after or self._users or self._params.prefix_allowed_tokens_fn)

    def adjust(self, row: np.ndarray, banned: Sequence[int] = ()) -> np.ndarray:
        """Penalties, bias, bans and user processors.

        row: float32 [rows of the model's head], not changed. Returns float32 [vocab_size], valid until the next call.
        banned: tokens ruled out for this draw as well. Raises ParameterError if a user's function misbehaves.
        """
        row = self._copy(row)
        self.edit(row[None], [self.history])
        row = row[: self.vocab_size]
        return ban(row, banned) if banned else row

    def edit(self, rows: np.ndarray, pasts: Sequence[History]) -> None:
        """adjust() in place, for the beams of a prompt together. rows: float32 [beams, rows of the model's head]."""
        rows[:, self.vocab_size :] = NEVER
        for row, past in zip(rows, pasts, strict=True):
            for edit in self._before:
                edit(row, past)
        if self._params.prefix_allowed_tokens_fn is not None:
            self._constrain(rows, pasts)
        for row, past in zip(rows, pasts, strict=True):
            for edit in self._after:
                edit(row, past)
            for user in self._users:
                row[:] = call(user, past.token_ids, row)

    def candidates(self, row: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Temperature and filters. row: float32 [vocab_size], raw or from adjust(), with a finite maximum.

        Returns the ids of the tokens that remain (int64, ascending; None = all) and their logits (float32).
        """
        temperature = self._params.temperature
        logits = row
        if temperature != 1.0:
            logits = apply_temperature(row, temperature, self._room(row.size), absolute=self._params.num_beams > 1)
        ids = None
        for keep, amount in self._filters:
            kept = np.flatnonzero(keep(logits, amount, self._least))
            logits = logits[kept]
            ids = kept if ids is None else ids[kept]
        return ids, logits

    def _constrain(self, rows: np.ndarray, pasts: Sequence[History]) -> None:
        function = self._params.prefix_allowed_tokens_fn
        ids = [allowed(function, self._prompt_index, past.token_ids, self.vocab_size) for past in pasts]
        kept = [row[possible] for row, possible in zip(rows, ids, strict=True)]
        # What no beam may say for another reason is said all the same: the constraint holds, as in transformers.
        lost = all((values == NEVER).all() for values in kept)
        rows[:] = NEVER
        for row, possible, values in zip(rows, ids, kept, strict=True):
            row[possible] = 0 if lost else values

    def _room(self, size: int) -> np.ndarray:
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.float32)
        return self._buffer[:size]

    def _copy(self, row: np.ndarray) -> np.ndarray:
        room = self._room(row.size)
        room[:] = row
        return room


def _filters(params: SamplingParams) -> Iterable[tuple[Callable[[np.ndarray, float, int], np.ndarray], float]]:
    if params.top_k > 0:
        yield keep_top_k, params.top_k
    if params.top_p < 1.0:
        yield keep_top_p, params.top_p
    if params.min_p > 0.0:
        yield keep_min_p, params.min_p
    if params.typical_p < 1.0:
        yield keep_typical, params.typical_p


def build(
    params: SamplingParams,
    facts: TokenFacts,
    prompt_ids: Sequence[int],
    *,
    source_ids: Sequence[int] | None = None,
    prompt_index: int = 0,
) -> Chain:
    """The chain of one request, in the documented order (module docstring).

    prompt_ids:   what its text begins with: the prompt, of an encoder-decoder the tokens that the answer begins with
    source_ids:   what the encoder read; None = there is no encoder, and the prompt takes its place
    prompt_index: what prefix_allowed_tokens_fn is told
    """
    source = prompt_ids if source_ids is None else source_ids
    history = History(prompt_ids, ngram_size=params.no_repeat_ngram_size)
    before, after = (*_penalties(params, source), *_bans(params, facts, source)), _forced(params, facts, history)
    return Chain(params, facts, history, before, after, [adapt(p) for p in params.logits_processors], prompt_index)


def _penalties(params: SamplingParams, source: Sequence[int]) -> Iterable[Edit]:
    if params.encoder_repetition_penalty != 1.0:
        given = np.unique(np.array(source, np.int64))
        yield lambda row, past: penalize_repetition(
            row, given[given < row.size], 1 / params.encoder_repetition_penalty
        )
    if params.repetition_penalty != 1.0:
        yield lambda row, past: penalize_repetition(row, past.seen(row.size), params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        yield lambda row, past: penalize_counts(
            row, *past.counts(), params.presence_penalty, params.frequency_penalty
        )
    if params.logit_bias:
        biased = np.fromiter(params.logit_bias.keys(), np.int64)
        amounts = np.fromiter(params.logit_bias.values(), np.float32)
        yield lambda row, past: add_bias(row, biased, amounts)


def _bans(params: SamplingParams, facts: TokenFacts, source: Sequence[int]) -> Iterable[Edit]:
    ends = params.end_ids(facts)
    if params.no_repeat_ngram_size:
        yield lambda row, past: ban(row, past.repeated_ngram_ends(row.size))
    if params.encoder_no_repeat_ngram_size:
        runs = Runs(params.encoder_no_repeat_ngram_size, [int(i) for i in source])
        yield lambda row, past: ban(row, runs.ends(past.token_ids, row.size))
    # As in transformers, a bad word that is nothing but an end token is not forbidden.
    always = {run[0] for run in params.bad_words_ids if len(run) == 1 and run[0] not in ends}
    if params.mask_special_tokens:
        not_text = set(facts.special_ids) | {i for i in (facts.unk_id, facts.pad_id) if i is not None}
        always |= {i for i in not_text - set(facts.end_ids) - ends if 0 <= i < facts.vocab_size}
    if always:
        forbidden = np.array(sorted(always), np.int64)
        yield lambda row, past: ban(row, forbidden)
    longer = [run for run in params.bad_words_ids if len(run) > 1]
    if longer:
        yield lambda row, past: ban(row, completed_runs(past.token_ids, longer))
    if ends and (params.min_new_tokens or params.min_length):
        end_ids = np.array(sorted(ends), np.int64)
        shortest, text = params.min_new_tokens, params.min_length
        yield lambda row, past: (
            ban(row, end_ids) if past.generated < shortest or len(past.token_ids) < text else row
        )


def _forced(params: SamplingParams, facts: TokenFacts, history: History) -> Iterable[Edit]:
    first = params.forced_bos_token_id
    if first is not None:
        yield lambda row, past: force(row, np.array([first])) if len(past.token_ids) == 1 else row
    if params.forced_eos_token_id:
        last = np.array(params.forced_eos_token_id, np.int64)
        yield lambda row, past: force(row, last) if past.generated == params.max_new_tokens - 1 else row
    if params.suppress_tokens:
        never = np.array(params.suppress_tokens, np.int64)
        yield lambda row, past: ban(row, never)
    if params.begin_suppress_tokens:
        not_first = np.array(params.begin_suppress_tokens, np.int64)
        begin = 1 if first is not None and history.prompt_length == 1 else 0
        yield lambda row, past: ban(row, not_first) if past.generated == begin else row
