"""Which tasks a model can do: what its network, its head, its tokenizer and its labels are enough for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forwardpass.errors import UnsupportedModelError
from forwardpass.models.spec import ModelSpec
from forwardpass.models.task_settings import TaskSettings
from forwardpass.tasks.languages import translates

NEEDS = {
    "generate": "a causal language model",
    "stream": "a causal language model",
    "chat": "a causal language model with a chat template",
    "complete": "a causal language model with a tokenizer",
    "score": "a causal language model",
    "explain": "a causal language model",
    "translate": "an encoder-decoder whose files name languages",
    "summarize": "an encoder-decoder that is no translator alone, with a tokenizer",
    "text2text": "an encoder-decoder with a tokenizer",
    "embed": "a model that reads texts, with a tokenizer",
    "classify": "a head that labels texts",
    "rerank": "a head with one score for a pair of texts",
    "zero_shot": "a head that labels pairs of texts as entailment and contradiction",
    "token_classify": "a head that labels tokens",
    "fill_mask": "a masked language model with a mask token",
    "classify_image": "a head that labels images",
    "embed_image": "layers that read images",
    "zero_shot_image": "towers for images and for texts, and a tokenizer",
    "draw": "a diffusion pipeline, a folder with a model_index.json",
    "logits": "a head, of any kind",
    "hidden_states": "a model that reads texts",
}
"""Task, a method of Model -> what a model must be or have for it. Errors quote it."""


def abilities(spec: ModelSpec, settings: TaskSettings, tokenizer, generation: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the Model methods that this model can do, in the order of NEEDS. tokenizer: or None;  generation:
    what its files say of it."""
    head, can = spec.head.task, set()
    if spec.images is not None and not settings.image_obstacle:
        can.add("embed_image")
        if spec.patches and head == "labels":
            can.add("classify_image")
        if spec.vision and tokenizer is not None:
            can.add("zero_shot_image")
    if spec.patches:
        return tuple(task for task in NEEDS if task in can)
    can.add("hidden_states")
    if head not in ("none", "vector"):
        can.add("logits")
    if spec.causal and head == "lm":
        can |= {"generate", "stream", "score", "explain"}
        if tokenizer is not None and not spec.encoder:
            can |= {"complete", "chat"} if tokenizer.chat_template else {"complete"}
        if tokenizer is not None and spec.encoder:
            can |= {"text2text"} | ({"translate"} if translates(tokenizer, generation) else set())
            can |= set() if tokenizer.languages else {"summarize"}
    if tokenizer is not None:
        if not settings.obstacle:
            can.add("embed")
        if head == "lm" and not spec.causal and tokenizer.mask_token_id is not None:
            can.add("fill_mask")
        if head == "tags":
            can.add("token_classify")
        if head == "labels":
            can.add("classify")
            if spec.head.outputs == 1:
                can.add("rerank")
            if inference_labels(settings.labels) is not None:
                can.add("zero_shot")
    return tuple(task for task in NEEDS if task in can)


def require(model, task: str) -> None:
    """Raises UnsupportedModelError, which says what the task needs and what the model can do."""
    if task not in model.tasks:
        obstacle = ""
        if "draw" in model.tasks:  # its spec is a denoiser's
            pass
        elif task.endswith("_image") and model.spec.images is not None:
            obstacle = model.settings.image_obstacle
        elif task == "embed" and model.tokenizer is not None and model.spec.patches is None:
            obstacle = model.settings.obstacle
        why = f": {obstacle}" if obstacle else f", which needs {NEEDS[task]}"
        can = ", ".join(model.tasks) or "do nothing with these files"
        raise UnsupportedModelError(f"{model.path} cannot {task}{why}; this model can {can}")


def inference_labels(labels: tuple[str, ...]) -> tuple[int, int] | None:
    """(entailment, its opposite) among the labels of a model of natural-language inference, by their names; None if it
    is none. The opposite is contradiction, or with two labels the other one."""
    lower = [label.lower().replace("-", "_") for label in labels]
    yes = [i for i, label in enumerate(lower) if label.startswith("entail")]
    no = [i for i, label in enumerate(lower) if label.startswith(("contra", "not_entail"))]
    return (yes[0], no[0]) if len(yes) == len(no) == 1 else None
