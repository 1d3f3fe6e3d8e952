"""What the class of a checkpoint computes out of the final hidden states, by its name, and its labels.

`BertForTokenClassification` and `Qwen3ForTokenClassification` both give each token's scores of labels: the end of a
class name says what the head is for, and a family says what its own heads are made of (`head`). Decoders have but one
kind, which transformers gives to all of them (`of_decoder`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from forwardpass.models.fields import Fields
from forwardpass.models.spec import HeadSpec, ModelSpec
from forwardpass.models.weight_rows import HEAD, WeightRow

TASKS = {  # end of a class name: task of its head (the first that fits counts)
    "ForMaskedLM": "lm", "ForPreTraining": "lm", "ForCausalLM": "lm", "LMHeadModel": "lm",
    "ForConditionalGeneration": "lm", "ForSequenceClassification": "labels", "ForTokenClassification": "tags",
    "ForImageClassification": "labels", "ForImageClassificationWithTeacher": "labels", "WithProjection": "vector",
    "Model": "none",
}
PROBLEMS = {"regression": "regression", "single_label_classification": "single", "multi_label_classification": "multi"}
"""problem_type of a config -> how scores of labels are meant."""
PREFIX = re.compile(r"^(model|transformer|gpt_neox)\.")
"""What models with a head put before the names of a decoder's layers."""
UNUSED = r"lm_head\..+"
"""A decoder's usual head, in a file whose class does without it (for IGNORED)."""


def task_of(name: str | None, default: str) -> str:
    """The task of a class; `default` where there is no name or it ends in nothing known."""
    return next((task for end, task in TASKS.items() if name and name.endswith(end)), default)


def classes(stem: str, *tasks: str) -> tuple[str, ...]:
    """Class names of an encoder that begin with `stem`: the model itself and its heads for tasks ("lm", ...)."""
    ends = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return tuple(stem + end for end in (*ends, *tasks))


def with_heads(names: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of a decoder: for each that has the usual head also the model itself and those with labels."""
    stems = [found[1] for name in names if (found := re.fullmatch(r"(.+?)(ForCausalLM|LMHeadModel)", name))]
    more = [stem + end for stem in stems for end in ("Model", "ForSequenceClassification", "ForTokenClassification")]
    return tuple(dict.fromkeys((*names, *more)))


def labels(f: Fields) -> tuple[str, ...]:
    """Names of the labels by their number: `id2label`, else `num_labels` times LABEL_0, ... (2 where nothing is said).

    Numbers are the keys as integers ("10" comes after "2"). ModelFileError if one is missing or the count differs.
    """
    count = f.integer("num_labels", default=None, high=2**16)
    names = f.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(2 if count is None else count))
    if not isinstance(names, Mapping) or not names:
        f.wrong("id2label", "an object with a name for each label", names)
    found: dict[int, str] = {}
    for key, name in names.items():
        if not re.fullmatch("[0-9]{1,6}", str(key)) or not isinstance(name, (str, int, float)):
            f.wrong("id2label", "numbers of labels with their names", {key: name})
        found[int(key)] = str(name)
    if sorted(found) != list(range(len(names))):
        missing = next(i for i in range(len(names)) if i not in found)
        f.wrong("id2label", f"a name for every label from 0 to {len(names) - 1}", f"none for {missing}")
    if count is not None and count != len(found):
        f.wrong("num_labels", f"{len(found)}, the number of names in id2label", count)
    return tuple(found[i] for i in range(len(found)))


def problem(f: Fields) -> str | None:
    """"regression", "single" or "multi" as `problem_type` says; None where it says nothing."""
    if not f.has("problem_type"):
        return None
    kind = f.text("problem_type")
    if kind not in PROBLEMS:
        f.wrong("problem_type", f"one of {', '.join(PROBLEMS)}", kind)
    if kind == "single_label_classification" and len(labels(f)) == 1:
        f.wrong("problem_type", "regression or several labels, where one label is to choose from", kind)
    return PROBLEMS[kind]


def head(f, *, lm: Mapping | None = None, labels: Mapping | None = None, tags: Mapping | None = None,
         lm_bias: bool = True) -> dict:
    """An encoder's head as fields of a ModelSpec. lm, labels, tags: what HeadSpec takes for that task beside its
    outputs; text labels read the first token unless they say otherwise. lm_bias: of the output product of "lm"."""
    task = task_of(f.architecture, "none")
    if task == "none":
        return {"head": HeadSpec("none"), "tied": False}
    if task == "lm":
        return {"head": HeadSpec("lm", **lm or {}), "head_bias": lm_bias}
    more = {"pool": "first"} | dict(labels or {}) if task == "labels" else dict(tags or {})
    return {"head": _labelled(f, task, **more), "head_bias": True, "tied": False}


def _labelled(f, task: str, **more) -> HeadSpec:
    problem(f)
    return HeadSpec(task, outputs=len(labels(f)), **more)


def bare(spec: ModelSpec) -> ModelSpec:
    """`spec` without a head."""
    return replace(spec, head=HeadSpec("none"), head_bias=False, tied=False, logit_scale=1.0, logit_softcap=0.0).check()


def left_out(spec: ModelSpec, rows: Iterable[WeightRow], tensors: Mapping) -> bool:
    """Whether a file has nothing of its model's fill-mask head: embedders are published with the class of the model
    that they were trained from."""
    heads = [row for row in rows if row.target.startswith("head.")]
    return spec.head.task == "lm" and not any(name in tensors for row in heads for name in row.sources)


def of_decoder(f, spec: ModelSpec) -> ModelSpec:
    """A decoder's spec, built with the usual head, with the one that the checkpoint's class has.

    Text labels are scores of the last token, without a bias; those of tokens have one. A model that looks ahead cannot
    generate: then there is no head.
    """
    task = task_of(f.architecture, "lm")
    if spec.encoder or (task == "lm" and spec.causal):
        return spec
    if task in ("lm", "none"):
        return bare(spec)
    found = _labelled(f, task, pool="last") if task == "labels" else _labelled(f, task)
    return replace(bare(spec), head=found, head_bias=task == "tags").check()


def decoder_rows(spec: ModelSpec, rows: Iterable[WeightRow]) -> tuple[WeightRow, ...]:
    """Rows of a decoder's checkpoint: also without the prefix of models with a head, and with the names that a head of
    labels has."""
    found = []
    for row in rows:
        if row.target.startswith("head.") and spec.head.task in ("labels", "tags"):
            suffix = row.target.rpartition(".")[2]
            names = (f"score.{suffix}", f"classifier.{suffix}")
        else:
            short = [PREFIX.sub("", name) for name in row.sources]
            names = tuple(dict.fromkeys((*row.sources, *short)))
        found.append(replace(row, sources=names))
    return tuple(found)


def check_labels(spec: ModelSpec, rows: Iterable[WeightRow], tensors: Mapping, config: Mapping) -> None:
    """ModelFileError if the head in the file has another number of labels than the config."""
    row = next((row for row in rows if row.target == HEAD), None)
    name = row and next((name for name in row.sources if name in tensors), None)
    if name and spec.head.task in ("labels", "tags"):
        shape = tuple(tensors[name].shape)
        if len(shape) == 2 and shape[0] != spec.head.outputs:
            Fields(config, "config.json").wrong("id2label" if config.get("id2label") else "num_labels",
                                                f"{shape[0]} labels, one for each row of {name}", spec.head.outputs)
