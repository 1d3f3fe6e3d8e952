"""The tokens of one sequence so far, with the counts and runs that penalties and bans ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class History:
    """prompt_ids: the prompt. ngram_size: > 0 to remember which token followed each run of ngram_size - 1 tokens."""

    def __init__(self, prompt_ids: Sequence[int], *, ngram_size: int = 0):
        self.token_ids: list[int] = [int(i) for i in prompt_ids]
        self.prompt_length = len(self.token_ids)
        self._ngram_size = ngram_size
        self._followers: dict[tuple[int, ...], list[int]] = {}
        self._seen: dict[int, None] = dict.fromkeys(self.token_ids)
        self._seen_array: np.ndarray | None = None
        self._counts: dict[int, int] = {}
        if ngram_size:
            for end in range(ngram_size, len(self.token_ids) + 1):
                self._remember(end)

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
        if self._ngram_size and len(self.token_ids) >= self._ngram_size:
            self._remember(len(self.token_ids))

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
        begin = len(self.token_ids) + 1 - self._ngram_size
        if begin < 0:
            return np.empty(0, np.int64)
        ids = np.array(self._followers.get(tuple(self.token_ids[begin:]), ()), np.int64)
        return ids[ids < rows]

    def _remember(self, end: int) -> None:
        run = self.token_ids[end - self._ngram_size : end]
        self._followers.setdefault(tuple(run[:-1]), []).append(run[-1])
