"""Tiny models as GGUF files: names and settings by the gguf package, weights turned as the public converter turns them.

The weights are read from the checkpoint that transformers saves, as a converter reads them. `reference` gives back the
transformers model with exactly the weights that the file holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tiny_models

ARCHITECTURES = {  # model_type: GGUF architecture
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "phi3": "phi3", "starcoder2": "starcoder2", "stablelm": "stablelm", "olmo2": "olmo2", "olmo3": "olmo2",
    "granite": "granite", "cohere": "command-r", "cohere2": "cohere2", "smollm3": "smollm3", "gpt2": "gpt2",
    "gpt_bigcode": "starcoder", "gptj": "gptj", "gpt_neox": "gptneox", "bloom": "bloom", "mpt": "mpt",
    "falcon": "falcon", "phi": "phi2",
}
USUAL = {  # what some families call the usual settings
    "n_embd": "hidden_size", "d_model": "hidden_size", "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings", "n_inner": "intermediate_size", "ffn_hidden_size": "intermediate_size",
}
TURNED = {"llama", "mistral", "mixtral", "granite", "smollm3"}  # rotary halves become neighbours
ONE_MORE = {"gemma", "gemma2", "gemma3_text"}  # norms are stored as 1 + w
BEYOND = {"llama-dynamic", "qwen2-window", "qwen2_moe-mixed", "gemma2-scaled", "gemma3-images", "bigcode-heads",
          "neo", "neo-local", "codegen", "neox-plain", "opt", "opt-post", "opt-plain", "mpt-scaled", "falcon-heads",
          "falcon-rw", "phi-normed"}
"""Cases of tiny_models.py that the format has no settings or names for."""
STACKED = re.compile(r"(.+\.)(block_sparse_moe\.experts|mlp\.experts|q_layernorm\.norms|k_layernorm\.norms)\.(\d+)(.*)")


@dataclass
class Tensor:
    """One GGUF tensor. sources: names in the checkpoint, several where they are stacked; turn, back: what the converter
    does with the values, and its opposite."""

    name: str
    sources: list[str]
    turn: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of a llama head: row 2j + t is row t * D/2 + j of the checkpoint's."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def halved(rows: np.ndarray, heads: int) -> np.ndarray:
    """The opposite of `interleaved`."""
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def ungrouped(rows: np.ndarray, groups: int, dim: int) -> np.ndarray:
    """Some query heads, a key head and a value head, group after group: all queries, all keys, all values."""
    grouped = rows.reshape(groups, -1, dim, *rows.shape[1:])
    parts = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])


def grouped(rows: np.ndarray, groups: int, dim: int) -> np.ndarray:
    """The opposite of `ungrouped`."""
    keys = groups * dim
    parts = rows[: len(rows) - 2 * keys], rows[len(rows) - 2 * keys : len(rows) - keys], rows[len(rows) - keys :]
    parts = [part.reshape(groups, -1, *rows.shape[1:]) for part in parts]
    return np.concatenate(parts, 1).reshape(rows.shape)


def _turns(config: dict, name: str) -> tuple[Callable, Callable]:
    family = config["model_type"]
    part = re.search(r"self_attn\.([qk])_proj\.", name)
    if family in TURNED and part:
        heads = config["num_attention_heads" if part[1] == "q" else "num_key_value_heads"]
        return lambda a: interleaved(a, heads), lambda a: halved(a, heads)
    if "query_key_value" in name:
        heads = config["num_attention_heads"]
        groups, dim = (key_heads(config) if family == "falcon" else heads), config["hidden_size"] // heads
        return lambda a: ungrouped(a, groups, dim), lambda a: grouped(a, groups, dim)
    if family in ONE_MORE and name.endswith("norm.weight"):
        return lambda a: a + np.float32(1), lambda a: a - np.float32(1)
    if family == "gpt2" and re.search(r"\.h\.\d+\..*(c_attn|c_proj|c_fc)\.weight", name):
        return np.transpose, np.transpose
    return lambda a: a, lambda a: a


def plan(config: dict, names: list[str]) -> list[Tensor]:
    """The GGUF tensors that the tensors of a checkpoint become."""
    import gguf

    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[config["model_type"]])
    known = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    out: dict[str, Tensor] = {}
    for name in sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
        stacked = STACKED.fullmatch(name)
        lookup = name
        if stacked and stacked[2].endswith("experts"):
            # The package knows Mixtral's experts by the name that the converter gives their stack.
            place = "feed_forward.experts" if "sparse" in stacked[2] else stacked[2]
            start = stacked[1].removeprefix("model.") if "sparse" in stacked[2] else stacked[1]
            lookup = f"{start}{place}{stacked[4]}"
        elif stacked:
            lookup = f"{stacked[1]}{stacked[2].removesuffix('.norms')}{stacked[4]}"
        elif config["model_type"] == "bloom":
            lookup = name.removeprefix("transformer.")
        target = known.get_name(lookup, try_suffixes=(".weight", ".bias"))
        assert target, f"the gguf package has no name for {name}"
        if target in out:
            out[target].sources.append(name)
        else:
            out[target] = Tensor(target, [name], *_turns(config, name))
    return list(out.values())


def key_heads(config: dict) -> int:
    """Falcon writes this number even where it does not use it."""
    if config["model_type"] == "gpt_bigcode" or (config["model_type"] == "falcon"
                                                 and not config["new_decoder_architecture"]):
        return 1
    return config.get("num_key_value_heads") or config.get("num_kv_heads") or config["num_attention_heads"]


def settings(config: dict) -> dict[str, object]:
    """Settings under the architecture's prefix, as the converter writes them."""
    c, family = config, config["model_type"]
    width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    ropes = c.get("rope_parameters", {})
    rope = {"rope_type": "default"} | ropes.get("full_attention", ropes)
    out = {"context_length": c.get("max_position_embeddings", 2048), "embedding_length": c["hidden_size"],
           "block_count": c["num_hidden_layers"],
           "feed_forward_length": c.get("intermediate_size") or 4 * c["hidden_size"],
           "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": key_heads(c)}
    if ropes:
        out |= {"rope.freq_base": rope["rope_theta"],
                "rope.dimension_count": int(width * rope.get("partial_rotary_factor", 1))}
    if family == "falcon":
        out["tensor_data_layout"] = "jploski"
    if family == "mpt":
        out |= {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": c["attn_config"]["clip_qkv"] or 0.0}
    if c.get("head_dim"):
        out |= {"attention.key_length": width, "attention.value_length": width}
    for name, key in {
        "rms_norm_eps": "attention.layer_norm_rms_epsilon", "layer_norm_eps": "attention.layer_norm_epsilon",
        "norm_epsilon": "attention.layer_norm_epsilon", "layer_norm_epsilon": "attention.layer_norm_epsilon",
        "rotary_dim": "rope.dimension_count", "num_local_experts": "expert_count",
        "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
        "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale", "logit_scale": "logit_scale",
        "use_parallel_residual": "use_parallel_residual", "sliding_window": "attention.sliding_window",
    }.items():
        if c.get(name) is not None:
            out[key] = c[name]
    if family in ("olmo3", "gemma3_text"):
        out["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in c["layer_types"]]
        out["rope.freq_base_swa"] = ropes["sliding_attention"]["rope_theta"]
    if rope["rope_type"] in ("linear", "yarn"):
        out |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if "original_max_position_embeddings" in rope and rope["rope_type"] != "llama3":
        out["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return out


def factors(config: dict) -> dict[str, np.ndarray]:
    """Tensors of rotary factors: longrope's as they are, llama3's computed."""
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}.weight": np.float32(rope[f"{kind}_factor"]) for kind in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), "cpu")[0].numpy()
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    plain = rope["rope_theta"] ** -(np.arange(0, width, 2) / width)
    return {"rope_freqs.weight": np.float32(plain / scaled)}


def save(model, path: Path, type: str) -> Path:
    """Write a transformers model as a GGUF file; matrices as `type`, vectors as F32. Beside it, in a folder of the same
    stem, the checkpoint with exactly these weights."""
    import gguf
    from gguf.quants import dequantize, quantize
    from safetensors.numpy import load_file, save_file

    directory = tiny_models.save(model, path.with_suffix(""))
    config = json.loads((directory / "config.json").read_text())
    config |= {usual: config[name] for name, usual in USUAL.items() if name in config}
    held = load_file(directory / "model.safetensors")
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[config["model_type"]])
    for key, value in settings(config).items():
        add = {bool: writer.add_bool, list: writer.add_array, str: writer.add_string, int: writer.add_uint32,
               float: writer.add_float32}
        add[value.__class__](f"{writer.arch}.{key}", value)
    _vocabulary(writer, config["vocab_size"])
    kind = gguf.GGMLQuantizationType[type]
    for tensor in plan(config, list(held)):
        arrays = [np.ascontiguousarray(tensor.turn(held[source])) for source in tensor.sources]
        array = np.stack(arrays) if len(arrays) > 1 else arrays[0]
        if type == "F32" or array.ndim == 1 or (type not in ("F16", "BF16") and array.shape[-1] % 32):
            writer.add_tensor(tensor.name, array)
            continue
        stored = quantize(array, kind)
        writer.add_tensor(tensor.name, stored, raw_dtype=kind)
        whole = dequantize(stored, kind)
        for source, one in zip(tensor.sources, whole if len(arrays) > 1 else [whole], strict=True):
            held[source] = np.ascontiguousarray(tensor.back(one))
    for name, array in factors(config).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(held, directory / "model.safetensors", metadata={"format": "pt"})
    return path


def reference(path: Path):
    """The transformers model with the weights of a GGUF file that `save` wrote."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.with_suffix(""), dtype="float32").eval()


def _vocabulary(writer, size: int) -> None:
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [chr(0x21 + i) if i < 94 else f"<{i}>" for i in range(size - 1)]  # printable ASCII, and one merge
    writer.add_token_list([*tokens, "!!"])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["! !"])
