"""What is known of a request and of a level of load after it. Times are seconds of time.perf_counter()."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Record:
    """One request. planned: when it should have been sent, which its times count from;  wanted: tokens of its answer;
    times: when text arrived;  error: the kind of failure, None = it went well;  message: what the server said of it;
    text: the answer, where a next turn needs it."""

    planned: float = 0.0
    wanted: int = 0
    sent: float = 0.0
    end: float = 0.0
    times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    message: str = ""
    text: str = ""

    @property
    def began(self) -> float | None:
        """When the first of the answer was there: its text, or all of it if it is none."""
        return self.times[0] if self.times else None if self.wanted else self.end

    @property
    def ttft(self) -> float | None:
        """From the planned time to the first text; None where none came."""
        return self.times[0] - self.planned if self.times else None

    @property
    def e2e(self) -> float:
        return self.end - self.planned

    @property
    def tpot(self) -> float | None:
        """Mean seconds a token after the first arrival."""
        if len(self.times) < 2 or self.output_tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1)

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]

    def tokens_until(self, time: float) -> float:
        """Tokens that had arrived: as many of them as of the arrivals."""
        if not self.times:
            return 0.0
        return self.output_tokens * bisect_right(self.times, time) / len(self.times)


@dataclass(slots=True)
class Level:
    """A load and the records of its requests. start, stop: the window in which throughput is counted;  client_cpu_s,
    server_cpu_s: CPU used from the start to the last answer (None: not known)."""

    load: Mapping
    records: list[Record]
    start: float
    stop: float
    client_cpu_s: float
    server_cpu_s: float | None = None
