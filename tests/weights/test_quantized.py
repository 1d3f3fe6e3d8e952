"""Quantised linears of Hugging Face checkpoints: dequantised values equal those of independent packers, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hf_packers as packers
from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.fp8 import VALUES
from forwardpass.weights.quantized import open_quantized
from forwardpass.weights.repack import unpack
from forwardpass.weights.safetensors import open_safetensors

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


def compressed(bits: int, format: str = "pack-quantized", **weights) -> dict:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", **weights}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


def matrix(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) * 0.1


def read(tmp_path, tensors, settings) -> tuple[str, np.ndarray]:
    """(type, values) of the module "m"; its other tensors must be hidden."""
    packers.save(tensors, tmp_path / "model.safetensors")
    with open_quantized(open_safetensors(tmp_path), {"quantization_config": settings}) as source:
        assert set(source.tensors) == {"m.weight"}
        info = source.tensors["m.weight"]
        assert info.nbytes == sum(one.nbytes for one in tensors.values())
        values = dequantize(info.type, source.data("m.weight"), info.shape)
        source.release("m.weight")
        return info.type, values


# --- worked numbers ---------------------------------------------------------------------------------------------

FOUR = [0, 7, 8, 15]


def worked(tmp_path, stored_zero: int, checkpoint_format: str) -> list[float]:
    """The weights of codes 0, 7, 8, 15 with scale 0.5."""
    q = np.zeros((8, 32), int)
    q[:, :4] = FOUR
    codes = packers.Codes(q, np.full((8, 1), stored_zero), np.full((8, 1), 0.5, np.float16), np.zeros(32, int), 4)
    tensors = packers.gptq("m", codes, version=2)  # writes the zero as it is
    return read(tmp_path, tensors, GPTQ | {"checkpoint_format": checkpoint_format})[1][3, :4].tolist()


def test_the_two_meanings_of_a_gptq_zero(tmp_path):
    assert worked(tmp_path, 7, "gptq") == [-4, -0.5, 0, 3.5]
    assert worked(tmp_path, 8, "gptq_v2") == [-4, -0.5, 0, 3.5]
    assert worked(tmp_path, 7, "gptq_v2") == [-3.5, 0, 0.5, 4]
    assert worked(tmp_path, 15, "gptq") == [(q - 16) * 0.5 for q in FOUR]  # not 0


def test_a_symmetric_file_whose_zeros_look_like_v2_is_warned_of(tmp_path):
    codes = packers.quantise(matrix(8, 64), sym=True)

    def warnings(version: int, **settings) -> tuple[str, ...]:
        packers.save(packers.gptq("m", codes, version), tmp_path / "model.safetensors")
        with open_quantized(open_safetensors(tmp_path), {"quantization_config": GPTQ | settings}) as source:
            return source.warnings

    assert "every stored zero is 8" in warnings(2, sym=True)[0]
    assert warnings(1, sym=True) == warnings(2, sym=True, checkpoint_format="gptq_v2") == warnings(2, sym=False) == ()


def test_the_column_order_of_awq(tmp_path):
    """One word by hand: its nibbles from the lowest are columns 0 2 4 6 1 3 5 7."""
    word = np.uint32(0x76543210).view(np.int32)  # nibble i holds i
    tensors = {"m.qweight": np.full((32, 1), word), "m.qzeros": np.zeros((1, 1), np.int32),
               "m.scales": np.ones((1, 8), np.float16)}
    _, values = read(tmp_path, tensors, AWQ)
    assert values[:, 5].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_three_bits_cross_words():
    assert unpack(np.array([0xFAC688, 0, 0], np.uint32), 3)[:8].tolist() == list(range(8))
    values = np.random.default_rng(1).integers(0, 8, 64).tolist()
    stream = np.array(packers.words(values, 3), np.int32).view(np.uint32)
    assert unpack(stream, 3).tolist() == values


@pytest.mark.parametrize(("kind", "dtype"), [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)])
def test_every_fp8_code(kind, dtype):
    expected = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    assert np.array_equal(VALUES[kind], expected, equal_nan=True)


# --- every format -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq(tmp_path, bits, group, version):
    codes = packers.quantise(matrix(32, 192, bits), bits, group)
    settings = GPTQ | {"bits": bits, "group_size": group, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    kind, values = read(tmp_path, packers.gptq("m", codes, version, g_idx=group != 64), settings)
    assert kind == ("W16" if bits == 8 else "G4")
    assert np.array_equal(values, codes.weights)


@pytest.mark.parametrize(("group", "expected"), [(32, "G8"), (-1, "C8")])
def test_symmetric_gptq_of_eight_bits(tmp_path, group, expected):
    codes = packers.quantise(matrix(32, 96), 8, group, sym=True)
    kind, values = read(tmp_path, packers.gptq("m", codes), GPTQ | {"bits": 8, "group_size": group})
    assert kind == expected and np.array_equal(values, codes.weights)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_with_activation_order(tmp_path, bits):
    order = np.random.default_rng(2).permutation(np.arange(128) // 32)
    codes = packers.quantise(matrix(64, 128), bits, 32, order=order)
    kind, values = read(tmp_path, packers.gptq("m", codes), GPTQ | {"bits": bits, "desc_act": True})
    assert kind == "W16" and np.array_equal(values, codes.weights)


def test_groups_out_of_order_but_whole_stay_four_bits(tmp_path):
    codes = packers.quantise(matrix(64, 128), 4, 32, order=np.repeat([2, 0, 3, 1], 32))
    kind, values = read(tmp_path, packers.gptq("m", codes), GPTQ)
    assert kind == "G4" and np.array_equal(values, codes.weights)


@pytest.mark.parametrize("shape", [(64, 128), (8, 32), (104, 96)])
@pytest.mark.parametrize("group", [32, 16, -1])
def test_awq(tmp_path, shape, group):
    codes = packers.quantise(matrix(*shape), 4, group)
    kind, values = read(tmp_path, packers.awq("m", codes), AWQ | {"group_size": group})
    assert kind == ("W16" if group == 16 else "G4") and np.array_equal(values, codes.weights)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("zeros", ["none", "packed", "plain"])
def test_packed_words(tmp_path, bits, group, zeros):
    codes = packers.quantise(matrix(40, 160), bits, group, sym=zeros == "none")
    kind, values = read(tmp_path, packers.packed_words("m", codes, zeros), compressed(bits))
    eight = "W16" if zeros != "none" else "C8" if group == -1 else "G8"
    assert kind == ("G4" if bits == 4 else eight) and np.array_equal(values, codes.weights)


def test_packed_words_with_columns_that_fill_no_word_and_with_activation_order(tmp_path):
    codes = packers.quantise(matrix(5, 20), 4, -1, sym=True)
    kind, values = read(tmp_path, packers.packed_words("m", codes, "none"), compressed(4))
    assert kind == "W16" and np.array_equal(values, codes.weights)
    order = np.random.default_rng(3).permutation(np.arange(64) // 32)
    codes = packers.quantise(matrix(8, 64), 4, 32, order=order)
    kind, values = read(tmp_path, packers.packed_words("m", codes), compressed(4))
    assert kind == "W16" and np.array_equal(values, codes.weights)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("scale_type", [np.float16, np.float32])
def test_int8(tmp_path, zeros, scale_type):
    codes = packers.quantise(matrix(24, 64), 8, -1, sym=not zeros, scale_type=scale_type)
    kind, values = read(tmp_path, packers.int8("m", codes, zeros), compressed(8, "int-quantized"))
    assert kind == ("W16" if zeros else "C8")
    assert np.allclose(values, codes.weights, rtol=1e-6, atol=0)


def test_scales_that_half_precision_cannot_hold_keep_more_bits(tmp_path):
    codes = packers.quantise(matrix(24, 64), 8, 32, sym=True, scale_type=np.float32)
    assert read(tmp_path, packers.int8("m", codes), compressed(8, "int-quantized"))[0] == "W16"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("blocks", ["tensor", "rows", "column", "blocks"])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_fp8(tmp_path, dtype, blocks, name):
    n, k = 200, 320
    shape = {"tensor": (), "rows": (n,), "column": (n, 1), "blocks": (2, 3)}[blocks]
    scales = np.random.default_rng(4).uniform(0.001, 0.01, shape).astype(np.float32)
    stored = torch.from_numpy(matrix(n, k) * 300).to(dtype)
    expected = np.empty((n, k), np.float32)
    for o in range(n):
        for i in range(k):
            one = {"tensor": (), "rows": (o,), "column": (o, 0), "blocks": (o // 128, i // 128)}[blocks]
            expected[o, i] = stored[o, i].float().item() * scales[one]
    settings = {"quant_method": "fp8"} | ({"weight_block_size": [128, 128]} if blocks == "blocks" else {})
    tensors = {"m.weight": stored, f"m.{name}": torch.from_numpy(np.asarray(scales)),
               "m.input_scale": torch.tensor(2.0)}
    kind, values = read(tmp_path, tensors, settings)
    assert kind == "W16" and np.array_equal(values, expected)


def test_fp8_of_compressed_tensors_and_scales_that_are_exponents(tmp_path):
    stored = torch.from_numpy(matrix(8, 256)).to(torch.float8_e4m3fn)
    scale = torch.full((8, 1), 0.25)
    settings = compressed(8, "float-quantized")
    assert np.array_equal(read(tmp_path, {"m.weight": stored, "m.weight_scale": scale}, settings)[1],
                          stored.float().numpy() * np.float32(0.25))
    powers = torch.tensor([[124, 128]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tensors = {"m.weight": stored, "m.weight_scale_inv": powers}
    values = read(tmp_path, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})[1]
    assert np.array_equal(values, stored.float().numpy() * np.repeat(np.float32([0.125, 2]), 128))


def test_the_sixteen_bits_of_fp8_lose_less_than_bfloat16():
    """Why FP8 goes to rows of 16-bit integers: the error against what bfloat16 would keep of value times scale."""
    stored = torch.from_numpy(matrix(64, 512) * 300).to(torch.float8_e4m3fn).float()
    exact = stored.numpy().astype(np.float64) * 0.0123
    rounded = torch.from_numpy(exact).to(torch.bfloat16).double().numpy()
    step = np.abs(exact).max(1, keepdims=True) / 32767
    sixteen = np.round(exact / step) * step
    assert math.sqrt(((sixteen - exact) ** 2).mean()) * 10 < math.sqrt(((rounded - exact) ** 2).mean())


# --- what does not fit ------------------------------------------------------------------------------------------


def refused(tmp_path, tensors, settings, match, error: type[Exception] = ModelFileError):
    packers.save(tensors, tmp_path / "model.safetensors")
    with pytest.raises(error, match=match) as caught:
        open_quantized(open_safetensors(tmp_path), {"quantization_config": settings})
    assert isinstance(caught.value, ForwardpassError) and len(str(caught.value)) < 500


def without(tensors: dict, name: str) -> dict:
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize("part", ["qzeros", "scales"])
def test_a_missing_part(tmp_path, part):
    for packer, settings in ((packers.gptq, GPTQ), (packers.awq, AWQ)):
        tensors = packer("m", packers.quantise(matrix(8, 64)))
        refused(tmp_path, without(tensors, f"m.{part}"), settings, rf"expected the tensor m\.{part}")


def test_missing_scales_of_other_formats(tmp_path):
    codes = packers.quantise(matrix(8, 64), 4, 32)
    tensors = packers.packed_words("m", codes)
    for part in ("weight_scale", "weight_shape"):
        refused(tmp_path, without(tensors, f"m.{part}"), compressed(4), rf"expected the tensor m\.{part}")
    refused(tmp_path, {"m.weight": np.ones((4, 32), np.int8)}, compressed(8, "int-quantized"), "m.weight_scale")
    weight = {"m.weight": torch.ones(4, 32).to(torch.float8_e4m3fn)}
    refused(tmp_path, weight, {"quant_method": "fp8"}, "m.weight_scale")
    refused(tmp_path, weight | {"m.weight_scale_inv": torch.ones(1, 2)},
            {"quant_method": "fp8", "weight_block_size": [16, 8]}, r"\[1, 4\] \(blocks of \(16, 8\)\), found \[1, 2\]")
    refused(tmp_path, weight | {"m.weight_scale": torch.ones(3)}, {"quant_method": "fp8"}, r"\[4, 1\], found \[3\]")


def test_missing_zeros_of_weights_that_the_config_calls_asymmetric(tmp_path):
    four, eight = (packers.quantise(matrix(8, 64), bits, 32) for bits in (4, 8))
    for tensors, settings in ((packers.packed_words("m", four, "none"), compressed(4, symmetric=False)),
                              (packers.int8("m", eight), compressed(8, "int-quantized", symmetric=False))):
        refused(tmp_path, tensors, settings, r"expected the tensor m\.weight_zero_point")
        settings["config_groups"]["group_0"]["weights"]["symmetric"] = True
        read(tmp_path, tensors, settings)


def test_one_zero_for_several_groups(tmp_path):
    codes = packers.quantise(matrix(8, 64), 8, 32)
    codes.z[:] = 131
    tensors = packers.int8("m", codes) | {"m.weight_zero_point": np.array(3, np.int8)}
    _, values = read(tmp_path, tensors, compressed(8, "int-quantized"))
    assert np.array_equal(values, codes.weights)


def test_layers_without_rows_or_columns(tmp_path):
    for shape in ((0, 32), (4, 0)):
        weight = {"m.weight": torch.ones(shape).to(torch.float8_e4m3fn), "m.weight_scale": torch.ones(1)}
        refused(tmp_path, weight, {"quant_method": "fp8"}, r"m\.weight: expected shape")


def test_wrong_group_sizes(tmp_path):
    tensors = packers.gptq("m", packers.quantise(matrix(8, 96)))
    refused(tmp_path, tensors, GPTQ | {"group_size": 64}, r"whole groups of 64 \(group_size\), found 96 inputs")
    refused(tmp_path, tensors, GPTQ | {"group_size": 48}, r"m\.scales: expected shape \[2, 8\], found \[3, 8\]")
    tensors_awq = packers.awq("m", packers.quantise(matrix(8, 96)))
    refused(tmp_path, tensors_awq, AWQ | {"group_size": 128}, "whole groups of 128")
    for value in (0, -2, "32", 1.5, True):
        refused(tmp_path, tensors, GPTQ | {"group_size": value}, "group_size: expected -1 or a number")
    codes = packers.packed_words("m", packers.quantise(matrix(8, 96)), "none")
    refused(tmp_path, codes | {"m.weight_scale": np.ones((8, 5), np.float16)}, compressed(4), r"found \[8, 5\]")
    refused(tmp_path, codes | {"m.weight_shape": np.array([8, 128])}, compressed(4), r"words of \[8, 128\]")
    refused(tmp_path, codes | {"m.weight_shape": np.array([-8, -96])}, compressed(4), r"words of \[-8, -96\]")
    refused(tmp_path, codes, compressed(8), "in .8. bits")


def test_other_contradictions(tmp_path):
    tensors = packers.gptq("m", packers.quantise(matrix(8, 64)))
    refused(tmp_path, tensors, GPTQ | {"bits": 8, "group_size": 16}, "m.qzeros")
    bad = tensors | {"m.g_idx": np.full(64, 2, np.int32)}
    refused(tmp_path, bad, GPTQ, "groups from 0 to 1, found 2")
    refused(tmp_path, tensors | {"m.g_idx": np.full(64, -1, np.int32)}, GPTQ, "groups from 0 to 1")
    refused(tmp_path, tensors | {"m.g_idx": np.zeros(63, np.int32)}, GPTQ, r"m\.g_idx: expected shape \[64\]")
    refused(tmp_path, tensors | {"m.weight": matrix(8, 64)}, GPTQ, "either quantised or not, found both")
    refused(tmp_path, {"m.weight": matrix(8, 64)}, GPTQ, "no layer has the tensors")
    refused(tmp_path, tensors, [4], "expected an object")
    refused(tmp_path, tensors | {"m.scales": np.ones((2, 8), np.int8)}, GPTQ, "expected type F32 or F16 or BF16")


@pytest.mark.parametrize(("settings", "match"), [
    ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; known are gptq, awq, compressed-tensors, fp8"),
    ({"quant_method": None}, "known are gptq"), ({"bits": 4}, "known are gptq"),
    (GPTQ | {"bits": 5}, "bits = 5 is not supported; known: 2, 3, 4, 8"), (GPTQ | {"bits": True}, "bits = True"),
    (GPTQ | {"bits": 4.0}, r"bits = 4\.0"), (AWQ | {"bits": 4.0}, r"bits = 4\.0"), (compressed(4.0), "config_groups"),
    (GPTQ | {"bits": None}, "bits = None"), (GPTQ | {"checkpoint_format": "marlin"}, "known: gptq, gptq_v2"),
    (AWQ | {"version": "gemv"}, "known: gemm"), (AWQ | {"bits": 8}, "known: 4"),
    (compressed(4, "nvfp4-pack-quantized"), "known: pack-quantized"), (compressed(3), "config_groups"),
    (compressed(4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
])
def test_what_is_not_known_is_named_with_what_is(tmp_path, settings, match):
    tensors = packers.gptq("m", packers.quantise(matrix(8, 64)))
    refused(tmp_path, tensors, settings, match, UnsupportedModelError)


def test_no_settings_no_change(tmp_path):
    packers.save({"m.weight": matrix(8, 64)}, tmp_path / "model.safetensors")
    with open_safetensors(tmp_path) as plain:
        assert open_quantized(plain, {}) is plain is open_quantized(plain, {"quantization_config": None})
