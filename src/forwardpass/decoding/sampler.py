"""Picks the next token of one sequence, and reads log-probabilities off the raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forwardpass.decoding import _rows, rng
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.processors import build
from forwardpass.errors import ForwardpassError, ParameterError

BAD_LOGITS = (
    "Logits must be finite numbers; the model produced {}. Its weights are damaged, or too large for this dtype: try "
    "dtype='float32'."
)
NO_TOKEN = (
    "No token is left to generate: bans (no_repeat_ngram_size, bad_words, suppress_tokens, min_new_tokens, "
    "prefix_allowed_tokens_fn, mask_special_tokens, logits_processors) rule out the whole vocabulary. Allow some token."
)


class Sampler:
    """The sampling state of one sequence: processors, the tokens so far and a random stream of its own.

    prompt_ids: what repetition_penalty and n-gram bans count besides the answer
    choice:     which of the prompt's answers this is; answer i does not depend on how many there are
    source_ids, prompt_index: see processors.build
    """

    def __init__(
        self,
        params: SamplingParams,
        facts: TokenFacts,
        prompt_ids: Sequence[int],
        choice: int = 0,
        *,
        source_ids: Sequence[int] | None = None,
        prompt_index: int = 0,
    ):
        self._chain = build(params, facts, prompt_ids, source_ids=source_ids, prompt_index=prompt_index)
        self._greedy = params.greedy
        self._plain = not self._chain.edits_logits
        self._vocab_size = facts.vocab_size
        self._choice = choice
        self.seed = rng.fresh_seed() if params.seed is None else params.seed
        self.history = self._chain.history

    @property
    def likeliest(self) -> bool:
        """Whether pick() is simply the index of the largest logit."""
        return self._greedy and self._plain

    def pick(self, row: np.ndarray, banned: Sequence[int] = ()) -> int:
        """The next token for a row of raw logits (float32 [rows], only read). The same call gives the same token.

        banned: tokens already refused for this step; each gives the draw fresh randomness.
        Raises ParameterError if no token is left or a user's processor misbehaves, ForwardpassError if the model
        produced NaN or infinite logits.
        """
        if row.ndim != 1 or row.size < self._vocab_size or row.dtype != np.float32:
            raise ParameterError(
                f"A row of logits must be float32 of shape [{self._vocab_size}] or longer; got {row.dtype} of shape "
                f"{list(row.shape)}."
            )
        if self._plain and not banned:
            row = row[: self._vocab_size]
            if self._greedy:
                token_id = _rows.argmax(row)
                _check_peak(row[token_id])
                return token_id
        else:
            _check_peak(row[: self._vocab_size].max())
            row = self._chain.adjust(row, banned)
        if self._greedy:
            token_id = _rows.argmax(row)
            _check_left(row[token_id])
            return token_id
        peak = row.max()
        _check_peak(peak)
        _check_left(peak)
        ids, logits = self._chain.candidates(row)
        u = rng.uniform(self.seed, self._choice, self.history.generated, len(banned))
        index = _rows.draw(logits, u)
        return index if ids is None else int(ids[index])

    def accept(self, token_id: int) -> None:
        """Append the token to the sequence: the next pick is for the step after it."""
        self.history.append(token_id)


def logprob(row: np.ndarray, token_id: int) -> float:
    """Natural-log probability of one token in softmax(row). row: raw logits, float32 [rows]."""
    return float(row[token_id]) - _rows.log_sum_exp(row)


def logprobs(row: np.ndarray, token_id: int, top: int, vocab_size: int) -> tuple[float, dict[int, float]]:
    """The token's log-probability and those of the `top` likeliest tokens, likeliest first.

    row: raw logits, float32 [rows]. Probabilities are over all rows, as the model gives them; tokens beyond
    vocab_size are not listed.
    """
    total = _rows.log_sum_exp(row)
    best = _rows.top_k_indices(row[:vocab_size], top)
    return float(row[token_id]) - total, {int(i): float(row[i]) - total for i in best}


def _check_peak(peak: np.float32) -> None:
    if peak != peak or peak == np.inf:
        raise ForwardpassError(BAD_LOGITS.format(peak))


def _check_left(peak: np.float32) -> None:
    if peak == -np.inf:
        raise ParameterError(NO_TOKEN)
