"""Tiny random encoders of every family and head, made and saved by transformers, and what it computes with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

VOCABULARY = 96
LABELS = 5
SIZES = dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
             max_position_embeddings=80, initializer_range=0.15)
PADDED = SIZES | dict(pad_token_id=1, type_vocab_size=1)
NARROW = SIZES | dict(embedding_size=32)
DEBERTA = SIZES | dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False)
BUCKETS = dict(position_buckets=8, max_relative_positions=20, norm_rel_ebd="layer_norm", share_att_key=True)
FAMILIES = {  # model_type: (beginning of the class names, settings)
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", PADDED),
    "xlm-roberta": ("XLMRoberta", PADDED),
    "camembert": ("Camembert", PADDED),
    "mpnet": ("MPNet", SIZES | dict(pad_token_id=1)),
    "distilbert": ("DistilBert", dict(vocab_size=VOCABULARY, dim=48, n_layers=3, n_heads=4, hidden_dim=80,
                                      max_position_embeddings=80, initializer_range=0.15)),
    "electra": ("Electra", NARROW),
    "albert": ("Albert", NARROW),
    "deberta": ("Deberta", DEBERTA | dict(max_relative_positions=20)),
    "deberta-v2": ("DebertaV2", DEBERTA | BUCKETS),
    "modernbert": ("ModernBert", SIZES | dict(num_hidden_layers=4, local_attention=16, pad_token_id=0, bos_token_id=2,
                                              eos_token_id=3, cls_token_id=2, sep_token_id=3)),
    "nomic_bert": ("NomicBert", SIZES),
}
HEADS = {"none": "Model", "lm": "ForMaskedLM", "labels": "ForSequenceClassification", "tags": "ForTokenClassification"}
CASES = {  # name: (model_type, changes); each with every head
    "bert": ("bert", {}),
    "bert-untied": ("bert", {"tie_word_embeddings": False, "hidden_act": "relu", "type_vocab_size": 3}),
    "roberta": ("roberta", {}),
    "roberta-types": ("roberta", {"type_vocab_size": 2, "pad_token_id": 3, "hidden_act": "gelu_new"}),
    "xlm-roberta": ("xlm-roberta", {}),
    "camembert": ("camembert", {}),
    "mpnet": ("mpnet", {}),
    "distilbert": ("distilbert", {}),
    "distilbert-sines": ("distilbert", {"sinusoidal_pos_embds": True, "activation": "relu"}),
    "electra": ("electra", {}),
    "electra-wide": ("electra", {"embedding_size": 48}),
    "albert": ("albert", {}),
    "albert-groups": ("albert", {"num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 48}),
    "deberta": ("deberta", {}),
    "deberta-c2p": ("deberta", {"pos_att_type": ["c2p"], "type_vocab_size": 2, "position_biased_input": True,
                                "max_relative_positions": -1}),
    "deberta-v2": ("deberta-v2", {}),
    "deberta-v2-apart": ("deberta-v2", {"share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none",
                                        "pooler_hidden_act": "tanh"}),
    "deberta-v2-p2c": ("deberta-v2", {"pos_att_type": "p2c", "legacy": False, "type_vocab_size": 2,
                                      "position_biased_input": True}),
    "deberta-v2-plain": ("deberta-v2", {"relative_attention": False, "position_biased_input": True,
                                        "norm_rel_ebd": "none"}),
    "modernbert": ("modernbert", {}),
    "modernbert-biases": ("modernbert", {
        "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False,
        "classifier_pooling": "mean", "classifier_activation": "relu",
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]}),
    "nomic_bert": ("nomic_bert", {}),
}
LENGTHS = (37, 1, 9, 24)
"""Of the texts that are compared. The windows, buckets and distances above are shorter than the longest."""


def make(case: str, head: str):
    """A transformers model with weights, biases and norms large enough to matter."""
    import torch
    import transformers

    torch.set_num_threads(1)
    family, changes = CASES[case]
    stem, settings = FAMILIES[family]
    torch.manual_seed(sum(map(ord, case + head)))
    config = getattr(transformers, stem + "Config")(**settings | changes, num_labels=LABELS)
    model = getattr(transformers, stem + HEADS[head])(config)
    with torch.no_grad():  # biases start at zero and norms at one, which would hide them
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def save(model, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def texts(model) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, types) of texts of each length. Types change in the middle, as those of pairs do."""
    rng = np.random.default_rng(5)
    kinds = getattr(model.config, "type_vocab_size", 0) or 1
    return [(rng.integers(5, VOCABULARY, n).astype(np.int32), (np.arange(n) * kinds // n).astype(np.int32))
            for n in LENGTHS]


def reference(model, batch) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """(hidden states [tokens, width], what the head gives) of each text, computed together and padded on the right."""
    import torch

    width = max(len(ids) for ids, _ in batch)
    pad = model.config.pad_token_id or 0
    ids, types, mask = (torch.full((len(batch), width), fill) for fill in (pad, 0, 0))
    for row, (one, kinds) in enumerate(batch):
        ids[row, :len(one)], types[row, :len(one)] = torch.tensor(one).long(), torch.tensor(kinds).long()
        mask[row, :len(one)] = 1
    more = {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) else {}
    body = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        hidden = body(input_ids=ids, attention_mask=mask, **more).last_hidden_state.numpy()
        logits = None if body is model else model(input_ids=ids, attention_mask=mask, **more).logits.numpy()
    found = []
    for row, (one, _) in enumerate(batch):
        answer = None if logits is None else logits[row] if logits.ndim == 2 else logits[row, :len(one)]
        found.append((hidden[row, :len(one)], answer))
    return found
