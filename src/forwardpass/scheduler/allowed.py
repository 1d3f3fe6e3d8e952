"""What an engine can be asked: whatever would make a step fail for everybody is refused before it is queued."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forwardpass.cache.tables import KvCache
from forwardpass.contracts import EncoderImage, EncoderText
from forwardpass.errors import CapacityError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.reading import Given, checked, checked_image
from forwardpass.scheduler.texts import Text


class Allowed:
    """network: the model;  cache: what its texts must fit into, each by itself."""

    def __init__(self, network, cache: KvCache):
        self.network = network
        self.cache = cache
        self._reader = (network.encoder or network).spec if network.spec.causal else network.spec

    def generates(self) -> None:
        """Raises UnsupportedModelError for models that don't."""
        spec = self.network.spec
        if not spec.causal or spec.head.task != "lm":
            raise UnsupportedModelError("this model reads texts but has no next tokens; use one that generates")

    def source(self, ids: Sequence[int] | None) -> Text | None:
        """What an encoder-decoder answers to, for which there must be room."""
        if (ids is None) != (self.network.encoder is None):
            raise ParameterError("this model answers to a source: give source_ids" if ids is None else
                                 "this model is no encoder-decoder: source_ids must be None")
        return None if ids is None else Text(self.text(0, EncoderText(ids))[0])

    def given(self, texts: Sequence[EncoderText | EncoderImage]) -> list[Given]:
        """What is to be read: texts or images, not both. Raises what `text` and `image` do."""
        kinds = {isinstance(one, EncoderImage) for one in texts}
        if len(kinds) > 1:
            raise ParameterError("texts and images have different vectors: read them in two calls")
        one = self.image if True in kinds else self.text
        return [one(number, each) for number, each in enumerate(texts)]

    def image(self, number: int, image: EncoderImage) -> Given:
        """An image that is read. Raises what `checked_image` does, UnsupportedModelError where nothing reads images."""
        spec = self.network.spec.images
        if spec is None:
            raise UnsupportedModelError("this model reads texts, not images; use one that sees, such as a ViT or CLIP")
        return checked_image(number, image, spec)

    def text(self, number: int, text: EncoderText) -> Given:
        """The tokens and types of a text that is read, for which there must be room. Raises what `checked` does."""
        if self._reader.patches:
            raise UnsupportedModelError("this model reads images, not texts; use one that reads texts")
        ids, types, _ = checked(number, text, self._reader)
        if self.cache.sources is not None and self.cache.sources.need(ids.size) > self.cache.size:
            raise CapacityError(f"text {number} needs {ids.size} positions of KV cache for its source, which is more "
                                "than there is; shorten the text")
        if self._reader is self.network.spec and self._reader.causal:
            self.room(ids.size, f"text {number}", "shorten the text")
        return ids, types, None

    def behind(self, given: list[Given], begin: int) -> tuple[list[Given], list[Text]]:
        """(texts for the decoder, their sources) of texts that an encoder-decoder reads twice: its decoder from `begin`
        on and without the last token."""
        sources = [Text(one[0]) for one in given]
        for number, source in enumerate(sources):
            self.room(len(source), f"text {number}", "shorten the text", source)
        return [(np.concatenate([[begin], one[0][:-1]]).astype(np.int32), None, None) for one in given], sources

    def room(self, positions: int, what: str, advice: str, source: Text | None = None, beams: int = 1) -> None:
        """Raises CapacityError for what can never fit. beams: so many texts must fit at the same time, since they wait
        for one another."""
        left = (self.cache.size - (self.cache.sources.need(len(source)) if source else 0)) // beams
        if self.cache.need(positions) > left:
            each = f" for each of {beams} beams" if beams > 1 else ""
            beside = f" beside its source of {len(source)} tokens" if source else ""
            raise CapacityError(f"{what} needs {positions} positions of KV cache{each}{beside}; the engine has room "
                                f"for {self.cache.room(positions, left)}; {advice}")
