"""The engine: requests in, tokens out, one step at a time.

Every thread that wants an answer drives the same engine: it takes its turn and runs a step, which advances all requests
in it, its own and everybody else's. So there is no background thread to start, stop or leak, and an interrupt lands
where the caller is: the step it hit is planned again. A request that fails takes nobody with it, and its error is
raised where it is waited for. What is cancelled in the middle of a step, perhaps by the garbage collector, ends after
it.

Where many ask at once, or an event loop does, a driver (driver.py) steps the engine instead, and everybody else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from forwardpass.cache.prefix import PrefixCache
from forwardpass.cache.tables import KvCache
from forwardpass.decoding.beams import BeamSearch
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.errors import ForwardpassError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.allowed import Allowed
from forwardpass.scheduler.beams import BeamRequest, advance_beams
from forwardpass.scheduler.computing import RUN_AHEAD_S, Computing, Results, Step
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.jobs import INTERRUPTED, Jobs, logged
from forwardpass.scheduler.reading import CausalTexts, EncoderText, Read, TextRows, WholeTexts
from forwardpass.scheduler.request import NoText, Request
from forwardpass.scheduler.scheduler import STEP_TOKENS, Scheduler
from forwardpass.scheduler.shared import SharedBudget, kv_memory
from forwardpass.scheduler.stats import EngineStats, Meter
from forwardpass.scheduler.turns import INSIDE
from forwardpass.scheduler.waiting import unfinished, waiting_for
from forwardpass.stages.postprocess import Choice

__all__ = ["EncoderText", "Engine", "Step"]


class Engine:
    """network: the model;  facts, tokenizer: what stage 5 needs;  blocks: the KV cache's size, in blocks of 64
    positions of all layers. Groups of layers share its bytes, so that more texts fit where layers see only a window.
    budget: the bytes of the KV caches of several engines, instead of blocks. These need a driver, the same for all: who
    waits for room that another one's requests hold must not be the one who computes.

    encoder: what reads whole texts, the network itself or that of an encoder-decoder's sources; None = nothing does.
    noted: every step is added to it while it is a list.
    driver: whose thread steps it, None = whoever waits for something.
    answering: whether somebody was in the middle of an answer after the newest step.
    """

    def __init__(self, network, facts: TokenFacts, tokenizer, blocks: int | None = None,
                 budget: SharedBudget | None = None):
        self.network = network
        self.encoder = network.encoder if network.spec.causal else network
        self.facts = facts
        self.tokenizer = tokenizer
        self._shares = budget is not None
        budget = budget or SharedBudget(blocks * sum(network.block_bytes()))
        self.memory = kv_memory(network, budget)
        own = len(network.groups) - (network.encoder is not None)  # the last group is that of the sources
        self.cache = KvCache(self.memory[:own], [group.window for group in network.groups[:own]], budget, STEP_TOKENS,
                             *self.memory[own:])
        self.prefixes = PrefixCache(self.cache)
        self.scheduler = Scheduler(self.cache, self.prefixes, STEP_TOKENS, network.regimes, line=budget.line)
        self.run_ahead_s = RUN_AHEAD_S
        self.noted: list[Step] | None = None
        self._computing = Computing(network, self.encoder, self.memory, facts.vocab_size)
        self.driver: Any = None
        self.answering = False
        self._allowed = Allowed(network, self.cache)
        self._turns = budget.turns
        self._jobs = Jobs(self.scheduler)
        self._meter = Meter()

    @property
    def steps(self) -> int:
        """How many have been computed."""
        return self._computing.steps

    @property
    def last(self) -> list[Step]:
        """Those that the newest call of step() computed."""
        return self._computing.last

    def add(self, prompt_ids: list[int], params: SamplingParams, started: float | None = None,
            source_ids: Sequence[int] | None = None, prompt_index: int = 0) -> Request:
        """Queue a request. Raises CapacityError if its text can never fit into the cache.

        source_ids: what an encoder-decoder answers to; it is encoded once, for all answers. The prompt is then how each
        answer begins.  prompt_index: which prompt of the caller's list it is, for the caller's own functions.
        """
        self._allowed.generates()
        source = self._allowed.source(source_ids)
        longest = len(prompt_ids) + params.max_new_tokens - 1  # the last token is chosen, never computed
        advice = "shorten the prompt or lower max_new_tokens" + (" or num_beams" if params.num_beams > 1 else "")
        self._allowed.room(longest, "the request", advice, source, params.num_beams)
        if params.stop and self.tokenizer is None:
            raise ParameterError("stop strings need the model's tokenizer; this model has none: use stop_token_ids")
        choices = [Choice(params, self.facts, prompt_ids, self.tokenizer, index=i, source_ids=source_ids,
                          prompt_index=prompt_index, text_stream=None if self.tokenizer else NoText())
                   for i in range(params.num_return_sequences)]
        if params.num_beams == 1:
            request = Request(prompt_ids, choices, source, started)
        else:
            search = BeamSearch(params, self.facts, prompt_ids, source_ids=source_ids, prompt_index=prompt_index,
                                decode=self.tokenizer.decode if self.tokenizer else None)
            request = BeamRequest(prompt_ids, choices, search, source, started)
        self._admit(request)
        return request

    def encode(self, texts: Sequence[EncoderText], read: Read, begin: int | None = None) -> list[Any]:
        """What `read` makes of the hidden states of each text, in the order of the texts.

        read: called after each step with the Hidden of those of the texts that it finished, in any order; returns one
        result a text, which must not be a view of it. An error in it is raised here and harms nobody else.
        begin: of an encoder-decoder, to have the states of its decoder, which reads the text, too, but this token first
        and the last one not.

        Models that look only back compute long texts in chunks, others each text whole. What comes of a text does not
        depend on the others. Raises ParameterError for a text without tokens or with wrong ones, ContextLengthError for
        one that is too long.
        """
        given = [self._allowed.text(number, text) for number, text in enumerate(texts)]
        if not given:
            return []
        if begin is not None:
            shifted, sources = self._allowed.behind(given, begin)
            reading = CausalTexts(shifted, read, sources)
        else:
            reading = (WholeTexts if self.encoder else CausalTexts)(given, read)
        self._admit(reading)
        self.run([reading])
        return reading.results

    def forward(self, ids: list[int], consume: Callable[[int, np.ndarray], None], *, logits: bool = True,
                source_ids: Sequence[int] | None = None) -> None:
        """Run one text through the stages and pass its rows on: consume(first row, float32 [rows, vocab or hidden]).

        source_ids: what an encoder-decoder's text belongs to.
        """
        if not self.network.spec.causal:
            self._allowed.source(source_ids)
            pass_on = self._passing_on(ids, consume, logits)
            self.encode([EncoderText(ids)], lambda hidden: [pass_on(0, hidden.values)])
            return
        self.run([self.rows(ids, consume, logits=logits, source_ids=source_ids)])

    def rows(self, ids: list[int], consume: Callable[[int, np.ndarray], None], *, logits: bool = True,
             source_ids: Sequence[int] | None = None) -> Job:
        """The same of a model that looks only back, as a job that is queued and waited for elsewhere."""
        source = self._allowed.source(source_ids)
        pass_on = self._passing_on(ids, consume, logits)
        self._allowed.room(len(ids), "the text", "shorten the text", source)
        job = TextRows(ids, source, pass_on)
        self._admit(job)
        return job

    def _passing_on(self, ids: list[int], consume: Callable[[int, np.ndarray], None], logits: bool) -> Callable:
        if logits and self.network.spec.head.task != "lm":
            raise UnsupportedModelError("this model's head gives no logits of tokens; use a model with a language head")
        return self._computing.projected(ids, consume) if logits else consume

    def advance(self, request: Request) -> None:
        """Run one step unless the request has something to collect already; with a driver, wait until it has. Raises
        the request's error, if any."""
        if self.driver is None:
            with self._turn():
                if not request.news:
                    self._step()
        else:
            with waiting_for(self, [request.on_news]) as wait:
                while not request.news and wait():
                    pass
        if request.error is not None and not request.pieces:
            raise request.error

    def run(self, jobs: Sequence[Job]) -> None:
        """Until all of these are done; the first error among them is raised once the others are cancelled."""
        try:
            waiting = list(jobs)
            while waiting:
                if self.driver is None:
                    with self._turn():
                        if not any(job.done for job in waiting):
                            self._step()
                    waiting = unfinished(waiting)
                    continue
                with waiting_for(self, [job.on_end for job in waiting]) as wait:
                    while (waiting := unfinished(waiting)) and wait():
                        pass
        finally:
            self._cancel([job for job in jobs if not job.done])

    def cancel(self, job: Job, wait: bool = True, error: BaseException | None = None) -> None:
        """End a request and free what it holds. Harmless for one that has ended.

        wait: return when that is so; otherwise whoever is inside the engine now does it on leaving, as it does for a
        call from inside a step.  error: what whoever waits for it is told.
        """
        if not job.done:
            self._cancel([job], wait, error)

    def step(self, within: float | None = None, alone: bool = True) -> bool:
        """Compute one planned step and hand its results out; False if there was nothing to do. An error of a request is
        kept for who waits for it.

        within: seconds that it should take at most, where the scheduler can choose; None = as it thinks best;
        alone: nobody waits for its end.
        """
        with self._turn():
            return self._step(within, alone)

    def close(self) -> None:
        """Cancel all requests, whoever waits for them, and take no more."""
        driver = self.driver
        with self._turn():
            self._jobs.close(None if driver is None else ForwardpassError(
                "the model was closed before the answer was whole; load it again to use it"))
            self.prefixes.clear()
        if driver is not None:
            driver.detach(self)

    @property
    def busy(self) -> bool:
        """Whether anything that was asked of it has not ended."""
        return bool(self._jobs)

    @property
    def deadline(self) -> float:
        """The next one of what was asked of it, in seconds of perf_counter()."""
        return self._jobs.deadline

    def stats(self) -> EngineStats:
        """What it has done and what is going on. From any thread; waits for nothing."""
        scheduler, cache, meter, prefixes = self.scheduler, self.cache, self._meter, self.prefixes
        return EngineStats(self.steps, meter.rows, meter.generated, meter.step_seconds(), meter.batch(),
                           len(self._jobs), len(scheduler.running), len(scheduler.waiting), dict(self._jobs.ended),
                           scheduler.preemptions, cache.held, cache.size, prefixes.asked, prefixes.found, cache.kept,
                           cache.budget.dropped)

    def recover(self, thread: int) -> None:
        """A thread has ended, perhaps inside a step: its turn is over, and whatever was asked ends with an error."""
        self._turns.recover(thread)
        self.fail_all(ForwardpassError("the thread that computed this request has ended; send it again"))

    def rouse(self) -> None:
        """There is another driver, or none: whoever waits looks again who it is that computes."""
        with self._turn():
            if self._shares and self.driver is None:
                for job in self._jobs:
                    self._jobs.fail(job, ForwardpassError("the driver was closed before the answer was whole"))
            self._jobs.tell_all()

    def fail_all(self, error: BaseException) -> None:
        """End all requests with an error."""
        with self._turn():
            for job in self._jobs:
                self._jobs.fail(job, error)

    def _admit(self, job: Job) -> None:
        driver = self.driver
        if self._turns.mine or (driver is not None and driver.mine):
            raise ForwardpassError(INSIDE)
        if driver is None and self._shares:
            raise ParameterError("this engine shares its memory with others: attach them all to one Driver")
        self._jobs.enter(self, job)
        try:
            if driver is not None:
                driver.wake()
                return
            with self._turn():  # it starts
                pass
        except BaseException:
            self._jobs.leave(job)
            raise
        if job.error is not None:
            raise job.error

    def _cancel(self, jobs: Sequence[Job], wait: bool = True, error: BaseException | None = None) -> None:
        for job in jobs:
            self._jobs.leave(job, error)
        if jobs and wait and not self._turns.mine:
            with self._turn():
                pass
        elif jobs and self.driver is not None:
            self.driver.wake()
        else:
            self._settle()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone in the engine. Those who came or left meanwhile are seen to before and after."""
        try:
            with self._turns:
                self._jobs.settle()
                try:
                    yield
                finally:
                    self._jobs.settle()
                    self._jobs.tell()
        finally:
            self._settle()

    def _settle(self) -> None:
        """Show out who is leaving, unless somebody is inside: they do it before and after."""
        while self._jobs.leaving and self._turns.enter_if_free():
            try:
                self._jobs.settle()
                self._jobs.tell()
            finally:
                self._turns.leave()

    def _step(self, within: float | None = None, alone: bool = True) -> bool:
        plan = self.scheduler.plan(within)
        if not plan.work and not plan.texts:
            return False
        jobs = {id(one): one for one in [work.sequence.owner for work in plan.work]}
        if plan.texts:
            jobs |= {id(text.owner): text.owner for text in plan.texts if text.owner}
        alone = alone and not self._jobs.coming
        ahead = 1 if not alone else self._computing.steps_ahead(plan, self.scheduler, self.run_ahead_s)
        try:
            results, seconds = (self._computing.ahead(plan.work, ahead, self.scheduler.pace) if ahead > 1 else
                                self._computing.step(plan, self.scheduler))
        except Exception as error:  # not an interrupt: nothing is noted yet, so that step is planned again
            if self.driver is not None:
                self.driver.failed("a step failed", error)
            for job in jobs.values():
                self._jobs.fail(job, error)
            return True
        if self.noted is not None:
            self.noted += self.last
        generated = sum(job.generated for job in jobs.values())
        start = perf_counter()
        for source in plan.texts:
            if source.owner is None:
                self.scheduler.text_done(source)
        self._hand_out(results)
        gathering = [job for job in jobs.values() if job.gathers and not job.done]
        if gathering:
            self._hand_out(self._gathered(gathering))
        seconds["postprocess"] = perf_counter() - start
        self._meter.steps(len(self.last), len(plan.work) + len(plan.texts), sum(step.positions for step in self.last),
                          sum(job.generated for job in jobs.values()) - generated, seconds)
        for job in jobs.values():
            for stage, time in seconds.items():
                job.seconds[stage] += time
            if job.done:
                self._jobs.end(job)
        self.answering = any(len(one.tokens) > one.prompt for one in self.scheduler.running)
        self._jobs.tell(jobs.values())
        return True

    def _hand_out(self, results: Results) -> None:
        for job, give, result in results:
            if job.done:  # failed by another of its results
                continue
            try:
                give(*result)
            except Exception as error:
                self._jobs.fail(job, error)
            except BaseException as error:
                # Which half of a result was noted is unknown. Later ones of the plan are simply planned again.
                self._jobs.fail(job, ForwardpassError(INTERRUPTED))
                if self.driver is None:
                    raise
                logged("interrupted while results were handed out", error)  # by what was called: nobody else is here

    def _gathered(self, jobs: list[Job]) -> Results:
        """What follows once all that a step computed of these jobs has been taken, as results of theirs."""
        searches = [job for job in jobs if isinstance(job, BeamRequest)]
        ready = [request for request in searches if request.ready]
        try:
            steps = advance_beams(ready, self.network.backend.pool) if ready else []
        except BaseException as error:
            for request in ready:
                self._jobs.fail(request, error if isinstance(error, Exception) else ForwardpassError(INTERRUPTED))
            if not isinstance(error, Exception):
                raise
            steps = []
        return steps + [(job, job.step_done, ()) for job in jobs if job not in searches]
