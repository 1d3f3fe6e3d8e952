"""How a model fills in the middle of a text: the tokens that mark its parts, found in the vocabulary.

Models trained for it saw texts cut in three and put together again, with the middle last, so continuing such a
sequence writes the middle. They differ in the tokens and in the order of the two other parts:
    "psm"   PREFIX before SUFFIX after MIDDLE
    "spm"   SUFFIX after PREFIX before MIDDLE   (some go without MIDDLE: the text before the hole comes last anyway)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer


@dataclass(frozen=True)
class FillInMiddle:
    """Ids. opening: what begins every sequence of this model (BOS).  ends: tokens that end a middle, beside the model's
    own end tokens. repo, file: what announces a repository's name and a further file, where the model knows them."""

    prefix: int
    suffix: int
    middle: int | None
    order: str
    ends: tuple[int, ...]
    opening: tuple[int, ...] = ()
    repo: int | None = None
    file: int | None = None

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The sequence that the middle continues. before, after: ids of the text around the hole, nothing added."""
        first, second = [self.prefix, *before], [self.suffix, *after]
        if self.order == "spm":
            first, second = second, first
        return [*self.opening, *first, *second, *([] if self.middle is None else [self.middle])]


@dataclass(frozen=True)
class _Form:
    prefix: str
    suffix: str
    middle: str
    order: str = "psm"
    needs_middle: bool = True
    repo: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


_FORMS = (
    _Form("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", repo=("<|repo_name|>", "<|fim_repo|>"),
          file=("<|file_sep|>", "<|file_separator|>"), ends=("<|fim_pad|>",)),
    _Form("<fim_prefix>", "<fim_suffix>", "<fim_middle>", repo=("<repo_name>", "<reponame>"),
          file=("<file_sep>", "<filename>"), ends=("<fim_pad>", "<|endoftext|>")),
    _Form("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")),
    _Form("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _Form("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    _Form("<PRE>", "<SUF>", "<MID>", repo=("<REPO>",), ends=("<EOT>", "<PAD>")),
    _Form("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _Form("<|prefix|>", "<|suffix|>", "<|middle|>"),
    _Form("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", order="spm"),
    _Form("[PREFIX]", "[SUFFIX]", "[MIDDLE]", order="spm", needs_middle=False),
)  # fmt: skip
"""Qwen-Coder and CodeGemma, StarCoder and Granite, SantaCoder, DeepSeek, CodeLlama twice, GLM, Falcon, Seed, Codestral.
The last is trained without its middle token."""


def fill_in_middle(tokenizer: Tokenizer) -> FillInMiddle | None:
    """How this vocabulary's model fills in a middle; None if it has no tokens for that."""
    named = tokenizer.facts.middle_ids
    form = _form(tokenizer, named)
    if form is None and not {"prefix", "suffix", "middle"} <= named.keys():
        return None
    find = tokenizer.token_to_id
    if form is None:
        form = _Form("", "", "")

    def role(name: str, texts: tuple[str, ...]) -> int | None:
        if name in named:
            return named[name]
        return next((i for text in texts if (i := find(text)) is not None), None)

    prefix, suffix = role("prefix", (form.prefix,)), role("suffix", (form.suffix,))
    middle = role("middle", (form.middle,)) if form.needs_middle else None
    repo, file = role("repo", form.repo), role("file", form.file)
    # Past the middle's end a model goes on with what came next in training: the next file, the next repository,
    # padding, or the marks of another hole.
    ends = [named.get("pad"), *(find(text) for text in form.ends), repo, file, prefix, suffix, middle]
    return FillInMiddle(
        prefix=prefix,
        suffix=suffix,
        middle=middle,
        order=form.order,
        ends=tuple(dict.fromkeys(i for i in ends if i is not None)),
        opening=tokenizer.prefix_ids,
        repo=repo,
        file=file,
    )


def _form(tokenizer: Tokenizer, named: Mapping[str, int]) -> _Form | None:
    """The form whose tokens the vocabulary has; where the file names its tokens, the form they belong to."""
    for form in _FORMS:
        ids = {"prefix": tokenizer.token_to_id(form.prefix), "suffix": tokenizer.token_to_id(form.suffix)}
        if form.needs_middle:
            ids["middle"] = tokenizer.token_to_id(form.middle)
        if None not in ids.values() and all(named.get(role, i) == i for role, i in ids.items()):
            return form
    return None


def encode_around(tokenizer: Tokenizer, before: str, after: str) -> tuple[list[int], list[int]]:
    """Ids of the text before and after a hole, for `FillInMiddle.prompt`; special tokens in them are plain text.

    The text after the hole does not begin a text, so it gets no space that SentencePiece would put before one.
    """
    ids = tokenizer.encode(before, add_special_tokens=False, parse_special=False)
    mark = tokenizer.token_to_id("<0x01>") if tokenizer.drops_first_space else None
    if mark is None:
        return ids, tokenizer.encode(after, add_special_tokens=False, parse_special=False)
    # A character that is part of no token keeps what follows as it would be in the middle of a text.
    marked = tokenizer.encode("\x01" + after, add_special_tokens=False, parse_special=False)
    return ids, marked[marked.index(mark) + 1 :]
