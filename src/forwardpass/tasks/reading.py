"""What `Model` does with texts that are read and not continued: vectors, labels, entities, masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from forwardpass.contracts import Candidate, Entity
from forwardpass.tasks import classify, embed, fill_mask, tag
from forwardpass.tasks.abilities import require

Pairs = Sequence[str | tuple[str, str]]
Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


class Reading:
    """Methods of Model. Texts are packed without padding and shared out over steps by length; a text's result has the
    same bits alone and in any batch, and results come in the order of the texts.

    What all of them understand:
    truncation: the end at which a text with more tokens than the model reads is cut, "right" or "left", with a warning
        that says how much was; "error" refuses it. Default: what the tokenizer's files say, else "right".
    max_length: tokens of a text at most. Default: what the model's files say.
    pair_truncation: what is cut of a pair, "longest_first", "only_first" or "only_second".
    overlap: split what is too long into parts that have so many tokens in common, instead of cutting it.
    Special tokens written out in a text count as such. Each raises UnsupportedModelError if the model can't do the
    task, ParameterError for arguments that make no sense and ContextLengthError for texts that don't fit.
    """

    def embed(self, texts: Texts, *, pooling: str | Sequence[str] | None = None, normalize: bool | None = None,
              prompt: str | None = None, dimensions: int | None = None,
              output: str = "float32", truncation: str | None = None, max_length: int | None = None,
              overlap: int | None = None) -> np.ndarray:
        """Vectors float32 [texts, d]; a single text gives [1, d]. Texts may be token ids, which are read as they are:
        no tokens and no prompt are put before them.

        pooling: "mean", "cls", "last", "max", "mean_sqrt_len", "weightedmean", or several side by side. Default: as the
            model's files say; without any, "mean", for causal models "last", with a warning.
        normalize: vectors of length 1. Default: as the model's files say.
        prompt: a name out of config_sentence_transformers.json, or a text to put before each text ("query: ").
            Default: the prompt that the files name as such; "" = none.
        dimensions: only the first so many numbers, normalised again if vectors are.
        output: "float32", "int8" (each vector scaled to its greatest number, so only angles are kept) or "binary"
            (uint8 [texts, d / 8], a bit for each number that is above 0).
        overlap: a long text's vector is the mean of those of its parts, weighted by their tokens.
        """
        require(self, "embed")
        return embed.embed(self, texts, pooling=pooling, normalize=normalize, prompt=prompt, dimensions=dimensions,
                           output=output, truncation=truncation, max_length=max_length, overlap=overlap)[0]

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """float32 [n, m] of vectors [n, d] and [m, d], the greater the more alike: cosine unless the model's files name
        another ("dot", "euclidean" and "manhattan", distances with a minus). uint8 vectors are those of
        embed(output="binary"): bits that are set count as 1, others as -1."""
        return embed.similarity(self, vectors, others)

    def classify(self, texts: str | Pairs, *, top_k: int | None = None, activation: str | None = None,
                 truncation: str | None = None, pair_truncation: str = "longest_first", max_length: int | None = None
                 ) -> list[list[tuple[str, float]]]:
        """For each text a list of (label, score), best first; also for a single text. A text may be a pair (a, b).

        top_k: labels at most. activation: "softmax" (the scores of a text sum to 1), "sigmoid" (each label by itself)
            or "none". Default: by the config's problem_type; with one label sigmoid, or what a cross-encoder names.
        """
        require(self, "classify")
        return classify.classify(self, texts, top_k=top_k, activation=activation, truncation=truncation,
                                 pair_truncation=pair_truncation, max_length=max_length)

    def rerank(self, query: str, documents: str | Sequence[str], *, top_k: int | None = None,
               activation: str | None = None, template: str | None = None, truncation: str | None = None,
               pair_truncation: str = "longest_first", max_length: int | None = None) -> list[tuple[int, float]]:
        """(index, score) of documents by their relevance to the query, best first.

        activation: "sigmoid", "none" or "softmax". Default: what the model's files name, else sigmoid.
        template: for models that read one text instead of a pair: that text, with {query} and {document} in it.
            Special tokens in it count as such, those in query and documents do not; documents are what is cut.
        """
        require(self, "rerank")
        return classify.rerank(self, query, documents, top_k=top_k, activation=activation, template=template,
                               truncation=truncation, pair_truncation=pair_truncation, max_length=max_length)

    def zero_shot(self, text: str | Sequence[str], labels: str | Sequence[str], *,
                  hypothesis_template: str = "This example is {}.", multi_label: bool = False,
                  truncation: str | None = None, max_length: int | None = None
                  ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """(label, score) of any labels, best first, by a model of natural-language inference: how far the text entails
        the hypothesis made of each label (Yin et al. 2019). A list of texts gives a list of such lists.

        multi_label: score each label by itself, against contradiction, as a single label always is; otherwise the
            scores sum to 1.
        """
        require(self, "zero_shot")
        return classify.zero_shot(self, text, labels, hypothesis_template=hypothesis_template, multi_label=multi_label,
                                  truncation=truncation, max_length=max_length)

    def token_classify(self, text: str | Sequence[str], *, aggregation: str = "simple",
                       ignore: Collection[str] = ("O",), truncation: str | None = None, max_length: int | None = None,
                       overlap: int | None = None) -> list[Entity] | list[list[Entity]]:
        """Entities in a text, in order: label, score, start and end in characters, text. A list of texts gives lists.

        aggregation: "none", every token;  "simple", neighbouring tokens of one entity together;  "first", "average",
            "max": whole words, labelled by their first token, the mean of their tokens or the surest one, and
            neighbouring words of one entity together;  "words", each word by itself, by its first token.
        ignore: labels that are no entities.
        overlap: where parts overlap, a token is labelled in the part where more of the text is around it.
        """
        require(self, "token_classify")
        return tag.token_classify(self, text, aggregation=aggregation, ignore=ignore, truncation=truncation,
                                  max_length=max_length, overlap=overlap)

    def fill_mask(self, text: str | Sequence[str], *, top_k: int = 5, truncation: str | None = None,
                  max_length: int | None = None) -> list[list[Candidate]] | list[list[list[Candidate]]]:
        """For each mask in the text, in order, the top_k candidates, best first: token, score, token_id, and the text
        with the token in that place. A list of texts gives a list of such lists.

        Several masks are each guessed without knowing what stands in the others.
        """
        require(self, "fill_mask")
        return fill_mask.fill_mask(self, text, top_k=top_k, truncation=truncation, max_length=max_length)
