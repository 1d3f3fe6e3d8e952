"""Documents cut into sentences by hand, and put together again whatever they are."""

from __future__ import annotations

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
    ("3. Remove the lid. 4. Stir.", ["3. Remove the lid.", "4. Stir."]),
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
    assert [(one.before, one.text) for one in found] == [("\n  ", "Title"), (" \r\n\r\n\t", "- One."), (" ", "Two.")]
    assert end == "  \n\n"
    assert segments(" \n ") == ([], " \n ")


@given(st.text(alphabet=st.sampled_from("aB1. ?!\n\r\t\"()\u3002\u2026\u00a0\u2028Dr,e"), max_size=60))
def test_nothing_is_lost_or_added(document):
    found, end = segments(document)
    assert "".join(one.before + one.text for one in found) + end == document
    assert all(one.text == one.text.strip() != "" for one in found)
    assert all(not one.before.strip() for one in found) and not end.strip()
