"""A tiny random llama in a Hugging Face directory, written without torch: bytes are its tokens, its context is 128."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
            "<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>a:{% endif %}")
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 264, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "bos_token_id": 256, "eos_token_id": 257, "torch_dtype": "float32",
}


def tensors(seed=5):
    rng = np.random.default_rng(seed)
    kv, inner = 24, 80
    shapes = {"model.embed_tokens": (264, 48), "model.norm": (48,)}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm": (48,), at + "post_attention_layernorm": (48,),
                   at + "self_attn.q_proj": (48, 48), at + "self_attn.k_proj": (kv, 48),
                   at + "self_attn.v_proj": (kv, 48), at + "self_attn.o_proj": (48, 48),
                   at + "mlp.gate_proj": (inner, 48), at + "mlp.up_proj": (inner, 48),
                   at + "mlp.down_proj": (48, inner)}
    return {name + ".weight": (rng.normal(0, 0.3, shape) + (len(shape) == 1)).astype(np.float32)
            for name, shape in shapes.items()}


def write(folder, config=None, arrays=None, tokenizer=True, template=TEMPLATE, bos=False, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes} if config is None else config))
    save_file(tensors() if arrays is None else arrays, folder / "model.safetensors")
    if tokenizer:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
        made.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                    "add_bos_token": bos}
        if template is not None:
            settings["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
