"""Tiny random models of every family, made and saved by transformers, and the same weights as GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

VOCABULARY = 96
CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-heads": ("llama", {"head_dim": 20, "rope_theta": 5e4}),  # heads wider than hidden / heads
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "gpt2": ("gpt2", {}),
}
KIN = dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
           intermediate_size=80, max_position_embeddings=256, initializer_range=0.15, bos_token_id=0, eos_token_id=1,
           tie_word_embeddings=False)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=1,
            initializer_range=0.15)


def make(family: str, **changes):
    """A transformers model with weights, biases and norms large enough to matter."""
    import torch
    import transformers as t

    torch.manual_seed(len(family) + sum(map(ord, "".join(changes))))
    theta = changes.pop("rope_theta", None)
    if theta:
        changes["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    classes = {"llama": (t.LlamaConfig, t.LlamaForCausalLM, KIN), "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM, KIN),
               "gpt2": (t.GPT2Config, t.GPT2LMHeadModel, GPT2)}
    config, model, base = classes[family]
    made = model(config(**base | changes))
    with torch.no_grad():  # biases start at zero and norms at one, which would hide them
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made.eval()


def save(model, directory: Path, **options) -> Path:
    """save_pretrained without an end token in generation_config, so that answers run their full length."""
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    model.save_pretrained(directory, **options)
    return directory


# ---------------------------------------------------------------- GGUF

LLAMA_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
GPT2_NAMES = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
              "lm_head": "output", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_1": "attn_norm",
              "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of a llama head: row 2j + t is row t * D/2 + j of the checkpoint's."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def gguf_tensors(model) -> dict[str, np.ndarray]:
    """GGUF names -> float32 arrays [out, in], as a converter would write them."""
    family, c = model.config.model_type, model.config
    names = GPT2_NAMES if family == "gpt2" else LLAMA_NAMES
    out = {}
    for name, tensor in model.state_dict().items():
        array, (stem, kind) = tensor.float().numpy(), name.rsplit(".", 1)
        if stem == "lm_head" and c.tie_word_embeddings:
            continue
        if ".layers." in stem or ".h." in stem:
            layer, inner = stem.split(".", 3)[2:]
            target = f"blk.{layer}.{names[inner]}.{kind}"
            if family == "gpt2" and array.ndim == 2:
                array = array.T
            if family == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
                array = interleaved(array, c.num_attention_heads if "q_proj" in inner else c.num_key_value_heads)
        else:
            target = f"{names[stem]}.{kind}"
        out[target] = np.ascontiguousarray(array)
    return out


def save_gguf(model, path: Path, type: str) -> dict[str, np.ndarray]:
    """Write the weights with the gguf package; matrices as `type`, vectors as F32. Returns what they decode to."""
    import gguf
    from gguf.quants import dequantize, quantize

    c, family = model.config, model.config.model_type
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_context_length(c.n_positions if family == "gpt2" else c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(4 * c.hidden_size if family == "gpt2" else c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    if family == "gpt2":
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        writer.add_head_count_kv(c.num_key_value_heads)
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
        writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
        width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        writer.add_key_length(width)
        writer.add_value_length(width)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [chr(0x21 + i) if i < 94 else f"<{i}>" for i in range(c.vocab_size - 1)]  # printable ASCII, and one merge
    writer.add_token_list([*tokens, "!!"])
    writer.add_token_types([1] * c.vocab_size)
    writer.add_token_merges(["! !"])
    decoded = {}
    kind = gguf.GGMLQuantizationType[type]
    for name, array in gguf_tensors(model).items():
        whole = array.ndim == 2 and (type in ("F16", "BF16") or array.shape[1] % 32 == 0)
        stored, one = (quantize(array, kind), kind) if whole and type != "F32" else (array, None)
        decoded[name] = dequantize(stored, kind) if one is not None else array
        writer.add_tensor(name, stored, raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def use_gguf_values(model, decoded: dict[str, np.ndarray]) -> None:
    """Give a transformers model exactly the weights a GGUF file holds."""
    import torch

    family, c = model.config.model_type, model.config
    names = GPT2_NAMES if family == "gpt2" else LLAMA_NAMES
    state = {}
    for name in model.state_dict():
        stem, kind = name.rsplit(".", 1)
        if stem == "lm_head" and c.tie_word_embeddings:
            continue
        inner = None
        if ".layers." in stem or ".h." in stem:
            layer, inner = stem.split(".", 3)[2:]
            array = decoded[f"blk.{layer}.{names[inner]}.{kind}"]
            if family == "gpt2" and array.ndim == 2:
                array = array.T
            if family == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = c.num_attention_heads if "q_proj" in inner else c.num_key_value_heads
                array = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:]).swapaxes(1, 2)
                array = array.reshape(decoded[f"blk.{layer}.{names[inner]}.{kind}"].shape)
        else:
            array = decoded[f"{names[stem]}.{kind}"]
        state[name] = torch.from_numpy(np.array(array, np.float32))
    model.load_state_dict(state, strict=False)
