"""Directories of tiny models, one for each kind of task that a server answers."""

from __future__ import annotations

from pathlib import Path

import tiny_chat
import tiny_pairs
import tiny_pipelines
import tiny_readers

LIMIT = 20
"""Tokens that "vectors" reads."""
SENTENCE_FILES = {
    "modules.json": [{"path": "", "type": "sentence_transformers.models.Transformer"},
                     {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                     {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}],
    "1_Pooling/config.json": {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {"prompts": {"query": "w7 w8 ", "passage": "w9 "}},
    "sentence_bert_config.json": {"max_seq_length": LIMIT},
}


def write(folder: Path) -> dict[str, Path]:
    """Name -> directory: "vectors" makes unit vectors, "labels" knows three labels, "relevance" scores pairs,
    "translator" is an encoder-decoder, "chat" generates, "pictures" draws owls and cats."""
    names = ("vectors", "labels", "relevance", "translator", "chat", "pictures")
    paths = {name: folder / name for name in names}
    for path in paths.values():
        path.mkdir()
    tiny_readers.save(tiny_readers.make("none"), paths["vectors"], SENTENCE_FILES)
    tiny_readers.save(tiny_readers.make("labels", 3), paths["labels"])
    tiny_readers.save(tiny_readers.make("labels", 1), paths["relevance"])
    tiny_pairs.write_translator(paths["translator"])
    tiny_chat.write(paths["chat"])
    denoiser = tiny_pipelines.dit(in_channels=1, out_channels=1, num_embeds_ada_norm=4)
    tiny_pipelines.write_dit(paths["pictures"], denoiser, id2label={"0": "owl", "1": "cat", "2": "Ankle boot"})
    return paths
