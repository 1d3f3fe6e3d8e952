"""The benchmarks run and say what their contract promises; what they measure is of no interest here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONTRACT = {"bench", "machine", "ours", "peers", "ratio", "of_limit"}


def run(script: str, *arguments: str) -> tuple[str, dict]:
    """(everything before the last line, the last line's object)."""
    command = [sys.executable, str(BENCHMARKS / script), "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    *lines, last = done.stdout.splitlines()
    return "\n".join(lines), json.loads(last)


def positive(values) -> bool:
    if isinstance(values, dict):
        return bool(values) and all(map(positive, values.values()))
    return math.isfinite(values) and values > 0


def test_decode_without_peers(smollm2_path, tmp_path):
    table, result = run("decode.py", "--model", str(smollm2_path), "--json", str(tmp_path / "result.json"))
    assert result.keys() >= CONTRACT
    assert result["bench"] == "decode"
    ours = result["ours"]
    assert ours.keys() == {"prefill_tok_s", "decode_tok_s", "batch_tok_s", "first_token_s", "load_s", "peak_rss_mb",
                           "python_overhead"}
    assert ours["prefill_tok_s"].keys() == {"512", "2048"}
    assert ours["decode_tok_s"].keys() == {"0", "1024", "4096"}
    assert ours["batch_tok_s"].keys() == {"1", "8", "32"}
    assert positive(ours)
    assert result["of_limit"].keys() == {"decode", "prefill", "decode_depth"}
    assert result["of_limit"]["decode_depth"].keys() == {"0", "1024", "4096"}
    assert result["of_limit"]["decode"] == result["of_limit"]["decode_depth"]["0"]
    assert positive(result["of_limit"])
    assert positive(result["machine"]["read_gb_s"]) and positive(result["machine"]["matrix_tops"])
    assert result["peers"] == result["ratio"] == {}
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert "| decode at depth 4096, tok/s" in table


@pytest.mark.soak
def test_a_peer_that_is_not_there_is_named(smollm2_path, tmp_path):
    nobody = str(tmp_path / "python")
    table, result = run("story.py", "--model", str(smollm2_path), "--peer", "plain", "--peer-python", nobody)
    assert result["missing"].keys() == {"plain"}
    assert nobody in result["missing"]["plain"]
    assert "plain: missing" in table
    assert result["peers"] == result["ratio"] == {}
    assert result["ours"].keys() == {"no_cache_s", "cache_s", "int8_s", "int4_s", "total_factor"}
    assert positive(result["ours"])


def test_quality(smollm2_path):
    printed, result = run("quality.py", "--model", str(smollm2_path), "--peer", "llama.cpp", "--peer-python",
                          sys.executable + "-that-is-not-there")
    assert result["bench"] == "quality" and result["scored_tokens"] == 127 and result["window"] == 512
    assert set(result["ours"]["perplexity"]) == {"float32/float32", "auto/bfloat16"}
    assert result["ours"]["kl"]["float32/float32"] == 0 < result["ours"]["kl"]["auto/bfloat16"] < 0.05
    assert result["missing"]["llama.cpp"] and result["ratio"] == {} and "auto/bfloat16" in printed


def test_completion_of_a_long_prompt(smollm2_path):
    """The default model fills no middles; what a long prompt costs can be asked of any."""
    _, result = run("completion.py", "--model", str(smollm2_path), "--holes", "0", "--long", "512")
    assert result.keys() >= CONTRACT and result["long"].keys() == {"128", "256", "512"}
    assert all(one["kv_bytes"] == one["counted_kv_bytes"] > 0 for one in result["long"].values())


@pytest.mark.models
def test_encode(tmp_path):
    table, result = run("encode.py", "--peer", "torch", "--peer-python", str(tmp_path / "python"))
    assert result.keys() >= CONTRACT and result["missing"].keys() == {"torch-float32", "torch-bfloat16"}
    assert result["ours"].keys() == {"w8a16", "int8"} == result["of_limit"].keys()
    for one in result["ours"].values():
        assert positive({name: one[name] for name in ("sentences_s", "query_ms", "cosine")})
    assert positive(result["of_limit"]) and result["ratio"] == {} and "| int8 " in table


@pytest.mark.models
def test_translate(tmp_path):
    table, result = run("translate.py", "--peer", "ctranslate2", "--peer-python", str(tmp_path / "python"))
    assert result.keys() >= CONTRACT and set(result["missing"]) == {"ctranslate2-int8", "ctranslate2-float32"}
    assert result["ours"].keys() == {"greedy_1", "greedy_32", "beam4_1", "beam4_32"}
    assert positive(result["ours"]) and positive(result["of_limit"]) and "| ours " in table


@pytest.mark.soak
def test_serve_without_peers(smollm2_path, tmp_path):
    plot, nobody = tmp_path / "curve.png", str(tmp_path / "nobody")
    table, result = run("serve.py", "--model", str(smollm2_path), "--peer", "llama-server", "--llama-server", nobody,
                        "--peer", "vllm", "--peer-python", nobody, "--plot", str(plot))
    assert result.keys() >= CONTRACT and result["bench"] == "serve" and result["percentiles"] == "nearest rank"
    assert result["missing"].keys() == {"llama-server", "vllm"} and nobody in result["missing"]["vllm"]
    assert result["peers"] == result["ratio"] == result["versions"] == {}
    assert result["ours"].keys() == {"output_tok_s", "ttft_ms", "itl_ms", "greeting_ms", "prefix", "itl_while_long_ms",
                                     "long_ttft_ms", "ready_s"}
    assert result["ours"]["output_tok_s"].keys() == {"1", "8", "32"}
    assert positive(result["ours"]) and positive(result["of_limit"])
    assert result["ours_library"] > 0 and result["server_of_library"] > 0
    levels = result["curves"]["ours"]
    assert [level["load"]["concurrency"] for level in levels] == [1, 2, 4, 8, 16, 32]
    assert all(level["ok"] == level["requests"] and level["short"] == 0 for level in levels)
    assert plot.read_bytes().startswith(b"\x89PNG") and "| output tok/s, 32 at once" in table


@pytest.mark.parametrize("op", ["linear", "attention"])
def test_kernels_are_compared_before_they_are_timed(op):
    table, result = run("kernels.py", "--op", op, "--format", "Q4", "--isa", "scalar")
    assert result["ours"] and result["ours"].keys() == result["of_limit"].keys()
    assert f"equal to scalar: {len(result['ours'])} of {len(result['ours'])}" in table


def test_a_result_above_the_limit_fails(capsys):
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import _common
    finally:
        sys.path.remove(str(BENCHMARKS))
    assert _common.finish({"bench": "x", "ours": {"a": 1.234567}}, None, ["decode is 1.2 of the limit"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"bench": "x", "ours": {"a": 1.2346}, "failed": ["decode is 1.2 of the limit"]}
    assert "1.2 of the limit" in shown.err
