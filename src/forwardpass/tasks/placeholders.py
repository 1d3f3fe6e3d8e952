"""What a translation must not lose: numbers, and what a program or a browser will read: URLs, {braces}, <tags>, %s,
`code`. Pictures (emoji, arrows) are the same in all languages, and many a vocabulary lacks them."""

from __future__ import annotations

import re
from collections import Counter

_PICTURE = "\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_CODE = re.compile(
    r"`[^`\n]+`"
    r"|(?:https?|ftp)://[^\s<>\"]*[^\s<>\".,;:!?)\]}']"
    r"|www\.[^\s<>\"]*[^\s<>\".,;:!?)\]}']"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"
    r"|\$?\{\{?[^{}\n]*\}?\}"
    r"|</?[A-Za-z][^<>\n]*>"
    r"|%(?:\(\w+\))?[-+0# ]?\d*(?:\.\d+)?[sdifgxeru](?![a-z])"
    rf"|[{_PICTURE}][{_PICTURE}\ufe0e\ufe0f\u200d\u20e3]*"
)
_NUMBER = re.compile(r"\d+(?:[.,\u00a0\u202f'\u2019]\d+)*")
_LETTER = re.compile(r"[^\W\d_]")


def codes(text: str) -> list[str]:
    """What has to be found again letter by letter, in order."""
    return _CODE.findall(text)


def lost(source: str, translation: str) -> list[str]:
    """What of the source the translation lacks, as it stands in the source. A number counts by its digits: 1,000.5 is
    also 1.000,5. What stands twice must be found twice."""
    missing = []
    wanted = codes(source)
    kept = Counter[str]()
    for found, count in Counter(wanted).items():
        kept[found] = min(count, translation.count(found))
        translation = translation.replace(found, " ", kept[found])
    for found in wanted:
        if kept[found] > 0:
            kept[found] -= 1
        else:
            missing.append(found)
    left = Counter(_digits(number) for number in _NUMBER.findall(_CODE.sub(" ", translation)))
    for number in _NUMBER.findall(_CODE.sub(" ", source)):
        if left[_digits(number)] > 0:
            left[_digits(number)] -= 1
        else:
            missing.append(number)
    return missing


def around_codes(text: str) -> list[tuple[str, bool]]:
    """(part, whether it is to be translated): codes, and what stands between them. A part without letters stays as it
    is."""
    parts, at = [], 0
    for match in _CODE.finditer(text):
        parts += [(text[at : match.start()], True), (match[0], False)]
        at = match.end()
    parts.append((text[at:], True))
    return [(part, wanted and bool(_LETTER.search(part))) for part, wanted in parts if part]


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)
