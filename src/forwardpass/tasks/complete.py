"""Code completion: what belongs at the cursor, given the text before it and, if the model can, the text after it.

Fill in the middle after Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle": prefix and
suffix stand in the prompt between special tokens, and the model writes the middle until its own end token.
"""

from __future__ import annotations

from dataclasses import replace

from forwardpass.decoding.params import SamplingParams
from forwardpass.errors import ContextLengthError, ParameterError, UnsupportedModelError
from forwardpass.weights.fill_in_middle import FillInMiddle, encode_around, fill_in_middle

SUFFIX_SHARE = 4
"""The text after the cursor gets at most a quarter of the room where prefix and suffix don't both fit."""
CHARACTERS_A_TOKEN = 32
"""Text further from the cursor than this many characters for each token of room is never tokenised."""
TELLING = 8
"""Characters that are not blank from which on a beginning of the suffix is unmistakable."""
LONGEST_END = 200
"""Characters of a natural end that are compared: a suffix may begin with a line of any length."""


def completing(tokenizer, prefix: str, suffix: str | None, room: int, params: SamplingParams
               ) -> tuple[list[int], SamplingParams]:
    """The prompt of a completion, at most `room` token ids, and its parameters, which say where a middle ends as well.

    Raises ParameterError for what is no text, UnsupportedModelError for a suffix if the model can't fill in a middle,
    ContextLengthError if there is no room for any text.
    """
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str) and not (name == "suffix" and text is None):
            raise ParameterError(f"{name} must be text, not {type(text).__name__}")
    middle = None if suffix is None else fill_in_middle(tokenizer)
    if suffix is not None and middle is None:
        raise UnsupportedModelError("this model has no tokens for filling in the middle; leave the suffix out to "
                                    "continue the prefix, or use a model that has them (qwen2.5-coder-0.5b does)")
    ids = completion_ids(tokenizer, middle, prefix, suffix, room)
    if suffix is not None:
        params = replace(params, stop=(*params.stop, *natural_ends(prefix, suffix)),
                         stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *middle.ends))))
    return ids, params


def completion_ids(tokenizer, middle: FillInMiddle | None, prefix: str, suffix: str | None, room: int) -> list[int]:
    """Token ids of the prompt, at most `room` of them. middle: how the model fills one in; needed with a suffix.

    Prefix and suffix are plain text: what looks like a special token in them is none. Where they don't fit, the text
    furthest from the cursor is left out, whole lines of it if possible.
    """
    marks = len(tokenizer.prefix_ids if suffix is None else middle.prompt([], []))
    if room <= marks:
        raise ContextLengthError(f"a completion has room for {max(room, 0)} prompt tokens, of which {marks} are not "
                                 "text; lower max_new_tokens or raise context_tokens")
    room -= marks
    reach = room * CHARACTERS_A_TOKEN
    before, after = encode_around(tokenizer, prefix[-reach:], (suffix or "")[:reach])
    share = min(len(after), max(room - len(before), room // SUFFIX_SHARE))
    before, after = _tail(before, room - share, tokenizer), _head(after, share, tokenizer)
    if suffix is not None:
        return middle.prompt(before, after)
    if not (ids := [*tokenizer.prefix_ids, *before]):
        raise ParameterError("nothing to complete: the prefix is empty, and this model has no token that begins a text")
    return ids


def natural_ends(prefix: str, suffix: str) -> list[str]:
    """Texts at which the middle has ended although the model goes on; the answer is cut before them.

    The beginning of the suffix, up to the end of the line in which it is unmistakable: ")\n    return total\n" gives
    ")\n    return total", since ")" alone may well be part of the middle. Blank lines, where the suffix begins with as
    many of them. The end of a block of code that was never opened, which models made for chat like to put.
    """
    ends = []
    if beginning := _unmistakable(suffix):
        ends.append(beginning[:LONGEST_END])
    blank = len(suffix) - len(suffix.lstrip("\n"))
    if blank > 1:
        ends.append("\n" * min(blank, LONGEST_END))
    if "```" not in prefix and "```" not in suffix:
        ends.append("\n```")
    return ends


def _unmistakable(suffix: str) -> str | None:
    end = 0
    while end < len(suffix):
        newline = suffix.find("\n", end)
        end = len(suffix) if newline < 0 else newline + 1
        beginning = suffix[:end].rstrip()
        if sum(not character.isspace() for character in beginning) >= TELLING:
            return beginning
    return None


def _tail(ids: list[int], room: int, tokenizer) -> list[int]:
    """The last `room` tokens, from the beginning of a line if one begins in their first half."""
    if len(ids) <= room:
        return ids
    kept = ids[len(ids) - room :]
    for place, token in enumerate(kept[: room // 2]):
        if tokenizer.decode([token]).endswith("\n"):
            return kept[place + 1 :]
    return kept


def _head(ids: list[int], room: int, tokenizer) -> list[int]:
    """The first `room` tokens, to the end of a line if one ends in their second half."""
    if len(ids) <= room:
        return ids
    for place in range(room - 1, room // 2, -1):
        if "\n" in tokenizer.decode([ids[place]]):
            return ids[: place + 1]
    return ids[:room]
