"""The merges of a SentencePiece BPE vocabulary, which stores scores instead.

SentencePiece joins any two neighbours whose joined text is a token, the best score first, the leftmost first among
equals. So a token can come from each of its cuts into two tokens, but in fact it comes from one: what happens inside a
token's own characters, until they are joined, depends on nothing outside, so the last cut is the same in every text.
One merge a token is therefore enough, which is half as much to load as all of them.

Which cut it is: two cuts of a token contradict each other, because forming a half of the one joins characters on both
sides of the other; the cut that is crossed later remains. Where every token scores less than its halves, as in trained
vocabularies, the times of crossing are the ranks of shorter tokens, so tokens are worked through by length.
Vocabularies may have been edited since, so the result is checked by encoding every token that had a choice, and one
that does not come out whole, though it should, gets all its cuts. Tokens that come out whole have the right cut, by
induction over their length: the merges before the last are those of shorter tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import models

Pair = tuple[str, str]

_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Any odd number: hashes are polynomials in it, modulo 2**64."""


def merges_from_scores(
    tokens: Sequence[str], scores: np.ndarray, build: Callable[[list[Pair]], models.BPE]
) -> tuple[list[Pair], models.BPE]:
    """The merges, the first to apply first, and the model that `build` makes of them.

    tokens: the ordinary ones only, without repetition.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    ranked = [tokens[i] for i in order]
    lengths = np.fromiter(map(len, ranked), np.int64, len(ranked))
    owner, cut, left, right = _cuts(ranked, lengths)
    cuts_of = np.bincount(owner, minlength=len(ranked))
    chosen = _last_cuts(lengths, owner, cut, left, right)
    # Tokens with one cut have no choice.
    unsure = np.flatnonzero(cuts_of > 1).tolist()
    rank_of: dict[str, int] = {}
    while True:
        # The arrays are in order of owner, and owners in order of score.
        merges = [
            (ranked[i][:at], ranked[i][at:]) for i, at in zip(owner[chosen].tolist(), cut[chosen].tolist(), strict=True)
        ]
        model = build(merges)
        broken = [i for i in unsure if len(model.tokenize(ranked[i])) != 1]
        if broken and not rank_of:
            rank_of = {token: rank for rank, token in enumerate(ranked)}
        # Some tokens of real vocabularies can't be reached at all.
        broken = [i for i in broken if _is_reached(ranked[i], rank_of)]
        if not broken:
            return merges, model
        chosen |= np.isin(owner, broken)
        unsure = sorted(set(unsure) - set(broken))


def _is_reached(text: str, rank_of: dict[str, int]) -> bool:
    """Whether SentencePiece's own rule, followed literally, makes one token of this text."""
    parts = list(text)
    while len(parts) > 1:
        joined = [rank_of.get(left + right, len(rank_of)) for left, right in itertools.pairwise(parts)]
        best = min(joined)
        if best == len(rank_of):
            return False
        at = joined.index(best)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return True


def _cuts(ranked: list[str], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every (token, characters before the cut, left half, right half) of which both halves are tokens, by token."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    text = np.frombuffer("".join(ranked).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    longest = int(lengths.max(initial=1))
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(longest, _BASE), dtype=np.uint64)
        # A text's hash is the sum of its characters times powers that fall towards its end: h' = h * base + c.
        hashes = np.zeros(len(ranked), np.uint64)
        prefix = np.empty(len(text), np.uint64)  # of the part before each character
        for at in range(longest):
            alive = np.flatnonzero(lengths > at)
            place = starts[alive] + at
            prefix[place] = hashes[alive]
            hashes[alive] = hashes[alive] * _BASE + text[place] + np.uint64(1)
        token = np.repeat(np.arange(len(ranked)), lengths)
        at = np.arange(len(text)) - starts[token]
        inner = at > 0
        token, at, prefix = token[inner], at[inner], prefix[inner]
        suffix = hashes[token] - prefix * powers[lengths[token] - at - 1]
    known = np.argsort(hashes)
    sorted_hashes = hashes[known]
    left = _find(sorted_hashes, prefix)
    token, at, suffix, left = (values[left >= 0] for values in (token, at, suffix, left))
    right = _find(sorted_hashes, suffix)
    token, at, left, right = (values[right >= 0] for values in (token, at, left, right))
    left, right = known[left], known[right]
    # Hashes may collide: the lengths must fit, and the texts are compared where they do.
    real = (lengths[left] == at) & (lengths[right] == lengths[token] - at)
    token, at, left, right = (values[real] for values in (token, at, left, right))
    return token, at, left, right


def _last_cuts(
    lengths: np.ndarray, owner: np.ndarray, cut: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """For every cut, whether it is the one its token is joined at."""
    chosen = np.zeros(len(owner), bool)
    starts = np.cumsum(lengths) - lengths
    crossed = np.zeros(int(lengths.sum()), np.int64)  # when, for each place inside each token
    formed = np.zeros(len(lengths), np.int64)  # when; single characters are there from the start
    first = np.searchsorted(owner, np.arange(len(lengths)))
    count = np.bincount(owner, minlength=len(lengths))
    for length in range(2, int(lengths.max(initial=1)) + 1):
        tokens = np.flatnonzero((lengths == length) & (count > 0))
        if not len(tokens):
            continue
        best = first[tokens]
        for step in range(1, int(count[tokens].max())):
            open_ = np.flatnonzero(count[tokens] > step)
            one, other = best[open_], first[tokens[open_]] + step  # cuts from left to right
            other_crossed = crossed[starts[right[one]] + cut[other] - cut[one]]
            one_crossed = crossed[starts[left[other]] + cut[one]]
            best[open_] = np.where(other_crossed < one_crossed, one, other)
        chosen[best] = True
        formed[tokens] = np.maximum(tokens, np.maximum(formed[left[best]], formed[right[best]]))
        for at in range(1, length):
            inside = np.where(at < cut[best], starts[left[best]] + at, starts[right[best]] + at - cut[best])
            crossed[starts[tokens] + at] = np.where(at == cut[best], formed[tokens], crossed[inside])
    return chosen


def _find(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The place of each value in a sorted table, -1 where it is absent."""
    place = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return np.where(table[place] == values, place, -1)
