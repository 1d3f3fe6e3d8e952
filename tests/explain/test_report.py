"""Explain on the real model: every operation of every stage, with what models/costs.py counts for it."""

import json

import pytest

import forwardpass
import tiny_pairs
import tiny_readers
from forwardpass.errors import ParameterError
from forwardpass.explain import measured
from forwardpass.explain.machine import READ_SIZES, read_limit
from forwardpass.models.costs import STAGES, Cost, stage_costs

LIMITS = {
    "isa": "test", "threads": 1,
    "read_bytes_s": {"1MiB": 100e9, "16MiB": 50e9, "96MiB": 20e9, "512MiB": 10e9},
    "matrix_ops_s": {"int8": 4e12, "bfloat16": 2e12, "float32": 1e12},
}


ABSENT = {(stage, op) for stage in ("encode", "see") for op in STAGES[stage]}
ABSENT |= {("decode", op) for op in ("experts", "cross_q", "cross", "cross_out")}
"""What the real model has not."""


@pytest.fixture(scope="module")
def model():
    with forwardpass.load("smollm2-135m") as model:
        yield model


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(measured, "measured", lambda *given, **named: LIMITS)


def by_op(report, phase):
    return {(line.stage, line.op): line for line in report.lines if line.phase == phase}


def expected(model, steps):
    """(stage, op) -> (bytes, flops) of steps given as (new tokens, cached before, wanted rows)."""
    sums = {}
    for rows, past, wanted in steps:
        for stage, ops in stage_costs(model.spec, model.stored_bytes, [rows], [past], model.kv_dtype, wanted).items():
            for op, cost in ops.items():
                if (stage, op) in ABSENT:
                    assert cost == Cost()
                    continue
                size, flops = sums.get((stage, op), (0, 0))
                sums[stage, op] = size + cost.bytes, flops + cost.flops
    return sums


@pytest.mark.parametrize("length", [5, 600])
def test_counts_are_those_of_the_steps(model, length):
    model.engine.prefixes.clear()
    report = model.explain(list(range(100, 100 + length)), max_new_tokens=4, eos_token_id=[])
    chunks = [(min(512, length - at), at, int(at + 512 >= length)) for at in range(0, length, 512)]
    answer = [(1, length + i, 1) for i in range(3)]
    for phase, steps in (("prompt", chunks), ("answer", answer)):
        lines = by_op(report, phase)
        for key, (size, flops) in expected(model, steps).items():
            assert (lines[key].bytes, lines[key].flops) == (size, flops), (phase, key)
            assert lines[key].seconds > 0 or key[1] == "norm"
    assert report.completion.finish_reason == "length" and len(report.completion.token_ids) == 4


def test_every_stage_has_its_lines(model):
    report = model.explain("A llama is", max_new_tokens=3, eos_token_id=[])
    ops = {(stage, op) for stage, names in STAGES.items() for op in names} - ABSENT
    outside = {("postprocess", "choose"), ("engine", "python")}
    assert set(by_op(report, "prompt")) == ops | outside | {("preprocess", "tokenise")}
    assert set(by_op(report, "answer")) == ops | outside
    assert not model.network.backend.timed


def test_answer_bytes_of_the_real_file(model):
    """96.6 MB a token at depth 0: the file's tensors, less the rows of the embedding that are not looked up."""
    report = model.explain([1], max_new_tokens=2, eos_token_id=[])
    assert sum(line.bytes for line in report.lines if line.phase == "answer") == pytest.approx(96.6e6, rel=0.01)


def test_a_reused_prompt_costs_only_what_is_new(model):
    model.engine.prefixes.clear()
    prompt = list(range(300, 400))
    model.generate(prompt, max_new_tokens=1)
    lines = by_op(model.explain(prompt, max_new_tokens=1), "prompt")
    assert lines["decode", "qkv"].flops == expected(model, [(1, 99, 1)])["decode", "qkv"][1]


def test_chat_and_text_and_parameters(model):
    done = model.explain([{"role": "user", "content": "Hi"}], max_new_tokens=3).completion
    assert done.prompt_token_ids == model.chat([{"role": "user", "content": "Hi"}], max_new_tokens=3).prompt_token_ids
    with pytest.raises(ParameterError, match="tempurature"):
        model.explain("x", tempurature=1)
    assert not model.network.backend.timed and not model.engine._jobs


def test_an_error_of_the_request_is_raised(model):
    def processor(ids, row):
        raise KeyError("mine")

    with pytest.raises(ParameterError, match="mine"):
        model.explain("x", logits_processors=[processor])
    assert not model.network.backend.timed and not model.engine._jobs


def test_to_dict_is_json_and_str_is_a_table(model):
    report = model.explain("A llama is", max_new_tokens=2)
    record = json.loads(json.dumps(report.to_dict()))
    assert record["verdict"] == report.verdict and len(record["lines"]) == len(report.lines)
    assert record["lines"][1]["of_limit"] == report.lines[1].of_limit
    text = str(report).splitlines()
    assert text[0].split()[:3] == ["phase", "stage", "operation"] and text[-1] == report.verdict
    assert len(text) == len(report.lines) + 3
    assert sum(float(row.split()[4].rstrip("%")) for row in text[1:-2]) == pytest.approx(100, abs=2)


def test_weights_in_another_dtype_count_as_what_is_read():
    """float32 from a 4-bit file: the step reads 4 bytes a weight and multiplies floats."""
    with forwardpass.load("smollm2-135m", dtype="float32") as reference:
        assert reference.arithmetic == "float32"
        name = "layers.0.mlp.up.weight"
        assert reference.stored_bytes[name] >= 4 * 1536 * 576
        lines = by_op(reference.explain([1], max_new_tokens=2, eos_token_id=[]), "answer")
        up = lines["decode", "gate_up"]
        assert up.bytes >= 30 * 2 * 4 * 1536 * 576 and up.compute_s == up.flops / 1e12


def test_limits_used(model):
    assert model.arithmetic == "int8"
    lines = by_op(model.explain([1], max_new_tokens=2, eos_token_id=[]), "answer")
    head = lines["project", "head"]
    assert head.read_s == head.bytes / 20e9 and head.compute_s == head.flops / 4e12
    attention = lines["decode", "attention"]
    assert attention.compute_s == attention.flops / 2e12


@pytest.mark.parametrize(("size", "name"), [(1, "1MiB"), (1 << 20, "1MiB"), (10 << 20, "16MiB"), (97 << 20, "96MiB"),
                                            (1 << 34, "512MiB")])
def test_the_nearest_measured_size(size, name):
    assert set(LIMITS["read_bytes_s"]) == set(READ_SIZES)
    assert read_limit(LIMITS, size) == LIMITS["read_bytes_s"][name]


def test_bottlenecks_named_by_the_machine(model, monkeypatch):
    """The same run on machines of other limits: the slowest one is named."""
    slow_memory = {**LIMITS, "read_bytes_s": dict.fromkeys(READ_SIZES, 1e8)}
    slow_units = {**LIMITS, "matrix_ops_s": dict.fromkeys(LIMITS["matrix_ops_s"], 1e8)}
    for limits, words in ((slow_memory, "memory bandwidth"), (slow_units, "arithmetic")):
        monkeypatch.setattr(measured, "measured", lambda limits=limits, again=False: limits)
        said = model.explain([1, 2, 3], max_new_tokens=8, eos_token_id=[]).verdict
        assert words in said


def stages_of(report, phase):
    return {(line.stage, line.op): (line.bytes, line.flops) for line in report.lines if line.phase == phase}


@pytest.mark.parametrize(("head", "rows"), [("labels", 1), ("tags", 12), ("lm", 0), ("none", 0)])
def test_a_text_that_is_read(tmp_path, head, rows):
    """Twelve tokens in one step; the head works for as many rows as it labels, and makes no logits for a vector."""
    folder = tiny_readers.save(tiny_readers.make(head), tmp_path)
    with forwardpass.load(folder, dtype="float32") as model:
        report = model.explain(tiny_readers.words(*range(1, 11)), **({} if rows else {"pooling": "mean"}))
        assert report.completion is None and {line.phase for line in report.lines} == {"text"}
        counted = stage_costs(model.spec, model.stored_bytes, [12], [0], model.kv_dtype, rows)
        found = stages_of(report, "text")
        for stage, ops in counted.items():
            for op, cost in ops.items():
                assert found.get((stage, op), (0, 0)) == (cost.bytes, cost.flops)
        assert found["decode", "attention"] == (0, 2 * 4 * 24 * 12 * 12)
        assert bool(rows) == (found.get(("project", "head"), (0, 0)) > (0, 0))
        assert json.loads(json.dumps(report.to_dict()))["verdict"] == report.verdict
        ids, _ = tiny_readers.ids_of("w1 w2")
        assert stages_of(model.explain(ids), "text")["decode", "attention"] == (0, 2 * 4 * 24 * 4 * 4)
        assert model.engine.noted is None and not model.network.backend.timed
        if head == "labels":  # two texts are one of seven tokens
            pair = stages_of(model.explain(("w1 w2", "w3 w4")), "text")
            assert pair["decode", "attention"] == (0, 2 * 4 * 24 * 7 * 7)


def test_an_encoder_decoder(tmp_path):
    """The prompt's phase reads the source, once; every step of the answer sees it all."""
    ids = list(range(20, 50))
    with forwardpass.load(tiny_pairs.save(tiny_pairs.case("t5"), tmp_path), dtype="float32") as model:
        report = model.explain(ids, max_new_tokens=4, eos_token_id=[])
        prompt, answer = stages_of(report, "prompt"), stages_of(report, "answer")
        first = stage_costs(model.spec, model.stored_bytes, [1], [0], model.kv_dtype, 1, [30], [30])
        assert prompt["encode", "cross_kv"] == (first["encode"]["cross_kv"].bytes, first["encode"]["cross_kv"].flops)
        assert prompt["encode", "attention"] == (0, 3 * 4 * 60 * 30 * 30)
        keys = 2 * 3 * 20 * 4  # of a source's token in one layer, keys and values
        assert prompt["decode", "cross"] == (2 * 30 * keys, 2 * 4 * 60 * 30)
        assert answer["decode", "cross"] == (3 * 2 * 30 * keys, 3 * 2 * 4 * 60 * 30)
        assert answer["encode", "cross_kv"] == (0, 0) and len(report.completion.token_ids) == 4
