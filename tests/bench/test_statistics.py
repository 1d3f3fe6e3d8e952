"""Figures of records whose numbers are worked out by hand."""

import pytest

from forwardpass.bench import statistics
from forwardpass.bench.records import Level, Record
from forwardpass.bench.statistics import parse_targets, percentile, spread, summary
from forwardpass.errors import ParameterError


def record(planned, sent, times, end, tokens, prompt=10, **more):
    return Record(planned=planned, wanted=tokens, sent=sent, times=times, end=end, output_tokens=tokens,
                  prompt_tokens=prompt, **more)


def level(*records, start=0.0, stop=10.0, **more):
    return Level({"concurrency": 2}, list(records), start, stop, 0.5, **more)


@pytest.mark.parametrize("values,p,expected", [
    ([7.0], 1, 7.0), ([7.0], 99, 7.0),
    ([1.0, 2.0], 50, 1.0), ([1.0, 2.0], 51, 2.0),
    ([1.0, 2.0, 3.0, 4.0], 75, 3.0), ([1.0, 2.0, 3.0, 4.0], 76, 4.0),
    (list(map(float, range(1, 101))), 95, 95.0), (list(map(float, range(1, 101))), 99, 99.0),
    (list(map(float, range(1, 21))), 95, 19.0), (list(map(float, range(1, 20))), 95, 19.0),
])
def test_percentiles_are_measured_values(values, p, expected):
    assert percentile(values, p) == expected


def test_spread_is_in_milliseconds_and_orders_by_itself():
    found = spread([0.004, 0.001, 0.002, 0.003])
    assert found == pytest.approx({"mean": 2.5, "p50": 2.0, "p95": 4.0, "p99": 4.0, "max": 4.0})
    assert spread([]) is None


def test_a_level_by_hand():
    a = record(0.0, 0.0, [1.0, 1.5, 3.0], 3.25, 3, cached_tokens=4)
    b = record(2.0, 2.5, [4.0, 5.0, 6.0], 6.0, 5, prompt=30)  # sent late, and two tokens came together
    c = record(3.0, 3.0, [], 3.5, 8, error="http 503", message="full")
    found = summary(level(a, b, c, stop=8.0))
    assert (found["requests"], found["ok"], found["errors"]) == (3, 2, {"http 503": 1})
    assert found["error_messages"] == {"http 503": "full"}
    # From the planned time: 1 s and 4 - 2 s, not 4 - 2.5 s.
    assert found["ttft_ms"] == pytest.approx({"mean": 1500, "p50": 1000, "p95": 2000, "p99": 2000, "max": 2000})
    # Gaps 0.5, 1.5, 1, 1 of both answers together.
    assert found["itl_ms"] == pytest.approx({"mean": 1000, "p50": 1000, "p95": 1500, "p99": 1500, "max": 1500})
    assert found["tpot_ms"]["max"] == pytest.approx(1000) and found["tpot_ms"]["p50"] == pytest.approx(500)  # 2/2, 2/4
    assert found["e2e_ms"]["p50"] == pytest.approx(3250) and found["e2e_ms"]["max"] == pytest.approx(4000)
    assert found["late_ms"]["max"] == pytest.approx(500)
    assert found["output_tok_s"] == pytest.approx(8 / 8) and found["total_tok_s"] == pytest.approx((8 + 40) / 8)
    assert found["requests_s"] == pytest.approx(2 / 8)
    assert (found["prompt_tokens"], found["output_tokens"], found["cached_tokens"]) == (20, 4, 4)
    assert found["client_cpu_s"] == 0.5 and "goodput" not in found and "server_cpu_s" not in found


def test_what_comes_after_the_window_is_in_the_times_but_not_in_the_rates():
    """The window ends at 2 s: of one answer's four arrivals two are in it, and another begins behind it."""
    a = record(0.0, 0.0, [0.5, 1.0, 2.5, 3.0], 3.0, 8)
    b = record(1.0, 1.0, [2.5, 4.0], 4.0, 2)
    found = summary(level(a, b, stop=2.0))
    assert found["output_tok_s"] == pytest.approx(4 / 2) and found["total_tok_s"] == pytest.approx((4 + 10) / 2)
    assert found["requests_s"] == 0 and found["ok"] == 2 and found["e2e_ms"]["max"] == pytest.approx(3000)


def test_failures_are_in_no_time():
    good = record(0.0, 0.0, [1.0, 2.0], 2.0, 2)
    bad = record(0.0, 0.0, [9.0, 9.9], 9.9, 2, error="cut off")
    assert summary(level(good, bad)) == summary(level(good)) | {
        "requests": 2, "errors": {"cut off": 1}, "late_ms": summary(level(good))["late_ms"]}


def test_nothing_but_failures_has_no_times():
    found = summary(level(record(0, 0, [], 1, 5, error="timeout"), record(0, 0, [], 1, 5, error="timeout")))
    assert found["errors"] == {"timeout": 2} and found["ok"] == found["output_tok_s"] == 0
    assert found["ttft_ms"] is found["itl_ms"] is found["e2e_ms"] is found["prompt_tokens"] is None


def test_short_answers_are_counted():
    answer = record(0.0, 0.0, [1.0], 1.0, 3)
    answer.wanted = 4
    assert summary(level(answer, record(0, 0, [1.0], 1.0, 4)))["short"] == 1


def test_goodput():
    """Of four answers one is slow to begin, one stalls once, one failed."""
    fine = record(0.0, 0.0, [0.4, 0.5, 0.6], 0.7, 3)
    slow = record(0.0, 0.0, [0.6, 0.7, 0.8], 0.9, 3)
    stalls = record(0.0, 0.0, [0.4, 0.41, 0.9], 0.9, 3)
    failed = record(0.0, 0.0, [0.1], 0.2, 3, error="error event")
    measured = level(fine, slow, stalls, failed, stop=2.0)
    both = summary(measured, parse_targets(["ttft:500", "itl:200"]))["goodput"]
    assert both == {"targets_ms": {"ttft": 500.0, "itl": 200.0}, "share": 0.25, "requests_s": 0.5}
    assert summary(measured, parse_targets(["tpot:300"]))["goodput"]["share"] == 0.75  # 0.5 s for two gaps is in time
    assert summary(measured, parse_targets(["e2e:700"]))["goodput"]["share"] == 0.25
    # Exactly at the target is in time.
    assert summary(level(record(0.0, 0.0, [0.5], 0.5, 1)), {"ttft": 0.5})["goodput"]["share"] == 1.0


@pytest.mark.parametrize("words", [["ttft"], ["ttft:"], ["ttft:0"], ["ttft:-1"], ["ttft:nan"], ["ttft:inf"], ["x:5"],
                                   ["ttft:5", "ttft:6"], [""]])
def test_targets_are_checked(words):
    with pytest.raises(ParameterError, match=r"--goodput: expected ttft:MS or itl:MS"):
        parse_targets(words)


def test_the_bill():
    """90 tokens for 0.1 s of CPU: 3,240,000 for an hour. What came after the window was computed too."""
    answer = record(0.0, 0.0, [0.5, 20.0], 20.0, 90)
    found = summary(level(answer, server_cpu_s=0.1))
    assert found["tokens_per_cpu_hour"] == pytest.approx(3_240_000) and found["output_tok_s"] == pytest.approx(4.5)
    read = Record(planned=0.0, end=1.0, prompt_tokens=50)  # an embedding has no output
    assert summary(level(read, server_cpu_s=1.0))["tokens_per_cpu_hour"] == pytest.approx(180_000)
    assert summary(level(answer, server_cpu_s=0.0))["tokens_per_cpu_hour"] is None


def test_the_method_is_named():
    assert statistics.METHOD == "nearest rank"
