"""From a path on this machine to a model ready to run: files read and checked, weights packed, tokenizer built."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forwardpass import config
from forwardpass.backends.native import ARITHMETIC, FORMATS, NativeBackend
from forwardpass.decoding.params import TokenFacts
from forwardpass.decoding.stops import union_of_end_ids
from forwardpass.errors import ForwardpassError, ParameterError
from forwardpass.models import costs, registry
from forwardpass.models.blocks import Weights
from forwardpass.models.hf_config import HfConfig, read_config
from forwardpass.models.hf_generation import decoder_start
from forwardpass.models.loading import Arena, load_weights
from forwardpass.models.network import Network
from forwardpass.models.packed_model import open_packed
from forwardpass.models.spec import ModelSpec
from forwardpass.models.task_settings import TaskSettings, read_task_settings
from forwardpass.quant.formats import kv_dtype_for, kv_dtype_in_passes
from forwardpass.tasks.dense import Dense
from forwardpass.weights import packed, packed_file
from forwardpass.weights.folder import folder_files, open_folder
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.gguf_parts import gguf_files
from forwardpass.weights.sentence_transformers import dense_arrays, gguf_task_files, task_files, transformer_folder
from forwardpass.weights.source import Source
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import has_tokenizer, tokenizer_from_directory, tokenizer_from_gguf

KEPT_VOCABULARY = 10_000
"""Tokens from which on a vocabulary is worth a file of its own in the cache."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model in memory. dtype: as asked for, or as a packed model was packed;  warnings: sentences for the user.

    stored: target -> bytes of that tensor, in the checkpoint's own format unless another dtype was asked for;
    arithmetic: "int8", "bfloat16" or "float32", what most weights are multiplied in;  weights_bytes: in memory;
    settings: how it makes vectors and what its labels are called;  dense: its dense layers behind the pooling.
    """

    path: Path
    dtype: str
    network: Network
    tokenizer: Tokenizer | None
    facts: TokenFacts
    generation: Mapping[str, Any]
    stored: Mapping[str, int]
    arithmetic: str
    warnings: tuple[str, ...]
    settings: TaskSettings
    dense: tuple[Dense, ...]
    weights_bytes: int

    @property
    def spec(self) -> ModelSpec:
        return self.network.spec


def open_source(path: Path) -> tuple[Source, HfConfig | None]:
    """The checkpoint's tensors, and its config where that is a file of its own. The caller closes the source."""
    if path.is_dir():
        inner = transformer_folder(path)
        settings = read_config(inner)
        return open_folder(inner, settings.values), settings
    return open_gguf(path), None


def read_task_files(path: Path, source: Source, config: HfConfig | None) -> dict[str, Any]:
    """What the files of a model say about its tasks, for read_task_settings."""
    return task_files(path, config.values) if config else gguf_task_files(source.metadata)


def read_dense(path: Path, settings: TaskSettings) -> dict[str, np.ndarray]:
    """The arrays of dense layers behind the pooling, by the names of TaskSettings.dense_shapes."""
    found: dict[str, np.ndarray] = {}
    for i, one in enumerate(settings.dense):
        arrays = dense_arrays(path, one.folder, one.inputs, one.outputs, one.bias, one.residual)
        found |= {f"dense.{i}.{name}": array for name, array in arrays.items()}
    return found


def _dense(backend: NativeBackend, settings: TaskSettings, arrays: Mapping[str, np.ndarray]) -> tuple[Dense, ...]:
    layers = []
    for i, one in enumerate(settings.dense):
        start = f"dense.{i}."
        layers.append(Dense(backend, one, {name.removeprefix(start): array for name, array in arrays.items()
                                           if name.startswith(start)}))
    return tuple(layers)


def read_tokenizer(path: Path, source: Source) -> Tokenizer | None:
    """The model's tokenizer, or None if a directory holds none: token ids can be used all the same."""
    if not path.is_dir():
        return tokenizer_from_gguf(source.metadata)
    path = transformer_folder(path)
    return tokenizer_from_directory(path) if has_tokenizer(path) else None


def _tokenizer(path: Path, source: Source, cache: Path, key: str) -> Tokenizer | None:
    """`read_tokenizer`; a large GGUF vocabulary is kept in the form that loads fastest."""
    if path.is_dir():
        return read_tokenizer(path, source)
    kept = packed.read_text(cache, key)
    if kept is not None:
        try:
            return Tokenizer.from_json(kept)
        except ForwardpassError:
            pass  # of another version, or damaged: made anew
    tokenizer = tokenizer_from_gguf(source.metadata)
    if tokenizer.vocab_size >= KEPT_VOCABULARY:
        packed.write_text(cache, key, tokenizer.to_json())
    return tokenizer


def open_model(path: Path, dtype: str, kv_dtype: str, backend: NativeBackend,
               progress: Callable[[int, int], None] | None = None) -> Opened:
    if packed_file.is_packed(path):
        return _open_packed(path, dtype, kv_dtype, backend, progress)
    source, settings = open_source(path)
    with source:
        checkpoint = registry.read(source, settings.values if settings else None)
        task_settings = read_task_settings(read_task_files(path, source, settings), checkpoint.spec)
        arrays = read_dense(path, task_settings)
        key = packed.source_key(folder_files(transformer_folder(path)) if path.is_dir() else gguf_files(path),
                                dtype)
        cache = config.cache_dir()
        tokenizer, arena = _both(
            lambda: _tokenizer(path, source, cache, key),
            lambda: load_weights(checkpoint, source, dtype, backend, cache, key, progress),
        )
    weights = arena.weights()
    network = Network(checkpoint.spec, weights, backend, _kv_dtype(checkpoint.spec, dtype, kv_dtype))
    generation = settings.generation if settings else {}
    facts = _facts(checkpoint.spec, tokenizer, settings.eos_token_ids if settings else (), generation)
    return Opened(path, dtype, network, tokenizer, facts, generation, stored_bytes(checkpoint, arena, dtype),
                  arithmetic(weights), checkpoint.warnings, task_settings, _dense(backend, task_settings, arrays),
                  arena.nbytes)


def _kv_dtype(spec: ModelSpec, dtype: str, kv_dtype: str) -> str:
    return (kv_dtype_in_passes if spec.patches else kv_dtype_for)(dtype, kv_dtype)


def stored_bytes(checkpoint: registry.Checkpoint, arena: Arena, dtype: str) -> dict[str, int]:
    """Target -> bytes of that tensor, in the checkpoint's own format unless another dtype was asked for."""
    stored = costs.stored_bytes(checkpoint.weights)
    return stored if dtype == "auto" else stored | {one.bound.target: one.nbytes for one in arena.places}


def _open_packed(path: Path, dtype: str, kv_dtype: str, backend: NativeBackend,
                 progress: Callable[[int, int], None] | None) -> Opened:
    model = open_packed(path)
    if dtype not in ("auto", model.dtype):
        raise ParameterError(f"{path} was packed with dtype {model.dtype!r} and cannot become {dtype!r}; leave dtype "
                             "out, or load the model it was made from")
    text = model.tokenizer_text()
    tokenizer, arena = _both(lambda: None if text is None else Tokenizer.from_json(text),
                             lambda: model.read(backend, progress))
    weights = arena.weights()
    network = Network(model.spec, weights, backend, _kv_dtype(model.spec, model.dtype, kv_dtype))
    facts = _facts(model.spec, tokenizer, model.eos_token_ids, model.generation)
    return Opened(path, model.dtype, network, tokenizer, facts, model.generation, model.stored, arithmetic(weights), (),
                  model.settings, _dense(backend, model.settings, arena.vectors), arena.nbytes)


def arithmetic(weights: Weights) -> str:
    """"int8", "bfloat16" or "float32", what most weights are multiplied in."""
    sizes: Counter[str] = Counter()
    for matrix in weights.matrices.values():
        sizes[ARITHMETIC[FORMATS[matrix.format]]] += matrix.n * matrix.k
    return sizes.most_common(1)[0][0]


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Run both, the second in a thread: reading weights leaves the interpreter free to build the tokenizer."""
    result: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(second())
        except BaseException as problem:
            error.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        one = first()
    finally:
        thread.join()
    if error:
        raise error[0]
    return one, result[0]


def _facts(spec: ModelSpec, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...],
           generation: Mapping[str, Any]) -> TokenFacts:
    ends = [eos_token_ids, tokenizer.eos_token_ids if tokenizer else None]
    size = min(spec.vocab_size, tokenizer.vocab_size) if tokenizer else spec.vocab_size
    return TokenFacts(
        vocab_size=size,
        end_ids=union_of_end_ids(*ends, vocab_size=size),
        special_ids=tokenizer.special_ids if tokenizer else frozenset(),
        unk_id=tokenizer.unk_token_id if tokenizer else None,
        pad_id=tokenizer.pad_token_id if tokenizer else None,
        start_id=decoder_start(generation, spec.vocab_size) if spec.encoder else None,
    )
