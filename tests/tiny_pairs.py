"""Tiny random encoder-decoders of every family, made and saved by transformers. (tiny_models.py has the decoders.)"""

from __future__ import annotations

import json
from pathlib import Path

VOCABULARY = 96
END = 2
TASKS = {"task_specific_params": {
    "summarization": {"prefix": "sum: ", "min_length": 3},
    "translation_en_to_de": {"prefix": "to German: ", "num_beams": 2},
    "translation_en_to_zh": {"prefix": "to Chinese: "},
    "translation_fr_to_de": {"prefix": "from French: "},
}}
SIDES = dict(vocab_size=VOCABULARY, d_model=48, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
             decoder_attention_heads=3, encoder_ffn_dim=80, decoder_ffn_dim=72, max_position_embeddings=128,
             init_std=0.15, pad_token_id=1, bos_token_id=0, eos_token_id=END, decoder_start_token_id=END)
T5 = dict(vocab_size=VOCABULARY, d_model=48, d_kv=20, d_ff=80, num_layers=3, num_decoder_layers=2, num_heads=3,
          relative_attention_num_buckets=8, relative_attention_max_distance=20, pad_token_id=0, eos_token_id=1,
          decoder_start_token_id=0)
FAMILIES = {  # model_type: (config class, model class, settings)
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", T5),
    "umt5": ("UMT5Config", "UMT5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", SIDES),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", SIDES | dict(scale_embedding=True)),
    "marian": ("MarianConfig", "MarianMTModel", SIDES | dict(
        scale_embedding=True, activation_function="swish", pad_token_id=95, decoder_start_token_id=95)),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration", SIDES),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", SIDES | dict(
        scale_embedding=True, activation_function="relu", pad_token_id=0, decoder_start_token_id=0)),
}
CASES = {  # name: (model_type, changes)
    "t5": ("t5", {}),
    "t5-gated": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),  # v1.1 and FLAN
    "t5-deep": ("t5", {"num_layers": 4, "num_decoder_layers": 1, "feed_forward_proj": "gated-silu"}),  # as ByT5
    "mt5": ("mt5", {}),
    "umt5": ("umt5", {}),
    "bart": ("bart", {}),
    "bart-scaled": ("bart", {"scale_embedding": True, "activation_function": "gelu_new", "decoder_layers": 1}),
    "mbart": ("mbart", {}),
    "marian": ("marian", {}),
    "marian-apart": ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70,
                                "pad_token_id": 69, "decoder_start_token_id": 69}),
    "m2m_100": ("m2m_100", {}),
    "m2m_100-padding": ("m2m_100", {"pad_token_id": 4, "scale_embedding": False}),
    "pegasus": ("pegasus", {}),
}


def make(family: str, **changes):
    """A transformers model with weights, biases and norms large enough to matter."""
    import torch
    import transformers

    torch.set_num_threads(1)  # with products this small, threads would wait for one another
    torch.manual_seed(len(family) + sum(map(ord, "".join(changes))))
    config, model, base = FAMILIES[family]
    made = getattr(transformers, model)(getattr(transformers, config)(**base | changes))
    if changes.get("tie_word_embeddings") is False:
        made.lm_head.weight = torch.nn.Parameter(torch.empty_like(made.lm_head.weight))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn_like(parameter)
            if name.endswith("embed_positions.weight") and not family.endswith("bart"):
                continue  # sines and cosines
            if "relative_attention_bias" in name:
                parameter.copy_(noise)
            elif parameter.dim() == 1:  # biases start at zero and norms at one, which would hide them
                parameter.add_(0.2 * noise)
            elif "embed" in name or "shared" in name or "lm_head" in name:
                parameter.copy_(0.1 * noise)
            else:
                unscaled = family.endswith("t5") and name.endswith("Attention.q.weight")
                size = 1.5 * (made.config.d_kv**-0.5 if unscaled else 1)
                parameter.copy_(size * parameter.shape[1] ** -0.5 * noise)
        if hasattr(made, "final_logits_bias"):
            made.final_logits_bias.copy_(0.2 * torch.randn_like(made.final_logits_bias))
    return made.eval()


def case(name: str):
    family, changes = CASES[name]
    return make(family, **changes)


def save(model, directory: Path, **generation) -> Path:
    """save_pretrained without end tokens, so that answers run their full length. generation: of generation_config."""
    settings = model.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = model.config.eos_token_id = None
    for name, value in generation.items():
        setattr(settings, name, value)
    model.save_pretrained(directory)
    return directory


def write_translator(directory: Path):
    """A T5 whose tokens are letters, told what to do by prefixes: a directory with everything. Returns the transformers
    model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    model = make("t5", vocab_size=64, num_decoder_layers=2)
    save(model, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **TASKS}))
    letters = ["<pad>", "</s>", "<unk>", *"\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:0123!"]
    made = Tokenizer(models.Unigram([(letter, -1.0) for letter in letters], unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(text, special=True) for text in letters[:3]])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "model_max_length": 40}))
    return model


def reference(model, source, target):
    """(encoder's final states [source, hidden], decoder's [target, hidden], logits [target, vocab]) as float32 arrays.
    source, target: the token ids that the two sides read."""
    import torch

    with torch.no_grad():
        out = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]),
                    output_hidden_states=True)
    return (out.encoder_last_hidden_state[0].numpy(), out.decoder_hidden_states[-1][0].numpy(), out.logits[0].numpy())
