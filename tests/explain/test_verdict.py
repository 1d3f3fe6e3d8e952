"""The verdict follows from measured ratios alone: for each there are timings that must produce it."""

import pytest

from forwardpass.explain.verdict import NEAR, OUTSIDE, Line, verdict


def inside(phase="answer", op="gate_up", seconds=1.0, read=0.0, compute=0.0):
    stage = "project" if op == "head" else "decode"
    return Line(phase, stage, op, seconds, int(read * 1e9), int(compute * 1e12), read, compute)


def test_memory_bandwidth():
    said = verdict([inside(seconds=1, read=0.9, compute=0.1), inside(op="head", seconds=1, read=0.7, compute=0.1)])
    assert "answer phase (100% of the time) is bound by memory bandwidth (80% of this machine's limit)" in said
    assert "fewer bits" in said and "batch" in said


def test_arithmetic():
    said = verdict([inside("prompt", seconds=2, read=0.1, compute=1.4), inside(seconds=1, read=0.9)])
    assert "prompt phase (67% of the time) is bound by arithmetic (70% of this machine's limit)" in said


def test_the_longer_phase_decides():
    lines = [inside("prompt", seconds=1, compute=0.9), inside("answer", seconds=3, read=2.9)]
    assert "answer phase (75% of the time) is bound by memory" in verdict(lines)
    lines = [inside("prompt", seconds=5, compute=4.9), inside("answer", seconds=3, read=2.9)]
    assert "prompt phase (62% of the time) is bound by arithmetic" in verdict(lines)


def test_attention_over_a_long_context():
    said = verdict([inside(seconds=1, read=0.9), inside(op="attention", seconds=1.5, read=1.4)])
    assert "bound by attention over a long context (60% of it)" in said and 'kv_dtype="int8"' in said


@pytest.mark.parametrize(("read", "compute", "least"), [(0.3, 0.1, "memory bandwidth"), (0.1, 0.3, "arithmetic")])
def test_far_from_every_limit(read, compute, least):
    said = verdict([inside(read=read, compute=compute)])
    assert f"reached 30% of the limit that {least} sets" in said and "kernels or a busy machine" in said


@pytest.mark.parametrize(
    ("stage", "words"),
    [("preprocess", "Tokenising the prompt took 40%"), ("postprocess", "Choosing tokens took 40%"),
     ("engine", "Bookkeeping between steps took 40%")],
)
def test_outside_the_model(stage, words):
    said = verdict([inside(seconds=6, read=5.9), Line("answer", stage, "x", 4.0)])
    assert said.startswith(words)


def test_shares_of_the_outside_are_added_over_phases():
    lines = [inside(seconds=6, read=5), Line("prompt", "engine", "x", 2.0), Line("answer", "engine", "x", 2.0)]
    assert verdict(lines).startswith("Bookkeeping between steps took 40%")


@pytest.mark.parametrize(("share", "outside"), [(OUTSIDE - 0.01, False), (OUTSIDE + 0.01, True)])
def test_threshold_of_the_outside(share, outside):
    said = verdict([inside(seconds=1 - share, read=0.7), Line("answer", "engine", "x", share)])
    assert said.startswith("Bookkeeping") == outside


@pytest.mark.parametrize(("reached", "bound"), [(NEAR - 0.01, False), (NEAR + 0.01, True)])
def test_threshold_of_a_limit(reached, bound):
    assert ("is bound by memory" in verdict([inside(read=reached)])) == bound


def test_nothing():
    assert verdict([]) == "Nothing was measured."
    assert verdict([inside(seconds=0.0)]) == "Nothing was measured."
    assert verdict([inside(seconds=1.0)]) == "Nothing was measured inside the model."


def test_the_limit_of_a_line():
    line = inside(seconds=2, read=1, compute=0.5)
    assert (line.limit_s, line.of_limit) == (1, 0.5)
    assert Line("answer", "engine", "python", 1.0).of_limit is None and inside(seconds=0.0, read=1).of_limit is None


def test_pictures_have_other_advice():
    lines = [inside("denoise", seconds=6, compute=5.9)]
    said = verdict(lines, drawing=True)
    assert "denoise phase (100% of the time) is bound by arithmetic" in said and "take fewer steps" in said
    said = verdict([*lines, Line("denoise", "preprocess", "inputs", 4.0)], drawing=True)
    assert said.startswith("Preparing prompts and images took 40%") and "token" not in said
    assert "arithmetic" in verdict([*lines, Line("denoise", "postprocess", "schedule", 4.0)], drawing=True)
