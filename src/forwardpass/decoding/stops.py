"""When an answer ends: which tokens end it, and stop strings found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_REPLACEMENT = "\ufffd"  # what an incomplete character decodes to


def union_of_end_ids(*sources: int | Iterable[int] | None, vocab_size: int) -> tuple[int, ...]:
    """The end tokens that a model's files name, together: generation_config, config, tokenizer, in that order.

    Each source is an id, a list of ids or None. Real models name different tokens in different files, and every one of
    them ends a text. Ids outside [0, vocab_size) are left out: some configs write -1 for "none", and no row of the
    model can produce them.
    """
    ids: dict[int, None] = {}
    for source in sources:
        for token_id in _as_ids(source):
            if 0 <= token_id < vocab_size:
                ids[token_id] = None
    return tuple(ids)


def _as_ids(source: int | Iterable[int] | None) -> tuple[int, ...]:
    if source is None:
        return ()
    return (int(source),) if not isinstance(source, Iterable) else tuple(int(i) for i in source)


def effective_end_ids(
    model_end_ids: Iterable[int],
    *,
    eos_token_id: tuple[int, ...] | None = None,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
) -> frozenset[int]:
    """The end tokens of one request.

    eos_token_id replaces the model's own set (an empty one means none), ignore_eos switches the model's own set off,
    stop_token_ids are added. What the user named is never switched off.
    """
    own = frozenset(() if ignore_eos else model_end_ids) if eos_token_id is None else frozenset(eos_token_id)
    return own | frozenset(stop_token_ids)


class StopStrings:
    """Finds the first stop string in generated text and holds back what may be the beginning of one.

    stops:   non-empty strings; may be empty, then all text passes through
    include: let the text end with the stop string instead of before it
    """

    def __init__(self, stops: Iterable[str] = (), *, include: bool = False):
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take new text; return the text that is now safe to show, and whether a stop string was found.

        Of several matches the one that begins first counts (the shortest of those that begin there). Text that
        follows it is dropped.
        """
        if self.stopped:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        self._held = ""
        matches = [(at, at + len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self.stopped = True
            begin, end = min(matches)
            return text[: end if self._include else begin], True
        hold = max(_overlap(text, stop) for stop in self._stops)
        if hold:
            self._held = text[-hold:]
            text = text[:-hold]
        return text, False

    def finish(self) -> str:
        """The text still held back, when generation ends for another reason."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a proper beginning of stop: ("abwx", "wxyz") -> 2."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def completes(
    decode: Callable[[list[int]], str], token_ids: Sequence[int], token_id: int, words: Sequence[str]
) -> bool:
    """Whether one of the words would end inside the text that token_id adds to token_ids, however it is cut."""
    # A token adds at least one byte, a character has at most four: this many tokens hold every word's beginning.
    window = list(token_ids[-4 * max(map(len, words)) :])
    before = decode(window).rstrip(_REPLACEMENT) if window else ""
    after = decode([*window, token_id])
    return any(after.find(word, max(0, len(before) - len(word) + 1)) >= 0 for word in words)
