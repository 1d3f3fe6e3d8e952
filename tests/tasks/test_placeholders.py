"""What must survive a translation, found and missed by hand."""

from __future__ import annotations

import time

import pytest

from forwardpass.tasks.placeholders import around_codes, codes, lost


@pytest.mark.parametrize(("text", "found"), [
    ("Read https://a.org/x?y=1&z=(2). Then go.", ["https://a.org/x?y=1&z=(2"]),
    ("Mail me@some-where.co.uk, please", ["me@some-where.co.uk"]),
    ("Hello {name}, you have {{count}} and ${total}", ["{name}", "{{count}}", "${total}"]),
    ("<b>Bold</b> and <br/> but 3 < 4 > 2", ["<b>", "</b>", "<br/>"]),
    ("%s of %(size)d at 100% sure, %-5.2f", ["%s", "%(size)d", "%-5.2f"]),
    ("run `ls -l {a}` and ` alone", ["`ls -l {a}`"]),
    ("I \u2764\ufe0f you \U0001f600\U0001f600 \u2192 go", ["\u2764\ufe0f", "\U0001f600\U0001f600", "\u2192"]),
    ("nothing here, 50 % or so", []),
])
def test_codes(text, found):
    assert codes(text) == found


@pytest.mark.parametrize(("source", "translation", "missing"), [
    ("1,000.5 km in 2020", "2020 waren es 1.000,5 km", []),
    ("12 apples and 12 pears", "12 Äpfel und Birnen", ["12"]),
    ("Hello {name}!", "Hallo {Name}!", ["{name}"]),
    ("{a} {a}", "{a}", ["{a}"]),
    ("See www.x.org now, 3 times", "Siehe www.x.org jetzt, dreimal", ["3"]),
    ("See http://x.org/4 now", "Siehe jetzt 4", ["http://x.org/4"]),
    ("10 000 francs", "10\u00a0000 Franken", []),
    ("nothing", "nichts", []),
])
def test_lost(source, translation, missing):
    if source.startswith("10 000"):
        source = source.replace(" ", "\u202f", 1)
    assert lost(source, translation) == missing


def test_what_is_translated_around_codes():
    assert around_codes("Hi {name}, see <a>this</a>!") == [
        ("Hi ", True), ("{name}", False), (", see ", True), ("<a>", False), ("this", True), ("</a>", False),
        ("!", False)]
    assert around_codes("12 + 3") == [("12 + 3", False)]
    assert around_codes("{x}") == [("{x}", False)]


@pytest.mark.parametrize("part", ["a", "a.", "a@", "x@y.z", "@", "{", "{a}", "<a ", "</a>", "%s", "%(a", "%1", "`",
                                  "1.", "http://", "www.", "://", "\u2192", "1"])
def test_time_grows_with_the_length(part):
    """Of texts in which something may begin everywhere and ends nowhere, and of those that are nothing but codes."""
    text = (part * 200_000)[:200_000]
    begin = time.process_time()
    assert "".join(one for one, _ in around_codes(text)) == text
    assert lost(text, text) == []
    assert time.process_time() - begin < 20
