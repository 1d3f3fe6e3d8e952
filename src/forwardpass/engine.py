"""The engine: requests in, tokens out, one step at a time.

Every thread that wants an answer drives the same engine: it takes its turn and runs a step, which advances all requests
in it, its own and everybody else's. So there is no background thread to start, stop or leak, and an interrupt lands
where the caller is: the step it hit is planned again. A request that fails takes nobody with it, and its error is
raised where it is waited for. What is cancelled in the middle of a step, perhaps by the garbage collector, ends after
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from forwardpass.cache.prefix import PrefixCache
from forwardpass.cache.tables import KvCache
from forwardpass.contracts import CacheView, Hidden, Packed
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.errors import CapacityError, ForwardpassError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.ahead import RUN_AHEAD_S, Pace
from forwardpass.scheduler.arrays import packed_plan, packed_texts
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.reading import CausalTexts, EncoderText, Read, TextRows, WholeTexts, checked
from forwardpass.scheduler.request import NoText, Request
from forwardpass.scheduler.scheduler import STEP_TOKENS, Plan, Scheduler, Work
from forwardpass.scheduler.texts import Text
from forwardpass.scheduler.turns import Turns
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.postprocess import Choice
from forwardpass.stages.project import project

__all__ = ["EncoderText", "Engine", "Step"]

PROJECT_ROWS = 64
"""Rows projected at once where logits of whole texts are wanted: bounds the memory of a large vocabulary."""


class Step(NamedTuple):
    """What a step computed. rows: (new tokens, positions cached before) of each sequence;  wanted: rows that became
    logits;  texts: the length of each that the encoder read."""

    rows: list[tuple[int, int]]
    wanted: int
    texts: list[int]


class Engine:
    """network: the model;  facts, tokenizer: what stage 5 needs;  blocks: the KV cache's size, in blocks of 64
    positions of all layers. Groups of layers share its bytes, so that more texts fit where layers see only a window.

    encoder: what reads whole texts, the network itself or that of an encoder-decoder's sources; None = nothing does.
    steps: how many were computed;  last: those of the newest call of step().
    """

    def __init__(self, network, facts: TokenFacts, tokenizer, blocks: int):
        self.network = network
        self.encoder = network.encoder if network.spec.causal else network
        self.facts = facts
        self.tokenizer = tokenizer
        self.memory, size = _memory(network, blocks)
        own = len(network.groups) - (network.encoder is not None)  # the last group is that of the sources
        self.cache = KvCache(self.memory[:own], [group.window for group in network.groups[:own]], size, STEP_TOKENS,
                             *self.memory[own:])
        self.prefixes = PrefixCache(self.cache)
        self.scheduler = Scheduler(self.cache, self.prefixes, STEP_TOKENS, network.regimes)
        self.steps = 0
        self.last: list[Step] = []
        self.run_ahead_s = RUN_AHEAD_S
        self._pace = Pace()
        self._turns = Turns()
        self._jobs: dict[int, Job] = {}  # id -> all that have not ended
        self._leaving: deque[Job] = deque()
        self._closed = False

    def add(self, prompt_ids: list[int], params: SamplingParams, started: float | None = None,
            source_ids: Sequence[int] | None = None, prompt_index: int = 0) -> Request:
        """Queue a request. Raises CapacityError if its text can never fit into the cache.

        source_ids: what an encoder-decoder answers to; it is encoded once, for all answers. The prompt is then how each
        answer begins.  prompt_index: which prompt of the caller's list it is, for the caller's own functions.
        """
        self._check_generates()
        source = self._source(source_ids)
        longest = len(prompt_ids) + params.max_new_tokens - 1  # the last token is chosen, never computed
        self._check_room(longest, "the request", "shorten the prompt or lower max_new_tokens", source)
        if params.stop and self.tokenizer is None:
            raise ParameterError("stop strings need the model's tokenizer; this model has none: use stop_token_ids")
        choices = [Choice(params, self.facts, prompt_ids, self.tokenizer, index=i, source_ids=source_ids,
                          prompt_index=prompt_index, text_stream=None if self.tokenizer else NoText())
                   for i in range(params.num_return_sequences)]
        request = Request(prompt_ids, choices, source, started)
        self._admit(request)
        return request

    def encode(self, texts: Sequence[EncoderText], read: Read) -> list[Any]:
        """What `read` makes of the hidden states of each text, in the order of the texts.

        read: called after each step with the Hidden of those of the texts that it finished, in any order; returns one
        result a text, which must not be a view of it. An error in it is raised here and harms nobody else.

        Models that look only back compute long texts in chunks, others each text whole. What comes of a text does not
        depend on the others. Raises ParameterError for a text without tokens or with wrong ones, ContextLengthError for
        one that is too long.
        """
        given = [self._text(number, text) for number, text in enumerate(texts)]
        if not given:
            return []
        reading = (WholeTexts if self.encoder else CausalTexts)(given, read)
        self._admit(reading)
        self.run([reading])
        return reading.results

    def forward(self, ids: list[int], consume: Callable[[int, np.ndarray], None], *, logits: bool = True,
                source_ids: Sequence[int] | None = None) -> None:
        """Run one text through the stages and pass its rows on: consume(first row, float32 [rows, vocab or hidden]).

        source_ids: what an encoder-decoder's text belongs to.
        """
        def projected(first: int, values: np.ndarray) -> None:
            count = len(values)
            packed = Packed(np.array(ids[first : first + count], np.int32),
                            np.arange(first, first + count, dtype=np.int32), np.array([0, count], np.int32))
            for at in range(0, count, PROJECT_ROWS):
                rows = np.arange(at, min(at + PROJECT_ROWS, count), dtype=np.int32)
                consume(first + at, project(self.network, Hidden(values, packed), rows).values)

        if logits and self.network.spec.head.task != "lm":
            raise UnsupportedModelError("this model's head gives no logits of tokens; use a model with a language head")
        pass_on = projected if logits else consume
        if not self.network.spec.causal:
            self.encode([EncoderText(ids)], lambda hidden: [pass_on(0, hidden.values)])
            return
        source = self._source(source_ids)
        self._check_room(len(ids), "the text", "shorten the text", source)
        job = TextRows(ids, source, pass_on)
        self._admit(job)
        self.run([job])

    def advance(self, request: Request) -> None:
        """Run one step unless the request has something to collect already. Raises the request's error, if any."""
        with self._turn():
            if not request.done and not request.pieces:
                self._step()
        if request.error is not None and not request.pieces:
            raise request.error

    def run(self, jobs: Sequence[Job]) -> None:
        """Until all of these are done; the first error among them is raised once the others are cancelled."""
        try:
            waiting = list(jobs)
            while waiting:
                with self._turn():
                    if not any(job.done for job in waiting):
                        self._step()
                for job in waiting:
                    if job.error is not None:
                        raise job.error
                waiting = [job for job in waiting if not job.done]
        finally:
            for job in jobs:
                self.cancel(job)

    def cancel(self, job: Job, wait: bool = True) -> None:
        """End a request and free what it holds. Harmless for one that has ended.

        wait: return when that is so; otherwise whoever is inside the engine now does it on leaving, as it does for a
        call from inside a step.
        """
        if job.done:
            return
        self._leaving.append(job)
        if wait and not self._turns.mine:
            with self._turn():
                pass
        else:
            self._settle()

    def step(self) -> None:
        """Compute one planned step and hand its results out. An error of a request is kept for who waits for it."""
        with self._turn():
            self._step()

    def close(self) -> None:
        """Cancel all requests, whoever waits for them, and take no more."""
        with self._turn():
            self._closed = True
            self._leaving.extend(self._jobs.values())
            self._end_leaving()
            self.prefixes.clear()

    def _admit(self, job: Job) -> None:
        with self._turn():
            if self._closed:
                raise ParameterError("the model is closed; load it again to use it")
            self._jobs[id(job)] = job
            job.start(self.scheduler)

    def _source(self, ids: Sequence[int] | None) -> Text | None:
        if (ids is None) != (self.network.encoder is None):
            raise ParameterError("this model answers to a source: give source_ids" if ids is None else
                                 "this model has no encoder: source_ids must be None")
        return None if ids is None else Text(self._text(0, EncoderText(ids))[0])

    def _text(self, number: int, text: EncoderText) -> tuple[np.ndarray, np.ndarray | None]:
        """A text's tokens and types, checked."""
        ids, types = checked(number, text, self.encoder.spec if self.encoder else self.network.spec)
        if self.cache.sources is not None and self.cache.sources.need(ids.size) > self.cache.size:
            raise CapacityError(f"text {number} needs {ids.size} positions of KV cache for its source, which is more "
                                "than there is; shorten the text")
        if self.encoder is None:
            self._check_room(ids.size, f"text {number}", "shorten the text")
        return ids, types

    def _check_generates(self) -> None:
        spec = self.network.spec
        if not spec.causal or spec.head.task != "lm":
            raise UnsupportedModelError("this model reads texts but has no next tokens; use one that generates")

    def _check_room(self, positions: int, what: str, advice: str, source: Text | None = None) -> None:
        left = self.cache.size - (self.cache.sources.need(len(source)) if source else 0)
        if self.cache.need(positions) > left:
            beside = f" beside its source of {len(source)} tokens" if source else ""
            raise CapacityError(f"{what} needs {positions} positions of KV cache{beside}; the engine has room for "
                                f"{self.cache.room(positions, left)}; {advice}")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone in the engine. Those who left meanwhile are shown out before and after."""
        try:
            with self._turns:
                self._end_leaving()
                try:
                    yield
                finally:
                    self._end_leaving()
        finally:
            self._settle()

    def _settle(self) -> None:
        """Show out who is leaving, unless somebody is inside: they do it before and after."""
        while self._leaving and self._turns.enter_if_free():
            try:
                self._end_leaving()
            finally:
                self._turns.leave()

    def _end_leaving(self) -> None:
        while self._leaving:
            job = self._leaving.popleft()
            if not job.done:
                job.cancel()
            self._jobs.pop(id(job), None)

    def _step(self) -> None:
        plan = self.scheduler.plan()
        if not plan.work and not plan.texts:
            return
        jobs = {id(one): one for one in [work.sequence.owner for work in plan.work]}
        if plan.texts:
            jobs |= {id(text.owner): text.owner for text in plan.texts if text.owner}
        ahead = self._pace.steps(self.scheduler, plan, self.run_ahead_s)
        try:
            results, seconds = self._run_ahead(plan.work, ahead) if ahead > 1 else self._compute(plan)
        except Exception as error:  # not an interrupt: nothing is noted yet, so that step is planned again
            for job in jobs.values():
                self._fail(job, error)
            return
        start = perf_counter()
        for source in plan.texts:
            if source.owner is None:
                self.scheduler.text_done(source)
        results += [(job, job.step_done, ()) for job in jobs.values() if job.gathers]
        for job, give, result in results:
            if job.done:  # failed by another of its results
                continue
            try:
                give(*result)
            except Exception as error:
                self._fail(job, error)
            except BaseException:
                # Which half of a result was noted is unknown. Later ones of the plan are simply planned again.
                self._fail(job, ForwardpassError("interrupted while the results of a step were handed out; "
                                                 "send it again"))
                raise
        seconds["postprocess"] = perf_counter() - start
        for job in jobs.values():
            for stage, time in seconds.items():
                job.seconds[stage] += time
            if job.done:
                self._jobs.pop(id(job), None)

    def _fail(self, job: Job, error: BaseException) -> None:
        job.fail(error)
        self._jobs.pop(id(job), None)

    def _compute(self, plan: Plan) -> tuple[list[tuple], dict[str, float]]:
        """One step: (job, who takes a result, result) of all that wait for one, and seconds by stage."""
        self.steps += 1
        self.last = [Step([(work.count, work.sequence.computed) for work in plan.work],
                          sum(work.final for work in plan.work), [len(text) for text in plan.texts])]
        seconds = {"embed": 0.0, "decode": 0.0, "project": 0.0}
        results = self._read_texts(plan.texts, seconds) if plan.texts else []
        if not plan.work:
            return results, seconds
        packed, cache = packed_plan(plan.work, self.network.regimes)
        hidden = self._hidden(self.network, packed, cache, self.memory, seconds)
        start = perf_counter()
        starts = packed.starts.tolist()
        wanted = [starts[i + 1] - 1 for i, work in enumerate(plan.work) if work.final]
        logits = project(self.network, hidden, np.array(wanted, np.int32)).values
        seconds["project"] += perf_counter() - start
        row = 0
        for i, work in enumerate(plan.work):
            sequence = work.sequence
            if work.final:
                results.append((sequence.owner, self._give_rows, (work, logits, row, row + 1)))
                row += 1
            elif sequence.rows:
                results.append((sequence.owner, self._give_rows, (work, hidden.values, starts[i], starts[i + 1])))
            else:
                results.append((sequence.owner, self.scheduler.done, (work,)))
        if not plan.texts and all(work.count == 1 for work in plan.work):
            self._pace.note(len(plan.work), sum(seconds.values()))
        return results, seconds

    def _read_texts(self, texts: list[Text], seconds: dict[str, float]) -> list[tuple]:
        packed, cache = packed_texts(texts)
        hidden = self._hidden(self.encoder, packed, cache, self.memory[-1:], seconds)
        starts = packed.starts.tolist()
        return [(text.owner, self._give_text, (text, hidden.values, starts[i], starts[i + 1]))
                for i, text in enumerate(texts) if text.owner]

    def _hidden(self, network, packed: Packed, cache: CacheView | None, memory: list, seconds: dict[str, float]):
        """Stages 2 and 3."""
        start = perf_counter()
        hidden = embed(network, packed)
        middle = perf_counter()
        hidden = decode(network, hidden, cache, memory)
        seconds["embed"] += middle - start
        seconds["decode"] += perf_counter() - middle
        return hidden

    def _give_rows(self, work: Work, values: np.ndarray, begin: int, end: int) -> None:
        self.scheduler.done(work)
        work.sequence.owner.take(work.sequence, values, begin, end)

    def _give_text(self, text: Text, values: np.ndarray, begin: int, end: int) -> None:
        self.scheduler.text_done(text)
        text.owner.take(text, values, begin, end)

    def _run_ahead(self, plan: list[Work], steps: int) -> tuple[list[tuple], dict[str, float]]:
        """The same for several steps, at least one."""
        packed, cache = packed_plan(plan, self.network.regimes)
        ends = [np.fromiter(work.sequence.owner.ends(work.sequence), np.int32) for work in plan]
        tokens, seconds = self.network.greedy_steps(packed.token_ids, packed.positions, cache, self.memory, steps,
                                                    self.facts.vocab_size, ends)
        done = len(tokens)
        if done == 0:  # logits that are not numbers: stage 5 has the words for it
            raise ForwardpassError("Logits must be finite numbers; the model's weights are damaged, or too large for "
                                   "this dtype: try dtype='float32'.")
        self.steps += done
        self.last = [Step([(1, work.sequence.computed + i) for work in plan], len(plan), []) for i in range(done)]
        self._pace.note(len(plan), sum(seconds.values()) / done)
        return [(work.sequence.owner, work.sequence.owner.take_ahead, (work, mine))
                for work, mine in zip(plan, tokens.T.tolist(), strict=True)], seconds


def _memory(network, blocks: int) -> tuple[list, int]:
    """(KV memory of each group, bytes of all together): fewer blocks than asked for where the system grants no address
    space for so many. Each group has addresses for the whole, since any of them may come to need it."""
    each = network.block_bytes()
    while True:
        size = blocks * sum(each)
        try:
            return network.kv_memory([size // one for one in each]), size
        except MemoryError:
            if blocks == 1:
                raise CapacityError("there is no memory for a single KV block; free some memory") from None
            blocks = -(-blocks // 2)
