"""Directories of tiny random models that read texts, with the words of word_tokenizer.py, and torch's answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import word_tokenizer

SIZES = dict(vocab_size=46, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
             max_position_embeddings=40, initializer_range=0.2, pad_token_id=0)
HEADS = {"none": "Model", "lm": "ForMaskedLM", "labels": "ForSequenceClassification", "tags": "ForTokenClassification"}


def make(head: str, labels: int = 3, stem: str = "Bert", **settings):
    """A transformers model."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(labels + len(head))
    config = getattr(transformers, stem + "Config")(**SIZES | settings, num_labels=labels)
    model = getattr(transformers, stem + HEADS[head])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save(model, folder: Path, files: dict | None = None, tokenizer: dict | None = None, special: bool = True,
         **config) -> Path:
    """The model's directory. files: JSON files to add;  tokenizer: of tokenizer_config.json;  config: of config.json,
    None = without that setting."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    word_tokenizer.write(folder, special=special, **tokenizer or {})
    for name, value in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def words(*numbers: int) -> str:
    return " ".join(f"w{i}" for i in numbers)


def some_words(count: int, seed: int = 0) -> str:
    return words(*np.random.default_rng(seed).integers(1, 31, count).tolist())


def ids_of(*texts: str) -> tuple[list[int], list[int]]:
    """(ids, types) of a text or pair, whole."""
    encoding = word_tokenizer.backend().encode(*texts)
    return encoding.ids, encoding.type_ids


def torch_hidden(model, ids, types=None) -> np.ndarray:
    """float32 [tokens, hidden]."""
    import torch

    body = getattr(model, model.base_model_prefix, model)
    more = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        return body(input_ids=torch.tensor([ids]), **more).last_hidden_state[0].numpy()


def torch_scores(model, ids, types=None) -> np.ndarray:
    """What the head gives: [labels], or [tokens, labels or vocabulary]."""
    import torch

    more = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), **more).logits[0].numpy()
