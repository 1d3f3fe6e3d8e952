"""Tiny random models of every family, made and saved by transformers (tiny_gguf.py writes them as GGUF files)."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 96
KIN = dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
           intermediate_size=80, max_position_embeddings=256, initializer_range=0.15, bos_token_id=0, eos_token_id=1,
           pad_token_id=None, tie_word_embeddings=False)
ODD = KIN | dict(num_attention_heads=6, num_key_value_heads=3)  # heads of 8
FEW = KIN | dict(num_attention_heads=3, num_key_value_heads=1)  # heads of 16
GPT2 = dict(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=1,
            initializer_range=0.15)
GPT2_ODD = GPT2 | dict(n_head=3)
PHI = {name: value for name, value in KIN.items() if name != "num_key_value_heads"} | dict(num_attention_heads=3)
SHORT = dict(vocab_size=VOCABULARY, hidden_size=48, initializer_range=0.15, bos_token_id=0, eos_token_id=1,
             pad_token_id=None)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32)
ALTERNATING = dict(sliding_window=16, layer_types=["sliding_attention", "full_attention"])
FAMILIES = {  # model_type: (config class, model class, settings)
    "llama": ("LlamaConfig", "LlamaForCausalLM", KIN),
    "mistral": ("MistralConfig", "MistralForCausalLM", ODD | dict(sliding_window=16)),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", ODD | dict(num_local_experts=5, num_experts_per_tok=2)),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", KIN),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", FEW | EXPERTS | dict(shared_expert_intermediate_size=40)),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", ODD | dict(head_dim=20)),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", ODD | EXPERTS | dict(head_dim=12, norm_topk_prob=True)),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", FEW | dict(head_dim=20, tie_word_embeddings=True)),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", ODD | ALTERNATING | dict(
        head_dim=12, tie_word_embeddings=True, query_pre_attn_scalar=12, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0)),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM", ODD | ALTERNATING | dict(
        head_dim=12, tie_word_embeddings=True, query_pre_attn_scalar=12)),
    "gemma3": ("Gemma3Config", "Gemma3ForConditionalGeneration", dict(
        text_config=ODD | ALTERNATING | dict(head_dim=12), mm_tokens_per_image=4, vision_config=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
            patch_size=14))),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", FEW | dict(original_max_position_embeddings=256)),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", FEW | dict(sliding_window=16)),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", FEW | dict(use_qkv_bias=True)),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", ODD),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", ODD | ALTERNATING),
    "granite": ("GraniteConfig", "GraniteForCausalLM", ODD | dict(
        attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=1.7)),
    "cohere": ("CohereConfig", "CohereForCausalLM", ODD | dict(tie_word_embeddings=True, logit_scale=0.3)),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", ODD | dict(
        tie_word_embeddings=True, logit_scale=0.3, num_hidden_layers=4, sliding_window=16)),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", ODD | dict(num_hidden_layers=4, tie_word_embeddings=True)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", GPT2_ODD),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", SHORT | dict(
        num_layers=2, num_heads=3, attention_types=[[["global", "local"], 1]], window_size=16, intermediate_size=80,
        max_position_embeddings=256)),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", GPT2_ODD | dict(rotary_dim=6, tie_word_embeddings=False)),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", GPT2_ODD | dict(rotary_dim=10, tie_word_embeddings=False)),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", PHI),
    "opt": ("OPTConfig", "OPTForCausalLM", SHORT | dict(
        num_hidden_layers=2, num_attention_heads=3, ffn_dim=80, max_position_embeddings=256, init_std=0.15)),
    "bloom": ("BloomConfig", "BloomForCausalLM", SHORT | dict(n_layer=2, n_head=6)),
    "mpt": ("MptConfig", "MptForCausalLM", dict(
        vocab_size=VOCABULARY, d_model=48, n_layers=2, n_heads=3, max_seq_len=256, initializer_range=0.15)),
    "falcon": ("FalconConfig", "FalconForCausalLM", SHORT | dict(
        num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=256)),
    "phi": ("PhiConfig", "PhiForCausalLM", PHI),
}
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=16)
LONG = dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=16, partial_rotary_factor=0.75,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.5, 2.0, 3.0, 5.0, 7.0, 11.0])
LINEAR = dict(rope_type="linear", rope_theta=1e4, factor=8.0, partial_rotary_factor=0.5)
GLOBAL = {"sliding_attention": dict(rope_type="default", rope_theta=1e4),
          "full_attention": dict(rope_type="linear", rope_theta=1e6, factor=8.0)}
CASES = {  # name: (model_type, changes)
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-heads": ("llama", {"head_dim": 20, "rope_theta": 5e4}),  # heads wider than hidden / heads
    "llama-linear": ("llama", {"max_position_embeddings": 16, "rope_parameters": dict(
        rope_type="linear", rope_theta=1e4, factor=8.0)}),
    "llama-dynamic": ("llama", {"max_position_embeddings": 16, "rope_parameters": dict(
        rope_type="dynamic", rope_theta=1e4, factor=8.0)}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {}),
    "mistral-whole": ("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    "mixtral": ("mixtral", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 16, "num_experts_per_tok": 5}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe-mixed": ("qwen2_moe", {"decoder_sparse_step": 2, "norm_topk_prob": True}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {}),
    "gemma2-scaled": ("gemma2", {"query_pre_attn_scalar": 20, "layer_types": ["full_attention", "sliding_attention"]}),
    "gemma3": ("gemma3_text", {"rope_parameters": GLOBAL}),
    "gemma3-images": ("gemma3", {}),
    "phi3": ("phi3", {}),
    "phi3-long": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16, "sliding_window": 24}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2-plain": ("starcoder2", {"use_bias": False, "sliding_window": None, "tie_word_embeddings": True}),
    "stablelm": ("stablelm", {}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": False,
                                       "num_key_value_heads": 3}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"rope_parameters": {"sliding_attention": GLOBAL["sliding_attention"],
                                            "full_attention": YARN}}),
    "granite": ("granite", {}),
    "cohere": ("cohere", {}),
    "cohere-normed": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {}),
    "smollm3": ("smollm3", {}),
    "gpt2": ("gpt2", {}),
    "bigcode": ("gpt_bigcode", {}),
    "bigcode-heads": ("gpt_bigcode", {"multi_query": False, "scale_attn_weights": False, "n_inner": 80}),
    "neo": ("gpt_neo", {}),
    "neo-local": ("gpt_neo", {"attention_types": [[["local"], 2]], "window_size": 5, "tie_word_embeddings": False}),
    "gptj": ("gptj", {}),
    "gptj-tied": ("gptj", {"rotary_dim": 16, "tie_word_embeddings": True, "n_inner": 80}),
    "codegen": ("codegen", {}),
    "neox": ("gpt_neox", {}),
    "neox-sequential": ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 1.0, "rotary_emb_base": 5000}),
    "neox-plain": ("gpt_neox", {"attention_bias": False, "hidden_act": "gelu_fast", "tie_word_embeddings": True,
                                "rope_parameters": LINEAR, "max_position_embeddings": 16}),
    "opt": ("opt", {}),
    "opt-post": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt-plain": ("opt", {"enable_bias": False, "_remove_final_layer_norm": True, "tie_word_embeddings": False}),
    "bloom": ("bloom", {}),
    "bloom-odd": ("bloom", {"n_head": 3, "tie_word_embeddings": False}),
    "mpt": ("mpt", {}),
    "mpt-clipped": ("mpt", {"n_heads": 6, "attn_config": {"clip_qkv": 0.75}}),
    "mpt-scaled": ("mpt", {"attn_config": {"softmax_scale": 0.2}}),
    "falcon": ("falcon", {}),
    "falcon-new": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3}),
    "falcon-one-norm": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
                                   "rope_theta": 5e4, "ffn_hidden_size": 80, "tie_word_embeddings": False}),
    "falcon-heads": ("falcon", {"multi_query": False, "activation": "relu"}),
    "falcon-rw": ("falcon", {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    "phi": ("phi", {}),
    "phi-normed": ("phi", {"qk_layernorm": True, "num_key_value_heads": 1, "partial_rotary_factor": 0.25}),
}


def make(family: str, kind: str = "", **changes):
    """A transformers model with weights, biases and norms large enough to matter. kind: its class, where it is not the
    family's usual one."""
    import torch
    import transformers

    torch.set_num_threads(1)  # with products this small, threads would wait for one another
    torch.manual_seed(len(family) + sum(map(ord, kind + "".join(changes))))
    theta = changes.pop("rope_theta", None)
    if theta:
        changes["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    config, model, base = FAMILIES[family]
    settings = base | changes
    if isinstance(settings.get("rope_parameters"), dict):  # transformers writes its defaults into what it is given
        settings["rope_parameters"] = {name: dict(value) if isinstance(value, dict) else value
                                       for name, value in settings["rope_parameters"].items()}
    made = getattr(transformers, kind or model)(getattr(transformers, config)(**settings))
    with torch.no_grad():  # biases start at zero and norms at one, which would hide them
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made.eval()


def save(model, directory: Path, **options) -> Path:
    """save_pretrained without an end token in generation_config, so that answers run their full length."""
    if getattr(model, "generation_config", None):
        model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    model.save_pretrained(directory, **options)
    return directory
