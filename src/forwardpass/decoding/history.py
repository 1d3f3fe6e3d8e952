"""The tokens of one sequence so far, with the counts and runs that penalties and bans ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NONE = np.empty(0, np.int64)


class Runs:
    """Which tokens followed each run of size - 1 tokens. size: > 0."""

    def __init__(self, size: int, token_ids: Sequence[int] = ()):
        self.size = size
        found: dict[tuple[int, ...], dict[int, None]] = {}
        for end in range(size, len(token_ids) + 1):
            found.setdefault(tuple(token_ids[end - size : end - 1]), {})[token_ids[end - 1]] = None
        # Tuples: copies share them.
        self._followers = {run: tuple(ids) for run, ids in found.items()}

    def add(self, token_ids: Sequence[int], end: int) -> None:
        """Note the run that ends before `end`, if token_ids has that many tokens before it."""
        if end >= self.size:
            run, last = tuple(token_ids[end - self.size : end - 1]), token_ids[end - 1]
            known = self._followers.get(run, ())
            if last not in known:
                self._followers[run] = (*known, last)

    def ends(self, token_ids: Sequence[int], rows: int) -> np.ndarray:
        """The tokens below rows that would complete one of the runs after token_ids. int64."""
        begin = len(token_ids) + 1 - self.size
        ids = self._followers.get(tuple(token_ids[begin:])) if begin >= 0 else None
        if ids is None:
            return _NONE
        found = np.array(ids, np.int64)
        return found[found < rows]

    def copy(self) -> Runs:
        other = Runs(self.size)
        other._followers = self._followers.copy()
        return other


class History:
    """prompt_ids: the prompt. ngram_size: > 0 to remember which token followed each run of ngram_size - 1 tokens."""

    def __init__(self, prompt_ids: Sequence[int], *, ngram_size: int = 0):
        self.token_ids: list[int] = [int(i) for i in prompt_ids]
        self.prompt_length = len(self.token_ids)
        self._runs = Runs(ngram_size, self.token_ids) if ngram_size else None
        self._seen: dict[int, None] = dict.fromkeys(self.token_ids)
        self._seen_array: np.ndarray | None = None
        self._counts: dict[int, int] = {}

    @property
    def generated(self) -> int:
        """Tokens after the prompt."""
        return len(self.token_ids) - self.prompt_length

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        if token_id not in self._seen:
            self._seen[token_id] = None
            self._seen_array = None
        if self._runs is not None:
            self._runs.add(self.token_ids, len(self.token_ids))

    def fork(self) -> History:
        """The same tokens, to go on differently."""
        other = object.__new__(History)
        other.token_ids = self.token_ids.copy()
        other.prompt_length = self.prompt_length
        other._runs = None if self._runs is None else self._runs.copy()
        other._seen, other._seen_array, other._counts = self._seen.copy(), self._seen_array, self._counts.copy()
        return other

    def seen(self, rows: int) -> np.ndarray:
        """Ids below rows that occur in prompt or answer, each once. int64. rows is the same in every call."""
        if self._seen_array is None:
            ids = np.fromiter(self._seen, np.int64, len(self._seen))
            self._seen_array = ids[ids < rows]
        return self._seen_array

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids that occur in the answer (each once) and how often. int64, int64."""
        return np.fromiter(self._counts, np.int64), np.fromiter(self._counts.values(), np.int64)

    def repeated_ngram_ends(self, rows: int) -> np.ndarray:
        """Tokens below rows that would complete a run of ngram_size tokens for the second time. int64."""
        return _NONE if self._runs is None else self._runs.ends(self.token_ids, rows)
