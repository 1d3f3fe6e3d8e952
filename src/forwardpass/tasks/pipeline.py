"""From a diffusers directory to what draws: a denoiser, an autoencoder, a text encoder and a schedule of noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forwardpass.backends.native import NativeBackend
from forwardpass.models.denoiser import Denoiser
from forwardpass.models.network import Network
from forwardpass.weights.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Reads prompts. max_length: tokens of a prompt, its special ones included; what is longer is cut.

    how: "clip", a prompt is filled up with `pad_id` to max_length, and the rows of all tokens are its states; "t5",
    only real tokens are read.
    """

    network: Network
    tokenizer: Tokenizer
    max_length: int
    how: str
    pad_id: int


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """What a diffusers directory holds, ready to run.

    name: the pipeline's class;  autoencoder: None = the denoiser works on pixels;  text: None = the denoiser takes
    labels;  schedule: the values of the scheduler's config, for decoding/noise;  labels: a label's name -> its number,
    {} where the directory names none;  warnings: sentences for the user.

    dtype: as asked for;  stored: "component/target" -> bytes of that tensor, in the checkpoint's own format unless
    another dtype was asked for;  arithmetic: what most of the denoiser's weights are multiplied in;  weights_bytes: of
    all components in memory.
    """

    path: Path
    name: str
    dtype: str
    denoiser: Denoiser
    autoencoder: Any | None
    text: TextEncoder | None
    schedule: Mapping[str, Any]
    labels: Mapping[str, int]
    warnings: tuple[str, ...]
    stored: Mapping[str, int]
    arithmetic: str
    weights_bytes: int


def open_pipeline(path: Path, dtype: str, kv_dtype: str, backend: NativeBackend,
                  progress: Callable[[int, int], None] | None = None) -> OpenedPipeline:
    """Open a directory with a model_index.json. The arguments are those of tasks/opening.py's open_model.

    Raises ModelFileError, UnsupportedModelError or CapacityError; nothing stays open.
    """
    raise NotImplementedError
