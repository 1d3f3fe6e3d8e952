"""What a checkpoint's files say about its tasks beside the network: names of labels, and how a text's vector is made.

Labels are in config.json; vectors are described as sentence-transformers does it (weights/sentence_transformers.py
finds the files). A packed model carries the same files' values and reads them the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import hf_heads
from forwardpass.models.fields import Fields, show
from forwardpass.models.image_settings import OWN_FILE, ImageSettings, read_image_settings
from forwardpass.models.spec import ModelSpec
from forwardpass.weights.sentence_transformers import MODULES, SETTINGS, TRANSFORMER, module_folders

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last")
"""In the order in which several are put side by side."""
POOLING_NAMES = {name: name for name in POOLINGS} | {
    "mean_sqrt_len_tokens": "mean_sqrt_len", "lasttoken": "last", "first": "cls"}
"""Every spelling -> the one used here."""
_FLAGS = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens",
          "weightedmean": "weightedmean_tokens", "last": "lasttoken"}
NORMALIZE = "normalize"
SCORE_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
DENSE_ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu_erf", "SiLU": "silu"}
"""Class of torch.nn -> the activation in the spec's spelling."""
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
MAX_PROMPTS = 1000


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A product with `activation` after pooling. residual: what went in is added, through a matrix of its own where the
    widths differ. folder: where in the directory its weights are."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: str | None
    residual: bool = False


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """labels: names by number, () = the head has none;  problem: "single", "multi" or "regression", None = not said;
    score_activation: of a cross-encoder's score, "sigmoid", "softmax", "none" or a class that is not implemented; None
    = not said.

    pooling: out of POOLINGS, side by side, () = the files name none;  include_prompt: whether a prompt's tokens are
    pooled, too;  steps: what follows, DenseSpecs and NORMALIZE;  max_length: tokens of a text at most, None = what the
    model has positions for;  lower: texts are lowercased;  strip: blanks around them are dropped;  prompts: by name;
    default_prompt: the name of the one that is used when none is asked for;  similarity: out of SIMILARITIES;
    obstacle: why this program makes no vectors of texts with it, "" = it does.
    images: how images are prepared, None = they cannot be, which image_obstacle explains where the model reads images.
    """

    labels: tuple[str, ...] = ()
    problem: str | None = None
    score_activation: str | None = None
    pooling: tuple[str, ...] = ()
    include_prompt: bool = True
    steps: tuple[DenseSpec | str, ...] = ()
    max_length: int | None = None
    lower: bool = False
    strip: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    obstacle: str = ""
    images: ImageSettings | None = None
    image_obstacle: str = ""

    @property
    def dense(self) -> tuple[DenseSpec, ...]:
        return tuple(step for step in self.steps if step != NORMALIZE)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Under these names a packed model keeps the arrays of the dense layers: "dense.0.weight", ..."""
        found: dict[str, tuple[int, ...]] = {}
        for i, one in enumerate(self.dense):
            found[f"dense.{i}.weight"] = one.outputs, one.inputs
            if one.bias:
                found[f"dense.{i}.bias"] = (one.outputs,)
            if one.residual and one.inputs != one.outputs:
                found[f"dense.{i}.residual"] = one.outputs, one.inputs
        return found


def read_task_settings(files: Mapping[str, Any], spec: ModelSpec) -> TaskSettings:
    """files: name -> JSON value, as weights/sentence_transformers.task_files gives them. Raises ModelFileError where
    they are damaged or contradict the model; what is merely not implemented becomes the obstacle."""
    config = Fields(files.get("config.json", {}), "config.json")
    inner = Fields(files.get(TRANSFORMER, {}), "sentence_bert_config.json")
    own = Fields(files.get(SETTINGS, {}), SETTINGS)
    longest = inner.integer("max_seq_length", default=None)
    similarity = own.text("similarity_fn_name", "cosine")
    if similarity not in SIMILARITIES:
        own.wrong("similarity_fn_name", f"one of {', '.join(SIMILARITIES)}", similarity)
    prompts, default = _prompts(own)
    pooling, include_prompt, steps, obstacle = (), True, (), ""
    try:
        pooling, include_prompt, steps = _modules(files, spec)
    except UnsupportedModelError as error:
        obstacle = str(error)
    images, image_obstacle = _images(files, config, spec)
    return TaskSettings(
        labels=_labels(config, spec), problem=hf_heads.problem(config), score_activation=_score_activation(config, own),
        pooling=pooling, include_prompt=include_prompt, steps=steps, max_length=longest,
        lower=inner.flag("do_lower_case", False), strip=MODULES in files, prompts=prompts, default_prompt=default,
        similarity=similarity, obstacle=obstacle, images=images, image_obstacle=image_obstacle)


def _images(files: Mapping[str, Any], config: Fields, spec: ModelSpec) -> tuple[ImageSettings | None, str]:
    """(how a model that reads images wants them, why they cannot be prepared)."""
    if spec.images is None:
        return None, ""
    if spec.images.patches.channels != 3:
        return None, f"it reads images of {spec.images.patches.channels} channels, and images have 3 here"
    try:
        found = read_image_settings(files, config.text("model_type", None))
    except UnsupportedModelError as error:
        return None, str(error)
    return found, "" if found else f"it has no {OWN_FILE}, which says how images are prepared: copy that of the model"


def _labels(config: Fields, spec: ModelSpec) -> tuple[str, ...]:
    """Names by number; LABEL_0, LABEL_1, ... where there is no config to name them."""
    rows = spec.head.outputs if spec.head.task in ("labels", "tags") else 0
    names = hf_heads.labels(config) if rows and config.values else tuple(f"LABEL_{i}" for i in range(rows))
    if len(names) != rows:
        raise ModelFileError(f"config.json: id2label: expected a name for each of the {rows} rows of the model's head, "
                             f"found {len(names)}; fix the file or fetch the model again")
    return names


def _score_activation(config: Fields, own: Fields) -> str | None:
    """A class of torch.nn, in one of the three places where there has been one; the path of one that is not known here.
    A class that is not torch's is passed over, as sentence-transformers does."""
    inner = config.get("sentence_transformers")
    places = [Fields(inner, "config.json: sentence_transformers").text("activation_fn", None) if inner else None,
              config.text("sbert_ce_default_activation_function", None), own.text("activation_fn", None)]
    path = next((place for place in places if place), None)
    if path is None or not path.startswith("torch."):
        return None
    return SCORE_ACTIVATIONS.get(path.rpartition(".")[2], path)


def _prompts(own: Fields) -> tuple[dict[str, str], str | None]:
    prompts = own.get("prompts") or {}
    if not isinstance(prompts, dict) or len(prompts) > MAX_PROMPTS \
            or not all(isinstance(text, str) for text in prompts.values()):
        own.wrong("prompts", "texts by name", prompts)
    default = own.text("default_prompt_name", None)
    if default is not None and default not in prompts:
        own.wrong("default_prompt_name", f"one of {', '.join(prompts) or 'no prompts'}", default)
    return dict(prompts), default


def _modules(files: Mapping[str, Any], spec: ModelSpec) -> tuple[tuple[str, ...], bool, tuple[DenseSpec | str, ...]]:
    """(pooling, whether prompts are pooled, steps). UnsupportedModelError for a module that is not implemented."""
    width = (spec.encoder or spec).hidden_size
    if MODULES not in files:
        if "1_Pooling/config.json" not in files:
            return (), True, ()
        return *_pooling(_config(files, "1_Pooling"), width), ()
    pooling: tuple[str, ...] = ()
    include_prompt, steps = True, []
    for number, (module, folder) in enumerate(zip(files[MODULES], module_folders(files[MODULES], ""), strict=True)):
        kind = module["type"]
        name = kind.rpartition(".")[2]
        if not kind.startswith("sentence_transformers."):
            raise UnsupportedModelError(f"{MODULES}: module {number} is {show(kind)}, the model's own Python code, "
                                        "which is not run; use a model without it")
        if (name == "Transformer" and number == 0) or name == "Dropout":
            continue
        if name == "Pooling" and number == 1:
            pooling, include_prompt = _pooling(_config(files, folder), width)
            width *= len(pooling)
        elif name == "Dense" and pooling:
            steps.append(_dense(_config(files, folder), folder, width))
            width = steps[-1].outputs
        elif name == "Normalize" and pooling:
            steps.append(NORMALIZE)
        else:
            raise UnsupportedModelError(f"{MODULES}: module {number} is {show(kind)}: making vectors through it is not "
                                        "implemented; use a model of transformer, pooling, dense layers and "
                                        "normalisation")
    return pooling, include_prompt, tuple(steps)


def _config(files: Mapping[str, Any], folder: str) -> Fields:
    """A module's settings. Without them a guess would give other vectors than the model's."""
    where = f"{folder}/config.json"
    if where not in files:
        raise ModelFileError(f"{where}: expected the settings of a module that {MODULES} lists, found no such file; "
                             "fetch the model again")
    return Fields(files[where], where)


def _pooling(fields: Fields, width: int) -> tuple[tuple[str, ...], bool]:
    """Older files have a flag for each kind, newer ones the names in `pooling_mode`."""
    found = fields.integer("word_embedding_dimension", "embedding_dimension", default=width)
    if found != width:
        fields.wrong("word_embedding_dimension", f"{width}, the width of the model's hidden states", found)
    names = fields.get("pooling_mode")
    if names is None:
        flags = [name for name, flag in _FLAGS.items() if fields.flag(f"pooling_mode_{flag}", False)]
        if not flags and not fields.flag("pooling_mode_mean_tokens", True):
            fields.wrong("pooling_mode_mean_tokens", "true, or another pooling that is", False)
        return tuple(flags) or ("mean",), fields.flag("include_prompt", True)
    listed = names if isinstance(names, list) else [names]
    if not 1 <= len(listed) <= len(POOLINGS) or not all(isinstance(name, str) for name in listed):
        fields.wrong("pooling_mode", "names of poolings", names)
    for name in listed:
        if name not in POOLING_NAMES:
            fields.unsupported("pooling_mode", f"a pooling outside {', '.join(POOLINGS)}")
    return tuple(POOLING_NAMES[name] for name in listed), fields.flag("include_prompt", True)


def _dense(fields: Fields, folder: str, width: int) -> DenseSpec:
    inputs, outputs = fields.integer("in_features"), fields.integer("out_features")
    if inputs != width:
        fields.wrong("in_features", f"{width}, the width of what comes before", inputs)
    if fields.text("module_input_name", "sentence_embedding") != "sentence_embedding" \
            or fields.text("module_output_name", "sentence_embedding") != "sentence_embedding":
        fields.unsupported("module_input_name", "a dense layer of other things than the text's vector")
    path = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    name = path.rpartition(".")[2]
    if not path.startswith("torch.") or name not in DENSE_ACTIVATIONS:
        fields.unsupported("activation_function", f"an activation outside {', '.join(DENSE_ACTIVATIONS)}")
    return DenseSpec(folder, inputs, outputs, fields.flag("bias", True), DENSE_ACTIVATIONS[name],
                     fields.flag("use_residual", False))
