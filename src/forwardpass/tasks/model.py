"""`Model`: what `forwardpass.load` returns. Each method is one task; everything runs on the model's one engine."""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forwardpass import config
from forwardpass.backends.native import NativeBackend
from forwardpass.contracts import Hidden, Score
from forwardpass.engine import EncoderText, Engine
from forwardpass.errors import ParameterError
from forwardpass.quant.formats import DTYPES, KV_DTYPES, check_dtype
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.stages.preprocess import check_ids
from forwardpass.stages.project import project
from forwardpass.tasks.abilities import abilities, require
from forwardpass.tasks.answering import Answering
from forwardpass.tasks.generating import Generating
from forwardpass.tasks.loaded import Loaded
from forwardpass.tasks.opening import Opened, open_model
from forwardpass.tasks.reading import Reading
from forwardpass.tasks.seeing import Seeing
from forwardpass.tasks.texts import label_scores, reader, text_scores

if TYPE_CHECKING:
    from forwardpass.tasks.drawing import DrawingModel
    from forwardpass.tasks.pipeline import OpenedPipeline

KV_SHARE = 0.5
"""Part of the machine's free memory that the KV cache may grow to."""


def load(model: str | os.PathLike[str], *, dtype: str = "auto", kv_dtype: str = "auto", threads: int | None = None,
         device: str = "cpu", progress=None) -> Model | DrawingModel:
    """Load a model and return it ready to answer, or ready to draw if it is a diffusion pipeline.

    model:    a path (GGUF file, Hugging Face or diffusers directory, packed file), a name of the catalogue (fetched if
              absent) or "hf:org/name"
    dtype:    "auto" (as stored), "float32" (the reference mode), "bfloat16", "int4", or eight-bit weights with fifteen-
              or eight-bit activations: "w8a16", "w8a8"; "int8" is the first for models that generate, else the second
    kv_dtype: "auto" (float32 in the reference mode, int8 where a model in w8a8 reads images or draws, else bfloat16),
              "float32", "bfloat16" or "int8"
    threads:  worker threads; None = FORWARDPASS_THREADS, else the CPUs this process may use
    device:   "cpu"
    progress: called as progress(what, done bytes, total bytes) while something long runs

    Raises ModelFileError, UnsupportedModelError, ParameterError or FetchError; nothing stays behind.
    """
    if device != "cpu":
        raise ParameterError(f'device must be "cpu", not {device!r}')
    return model_of(open_named(model, dtype, kv_dtype, lambda: NativeBackend(thread_count(threads)), progress))


def open_named(model: str | os.PathLike[str], dtype: str, kv_dtype: str, backend: Callable[[], NativeBackend],
               progress=None) -> Opened | OpenedPipeline:
    """A model in memory. The arguments are those of load(); backend: called once they are known to be right."""
    from forwardpass import catalog

    check_dtype("dtype", dtype, DTYPES)
    check_dtype("kv_dtype", kv_dtype, KV_DTYPES)
    path = Path(catalog.resolve(model, progress))
    packing = None if progress is None else lambda done, total: progress("packing", done, total)
    collecting = gc.isenabled()
    gc.disable()  # a vocabulary is a hundred thousand strings and no garbage: looking for some takes a third of a load
    try:
        if (path / "model_index.json").is_file():
            from forwardpass.tasks.pipeline import open_pipeline  # programs that only read and write texts do without

            return open_pipeline(path, dtype, kv_dtype, backend(), packing)
        return open_model(path, dtype, kv_dtype, backend(), packing)
    finally:
        if collecting:
            gc.enable()


def model_of(opened: Opened | OpenedPipeline, budget: SharedBudget | None = None) -> Model | DrawingModel:
    """A model with its engine. budget: of several models (see Engine); None = this one is alone."""
    if isinstance(opened, Opened):
        return Model(opened, budget)
    from forwardpass.tasks.drawing import DrawingModel

    return DrawingModel(opened, budget)


def thread_count(threads: int | None) -> int:
    """Workers to use: never more than the CPUs this process may run on."""
    usable = config.usable_cpus()
    wanted = threads if threads is not None else config.threads()
    if wanted is None:
        return usable
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ParameterError(f"threads must be a whole number of at least 1, not {wanted!r}")
    return min(wanted, usable)


class Model(Loaded, Generating, Reading, Seeing, Answering):
    """A loaded model. May be used from several threads: their requests share steps.

    tokenizer: text to ids and back (None if the checkpoint has none);  spec: the model as data;
    facts: what stage 5 knows of its tokens;  network: stages 2 to 4;  tasks: which of the methods here it can do;
    settings: what its files say of labels and vectors;  dense: layers behind the pooling of vectors;
    generation: what its files say of generation.
    """

    def __init__(self, opened: Opened, budget: SharedBudget | None = None):
        """budget: of the KV caches of several models (see Engine); None = half of the memory that is free, for itself.
        """
        self.path = opened.path
        self.spec = opened.network.spec
        self.tokenizer = opened.tokenizer
        self.dtype = opened.dtype
        self.kv_dtype = opened.network.kv_dtype
        self.warnings = opened.warnings
        self.stored_bytes = opened.stored
        self.arithmetic = opened.arithmetic
        self.network = opened.network
        self.facts = opened.facts
        self.settings = opened.settings
        self.dense = opened.dense
        self.generation = opened.generation
        self.tasks = abilities(self.spec, self.settings, self.tokenizer, self.generation)
        self.told: set[str] = set()  # what the user has been warned of once and for all
        blocks = _kv_blocks(opened.network) if budget is None else None
        self._engine = Engine(opened.network, opened.facts, opened.tokenizer, blocks, budget)
        for sentence in opened.warnings:
            warnings.warn(sentence, stacklevel=4)

    # ---- tasks

    def logits(self, token_ids: Sequence[int], token_types: Sequence[int] | None = None, *,
               source_ids: Sequence[int] | None = None) -> np.ndarray:
        """float32 [tokens, vocab]: row i is what the model says after tokens 0..i, a masked language model what it says
        of token i. Of a head with labels float32 [1, labels], or [tokens, labels] if tokens have them; raw scores.
        No tokens are added. token_types: the segment of each token, for models that tell them apart.
        source_ids: what the encoder of an encoder-decoder reads; token_ids are then those of the answer.
        """
        require(self, "logits")
        head = self.spec.head.task
        if head == "labels" and self.spec.encoder:
            _no_source(source_ids)
            return text_scores(self, [EncoderText(check_ids(token_ids, self.spec.vocab_size))])[0][None]
        if head != "lm":
            _no_source(source_ids)
            return self._read(token_ids, token_types, lambda hidden: label_scores(self, hidden))
        if token_types is not None:
            _no_source(source_ids)
            return self._read(token_ids, token_types, lambda hidden: project(
                self.network, hidden, np.arange(len(hidden.values), dtype=np.int32)).values)
        return self._rows(token_ids, self.spec.vocab_size, logits=True, source_ids=source_ids)

    def hidden_states(self, token_ids: Sequence[int], token_types: Sequence[int] | None = None, *,
                      source_ids: Sequence[int] | None = None) -> np.ndarray:
        """float32 [tokens, hidden_size] after the final norm. No tokens are added. The arguments are those of `logits`;
        an encoder-decoder without source_ids gives the states of its encoder."""
        require(self, "hidden_states")
        if token_types is not None or (self.spec.encoder and source_ids is None):
            _no_source(source_ids)
            return self._read(token_ids, token_types, lambda hidden: hidden.values.copy())
        return self._rows(token_ids, self.spec.hidden_size, logits=False, source_ids=source_ids)

    def score(self, text: str | Sequence[int], *, source: str | Sequence[int] | None = None) -> Score:
        """How likely the model finds a text. The first token has nothing before it and is not scored.

        source: what an encoder-decoder reads (text or ids); all of `text` is then scored as the answer to it, a str
            with its end token.
        """
        require(self, "score")
        if (source is None) == (self.spec.encoder is not None):
            raise ParameterError("score of an encoder-decoder is that of an answer: give source=, what it answers to"
                                 if source is None else "this model has no encoder: source must be None")
        (ids, *more), single = self._prompts(text)
        source_ids = None
        if source is not None:
            source_ids, ids = self._ids(source), [self.facts.start_id, *ids]
            self._check_source(source_ids)
        if more or not single:
            raise ParameterError("score takes one text; call it once for each")
        if len(ids) < 2:
            raise ParameterError("score needs a text of at least two tokens: the first is not scored")
        self._check_length(ids, 0)
        targets = np.asarray(ids[1:])
        total = 0.0

        def add(first: int, rows: np.ndarray) -> None:
            nonlocal total
            for row, target in zip(rows, targets[first : first + len(rows)], strict=False):
                peak = float(row.max())
                total += float(row[target]) - peak - math.log(float(np.exp(row - peak).sum(dtype=np.float64)))

        self.engine.forward(ids, add, source_ids=source_ids)
        count = len(ids) - 1
        return Score(total, math.exp(min(-total / count, 700.0)), count)

    def draw(self, prompt: Any, **params: Any):
        """Pictures: see DrawingModel.draw, which load() gives for a diffusion pipeline. No other model can."""
        require(self, "draw")

    def explain(self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], **params: Any):
        """Answer, and report where the time went: by stage and operation, against this machine's limits.

        prompt: text or token ids as for generate(), or a conversation as for chat(). Models that generate nothing label
            the text or pair, or make a vector of it; of token ids they give the hidden states.
        """
        from forwardpass.explain.report import explain

        return explain(self, prompt, params)

    # ---- life

    def close(self) -> None:
        """End all requests and free the model's memory. Closing twice is harmless."""
        super().close()
        self.network = None

    def __repr__(self) -> str:
        return f"<forwardpass.Model {self.path.name}: {self.spec.family}, {len(self.spec.layers)} layers, {self.dtype}>"

    # ---- helpers

    def _read(self, token_ids: Sequence[int], types: Sequence[int] | None, each: Callable[[Hidden], np.ndarray]
              ) -> np.ndarray:
        """What `each` makes of one whole text's hidden states."""
        ids = check_ids(token_ids, reader(self.spec).vocab_size)
        return self.engine.encode([EncoderText(ids, types)], lambda hidden: [each(hidden)])[0]

    def _rows(self, token_ids: Sequence[int], width: int, *, logits: bool, source_ids: Sequence[int] | None
              ) -> np.ndarray:
        ids = check_ids(token_ids, self.spec.vocab_size)
        self._check_length(ids, 0)
        out = np.empty((len(ids), width), np.float32)

        def store(first: int, rows: np.ndarray) -> None:
            out[first : first + len(rows)] = rows

        self.engine.forward(ids, store, logits=logits, source_ids=source_ids)
        return out


def _no_source(source_ids: Sequence[int] | None) -> None:
    """Of texts that are read whole, which no token of an answer follows."""
    if source_ids is not None:
        raise ParameterError("source_ids belong to the tokens of an encoder-decoder's answer; here is no answer: leave "
                             "them out")


def _kv_blocks(network) -> int:
    """Blocks of all layers that fit into half of the memory that is free now. Only those in use take memory."""
    each = sum(network.block_bytes())
    return max(1, int(config.available_memory() * KV_SHARE) // each) if each else 0  # an encoder caches nothing
