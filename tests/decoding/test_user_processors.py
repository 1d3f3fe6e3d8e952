"""The user's own logits processors: what they get, where they stand, and what happens when they misbehave."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.sampler import Sampler
from forwardpass.errors import ParameterError

ROW = np.array([4, 3, 2, 1, 0], np.float32)


def sampler(*processors, prompt=(7, 8), **params):
    return Sampler(SamplingParams(logits_processors=list(processors), **params), TokenFacts(vocab_size=5), prompt)


def test_it_gets_the_tokens_so_far_and_its_own_copy_of_the_row():
    calls = []

    def spy(ids, row):
        calls.append((ids, row.dtype, row.tolist()))
        ids.append(99)
        row[:] = 0
        row[3] = 1
        return row

    one = sampler(spy)
    row = ROW.copy()
    assert one.pick(row) == 3
    one.accept(3)
    assert one.pick(row) == 3
    assert [ids[:-1] for ids, _, _ in calls] == [[7, 8], [7, 8, 3]]
    assert calls[0][1:] == (np.float32, ROW.tolist())
    np.testing.assert_array_equal(row, ROW)


def test_it_stands_after_penalties_and_before_the_temperature():
    seen = []
    one = sampler(
        lambda ids, row: (seen.append(row.tolist()), row)[1],
        prompt=[0], repetition_penalty=2.0, suppress_tokens=[1], logit_bias={2: 5}, temperature=0.5, do_sample=True,
        top_k=1,
    )  # fmt: skip
    one.pick(ROW)
    assert seen == [[2, -np.inf, 7, 1, 0]]


def test_several_run_in_the_order_given():
    def add(ids, row):
        return row + np.float32([0, 10, 0, 0, 0])

    def negate(ids, row):
        return -row

    assert sampler(add, negate).pick(ROW) == 4
    assert sampler(negate, add).pick(ROW) == 1


def test_lists_and_other_float_types_are_accepted():
    assert sampler(lambda ids, row: [0, 0, 9, 0, 0]).pick(ROW) == 2
    assert sampler(lambda ids, row: -row.astype(np.float64)).pick(ROW) == 4
    assert sampler(lambda ids, row: torch.from_numpy(-row)).pick(ROW) == 4


def test_it_cannot_bring_back_rows_beyond_the_vocabulary():
    one = Sampler(SamplingParams(logits_processors=[lambda ids, row: np.ones_like(row)]), TokenFacts(vocab_size=3), [])
    assert one.pick(ROW) == 0
    force_4 = [lambda ids, row: np.arange(5, dtype=np.float32)]
    assert Sampler(SamplingParams(logits_processors=force_4), TokenFacts(vocab_size=3), []).pick(ROW) == 2


def faulty(ids, row):
    raise KeyError("boom")


class Named:
    def __call__(self, ids, row):
        return row[:-1]


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (faulty, "faulty raised KeyError: 'boom'"),
        (Named(), r"Named must return float32 of shape \(5,\); got float32 of shape \(4,\)"),
        (lambda ids, row: None, "returned None; it must return the row"),
        (lambda ids, row: row[None], r"got float32 of shape \(1, 5\)"),
        (lambda ids, row: row * np.nan, "returned NaN"),
        (lambda ids, row: np.where(np.arange(5) == 2, np.nan, row), "returned NaN"),
        (lambda ids, row: np.where(np.arange(5) == 2, np.inf, row), r"returned \+inf"),
        (lambda ids, row: "abcde", "must return float32"),
        (lambda ids, row: [1, 2, [3]], "returned a list"),
        (lambda ids, row: np.array([1, 2, 3, 4, None]), "got object"),
        (lambda ids, row: row.astype(complex), "got complex128"),
        (lambda ids, row: 5, r"of shape \(\)"),
        (lambda row: row, "raised TypeError"),
        (lambda ids, row: row - np.inf, "No token is left"),
    ],
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_misbehaviour_is_one_clear_error(processor, message, do_sample):
    with pytest.raises(ParameterError, match=message):
        sampler(processor, do_sample=do_sample).pick(ROW)
    assert sampler(do_sample=do_sample, top_k=1).pick(ROW) == 0  # others are not affected


def test_transformers_processors_run_as_they_are():
    assert sampler(hf.SuppressTokensLogitsProcessor([0, 1])).pick(ROW) == 2
    assert sampler(hf.RepetitionPenaltyLogitsProcessor(4.0), prompt=[0, 1]).pick(ROW) == 2
    assert sampler(hf.LogitsProcessorList([hf.SuppressTokensLogitsProcessor([0])])).pick(ROW) == 1
    # A LogitsProcessorList may also stand in the place of the list.
    params = SamplingParams(logits_processors=hf.LogitsProcessorList([hf.SuppressTokensLogitsProcessor([0])]))
    assert Sampler(params, TokenFacts(vocab_size=5), []).pick(ROW) == 1


class Own(hf.LogitsProcessor):
    def __call__(self, input_ids, scores):
        assert input_ids.dtype == torch.int64 and input_ids.tolist() == [[7, 8]]
        scores[:, 0] = -torch.inf  # in place, as some do
        return scores.double()


class TooWide(hf.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return torch.cat([scores, scores], -1)


class NotATensor(hf.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return 3


def test_classes_derived_from_transformers():
    row = ROW.copy()
    assert sampler(Own()).pick(row) == 1
    np.testing.assert_array_equal(row, ROW)
    with pytest.raises(ParameterError, match=r"TooWide must return a tensor of shape \(1, 5\); got \(1, 10\)"):
        sampler(TooWide()).pick(ROW)
    with pytest.raises(ParameterError, match=r"NotATensor must return a tensor .* got int"):
        sampler(NotATensor()).pick(ROW)


def test_decoding_imports_neither_torch_nor_transformers():
    code = (
        "import sys, numpy as np\n"
        "from forwardpass.decoding.params import SamplingParams, TokenFacts\n"
        "from forwardpass.decoding.sampler import Sampler\n"
        "p = SamplingParams(logits_processors=[lambda ids, row: -row])\n"
        "assert Sampler(p, TokenFacts(vocab_size=3), []).pick(np.float32([1, 2, 3])) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
