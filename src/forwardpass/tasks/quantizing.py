"""Packing a model into one file of our own, which loads anywhere without any other file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from forwardpass.backends.native import NativeBackend
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.models import packed_model, registry
from forwardpass.models.loading import load_weights
from forwardpass.models.task_settings import read_task_settings
from forwardpass.quant.formats import DTYPES, check_dtype
from forwardpass.tasks.opening import open_source, read_dense, read_task_files, read_tokenizer, stored_bytes
from forwardpass.weights import packed_file
from forwardpass.weights.diffusers_folder import INDEX
from forwardpass.weights.folder import folder_files
from forwardpass.weights.sentence_transformers import transformer_folder


def check_target(source: Path, out: Path, force: bool) -> None:
    """Raises ParameterError where `out` must not or cannot be written, UnsupportedModelError for what has no packed
    form."""
    if (source / INDEX).is_file():
        raise UnsupportedModelError(f"{source} is a pipeline of several models, which one packed file cannot hold; "
                                    "load it with a dtype: what that makes of its weights is kept in the cache")
    if out.is_dir():
        raise ParameterError(f"{out} is a folder; name the file to write, for example {out / (source.stem + '.fpk')}")
    if not out.parent.is_dir():
        raise ParameterError(f"there is no folder {out.parent}; create it first")
    if out.exists():
        files = folder_files(transformer_folder(source)) if source.is_dir() else [source]
        if any(os.path.samefile(file, out) for file in files):
            raise ParameterError(f"{out} belongs to the model that is to be packed; name another file")
        if not force:
            raise ParameterError(f"{out} exists; name another file, or pass --force to replace it")


def quantize(source: Path, out: Path, dtype: str, threads: int, *, force: bool = False,
             progress: Callable[[str, int, int], None] | None = None) -> int:
    """Write the model at `source` (GGUF file or Hugging Face directory) to `out`, its weights as `dtype`; loading `out`
    then gives what loading `source` with that dtype gives, bit for bit. Returns the bytes written.

    progress: called as progress(what, done bytes, all bytes). `out` is replaced as a whole or not touched.
    Raises ParameterError, ModelFileError or UnsupportedModelError.
    """
    check_dtype("dtype", dtype, DTYPES)
    check_target(source, out, force)
    if packed_file.is_packed(source):
        raise ParameterError(f"{source} is packed already; name the model that it was made from")

    def step(what: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(what, done, total)

    checkpoint_source, settings = open_source(source)
    with checkpoint_source:
        checkpoint = registry.read(checkpoint_source, settings.values if settings else None)
        tokenizer = read_tokenizer(source, checkpoint_source)
        files = read_task_files(source, checkpoint_source, settings)
        dense = read_dense(source, read_task_settings(files, checkpoint.spec))
        backend = NativeBackend(threads)
        arena = load_weights(checkpoint, checkpoint_source, dtype, backend, progress=step("packing"))
    try:
        packed_model.write(out, arena, spec=checkpoint.spec, dtype=dtype,
                           tokenizer=None if tokenizer is None else tokenizer.to_json(),
                           generation=settings.generation if settings else {},
                           eos_token_ids=settings.eos_token_ids if settings else (),
                           stored=stored_bytes(checkpoint, arena, dtype), threads=threads, files=files, dense=dense,
                           progress=step("writing"))
        return out.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{out}: the file could not be written: {error.strerror or error}; make room, or name "
                             "another place") from None
