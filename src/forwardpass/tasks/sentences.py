"""A document as sentences with what stands between them, so that it can be put together again.

A line is never joined with the next, and what is blank stays as it is, as do code blocks between two fences (``` or
~~~) and what a line of a list, a quotation or a heading begins with ("- ", "2. ", "> ", "## "). Inside a line a
sentence ends at . ! ? or an ellipsis, with closing quotes and brackets, before a blank and something that may begin a
sentence; not after an abbreviation, an initial or an ordinal number that goes on. Chinese and Japanese full stops end
one without a blank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLOSING = "\"'\u201d\u2019\u00bb\u203a)\\]\u300d\u300f\uff09"
_END = re.compile(rf"(?<![.!?\u2026])[.!?\u2026]++[{_CLOSING}]*+(?=\s)|[\u3002\uff01\uff1f]+[{_CLOSING}]*")
_WORD_BEFORE = re.compile(r"(?:^|[\s(\[\"'\u201c\u201e\u00ab-])([^\s(\[\"'\u201c\u201e\u00ab-]*)$")
_ABBREVIATIONS = """
    mr mrs ms dr prof sr jr st messrs mme mlle gen col capt lt sgt rev hon pres gov sen rep vs etc eg ie cf ca approx
    al no nos vol vols ed eds fig figs eq eqs sec ch pp p art inc ltd co corp dept univ est min max jan feb mar apr jun
    jul aug sep sept oct nov dec mon tue wed thu fri sat sun bzw bspw ggf usw evtl nr abb tab zb dh ua str hr fr hl
    bd sog inkl exkl zzt vgl
"""
_KNOWN = frozenset(_ABBREVIATIONS.split())
_DOTTED = re.compile(r"(?:\w\.)+\w$")  # "e.g", "U.S", "z.B": the last full stop stands behind it
_FOLLOWING = re.compile(r"\s*[\"'\u201c\u201e\u00ab\u2018(\[*_\-\u2013\u2014\u2022 ]*(.?)", re.DOTALL)
_BLANKS = re.compile(r"\s*")
_LONGEST_WORD = 40
"""So much before a full stop is looked at. No abbreviation is longer, and a line may be a megabyte of full stops."""

_MARKER = re.compile(r"(?:(?:[-*+>\u2022\u2023\u25e6]|#{1,6}|\d{1,3}[.)]|\[[ xX]\])[ \t]+)+")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Segment:
    """A sentence, and what stands before it: line ends, indentation, list markers, code, blanks between sentences."""

    before: str
    text: str


def segments(document: str) -> tuple[list[Segment], str]:
    """(the document's sentences, what stands after the last). Together they are the document."""
    found: list[Segment] = []
    before = ""
    lines = re.split(r"((?:\r\n|[\n\r\v\f\x85\u2028\u2029])+)", document)
    code = _code_lines(lines)
    for number, line in enumerate(lines):
        body = line.strip()
        if not body or number in code:
            before += line
            continue
        start = line.index(body)
        if marker := _MARKER.match(body):
            start, body = start + marker.end(), body[marker.end():]
        before += line[:start]
        for blank, sentence in _sentences(body):
            found.append(Segment(before + blank, sentence))
            before = ""
        before = line[start + len(body):]
    return found, before


def _code_lines(lines: list[str]) -> set[int]:
    """The numbers of the lines in code blocks, fences included. A fence that nothing closes is a line like any."""
    found: set[int] = set()
    opened, fence = 0, ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and not fence:
            opened, fence = number, mark[1]
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            found.update(range(opened, number + 1))
            fence = ""
    return found


def _sentences(line: str) -> list[tuple[str, str]]:
    """(blanks before it, sentence) for each sentence of a line without blanks at its ends."""
    out, start = [], 0
    for match in _END.finditer(line):
        end = match.end()
        if end == len(line) or not _ends(line, start, match.start(), end):
            continue
        out.append(line[start:end])
        start = end
    out.append(line[start:])
    pieces = []
    for text in out:
        body = text.lstrip()
        pieces.append((text[: len(text) - len(body)], body))
    return pieces


def _ends(line: str, start: int, at: int, end: int) -> bool:
    """Whether the sentence that begins at `start` ends with the mark from `at` to `end`."""
    if line[at] in "\u3002\uff01\uff1f":
        return True
    if _FOLLOWING.match(line, end)[1].islower():
        return False
    if line[at] != "." or line[at : min(at + 2, end)] == "..":
        return True
    found = _WORD_BEFORE.search(line[max(start, at - _LONGEST_WORD) : at])
    word = found[1] if found else ""
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    ordinal = word.isdigit() and len(word) <= 2 and _BLANKS.match(line, start).end() == at - len(word)  # "3. Go on."
    known = word.lower().replace(".", "") in _KNOWN
    return not (initial or ordinal or known or _DOTTED.fullmatch(word))
