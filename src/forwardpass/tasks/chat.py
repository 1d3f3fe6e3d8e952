"""Chat: messages through the model's own template, and what to do when the history no longer fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.stages.template import chat_ids

OVERFLOW = ("error", "drop_oldest")


def fitting_ids(tokenizer, messages: Sequence[Mapping[str, Any]], room: int, on_overflow: str) -> tuple[list[int], int]:
    """(token ids of the chat, messages dropped). room: tokens that the prompt may take.

    on_overflow "error": ContextLengthError with both numbers;  "drop_oldest": whole turns go, the oldest first, never a
    system message at the beginning and never the last message.
    """
    if on_overflow not in OVERFLOW:
        raise ParameterError(f"on_overflow must be one of {', '.join(OVERFLOW)}, not {on_overflow!r}")
    ids = chat_ids(tokenizer, messages)
    kept, dropped = list(messages), 0
    while len(ids) > room:
        first = 1 if kept and kept[0].get("role") == "system" else 0
        # A turn: everything up to the next user message, so that no answer is left without its question.
        end = next((i for i in range(first + 1, len(kept)) if kept[i].get("role") == "user"), None)
        if on_overflow == "error" or end is None:
            hint = 'shorten it, lower max_new_tokens or pass on_overflow="drop_oldest"' if end else "shorten the message"
            raise ContextLengthError(f"the conversation has {len(ids)} tokens and there is room for {room} beside the "
                                     f"answer; {hint}")
        dropped += end - first
        del kept[first:end]
        ids = chat_ids(tokenizer, kept)
    return ids, dropped
