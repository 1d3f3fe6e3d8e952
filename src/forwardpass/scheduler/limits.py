"""How many tokens may be in flight: of one key, and of everybody together."""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter

from forwardpass.errors import BusyError, CapacityError, ParameterError

SHORTEST_S, LONGEST_S = 0.5, 60.0
"""What BusyError.retry_after is at least and at most."""


class TokensInFlight:
    """Tokens that were admitted and may still be computed: prompts, and all that their answers may become.

    limit: of them, None = no limit;  above: the account that this one is part of, taken from as well;
    name: whose it is, for messages;  taken: tokens in flight now. May be used from any thread and never blocks.
    """

    def __init__(self, limit: int | None, above: TokensInFlight | None = None, name: str = ""):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ParameterError(f"a limit of tokens in flight must be a whole number of at least 1, not {limit!r}")
        self.limit = limit
        self.above = above
        self.name = name
        self.taken = 0
        self._lock = threading.RLock()  # a destructor may give back in the middle of anything
        self._returns: deque[tuple[float, int]] = deque(maxlen=32)  # (when, tokens) of the newest

    def take(self, tokens: int, *, force: bool = False) -> None:
        """Raises BusyError if there is no room now, CapacityError if there never will be; nothing is taken then.

        force: take them all the same, for the rest of what was begun already.
        """
        with self._lock:
            if self.limit is not None and not force:
                self._check(tokens)
            self.taken += tokens
        if self.above is not None:
            try:
                self.above.take(tokens, force=force)
            except BaseException:
                with self._lock:
                    self.taken -= tokens
                raise

    def give_back(self, tokens: int) -> None:
        with self._lock:
            self.taken -= tokens
            self._returns.append((perf_counter(), tokens))
        if self.above is not None:
            self.above.give_back(tokens)

    def _check(self, tokens: int) -> None:
        whose = f"{self.name}'s" if self.name else "this key's" if self.above is not None else "the engine's"
        if tokens > self.limit:
            raise CapacityError(f"the request may come to {tokens} tokens, prompt and answers together; {whose} limit "
                                f"is {self.limit}: shorten the prompt, or ask for fewer or shorter answers")
        if self.taken + tokens > self.limit:
            wait = self._wait(self.taken + tokens - self.limit)
            raise BusyError(f"{whose} limit of {self.limit} tokens in flight is reached: {self.taken} are, and this "
                            f"request may come to {tokens}; try again in {wait:.0f} s",
                            retry_after=wait, own=self.above is not None)

    def _wait(self, tokens: int) -> float:
        """Seconds until so many will have been given back, if it goes on as it did."""
        if not self._returns:
            return 1.0
        seconds = perf_counter() - self._returns[0][0]
        pace = sum(count for _, count in self._returns) / max(seconds, 1e-3)
        return min(LONGEST_S, max(SHORTEST_S, tokens / max(pace, 1e-3)))
