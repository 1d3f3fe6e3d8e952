"""Documents cut into sentences by hand, and put together again whatever they are."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.tasks.sentences import segments


def texts(document):
    return [one.text for one in segments(document)[0]]


@pytest.mark.parametrize(("document", "sentences"), [
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("He asked Dr. Smith, i.e. the doctor. She left.", ["He asked Dr. Smith, i.e. the doctor.", "She left."]),
    ("J. S. Bach wrote it. So they say.", ["J. S. Bach wrote it.", "So they say."]),
    ("It costs 3.50 euros. Cheap.", ["It costs 3.50 euros.", "Cheap."]),
    ("3. Remove the lid. 4. Stir.", ["Remove the lid.", "4. Stir."]),
    ("Wait... what? Yes... No.", ["Wait... what?", "Yes...", "No."]),
    ("“Really?” he said. (Yes.) Then he went.", ["“Really?” he said.", "(Yes.)", "Then he went."]),
    ("See e.g. Fig. 3 and pp. 4-5. Done.", ["See e.g. Fig. 3 and pp. 4-5.", "Done."]),
    ("今日は晴れです。明日は雨！本当？", ["今日は晴れです。", "明日は雨！", "本当？"]),
    ("A line without an end\nand the next one", ["A line without an end", "and the next one"]),
    ("Visit www.example.org. It is good.", ["Visit www.example.org.", "It is good."]),
])
def test_where_sentences_end(document, sentences):
    assert texts(document) == sentences


def test_what_stands_between():
    document = "\n  Title \r\n\r\n\t- One. Two.  \n\n"
    found, end = segments(document)
    assert [(one.before, one.text) for one in found] == [("\n  ", "Title"), (" \r\n\r\n\t- ", "One."), (" ", "Two.")]
    assert end == "  \n\n"
    assert segments(" \n ") == ([], " \n ")


@given(st.text(alphabet=st.sampled_from("aB1. ?!\n\r\t\"()\u3002\u2026\u00a0\u2028Dr,e"), max_size=60))
def test_nothing_is_lost_or_added(document):
    found, end = segments(document)
    assert "".join(one.before + one.text for one in found) + end == document
    assert all(one.text == one.text.strip() != "" for one in found)
    assert all(re.fullmatch(r"(\s|1{1,3}\.(?=\s))*", one.before) for one in found)  # blanks and numbers of lists
    assert not end.strip()


@pytest.mark.parametrize(("line", "marker"), [
    ("- [ ] milk", "- [ ] "), ("12) Go.", "12) "), ("> > so he said", "> > "), ("### Part 1", "### "),
    ("-5 degrees", ""), ("#tag", ""), ("1999. It was", ""), ("**bold** text", ""), ("\u2022\tone", "\u2022\t"),
    ("- -", "- "),
])
def test_list_markers_stand_before_the_text(line, marker):
    assert segments(line)[0][0].before == marker
    assert segments(f"a\n  {line}")[0][1].before == f"\n  {marker}"


def test_code_blocks_stay():
    document = "Run:\n\n  ```python\nprint('Hi.')\n~~~\n```\nThen stop."
    assert [(one.before, one.text) for one in segments(document)[0]] == [
        ("", "Run:"), ("\n\n  ```python\nprint('Hi.')\n~~~\n```\n", "Then stop.")]
    assert segments("```\nx = 1\n````\n") == ([], "```\nx = 1\n````\n")
    assert texts("```\nnever closed") == ["```", "never closed"]
    assert texts("~~~\na\n~~~\nb\n~~~\nc") == ["b", "~~~", "c"]


@pytest.mark.parametrize("part", [
    "A. ", "1. ", ". ", "!", "...", "\u2026", "?\"", ") ", "e.g. ", "- ", "> ", "```\n", "\n", " ", "a.", "\u3002",
    "\u3002!", "[ ] ", "x! [("])
def test_time_grows_with_the_length(part):
    """Of documents that are nothing but marks. Looking back to the beginning at each of them took minutes."""
    document = (part * 200_000)[:200_000]
    begin = time.process_time()
    found, end = segments(document)
    assert time.process_time() - begin < 20
    assert "".join(one.before + one.text for one in found) + end == document
