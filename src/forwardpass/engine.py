"""The engine: requests in, tokens out, one step at a time.

Every thread that wants an answer drives the same engine: it takes its turn and runs a step, which advances all requests
in it, its own and everybody else's. So there is no background thread to start, stop or leak, and an interrupt lands
where the caller is: the step it hit is planned again. A request that fails takes nobody with it, and its error is
raised where it is waited for. What is cancelled in the middle of a step, perhaps by the garbage collector, ends after
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from forwardpass.cache.prefix import PrefixCache
from forwardpass.cache.tables import KvCache
from forwardpass.contracts import Piece
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.errors import CapacityError, ForwardpassError, ParameterError
from forwardpass.scheduler.arrays import packed_plan
from forwardpass.scheduler.request import NoText, Request
from forwardpass.scheduler.scheduler import STEP_TOKENS, Scheduler, Sequence, Work
from forwardpass.scheduler.turns import Turns
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.postprocess import Choice
from forwardpass.stages.project import project

PROJECT_ROWS = 64
"""Rows projected at once where logits of whole texts are wanted: bounds the memory of a large vocabulary."""

RUN_AHEAD_S = 0.04
"""Greedy requests may be computed this many seconds ahead of Python: nobody notices, and its share becomes small."""
RUN_AHEAD_STEPS = 16


class Engine:
    """network: the model;  facts, tokenizer: what stage 5 needs;  blocks: the KV cache's size, in blocks of 64
    positions of all layers. Groups of layers share its bytes, so that more texts fit where layers see only a window.

    steps: how many were computed;  last: those of the newest call of step(), each as (new tokens, positions cached
    before) of each sequence, and the number of rows that became logits.
    """

    def __init__(self, network, facts: TokenFacts, tokenizer, blocks: int):
        self.network = network
        self.facts = facts
        self.tokenizer = tokenizer
        self.memory, size = _memory(network, blocks)
        self.cache = KvCache(self.memory, [group.window for group in network.groups], size, STEP_TOKENS)
        self.prefixes = PrefixCache(self.cache)
        self.scheduler = Scheduler(self.cache, self.prefixes, STEP_TOKENS, network.regimes)
        self.steps = 0
        self.last: list[tuple[list[tuple[int, int]], int]] = []
        self.run_ahead_s = RUN_AHEAD_S
        self._pace = (0, 0.0)  # (sequences, seconds) of the newest step that computed one token of each
        self._turns = Turns()
        self._owners: dict[int, tuple[Request, int]] = {}  # id(sequence) -> request, index of the choice
        self._leaving: deque[Request] = deque()
        self._closed = False

    def add(self, prompt_ids: list[int], params: SamplingParams, started: float | None = None) -> Request:
        """Queue a request. Raises CapacityError if its text can never fit into the cache."""
        longest = len(prompt_ids) + params.max_new_tokens - 1  # the last token is chosen, never computed
        self._check_room(longest, "request", "shorten the prompt or lower max_new_tokens")
        if params.stop and self.tokenizer is None:
            raise ParameterError("stop strings need the model's tokenizer; this model has none: use stop_token_ids")
        choices = [Choice(params, self.facts, prompt_ids, self.tokenizer, index=i,
                          text_stream=None if self.tokenizer else NoText())
                   for i in range(params.num_return_sequences)]
        sequence = Sequence(list(prompt_ids))
        now = perf_counter()
        request = Request(prompt_ids, choices, [sequence], now if started is None else started)
        request.seconds["preprocess"] = now - request.started
        with self._turn():
            if self._closed:
                raise ParameterError("the model is closed; load it again to use it")
            self._owners[id(sequence)] = request, 0
            self.scheduler.add(sequence)
        return request

    def advance(self, request: Request) -> None:
        """Run one step unless the request has something to collect already. Raises the request's error, if any."""
        with self._turn():
            if not request.done and not request.pieces:
                self._step()
        if request.error is not None and not request.pieces:
            raise request.error

    def run(self, requests: list[Request]) -> None:
        """Until all of these are done; the first error among them is raised once the others are cancelled."""
        try:
            waiting = list(requests)
            while waiting:
                with self._turn():
                    if not any(request.done for request in waiting):
                        self._step()
                for request in waiting:
                    if request.error is not None:
                        raise request.error
                waiting = [request for request in waiting if not request.done]
        finally:
            for request in requests:
                self.cancel(request)

    def cancel(self, request: Request, wait: bool = True) -> None:
        """End a request and free what it holds. Harmless for one that has ended.

        wait: return when that is so; otherwise whoever is inside the engine now does it on leaving, as it does for a
        call from inside a step.
        """
        if request.done:
            return
        self._leaving.append(request)
        if wait and not self._turns.mine:
            with self._turn():
                pass
        else:
            self._settle()

    def step(self) -> None:
        """Compute one planned step and hand its results out. An error of a request is kept for who waits for it."""
        with self._turn():
            self._step()

    def forward(self, ids: list[int], consume, *, logits: bool = True) -> None:
        """Run one text through the stages and pass its rows on: consume(first row, float32 [rows, vocab or hidden]).

        Running requests give up their blocks where there are not enough free ones, and are computed again later.
        """
        self._check_room(len(ids), "text", "shorten the text")
        sequence = Sequence(list(ids))
        with self._turn():
            try:
                while sequence.behind:
                    count = min(sequence.behind, self.scheduler.step_tokens)
                    self.scheduler.reserve(sequence, sequence.computed + count)
                    first = sequence.computed
                    hidden = self._hidden([Work(sequence, count, False)])
                    if not logits:
                        consume(first, hidden.values)
                    else:
                        for at in range(0, count, PROJECT_ROWS):
                            rows = np.arange(at, min(at + PROJECT_ROWS, count), dtype=np.int32)
                            consume(first + at, project(self.network, hidden, rows).values)
                    sequence.computed += count
            finally:
                self.scheduler.finish(sequence, keep=False)

    def close(self) -> None:
        """Cancel all requests, whoever waits for them, and take no more."""
        with self._turn():
            self._closed = True
            self._leaving.extend({id(r): r for r, _ in self._owners.values()}.values())
            self._end_leaving()
            self.prefixes.clear()

    def _check_room(self, positions: int, what: str, advice: str) -> None:
        if self.cache.need(positions) > self.cache.size:
            raise CapacityError(f"the {what} needs {positions} positions of KV cache; the engine has room for "
                                f"{self.cache.room(positions)}; {advice}")

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
            request = self._leaving.popleft()
            if not request.done:
                for choice in request.choices:
                    choice.finish("cancelled")
                self._end(request)

    def _step(self) -> None:
        plan = self.scheduler.plan()
        if not plan:
            return
        owners = [self._owners[id(work.sequence)][0] for work in plan]
        requests = {id(request): request for request in owners}.values()
        ahead = self._steps_ahead(plan)
        try:
            if ahead > 1:
                tokens, seconds = self._run_ahead(plan, ahead)
            else:
                rows, seconds = self._compute(plan)
        except Exception as error:  # not an interrupt: nothing is noted yet, so that step is planned again
            for request in requests:
                self._fail(request, error)
            return
        start = perf_counter()
        if ahead == 1:
            final = iter(rows)
            results = [next(final) if work.final else None for work in plan]
        else:
            results = tokens.T.tolist()
        for work, request, result in zip(plan, owners, results, strict=True):
            if request.done:  # another of its choices failed
                continue
            try:
                if ahead > 1:
                    self._take(work, result)
                else:
                    self.scheduler.done(work)
                    if result is not None:
                        self._choose(work.sequence, result)
            except Exception as error:
                self._fail(request, error)
            except BaseException:
                # Which half of a token was noted is unknown. Later ones of the plan are simply planned again.
                self._fail(request, ForwardpassError("interrupted while the next token was chosen; send it again"))
                raise
        seconds["postprocess"] = perf_counter() - start
        for request in requests:
            for stage, time in seconds.items():
                request.seconds[stage] += time

    def _hidden(self, plan: list[Work], seconds: dict[str, float] | None = None):
        """Stages 2 and 3 for a plan."""
        packed, cache = packed_plan(plan, self.network.regimes)
        start = perf_counter()
        hidden = embed(self.network, packed)
        middle = perf_counter()
        hidden = decode(self.network, hidden, cache, self.memory)
        if seconds is not None:
            seconds["embed"], seconds["decode"] = middle - start, perf_counter() - middle
        return hidden

    def _steps_ahead(self, plan: list[Work]) -> int:
        """Steps that may be computed before Python looks at their tokens: more than one only if each token is simply
        the likeliest, nobody waits to join, and they take no longer than run_ahead_s."""
        sequences, seconds = self._pace
        steps = min(RUN_AHEAD_STEPS, int(self.run_ahead_s / max(seconds, 1e-6))) if sequences == len(plan) else 1
        for work in plan:
            if steps <= 1:
                return 1
            request, index = self._owners[id(work.sequence)]
            choice = request.choices[index]
            if not choice.likeliest or not choice.token_ids:
                return 1
            steps = min(steps, choice.tokens_left)
        return self.scheduler.ahead(plan, steps) if steps > 1 else 1

    def _run_ahead(self, plan: list[Work], steps: int) -> tuple[np.ndarray, dict[str, float]]:
        """Tokens int32 [steps done, sequences], at least one step, and seconds by stage."""
        packed, cache = packed_plan(plan, self.network.regimes)
        owners = [self._owners[id(work.sequence)] for work in plan]
        ends = [np.fromiter(request.choices[i].end_ids, np.int32) for request, i in owners]
        tokens, seconds = self.network.greedy_steps(packed.token_ids, packed.positions, cache, self.memory, steps,
                                                    self.facts.vocab_size, ends)
        done = len(tokens)
        if done == 0:  # logits that are not numbers: stage 5 has the words for it
            raise ForwardpassError("Logits must be finite numbers; the model's weights are damaged, or too large for "
                                   "this dtype: try dtype='float32'.")
        self.steps += done
        self.last = [([(1, work.sequence.computed + i) for work in plan], len(plan)) for i in range(done)]
        self._pace = len(plan), sum(seconds.values()) / done
        return tokens, seconds

    def _take(self, work: Work, tokens: list[int]) -> None:
        """The tokens that running ahead gave a sequence; those after its end count for nothing."""
        request, index = self._owners[id(work.sequence)]
        choice = request.choices[index]
        for token in tokens:
            self.scheduler.done(work)
            self._note(request, index, work.sequence, choice.append(token))
            if choice.finish_reason is not None:
                return

    def _compute(self, plan: list[Work]) -> tuple[np.ndarray, dict[str, float]]:
        """Logits of the plan's final rows, in order, and seconds by stage."""
        self.steps += 1
        self.last = [([(work.count, work.sequence.computed) for work in plan], sum(work.final for work in plan))]
        seconds: dict[str, float] = {}
        hidden = self._hidden(plan, seconds)
        start = perf_counter()
        wanted = [int(hidden.packed.starts[i + 1]) - 1 for i, work in enumerate(plan) if work.final]
        logits = project(self.network, hidden, np.array(wanted, np.int32)).values
        seconds["project"] = perf_counter() - start
        if all(work.count == 1 for work in plan):
            self._pace = len(plan), sum(seconds.values())
        return logits, seconds

    def _choose(self, sequence: Sequence, row: np.ndarray) -> None:
        """The next token of a sequence; after the prompt, the first token of every choice."""
        request, index = self._owners[id(sequence)]
        first = len(sequence.tokens) == len(request.prompt_ids) and index == 0
        if first and len(request.choices) > 1 and len(request.sequences) == 1:
            for other in range(1, len(request.choices)):
                twin = self.scheduler.fork(sequence)
                request.sequences.append(twin)
                self._owners[id(twin)] = request, other
            chosen = list(enumerate(request.sequences))
        else:
            chosen = [(index, sequence)]
        for number, one in chosen:
            if request.choices[number].finish_reason is None:
                self._accept(request, number, one, row)

    def _accept(self, request: Request, index: int, sequence: Sequence, row: np.ndarray) -> None:
        self._note(request, index, sequence, request.choices[index].accept(row))

    def _note(self, request: Request, index: int, sequence: Sequence, piece: Piece) -> None:
        """A token was chosen: for whoever collects it, and as the next one to compute."""
        choice = request.choices[index]
        if request.first_token is None:
            request.first_token = perf_counter()
        request.pieces.append((index, piece))
        sequence.tokens.append(piece.token_id)
        if choice.finish_reason is not None:
            self._owners.pop(id(sequence))
            self.scheduler.finish(sequence, keep=True)
            if all(other.finish_reason is not None for other in request.choices):
                self._end(request)

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        self._end(request)

    def _end(self, request: Request) -> None:
        for sequence in request.sequences:
            if self._owners.pop(id(sequence), None) is not None:
                self.scheduler.finish(sequence, keep=request.error is None)
        request.ended = perf_counter()


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
