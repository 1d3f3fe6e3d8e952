"""Prompts to ids, packed and padded. Expected values are written out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.contracts import Padded
from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.stages.preprocess import encode_prompt, pack, pad, truncate, unpad


def test_raw_prompt_has_one_bos(byte_tokenizer):
    tokenizer = byte_tokenizer(add_bos=True)
    assert encode_prompt(tokenizer, "hi") == [256, 104, 105]
    assert encode_prompt(tokenizer, "<s>hi") == [256, 104, 105]
    assert encode_prompt(tokenizer, [104, 105]) == [104, 105]  # ids are taken as they are
    assert encode_prompt(byte_tokenizer(), "hi<|im_end|>") == [104, 105, 259]


def test_empty_prompts(byte_tokenizer):
    assert encode_prompt(byte_tokenizer(add_bos=True), "") == [256]
    with pytest.raises(ParameterError, match="no BOS"):
        encode_prompt(byte_tokenizer(), "")
    with pytest.raises(ParameterError, match="no tokens"):
        encode_prompt(byte_tokenizer(add_bos=True), [])


@pytest.mark.parametrize("ids", [[260], [-1], [2**63], [1, 2, 10**30], [1.0], ["a"], [True], [None], [[1]], [np.nan]])
def test_ids_outside_the_vocabulary(byte_tokenizer, ids):
    with pytest.raises(ParameterError, match="token"):
        encode_prompt(byte_tokenizer(), ids)


@pytest.mark.parametrize("prompt", [3, None, b"hi", {"a": 1}, {1, 2}, iter([1])])
def test_prompts_of_a_wrong_type(byte_tokenizer, prompt):
    with pytest.raises(ParameterError, match="text or a list"):
        encode_prompt(byte_tokenizer(), prompt)


def test_ids_of_other_kinds(byte_tokenizer):
    assert encode_prompt(byte_tokenizer(), np.array([1, 259], np.int64)) == [1, 259]
    assert encode_prompt(byte_tokenizer(), (1, 299), vocab_size=300) == [1, 299]  # the model may have more rows


def test_pack():
    packed = pack([[5, 6, 7], [8], [9, 10]])
    assert packed.token_ids.tolist() == [5, 6, 7, 8, 9, 10] and packed.token_ids.dtype == np.int32
    assert packed.positions.tolist() == [0, 1, 2, 0, 0, 1] and packed.positions.dtype == np.int32
    assert packed.starts.tolist() == [0, 3, 4, 6] and packed.lengths.tolist() == [3, 1, 2]
    assert pack([[5, 6], [7]], past=[3, 0]).positions.tolist() == [3, 4, 0]
    for bad in ([], [[]], [[1], []]):
        with pytest.raises(ParameterError, match="at least one"):
            pack(bad)
    with pytest.raises(ParameterError, match="2 entries for 1"):
        pack([[1]], past=[1, 2])


def test_types_lie_beside_their_tokens():
    assert pack([[5, 6], [7]]).types is None
    packed = pack([[5, 6, 7], [8], [9, 10]], types=[[0, 0, 1], None, (1, 1)])
    assert packed.types.tolist() == [0, 0, 1, 0, 1, 1] and packed.types.dtype == np.int32
    for bad, words in (([[0]], "1 entries for 2"), ([[0], [0, 1]], r"types\[1\] has 2 entries for 1 tokens"),
                       ([[0.5], [0]], r"types\[0\].*float64"), ([[2**40], None], "1099511627776")):
        with pytest.raises(ParameterError, match=words):
            pack([[1], [2]], types=bad)


def test_types_of_a_rectangle():
    """Padding has none: whatever stands there is dropped."""
    ids, mask, types = ([0, 5, 6], [7, 0, 0]), ([0, 1, 1], [1, 0, 0]), ([9, 0, 1], [1, 9, 9])
    padded = Padded(np.array(ids), np.array(mask), np.array(types))
    assert unpad(padded).types.tolist() == [0, 1, 1]
    assert unpad(Padded(padded.input_ids, padded.attention_mask)).types is None
    with pytest.raises(ParameterError, match=r"token_type_ids has shape \(2, 2\)"):
        unpad(Padded(padded.input_ids, padded.attention_mask, np.zeros((2, 2), int)))


def test_positions_count_real_tokens():
    """Mask 0,0,1,1,1 gives the real tokens positions 0, 1, 2."""
    left = pad([[5, 6, 7], [1, 2, 3, 4, 5]], side="left", pad_id=0)
    assert left.input_ids.tolist() == [[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]]
    assert left.attention_mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert unpad(left).positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    holes = Padded(np.array([[9, 5, 9, 6]]), np.array([[0, 1, 0, 1]]))
    assert unpad(holes).token_ids.tolist() == [5, 6] and unpad(holes).positions.tolist() == [0, 1]


def test_padding_options():
    rows = [[1, 2], [3]]
    assert pad(rows, pad_id=7).input_ids.tolist() == [[1, 2], [3, 7]]
    assert pad(rows, pad_id=None).input_ids.tolist() == [[1, 2], [3, 0]]
    assert pad(rows, padding="max_length", max_length=4, side="left", pad_id=7).input_ids.tolist() == [
        [7, 7, 1, 2],
        [7, 7, 7, 3],
    ]
    assert pad(rows, max_length=4, pad_id=7).input_ids.shape == (2, 2)
    for change, message in [
        ({"padding": "longst"}, "'longst'"),
        ({"side": "top"}, "'top'"),
        ({"padding": "max_length"}, "max_length is missing"),
        ({"truncation": True}, "max_length is missing"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": True}, "max_length is True"),
        ({"max_length": 1, "truncation": True, "truncation_side": "x"}, "truncation_side is 'x'"),
    ]:
        with pytest.raises(ParameterError, match=message):
            pad(rows, pad_id=0, **change)
    with pytest.raises(ParameterError, match="at least one"):
        pad([[1], []], pad_id=0)


def test_truncation_keeps_the_closing_token():
    """Limit 8, 20 words w1..w20 (ids 1..20) between [CLS] 100 and [SEP] 101."""
    text = [100, *range(1, 21), 101]
    assert truncate(text, 8, opening=1, closing=1) == [100, 1, 2, 3, 4, 5, 6, 101]
    assert truncate(text, 8, side="left", opening=1, closing=1) == [100, 15, 16, 17, 18, 19, 20, 101]
    assert truncate(text, 22, opening=1, closing=1) == text
    assert truncate(text, 2, opening=1, closing=1) == [100, 101]
    assert truncate([1, 2, 3], 2, side="left") == [2, 3]
    with pytest.raises(ParameterError, match="max_length is 1; the special tokens alone need 2"):
        truncate(text, 1, opening=1, closing=1)
    cut = pad([text], truncation=True, max_length=8, pad_id=0, opening=1, closing=1)
    assert cut.input_ids.tolist() == [[100, 1, 2, 3, 4, 5, 6, 101]] and cut.attention_mask.sum() == 8


def test_nothing_is_cut_silently():
    with pytest.raises(ContextLengthError, match=r"9 tokens.*max_length is 8"):
        pad([[1] * 9], max_length=8, pad_id=0)
    assert pad([[1] * 8], max_length=8, pad_id=0).input_ids.shape == (1, 8)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1]], r"\(1, 2\).*\(1, 3\)"),
        ([1, 1, 1], r"\(3,\)"),
        ([[1, 2, 1]], "only 0 and 1"),
        ([[1, 0.5, 1]], "only 0 and 1"),
        ([[0, 0, 0]], "row 0"),
    ],
)
def test_wrong_masks(mask, message):
    with pytest.raises(ParameterError, match=message):
        unpad(Padded(np.array([[1, 2, 3]]), np.array(mask)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=6), st.booleans())
def test_padding_and_back_is_packing(rows, left):
    there = unpad(pad(rows, side="left" if left else "right", pad_id=0))
    direct = pack(rows)
    for name in ("token_ids", "positions", "starts"):
        assert np.array_equal(getattr(there, name), getattr(direct, name)), name
        assert getattr(there, name).dtype == np.int32
