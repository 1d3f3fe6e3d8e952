"""Tiny encoders as GGUF files: names by the gguf package, settings and changes of weights as the public converter makes
them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import tiny_gguf
import tiny_models

ARCHITECTURES = {"bert": "bert", "roberta": "bert", "distilbert": "bert", "nomic_bert": "nomic-bert",
                 "modernbert": "modern-bert", "gemma3_text": "gemma-embedding"}
CASES = [("bert", "none"), ("roberta", "none"), ("roberta", "labels"), ("distilbert", "none"), ("nomic_bert", "none"),
         ("modernbert", "none"), ("modernbert", "labels")]
DROPPED = ("pooler.", "lm_head.")
RENAMED = {"classifier.weight": "classifier.out_proj.weight", "classifier.bias": "classifier.out_proj.bias"}


def settings(config: dict, offset: int) -> dict[str, object]:
    """Settings under the architecture's prefix."""
    c = config
    inner = c.get("intermediate_size") or c.get("hidden_dim") or c.get("n_inner")
    out = {"context_length": c["max_position_embeddings"] - offset, "embedding_length": c["hidden_size"],
           "block_count": c["num_hidden_layers"], "feed_forward_length": inner,
           "attention.head_count": c["num_attention_heads"], "attention.causal": False, "pooling_type": 1}
    eps = c.get("layer_norm_eps") or c.get("norm_eps") or 1e-12
    out["attention.layer_norm_rms_epsilon" if "rms_norm_eps" in c else "attention.layer_norm_epsilon"] = \
        c.get("rms_norm_eps") or eps
    ropes = c.get("rope_parameters") or {}
    if ropes:
        out["rope.freq_base"] = ropes.get("full_attention", ropes)["rope_theta"]
    if "sliding_attention" in ropes:
        out |= {"attention.sliding_window": c.get("local_attention") or c["sliding_window"],
                "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
                "attention.sliding_window_pattern": 3 if c["model_type"] == "modernbert" else
                [kind == "sliding_attention" for kind in c["layer_types"]]}
    if c["model_type"] == "modernbert":
        out["rope.scaling.type"] = "none"
    if c.get("num_key_value_heads"):
        out |= {"attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
                "attention.value_length": c["head_dim"]}
    return out


def save(model, path: Path) -> Path:
    """Write a transformers encoder as a GGUF file of float32 tensors."""
    import gguf
    from safetensors.numpy import load_file

    directory = tiny_models.save(model, path.with_suffix(""))
    config = json.loads((directory / "config.json").read_text())
    config |= {usual: config[name] for name, usual in {"dim": "hidden_size", "n_layers": "num_hidden_layers",
                                                       "n_heads": "num_attention_heads"}.items() if name in config}
    family = config["model_type"]
    offset = config["pad_token_id"] + 1 if family == "roberta" else 0
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[family])
    known = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[family])
    for key, value in settings(config, offset).items():
        add = {bool: writer.add_bool, list: writer.add_array, str: writer.add_string, int: writer.add_uint32,
               float: writer.add_float32}
        add[value.__class__](f"{writer.arch}.{key}", value)
    if config.get("id2label"):
        writer.add_classifier_output_labels(list(config["id2label"].values()))
    tiny_gguf._vocabulary(writer, config["vocab_size"])
    for name, array in load_file(directory / "model.safetensors").items():
        short = name.removeprefix("model.").removeprefix(model.base_model_prefix + ".")
        if short.startswith(DROPPED):
            continue
        if short == "embeddings.position_embeddings.weight":
            array = array[offset:]
        if family == "gemma3_text":
            short, array = "model." + short, array + np.float32("norm" in short)
        target = known.get_name(RENAMED.get(short, short), try_suffixes=(".weight", ".bias"))
        assert target, f"the gguf package has no name for {name}"
        writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
