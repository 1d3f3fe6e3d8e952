"""The engine of texts: requests in, tokens and hidden states out, one step at a time (see stepping.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from forwardpass.cache.prefix import PrefixCache
from forwardpass.cache.tables import KvCache
from forwardpass.contracts import EncoderImage, EncoderText
from forwardpass.decoding.beams import BeamSearch
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.errors import ForwardpassError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.allowed import Allowed
from forwardpass.scheduler.beams import BeamRequest, advance_beams
from forwardpass.scheduler.computing import RUN_AHEAD_S, Computing, Results, Step
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.jobs import INTERRUPTED
from forwardpass.scheduler.reading import CausalTexts, Read, TextRows, WholeTexts
from forwardpass.scheduler.request import NoText, Request
from forwardpass.scheduler.scheduler import STEP_TOKENS, Scheduler
from forwardpass.scheduler.shared import SharedBudget, kv_memory
from forwardpass.scheduler.stats import EngineStats
from forwardpass.scheduler.texts import IMAGE_ROWS, TEXT_ROWS
from forwardpass.stages.postprocess import Choice
from forwardpass.stepping import Stepping

__all__ = ["EncoderImage", "EncoderText", "Engine", "Step"]


class Engine(Stepping):
    """network: the model;  facts, tokenizer: what stage 5 needs;  blocks: the KV cache's size, in blocks of 64
    positions of all layers. Groups of layers share its bytes, so that more texts fit where layers see only a window.
    budget: the bytes of the KV caches of several engines, instead of blocks. These need a driver, the same for all: who
    waits for room that another one's requests hold must not be the one who computes.

    encoder: what reads whole texts, the network itself or that of an encoder-decoder's sources; None = nothing does.
    noted: every step is added to it while it is a list.
    """

    def __init__(self, network, facts: TokenFacts, tokenizer, blocks: int | None = None,
                 budget: SharedBudget | None = None):
        self.network = network
        self.encoder = network.encoder if network.spec.causal else network
        self.facts = facts
        self.tokenizer = tokenizer
        shares = budget is not None
        budget = budget or SharedBudget(blocks * sum(network.block_bytes()))
        self.memory = kv_memory(network, budget)
        own = len(network.groups) - (network.encoder is not None)  # the last group is that of the sources
        self.cache = KvCache(self.memory[:own], [group.window for group in network.groups[:own]], budget, STEP_TOKENS,
                             *self.memory[own:])
        self.prefixes = PrefixCache(self.cache)
        self.scheduler = Scheduler(self.cache, self.prefixes, STEP_TOKENS, network.regimes,
                                   IMAGE_ROWS if network.spec.images else TEXT_ROWS, budget.line)
        self.run_ahead_s = RUN_AHEAD_S
        self.noted: list[Step] | None = None
        self._computing = Computing(network, self.encoder, self.memory, facts.vocab_size)
        self._allowed = Allowed(network, self.cache)
        super().__init__(self.scheduler, budget.turns, shares)

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

    def encode(self, texts: Sequence[EncoderText | EncoderImage], read: Read, begin: int | None = None) -> list[Any]:
        """What `read` makes of the hidden states of each text, in the order of the texts. All may be images instead,
        which the model itself reads, or its vision tower.

        read: called after each step with the Hidden of those of the texts that it finished, in any order; returns one
        result a text, which must not be a view of it. An error in it is raised here and harms nobody else.
        begin: of an encoder-decoder, to have the states of its decoder, which reads the text, too, but this token first
        and the last one not.

        Models that look only back compute long texts in chunks, others each text whole. What comes of a text does not
        depend on the others. Raises ParameterError for a text without tokens or with wrong ones and for pixels that are
        no image of this model's, ContextLengthError for what is too long or large, UnsupportedModelError for what this
        model does not read.
        """
        given = self._allowed.given(texts)
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

    def _closed(self) -> None:
        self.prefixes.clear()

    def stats(self) -> EngineStats:
        """What it has done and what is going on. From any thread; waits for nothing."""
        scheduler, cache, meter, prefixes = self.scheduler, self.cache, self._meter, self.prefixes
        return EngineStats(self.steps, meter.rows, meter.generated, meter.step_seconds(), meter.batch(),
                           len(self._jobs), len(scheduler.running), len(scheduler.waiting), dict(self._jobs.ended),
                           scheduler.preemptions, cache.held, cache.size, prefixes.asked, prefixes.found, cache.kept,
                           cache.budget.dropped)

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
            self._step_failed(jobs.values(), error)
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
        self.answering = any(len(one.tokens) > one.prompt for one in self.scheduler.running)
        self._step_done(jobs.values(), seconds)
        return True

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
