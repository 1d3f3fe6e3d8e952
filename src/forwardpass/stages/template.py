"""Chat messages to text and token ids, through the model's own template."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ForwardpassError, ParameterError, TemplateError, UnsupportedModelError
from ..weights.tokenizer import Tokenizer
from . import template_limits as limits

_READS_PARTS = re.compile(r"""\[\s*['"](?:type|text)['"]\s*\]|\.(?:type|text)\b|get\(\s*['"](?:type|text)['"]""")


def render(
    template: str, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
) -> str:
    """The text of a chat. `messages` are dicts with "role" and "content", as in the OpenAI API; `variables` are what
    else the template may use (tools, bos_token ...).

    The template runs sandboxed and with limits on time and size (template_limits.py). Raises TemplateError when it
    refuses the messages, breaks, or goes too far, and ParameterError when the messages are not messages.
    """
    messages = check_messages(messages, template)
    variables = {name: plain_data(value, name) for name, value in variables.items()}
    variables.setdefault("tools", None)
    variables.setdefault("documents", None)
    token = limits.BUDGET.set(limits.Budget())
    try:
        compiled = _compiled(template)
        parts, size = [], 0
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, **variables}
        for part in compiled.generate(given):
            size += len(part)
            limits.need(size)
            parts.append(part)
        return "".join(parts)
    except ForwardpassError:
        raise
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold the template's values, in cycles that linger
        raise _explained(error) from error
    finally:
        limits.BUDGET.reset(token)


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continues: bool = False,
    template: str | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of a chat, with exactly one BOS in front if the model wants one (from the template or from here).

    Only the template's own text makes special tokens: "<|im_end|>" inside a message is encoded as the characters it is.

    continues: end after the text of the last message, as if it were still being written, whatever the template puts
    after it; there is then no generation prompt.
    """
    template = template if template is not None else tokenizer.chat_template
    if template is None:
        raise UnsupportedModelError(
            "this model has no chat template; expected one in its files. Continue text without one instead: "
            "generate(), or forwardpass run --raw."
        )
    messages = check_messages(messages, template)
    variables = {name: plain_data(value, name) for name, value in {**tokenizer.template_variables, **variables}.items()}
    given = {name: value for name, value in variables.items() if name not in tokenizer.template_variables}
    disguise = _Disguise(tokenizer, [template, messages, given])
    hidden = disguise.hide(messages)
    if continues:
        _append(hidden[-1], disguise.end)
    marked = render(
        template,
        hidden,
        add_generation_prompt and not continues,
        **{name: disguise.hide(value) if name in given else value for name, value in variables.items()},
    )
    if continues:
        if disguise.end not in marked:
            raise TemplateError("the chat template does not show the text of the last message as it is, so that it "
                                "cannot be continued: send messages for which it does, or ask for a new answer.")
        marked = marked[: marked.rindex(disguise.end)]
    ids = disguise.encode(marked)
    if tokenizer.add_bos and ids[:1] != [tokenizer.bos_token_id]:
        ids.insert(0, tokenizer.bos_token_id)
    return ids


def filled_ids(tokenizer: Tokenizer, template: str, values: Mapping[str, str]) -> list[int]:
    """Token ids of a text with places in braces, each filled with the value of that name, and with the special tokens
    that the model wants around a text. Special tokens written in the template become those tokens, in values never."""
    disguise = _Disguise(tokenizer, [template, dict(values)])
    hidden = {name: disguise.hide(value, "content") for name, value in values.items()}
    places = "|".join(map(re.escape, values))
    ids = disguise.encode(re.sub(rf"\{{({places})\}}", lambda match: hidden[match[1]], template))
    before, after = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    return ([] if ids[: len(before)] == before else before) + ids + after


class _Disguise:
    """Hides special-token text in the user's strings from the tokenizer while the template is rendered.

    The first character of each occurrence is exchanged for a private one that occurs nowhere else, so lengths, trimming
    and everything else a template may look at stay the same. A token's beginning at the end of a string, its end at
    the start of one and a string inside a token are hidden too, so that the template's text can't complete them.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Any) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_texts
        self._whole, self._starts, self._ends, letters = _parts(self._special)
        self._reach = max(map(len, self._special), default=0)
        used: set[str] = set()
        _collect(strings, used)
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
        self.end = next(free)  # marks where a text ends
        self._mask = dict(zip(letters, free, strict=False))
        self.used = False

    def hide(self, value: Any, key: str = "role") -> Any:
        if isinstance(value, str):
            return self._hide_text(value, edges=key not in ("role", "type"))
        if isinstance(value, dict):
            return {self._hide_text(name, edges=False): self.hide(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item, "item") for item in value]
        return value

    def _hide_text(self, text: str, edges: bool) -> str:
        """edges: also hide what the template's neighbouring text could complete. Not for roles, out of which a template
        may build its own tokens: '<|' + role + '|>'."""
        places = {match.start() for match in self._whole.finditer(text)}
        core = text.strip() if edges else ""
        if core:
            first = len(text) - len(text.lstrip())
            sizes = range(min(len(core), self._reach), 0, -1)
            if tail := next((n for n in sizes if core[-n:] in self._starts), 0):
                places.add(first + len(core) - tail)
            if head := next((n for n in sizes if core[:n] in self._ends), 0):
                places.add(first + head - 1)
            if len(core) < self._reach and any(core in special for special in self._special):
                places.add(first)
        if not places:
            return text
        self.used = True
        letters = list(text)
        for place in places:
            letters[place] = self._mask.get(letters[place], letters[place])
        return "".join(letters)

    def encode(self, marked: str) -> list[int]:
        """Special tokens of the disguised text become tokens; between them the true text is encoded as plain text."""
        tokenizer = self._tokenizer
        if not self.used:
            return tokenizer.encode(marked, add_special_tokens=False, parse_special=True)
        for mask in self._mask.values():  # how json.dumps writes a private character when asked for plain ASCII
            marked = marked.replace(f"\\u{ord(mask):04x}", mask)
        true = marked.translate({ord(mask): char for char, mask in self._mask.items()})
        ids: list[int] = []
        place = 0
        for start, end, token in [*tokenizer.special_spans(marked), (len(marked), len(marked), None)]:
            if start > place:
                ids += tokenizer.encode(true[place:start], add_special_tokens=False, parse_special=False)
            if token is not None:
                ids.append(token)
            place = end
        return ids


@functools.lru_cache(maxsize=16)
def _parts(texts: tuple[str, ...]) -> tuple[re.Pattern, frozenset[str], frozenset[str], tuple[str, ...]]:
    """What matches a whole special token, their true beginnings and ends, and the characters they are made of."""
    longest_first = sorted(texts, key=len, reverse=True)
    whole = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    starts = frozenset(text[:n] for text in texts for n in range(1, len(text)))
    ends = frozenset(text[n:] for text in texts for n in range(1, len(text)))
    return whole, starts, ends, tuple(sorted({letter for text in texts for letter in text}))


def _collect(value: Any, used: set[str]) -> None:
    if isinstance(value, str):
        if not value.isascii():
            used.update(value)
        used.update(chr(int(code, 16)) for code in re.findall(r"\\u([0-9a-fA-F]{4})", value))
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(key, used)
            _collect(item, used)
    elif isinstance(value, list):
        for item in value:
            _collect(item, used)


def _append(message: dict[str, Any], mark: str) -> None:
    """Put a mark after the text of a message."""
    content = message.get("content")
    if isinstance(content, list) and content:
        content[-1]["text"] += mark
    else:
        message["content"] = [{"type": "text", "text": mark}] if content == [] else (content or "") + mark


def check_messages(messages: Any, template: str = "") -> list[dict[str, Any]]:
    """Messages as plain lists, dicts, strings and numbers. Entries that are None are left out, as in transformers.

    Text parts ([{"type": "text", "text": ...}]) are joined by line ends for a template that doesn't read parts.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        found = "an empty list" if messages == [] else type(messages).__name__
        raise ParameterError(f"messages: expected a list of dicts with 'role' and 'content', found {found}.")
    checked = []
    for place, message in enumerate(messages):
        name = f"messages[{place}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ParameterError(f"{name}: expected a dict with a string 'role', found {str(message)[:80]!r}.")
        plain = {key: value for key, value in plain_data(message, name).items() if value is not None}
        content = plain.get("content", "")
        if isinstance(content, list):
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                    raise ParameterError(f"{name}: expected content parts of type 'text', found {kind!r}.")
            if not _READS_PARTS.search(template):
                plain["content"] = "\n".join(part["text"] for part in content)
        elif not isinstance(content, str):
            raise ParameterError(f"{name}: expected content to be text or a list of parts, found {content!r:.80}.")
        checked.append(plain)
    return checked


def plain_data(value: Any, name: str, depth: int = 0) -> Any:
    """A copy made of exact JSON types, so that a template can reach no object's methods. Raises ParameterError."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth < limits.MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(key): plain_data(item, f"{name}.{key}", depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain_data(item, f"{name}[{i}]", depth + 1) for i, item in enumerate(value)]
        for kind in (str, int, float):
            if isinstance(value, kind):
                return getattr(kind, f"__{kind.__name__}__")(value)
    expected = "text, numbers, lists and dicts" if depth < limits.MAX_DEPTH else f"at most {limits.MAX_DEPTH} levels"
    raise ParameterError(f"{name[:80]}: expected {expected}, found {type(value).__name__}.")


@functools.lru_cache(maxsize=16)
def _compiled(template: str):
    from .template_sandbox import ChatEnvironment

    limits.width(len(template), limits.MAX_TEMPLATE)
    return _environment(ChatEnvironment).from_string(template)


@functools.cache
def _environment(kind):
    return kind()


def _explained(error: Exception) -> TemplateError:
    from jinja2 import TemplateSyntaxError
    from jinja2.exceptions import SecurityError

    from .template_sandbox import RefusalError

    if isinstance(error, RefusalError):
        return TemplateError(f"the chat template refuses these messages: {error.message}")
    if isinstance(error, SecurityError):
        return TemplateError(f"the chat template tried something unsafe and was stopped: {str(error)[:500]}")
    if isinstance(error, (limits.LimitError, MemoryError, OverflowError, RecursionError)):
        return TemplateError(f"the chat template was stopped because it wants too much: {str(error)[:500]}")
    if isinstance(error, TemplateSyntaxError):
        return TemplateError(f"the chat template is not valid, line {error.lineno}: {str(error.message)[:500]}")
    return TemplateError(f"the chat template failed on these messages ({type(error).__name__}): {str(error)[:500]}")
