"""Stop strings that arrive in pieces, and the set of end tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.decoding.stops import StopStrings, effective_end_ids, union_of_end_ids


def run(pieces, stops, include=False):
    finder = StopStrings(stops, include=include)
    shown = []
    for piece in pieces:
        text, stopped = finder.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    shown.append(finder.finish())
    return shown, False


def test_stop_string_across_pieces():
    shown, stopped = run(["ab", "wx", "y", "z!", "q"], ["wxyz"])
    assert stopped and "".join(shown) == "ab"
    assert shown[:3] == ["ab", "", ""]


def test_include_ends_with_the_stop_string_and_drops_the_rest():
    assert "".join(run(["ab", "wx", "y", "z!", "q"], ["wxyz"], include=True)[0]) == "abwxyz"


def test_held_text_is_released_when_the_match_fails():
    finder = StopStrings(["wxyz"])
    assert [finder.push(p)[0] for p in ["ab", "wx", "q"]] == ["ab", "", "wxq"]


def test_earliest_position_counts():
    assert "".join(run(["ab", "wx", "y", "z!"], ["yz", "wxyz"])[0]) == "ab"
    assert "".join(run(["ab", "wx", "y", "z!"], ["wxyz", "yz"])[0]) == "ab"
    assert "".join(run(["one two"], ["two", "ne"])[0]) == "o"


def test_held_text_is_flushed_at_the_end():
    shown, stopped = run(["ab", "wxy"], ["wxyz"])
    assert not stopped and shown == ["ab", "", "wxy"]


def test_a_beginning_within_a_beginning():
    assert "".join(run(list("aaab"), ["aab"])[0]) == "a"
    assert "".join(run(["aab", "aac"], ["aabaab"])[0]) == "aabaac"


def test_nothing_after_the_stop():
    finder = StopStrings(["."])
    assert finder.push("a.b") == ("a", True)
    assert finder.push("c") == ("", True)
    assert finder.finish() == ""


def test_without_stop_strings_text_passes():
    assert StopStrings().push("abc") == ("abc", False)


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_pieces_equal_the_whole(pieces, stops):
    shown, stopped = run(pieces, stops)
    whole = "".join(pieces)
    # Generation ends with the piece in which the first stop string is complete: look at each beginning of the text.
    expected, found = whole, False
    seen = ""
    for piece in pieces:
        seen += piece
        positions = [seen.find(stop) for stop in stops if stop in seen]
        if positions:
            expected, found = seen[: min(positions)], True
            break
    assert ("".join(shown), stopped) == (expected, found)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.text("ab", min_size=1, max_size=4))
def test_hold_back_is_no_longer_than_needed(pieces, stop):
    finder = StopStrings([stop])
    pushed = shown = ""
    for piece in pieces:
        text, stopped = finder.push(piece)
        if stopped:
            break
        pushed, shown = pushed + piece, shown + text
        held = pushed[len(shown) :]
        assert pushed.startswith(shown) and stop.startswith(held) and held != stop
        assert not any(stop.startswith(pushed[i:]) for i in range(len(shown)))


def test_end_tokens_are_the_union_of_all_files():
    # config says 1, generation_config [1, 5], the tokenizer 6; -1 and ids without a row are no tokens.
    assert union_of_end_ids([1, 5], 1, [6], None, -1, 400, vocab_size=64) == (1, 5, 6)


@pytest.mark.parametrize(
    ("request_params", "expected"),
    [
        ({}, {1, 5, 6}),
        ({"ignore_eos": True}, set()),
        ({"eos_token_id": ()}, set()),
        ({"eos_token_id": (9,)}, {9}),
        ({"stop_token_ids": (7,)}, {1, 5, 6, 7}),
        ({"ignore_eos": True, "stop_token_ids": (7,)}, {7}),
        ({"ignore_eos": True, "eos_token_id": (9,)}, {9}),
    ],
)
def test_end_tokens_of_a_request(request_params, expected):
    assert effective_end_ids((1, 5, 6), **request_params) == expected
