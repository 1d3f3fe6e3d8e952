"""Stages 2, 3 and 4 by hand: padded input equals packed input, and every wrong index is named, not read."""

import numpy as np
import pytest

import forwardpass
from forwardpass.contracts import CacheView, Packed, Padded
from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.preprocess import pack, pad
from forwardpass.stages.project import project

IDS = [[1, 2, 3], [4, 5]]


@pytest.fixture(scope="module")
def model():
    with forwardpass.load("smollm2-135m") as model:
        yield model


@pytest.fixture(scope="module")
def run(model):
    """run(tokens, past=None, tables=None) -> logits of each sequence's last token."""
    memory = model.network.kv_memory(4)

    def run(tokens, past=(0, 0), tables=((0,), (1,))):
        hidden = embed(model.network, tokens)
        view = CacheView(np.array(past, np.int32), np.array(tables, np.int32))
        return project(model.network, decode(model.network, hidden, view, memory)).values

    return run


def packed(**changes):
    one = pack(IDS)
    return Packed(**{name: changes.get(name, getattr(one, name)) for name in ("token_ids", "positions", "starts")})


def test_last_rows(model, run):
    rows = run(packed())
    assert all(np.array_equal(row, model.logits(ids)[-1]) for row, ids in zip(rows, IDS, strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [3, 7])
def test_padding_changes_no_real_row(run, side, length):
    assert np.array_equal(run(pad(IDS, padding="max_length", max_length=length, side=side, pad_id=0)), run(packed()))


def test_the_cache_continues_a_text(model, run):
    run(packed())
    rest = Packed(np.array([7, 8]), np.array([3, 2]), np.array([0, 1, 2]))
    rows = run(rest, past=(3, 2))
    assert np.array_equal(rows[0], model.logits([1, 2, 3, 7])[-1])
    assert np.array_equal(rows[1], model.logits([4, 5, 8])[-1])


def test_other_integers_are_converted(run):
    one = packed()
    wide = Packed(one.token_ids.astype(np.int64), one.positions.astype(np.uint8), one.starts.tolist())
    assert np.array_equal(run(wide), run(one))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": np.array([1, 2, 3, 4, 49152])}, "49152 is outside.* 49151"),
        ({"token_ids": np.array([1, 2, 3, 4, -1])}, "-1 is outside"),
        ({"token_ids": np.array([1, 2, 3, 4, 2**32 + 5])}, "token_ids.*4294967301"),
        ({"token_ids": np.array([1, 2, 3, 4, 5.5])}, "token_ids.*float64"),
        ({"token_ids": np.ones((1, 5), int)}, r"token_ids.*\[1, 5\]"),
        ({"token_ids": np.array([], int), "positions": np.array([], int)}, "no tokens"),
        ({"positions": np.array([0, 1])}, "5 tokens, 2 positions"),
        ({"positions": np.array([-1, 0, 1, 0, 1])}, "start at 0; found -1"),
        ({"starts": np.array([0, 3, 4])}, "cover"),
        ({"starts": np.array([0, 5, 5])}, "empty sequence"),
    ],
)
def test_wrong_tokens(run, changes, words):
    with pytest.raises(ParameterError, match=words):
        run(packed(**changes))


def test_a_padded_id_that_does_not_fit(run):
    with pytest.raises(ParameterError, match=r"input_ids.*4294967301"):
        run(Padded(np.array([[2**32 + 5]]), np.array([[1]])), past=(0,), tables=((0,),))


def test_a_position_beyond_the_context(run):
    with pytest.raises(ContextLengthError, match=r"8192.*8192 positions"):
        run(packed(positions=np.array([8190, 8191, 8192, 0, 1])))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ({"past": (0,)}, "1 sequences, the tokens 2"),
        ({"tables": (0, 1)}, r"block tables.*\[2\]"),
        ({"tables": ((0,), (4,))}, "no such KV block.*0 to 3"),
        ({"tables": ((0,), (-1,))}, "no such KV block"),
        ({"past": (-1, 0)}, "KV memory"),
        ({"past": (63, 0)}, "hold 64 positions, the sequences need 66"),
    ],
)
def test_wrong_cache_views(run, view, words):
    with pytest.raises(ParameterError, match=words):
        run(packed(), **view)


WRONG_ROWS = [([0.5], "float64"), ([5], r"\[0, 5\), found 5"), ([0, -1], "found -1 to 0")]


@pytest.mark.parametrize(("rows", "words"), WRONG_ROWS)
def test_wrong_rows(model, rows, words):
    with pytest.raises(ParameterError, match=words):
        project(model.network, embed(model.network, packed()), np.array(rows))


def test_no_rows(model):
    assert project(model.network, embed(model.network, packed()), np.array([], int)).values.shape == (0, 49152)
