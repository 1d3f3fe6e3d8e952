"""What a directory's files say about an encoder-decoder's answers: their first token, and settings that may stand in
two places.

Since 2022 settings of generation have a file of their own, generation_config.json; before, they were among those of the
network. A model with that file means only what stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forwardpass.errors import ModelFileError
from forwardpass.models.fields import Fields

DEFAULTS: dict[str, dict[str, int]] = {
    "t5": {},
    "bart": {"decoder_start_token_id": 2, "forced_eos_token_id": 2},
    "mbart": {"forced_eos_token_id": 2},
    "marian": {"decoder_start_token_id": 58100, "forced_eos_token_id": 0},
    "m2m_100": {"decoder_start_token_id": 2},
    "pegasus": {"decoder_start_token_id": 0, "forced_eos_token_id": 1},
    "mt5": {"decoder_start_token_id": 0},
    "umt5": {"decoder_start_token_id": 0},
}
"""model_type of every encoder-decoder -> what an older config.json leaves out."""
SETTINGS = (
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "forced_bos_token_id",
    "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty",
)
"""Settings of generation that an older config.json may hold."""
MAX_TASKS = 1000


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task that the files name ("translation_en_to_de", "summarization"): prefix is put before the text, settings
    replace those of generation for it."""

    prefix: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def generation_settings(config: Mapping, file: Mapping | None) -> dict[str, Any]:
    """The settings of an encoder-decoder's answers. config: the values of config.json; file: those of
    generation_config.json, None if there is none.

    decoder_start_token_id is among them wherever one of the files, the family or a first token (bos) says it;
    task_specific_params stay as config.json has them.
    """
    family = DEFAULTS.get(str(config.get("model_type")), {})
    if file is None:
        found = family | {name: config[name] for name in SETTINGS if config.get(name) is not None}
    else:
        found = dict(file)
    places = ((file or {}, "decoder_start_token_id"), (config, "decoder_start_token_id"),
              (family, "decoder_start_token_id"), (file or {}, "bos_token_id"), (config, "bos_token_id"))
    start = next((values[name] for values, name in places if values.get(name) is not None), None)
    if start is not None:
        found["decoder_start_token_id"] = start
    if config.get("task_specific_params") is not None:
        found.setdefault("task_specific_params", config["task_specific_params"])
    return found


def decoder_start(generation: Mapping, vocab_size: int) -> int:
    """The token that every answer of an encoder-decoder begins with. ModelFileError if there is none, or no such row in
    the table of tokens."""
    fields = Fields(generation, "config.json")
    if not fields.has("decoder_start_token_id"):
        raise ModelFileError("config.json: decoder_start_token_id is missing: expected the token that answers begin "
                             "with; write it there (of T5 it is pad_token_id), or fetch the model again")
    return fields.integer("decoder_start_token_id", low=0, high=vocab_size - 1)


def named_tasks(generation: Mapping) -> dict[str, NamedTask]:
    """The tasks of task_specific_params by name. Raises ModelFileError where they are no settings."""
    fields = Fields(generation, "config.json")
    found = fields.get("task_specific_params")
    if found is None:
        return {}
    if not isinstance(found, Mapping) or len(found) > MAX_TASKS:
        fields.wrong("task_specific_params", "settings by name of a task", found)
    tasks = {}
    for name, settings in found.items():
        if not isinstance(settings, Mapping):
            fields.wrong("task_specific_params", f"settings of {name}", settings)
        prefix = Fields(settings, f"config.json: task_specific_params: {name}").text("prefix", None)
        tasks[name] = NamedTask(prefix or "", {key: one for key, one in settings.items() if key in SETTINGS})
    return tasks
