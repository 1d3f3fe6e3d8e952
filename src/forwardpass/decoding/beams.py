"""Beam search: the num_beams best continuations of a prompt side by side, one token a step.

One BeamSearch is the bookkeeping of one prompt. Whoever runs the model hands it the logits that follow each live beam
and moves the beams' cached texts as it says:

    search = BeamSearch(params, facts, prompt_ids)
    while not search.done:                          # the first time one row: that of the prompt
        step = search.advance(rows)                 # rows: float32 [live beams, rows of the head]
        texts = [texts[p] + [t] for p, t in zip(step.parents, step.tokens)]
    best, score = search.results()[0]

The semantics are those of transformers 5: the processors edit log-probabilities (log-softmax in float32), a beam's
score is the sum of what they leave, and a finished one's is divided by (tokens generated, the end token included) **
length_penalty. From the max(2, 1 + end tokens) * num_beams best sums of a step, the best num_beams that end nothing
live on, and those among the first num_beams that end a text are finished; the num_beams best finished ones are kept.
Where transformers fills up with copies of score -1e9, because there are fewer continuations than beams, there are
fewer beams, and fewer results. Diverse groups follow Vijayakumar et al. (2018), "Diverse Beam Search", with Hamming
diversity: groups take turns within a step, and diversity_penalty is subtracted from the log-probability of a token
for each beam of an earlier group that has just chosen it. Each group is a beam search of its own; results are pooled.
Sampling beams are drawn without replacement by their sums (transformers' multinomial), with our random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from forwardpass import _native
from forwardpass.decoding import rng, sampler
from forwardpass.decoding.beam_choices import BestSums, Candidate, DrawnSums
from forwardpass.decoding.history import History
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.processors import NEVER, build
from forwardpass.decoding.stops import completes
from forwardpass.errors import ForwardpassError, ParameterError

MOST_DRAWN = 4096
"""Continuations that a step of sampling beams draws at most."""


class Step(NamedTuple):
    """The live beams after a step. parents: int32 [n], the row that each continues;  tokens: int32 [n], with what."""

    parents: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam. score: processed, length-normalised;  logprobs, top_logprobs: see contracts.Completion."""

    token_ids: list[int]
    score: float
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None


@dataclass(slots=True)
class _Beam:
    """row: of the logits that follow it;  past: what processors read, if there are any."""

    row: int
    score: float
    token_ids: list[int]
    past: History | None
    logprobs: list[tuple[float, dict[int, float]]] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Beams that compete with one another."""

    live: list[_Beam]
    finished: list[Hypothesis] = field(default_factory=list)


class BeamSearch:
    """The beams of one prompt.

    prompt_ids:   what its text begins with: the prompt, of an encoder-decoder the tokens that the answer begins with
    source_ids:   what the encoder read; None = there is no encoder
    prompt_index: what prefix_allowed_tokens_fn is told
    decode:       list of token ids -> text; needed for stop and bad_words

    live: how many rows the next advance() takes; done: nothing is left to advance.
    """

    def __init__(
        self,
        params: SamplingParams,
        facts: TokenFacts,
        prompt_ids: Sequence[int],
        *,
        source_ids: Sequence[int] | None = None,
        prompt_index: int = 0,
        decode: Callable[[list[int]], str] | None = None,
    ):
        if decode is None and (params.stop or params.bad_words):
            raise ParameterError("stop and bad_words need the model's tokenizer; use stop_token_ids and bad_words_ids.")
        self.params = params
        self.generated = 0
        self._facts = facts
        self._decode = decode
        self._chain = build(params, facts, prompt_ids, source_ids=source_ids, prompt_index=prompt_index)
        self._ends = params.end_ids(facts)
        self._size = params.num_beams // params.num_beam_groups
        self._wanted = max(2, 1 + len(self._ends)) * self._size
        if not params.greedy and self._wanted > MOST_DRAWN:
            raise ParameterError(
                f"do_sample=True with {params.num_beams} beams and {len(self._ends)} end tokens draws {self._wanted} "
                f"continuations a step; {MOST_DRAWN} is the limit. Use fewer beams or end tokens."
            )
        self._seed = rng.fresh_seed() if params.seed is None else params.seed
        past = self._chain.history if self._chain.edits_logits else None
        self._groups = [_Group([_Beam(0, 0.0, [], past and past.fork())]) for _ in range(params.num_beam_groups)]
        self._rows = np.empty((0, 0), np.float32)
        self._plain = (
            params.greedy
            and not self._chain.edits_logits
            and params.num_beam_groups == 1
            and params.logprobs is None
            and not (params.stop or params.bad_words)
        )

    @property
    def live(self) -> int:
        """Rows of logits that the next step takes."""
        return 1 if self.generated == 0 else sum(len(group.live) for group in self._groups)

    @property
    def done(self) -> bool:
        return not any(group.live for group in self._groups)

    def advance(self, rows: np.ndarray) -> Step:
        """Take the logits after each live beam; say which beams live on. rows: float32 [live, rows of the head].

        Raises ParameterError if no token is left or a user's function misbehaves, ForwardpassError if the model
        produced NaN or infinite logits. The search cannot go on after an error.
        """
        step = advance_all([self], rows, [np.arange(len(rows), dtype=np.int32)])[0]
        if isinstance(step, Exception):
            raise step
        return step

    def finished(self) -> list[Hypothesis]:
        """The best num_return_sequences finished beams, best first, each text once."""
        pooled = sorted((one for group in self._groups for one in group.finished), key=lambda one: -one.score)
        distinct = {tuple(one.token_ids): one for one in reversed(pooled)}
        kept = [one for one in pooled if distinct[tuple(one.token_ids)] is one]
        return kept[: self.params.num_return_sequences]

    def results(self) -> list[tuple[list[int], float]]:
        """(token ids, score) of finished()."""
        return [(one.token_ids, one.score) for one in self.finished()]

    # ---- a step

    def _step_from(self, found: Sequence[Candidate]) -> Step | None:
        """A step of a plain search, from the best sums of its beams; None if more of them are needed."""
        group = self._groups[0]
        going, ended = self._pick(group, found)
        if not self._enough(going, ended) and found[-1][0] != NEVER:
            return None
        return self._moved([self._settle(group, going, ended)])

    def _step(self, logits: np.ndarray, rows: np.ndarray, pool: Any) -> Step:
        """A step of any search: whole rows of log-probabilities, edited."""
        new: list[list[_Beam]] = []
        taken: Counter[int] = Counter()  # what beams of earlier groups have chosen, end tokens left out
        for group in self._groups:
            new.append([])
            if not group.live:
                continue
            wanted = rows[[beam.row for beam in group.live]]
            values = self._room(len(wanted), logits.shape[1])
            if np.isnan(_native.log_softmax(pool, logits, wanted, values)).any():
                raise ForwardpassError(sampler.BAD_LOGITS.format("others"))
            if taken:
                costs = self.params.diversity_penalty * np.fromiter(taken.values(), np.int64)
                values[:, np.fromiter(taken, np.int64)] -= costs.astype(np.float32)
            if group.live[0].past is not None:
                self._chain.edit(values, [beam.past for beam in group.live])
            going, ended = self._choose(group, values, pool)
            taken.update(token for _, _, token in (ended if self._last else going) if token not in self._ends)
            new[-1] = self._settle(group, going, ended, None if self.params.logprobs is None else logits[wanted])
        return self._moved(new)

    def _choose(self, group: _Group, values: np.ndarray, pool: Any) -> tuple[list[Candidate], list[Candidate]]:
        """What _pick picks, from edited log-probabilities [live, rows of the head]."""
        sums = np.array([beam.score for beam in group.live], np.float32)
        if self.params.greedy:
            choices = BestSums(values, sums, self._facts.vocab_size, self.params.renormalize_logits, pool)
        else:
            choices = DrawnSums(values, sums, self._chain, self.params.renormalize_logits, self._seed, self.generated)
        k = self._at_first
        while True:
            found = choices.first(k)
            going, ended = self._pick(group, found)
            if len(found) < k or self._enough(going, ended):
                return going, ended
            k *= 2

    @property
    def _at_first(self) -> int:
        """How many candidates to look at. The rest of the best _wanted is looked at where these are not enough, and
        still more where stop strings end, or bad words rule out, so many. Of drawn ones all must be there to be
        ranked."""
        return min(self._wanted, 2 * self._size + 16) if self.params.greedy else self._wanted

    def _enough(self, going: list[Candidate], ended: list[Candidate]) -> bool:
        return len(ended if self._last else going) == self._size

    @property
    def _last(self) -> bool:
        return self.generated + 1 >= self.params.max_new_tokens

    def _pick(self, group: _Group, found: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Of candidates, best first: those that live on, and those that are finished."""
        going: list[Candidate] = []
        ended: list[Candidate] = []
        rank, last, size = 0, self._last, self._size
        for one in found:
            if one[0] == NEVER:
                break
            token = one[2]
            ends, beam = token in self._ends, group.live[one[1]]
            if not ends and self._completes(beam, token, self.params.bad_words):
                continue
            if last or ends or self._completes(beam, token, self.params.stop):
                if rank < size:
                    ended.append(one)
            elif len(going) < size:
                going.append(one)
            rank += 1
            if len(going) == size and rank >= size:
                break
        return going, ended

    def _settle(
        self,
        group: _Group,
        going: list[Candidate],
        ended: list[Candidate],
        rows: np.ndarray | None = None,
    ) -> list[_Beam]:
        """Note what is finished; the group's next beams, none if it is done. rows: raw logits after the live ones, if
        log-probabilities are asked for."""
        params, length = self.params, self.generated + 1

        def steps(index: int, token: int) -> list[tuple[float, dict[int, float]]]:
            if rows is None:
                return []
            newest = sampler.logprobs(rows[index], token, params.logprobs or 0, self._facts.vocab_size)
            return [*group.live[index].logprobs, newest]

        for score, index, token in ended:
            beam = group.live[index]
            score /= length**params.length_penalty
            logprobs, tops = zip(*steps(index, token), strict=True) if rows is not None else ((), ())
            group.finished.append(
                Hypothesis(
                    [*beam.token_ids, token],
                    score,
                    None if rows is None else list(logprobs),
                    list(tops) if params.logprobs else None,
                )
            )
        if ended:
            group.finished.sort(key=lambda one: -one.score)  # stable: the earlier first among equals
            del group.finished[self._size :]
        if len(group.finished) == self._size and going:
            longest = params.early_stopping == "never" and params.length_penalty > 0
            best = going[0][0] / (params.max_new_tokens if longest else length) ** params.length_penalty
            if params.early_stopping is True or best <= group.finished[-1].score:
                return []
        children = Counter(index for _, index, _ in going)
        beams = []
        for score, index, token in going:
            parent = group.live[index]
            children[index] -= 1
            past = parent.past
            if past is not None:
                past = past.fork() if children[index] else past  # the last child takes it over
                past.append(token)
            beams.append(_Beam(parent.row, score, [*parent.token_ids, token], past, steps(index, token)))
        return beams

    def _moved(self, new: list[list[_Beam]]) -> Step:
        beams = [beam for one in new for beam in one]
        for group, live in zip(self._groups, new, strict=True):
            group.live = live
        self.generated += 1
        if not beams and not any(group.finished for group in self._groups):
            raise ParameterError(sampler.NO_TOKEN)
        parents = np.array([beam.row for beam in beams], np.int32)
        tokens = np.array([beam.token_ids[-1] for beam in beams], np.int32)
        for row, beam in enumerate(beams):
            beam.row = row
        return Step(parents, tokens)

    def _completes(self, beam: _Beam, token: int, words: Sequence[str]) -> bool:
        return bool(words) and completes(self._decode, beam.token_ids, token, words)

    def _room(self, rows: int, width: int) -> np.ndarray:
        """The same memory in every step: fresh memory costs more in page faults than the arithmetic."""
        if self._rows.shape[0] < rows or self._rows.shape[1] != width:
            self._rows = np.empty((max(rows, self._size), width), np.float32)
        return self._rows[:rows]


def advance_all(
    searches: Sequence[BeamSearch], logits: np.ndarray, rows: Sequence[np.ndarray], pool: Any = None
) -> list[Step | Exception]:
    """advance() of several searches of one model, which share one pass over the logits where nothing edits them.

    logits: float32 [n, rows of the head], only read;  rows: of each search, int32 [live], the logits' rows of its
    beams in order;  pool: threads of the backend, None = this one. What a search returns does not depend on the
    others. The error of a search stands in its place.
    """
    if logits.ndim != 2 or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        raise ParameterError(f"logits must be float32 [rows, head]; got {logits.dtype} of shape {logits.shape}.")
    for search, own in zip(searches, rows, strict=True):
        if len(own) != search.live or search.done:
            raise ParameterError(f"A search with {search.live} live beams got {len(own)} rows.")
        if logits.shape[1] < search._facts.vocab_size:
            raise ParameterError(f"A row of logits must have {search._facts.vocab_size} values or more; "
                                 f"got {logits.shape[1]}.")
    plain = [i for i, search in enumerate(searches) if search._plain]
    found = iter(_best_of_plain([searches[i] for i in plain], logits, [rows[i] for i in plain], pool))
    out: list[Step | Exception] = []
    for search, own in zip(searches, rows, strict=True):
        try:
            if search._plain:
                candidates = next(found)
                if candidates is None:
                    raise ForwardpassError(sampler.BAD_LOGITS.format("others"))
                out.append(search._step_from(candidates) or search._step(logits, own, pool))
            else:
                out.append(search._step(logits, own, pool))
        except Exception as error:
            out.append(error)
    return out


def _best_of_plain(
    searches: Sequence[BeamSearch], logits: np.ndarray, rows: Sequence[np.ndarray], pool: Any
) -> list[list[Candidate] | None]:
    """The candidates of each search, None if its logits are no numbers."""
    if not searches:
        return []
    starts = np.zeros(len(searches) + 1, np.int32)
    np.cumsum([len(own) for own in rows], out=starts[1:])
    sums = np.array([beam.score for search in searches for beam in search._groups[0].live], np.float32)
    vocab_size = searches[0]._facts.vocab_size
    k = min(max(search._at_first for search in searches), len(sums) * vocab_size)
    *found, log_sums = _native.best_continuations(
        pool, logits, np.concatenate(rows), sums, starts, vocab_size, k, True
    )
    scores, parents, tokens = (one.reshape(-1, k).tolist() for one in found)
    bad = np.isnan(log_sums)
    return [
        None if bad[starts[i] : starts[i + 1]].any() else list(zip(scores[i], parents[i], tokens[i], strict=True))
        for i in range(len(searches))
    ]
