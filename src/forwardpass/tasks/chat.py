"""Chat: messages through the model's own template, and what to do when the history no longer fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.stages.template import chat_ids

OVERFLOW = ("error", "drop_oldest")


def fitting_ids(tokenizer, messages: Sequence[Mapping[str, Any]], context: int, least: int, wanted: int,
                on_overflow: str) -> tuple[list[int], int]:
    """(token ids of the chat, messages dropped). context: the model's tokens, of which the answer needs `least`.

    on_overflow "error": ContextLengthError with both numbers;  "drop_oldest": whole turns go, the oldest first, until
    the answer has `wanted` tokens, but never the system messages at the beginning and never the last turn.
    """
    if on_overflow not in OVERFLOW:
        raise ParameterError(f"on_overflow must be one of {', '.join(OVERFLOW)}, not {on_overflow!r}")
    ids = chat_ids(tokenizer, messages)
    kept, dropped = list(messages), 0
    while len(ids) + wanted > context:
        first = next((i for i, message in enumerate(kept) if message["role"] != "system"), len(kept))
        # A turn: everything up to the next user message, so that no answer is left without its question.
        end = next((i for i in range(first + 1, len(kept)) if kept[i]["role"] == "user"), None)
        if on_overflow == "error" or end is None:
            if len(ids) + least <= context:
                break
            hint = "" if end is None else ' or pass on_overflow="drop_oldest"'
            raise ContextLengthError(f"the conversation has {len(ids)} tokens and at least {least} more are for the "
                                     f"answer; the model's context is {context} tokens: shorten the conversation, "
                                     f"lower max_new_tokens{hint}")
        dropped += end - first
        del kept[first:end]
        ids = chat_ids(tokenizer, kept)
    return ids, dropped
