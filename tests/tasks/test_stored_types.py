"""A small GGUF model in every stored type: read as floats it is the float model, and as it is stored nearly that."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import forwardpass
from block_tools import sound_blocks
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import BLOCKS

HIDDEN, VOCAB = 256, 64
IDS = [1, 5, 9, 33, 2, 60, 17, 8, 40, 3]
SHAPES = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN // 2, HIDDEN), "attn_v": (HIDDEN // 2, HIDDEN),
          "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (HIDDEN * 2, HIDDEN), "ffn_up": (HIDDEN * 2, HIDDEN),
          "ffn_down": (HIDDEN, HIDDEN * 2)}


def write(path, matrices: dict[str, tuple[str, np.ndarray]]):
    """matrices: name -> (type, uint8 [rows, bytes of a row] or float32)."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN * 2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([chr(ord("!") + i) for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges([])
    for name, shape in [("token_embd", (VOCAB, HIDDEN)), ("output", (VOCAB, HIDDEN)), ("output_norm", (HIDDEN,)),
                        ("blk.0.attn_norm", (HIDDEN,)), ("blk.0.ffn_norm", (HIDDEN,))]:
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, np.float32))
    for name, (kind, data) in matrices.items():
        writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path, dtype):
    with forwardpass.load(path, dtype=dtype, kv_dtype="float32") as model:
        return model.logits(IDS)


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if kind not in ("F32", "F16", "BF16", *REPACKED)])
def test_a_model_in_one_type(kind, tmp_path):
    values, _ = BLOCKS[kind]
    spread = dequantize(kind, sound_blocks(kind, 64, np.random.default_rng(2)), (64 * values,)).std()
    stored, floats = {}, {}
    for seed, (name, (n, k)) in enumerate(SHAPES.items()):
        raw = sound_blocks(kind, n * k // values, np.random.default_rng(seed), 0.01 * 0.06 / spread)
        stored[name] = kind, raw.reshape(n, -1)
        floats[name] = "F32", dequantize(kind, raw, (n, k))
    path = write(tmp_path / "stored.gguf", stored)
    expected = logits(write(tmp_path / "floats.gguf", floats), "float32")
    assert np.isfinite(expected).all() and expected.std() > 1
    assert np.array_equal(logits(path, "float32"), expected)
    assert np.abs(logits(path, "auto") - expected).max() < 2e-3 * np.abs(expected).max()
    for dtype, allowed in (("bfloat16", 0.05), ("int8", 0.1), ("int4", 0.6)):
        error = np.linalg.norm(logits(path, dtype) - expected) / np.linalg.norm(expected)
        assert error < allowed, (dtype, error)
