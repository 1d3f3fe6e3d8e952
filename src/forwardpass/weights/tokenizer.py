"""A vocabulary and everything the model files say about it, around a `tokenizers` object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError, ParameterError
from .languages import Languages
from .recipes import SPACE, Recipe, add_tokens, recipe_from_dict, recipe_to_dict

LONG = 2000
"""Characters from which on a text is encoded as a batch of one: only then does the library let other threads run."""



@dataclass(frozen=True)
class VocabularyFacts:
    """What the model files say beside the vocabulary itself. Ids are None where the files name none.

    eos_token_ids: every token that the tokenizer's own files call an end of text or of a turn
    variables:     strings a chat template may use (bos_token, eos_token, ...)
    middle_ids:    tokens for filling in a middle, by role (prefix, suffix, middle, pad, repo, file)
    truncation_side: where a text that is too long is cut unless the caller says otherwise, "right" or "left"
    languages:     of a model that translates
    vocab_size:    rows of the vocabulary, holes included
    """

    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    chat_template: str | None = None
    model_max_length: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    middle_ids: Mapping[str, int] = field(default_factory=dict)
    truncation_side: str = "right"
    languages: Languages | None = None


class Tokenizer:
    """Text to ids and back. Safe to use from several threads.

    `backend` is the `tokenizers.Tokenizer` beneath. `special_ids` are the tokens that mark structure and are not text.
    `prefix_ids` and `suffix_ids` are what `add_special_tokens=True` puts around a text, so `add_bos` is
    `bos_token_id in prefix_ids`.
    """

    def __init__(self, backend: Backend, facts: VocabularyFacts, recipe: Recipe | None = None) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.facts = facts
        self._recipe = recipe
        self.vocab_size = facts.vocab_size
        self.bos_token_id = facts.bos_token_id
        self.eos_token_ids = facts.eos_token_ids
        self.eos_token_id = facts.eos_token_ids[0] if facts.eos_token_ids else None
        self.unk_token_id = facts.unk_token_id
        self.pad_token_id = facts.pad_token_id
        self.chat_template = facts.chat_template
        self.model_max_length = facts.model_max_length
        self.truncation_side = facts.truncation_side
        self.template_variables = dict(facts.variables)
        self.languages = facts.languages
        self._added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self._cut_decoder()
        self._bytes: dict[int, bytes] = {}

    # -- text to ids

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """Ids of `text`.

        add_special_tokens: put the model's own tokens around it (BOS, [CLS] ...); a text that already begins with BOS
            gets no second one.
        parse_special: special tokens written out in the text become those tokens; False encodes them as plain text.
        """
        backend = self.backend if parse_special else self.plain_backend
        ids = _encode(backend, text, add_special_tokens).ids
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id and self.add_bos:
            del ids[0]
        return ids

    def encode_batch(self, texts: Sequence[str | tuple[str, str]], *, offsets: bool = False, first: int = 0
                     ) -> list[Encoding]:
        """Texts or pairs of texts as the model reads them whole, with special tokens around them and in them.

        An Encoding has ids, type_ids and sequence_ids (which of the two texts a token is of; None: of neither), and if
        `offsets` also offsets (characters of its text) and word_ids. Threads share a long list. Raises ParameterError
        for what is not text. first: the number of the first text, for errors.
        """
        if len(texts) == 1 and not first:  # waking up threads takes longer than a short text
            return [_encode(self.backend, texts[0], True)]
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        try:
            return encode(list(texts), add_special_tokens=True)
        except BaseException as error:
            if not isinstance(error, Exception) and not _panic(error):
                raise
            for number, text in enumerate(texts, first):
                try:
                    _encode(self.backend, text, True)
                except ParameterError as problem:
                    raise ParameterError(f"text {number}: {problem}") from None
            raise

    @cached_property
    def mask_token_id(self) -> int | None:
        """The token that stands for one to be guessed: what the files call so, else the usual names of one."""
        named = self.template_variables.get("mask_token")
        for text in (named, "[MASK]", "<mask>"):
            found = None if text is None else self.token_to_id(text)
            if found is not None and (text == named or found in self.special_ids):
                return found
        return None

    def _cut(self, text: str, parse_special: bool) -> Encoding:
        """The text alone, as the library cuts it."""
        return _encode(self.backend if parse_special else self.plain_backend, text, False)

    def special_spans(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, id) of every special token written out in `text`, in order; counted in characters."""
        encoding = _encode(self.backend, text, False)
        written = {i: token.content for i, token in self._added.items() if token.special}
        # An unknown character also becomes a special token, but is not written like one.
        return [
            (start, end, i)
            for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if i in written and written[i] in text[start:end]
        ]

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """How the special tokens are written, by id."""
        return tuple(token.content for i, token in sorted(self._added.items()) if token.special and token.content)

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """Special tokens that are never text of an answer to a source: where a text begins or ends, padding, what is
        unknown, which language it is in. T5's tokens for gaps are not among them: an answer that fills gaps names them.
        """
        named = (self.token_to_id(text) for role, text in self.template_variables.items() if role.endswith("_token"))
        others = (self.bos_token_id, self.unk_token_id, self.pad_token_id, *self.eos_token_ids)
        said = self.languages is not None and self.languages.target_place in ("first", "start")
        languages = self.languages.tokens.values() if said else ()
        return self.special_ids & {*named, *others} | {*languages}

    @cached_property
    def plain_backend(self) -> Backend:
        """The same vocabulary, deaf to special tokens. It shares the model, so it costs next to nothing."""
        plain = Backend(self.backend.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            if (value := getattr(self.backend, part)) is not None:
                setattr(plain, part, value)
        add_tokens(plain, [token for _, token in sorted(self._added.items())])
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _wrapping(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        encoding = _encode(self.backend, "a", True)
        mask = encoding.special_tokens_mask
        opening = next((i for i, special in enumerate(mask) if not special), len(mask))
        closing = next((i for i, special in enumerate(reversed(mask)) if not special), 0)
        return tuple(encoding.ids[:opening]), tuple(encoding.ids[len(mask) - closing :])

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return self._wrapping[0]

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        return self._wrapping[1]

    @property
    def add_bos(self) -> bool:
        return self.bos_token_id is not None and self.bos_token_id in self.prefix_ids

    @property
    def add_eos(self) -> bool:
        return any(i in self.eos_token_ids for i in self.suffix_ids)

    # -- ids to text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids the vocabulary does not know are nothing."""
        ids = [int(i) for i in ids]
        if not self.decodes_bytes:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        if skip_special_tokens:
            ids = [i for i in ids if i not in self.special_ids]
        parts = [self.token_bytes(i) for i in ids]
        if parts and self.drops_first_space == "token":
            parts[0] = parts[0].replace(b" ", b"")
        text = b"".join(parts).decode("utf-8", "replace")
        return text[1:] if self.drops_first_space == "text" and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; b"" for an id outside the vocabulary. Only where `decodes_bytes`."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._make_bytes(token_id)
        return found

    def _make_bytes(self, token_id: int) -> bytes:
        if (added := self._added.get(token_id)) is not None:
            return (added.content if self._byte_level else added.content.replace(SPACE, " ")).encode()
        token = self.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            try:
                return bytes([BYTE_OF[char] for char in token])
            except KeyError:
                return token.encode()
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace(SPACE, " ").encode()

    def _cut_decoder(self) -> None:
        """Find out whether each token stands for fixed bytes, as it does for every generating family."""
        decoder = self.backend.decoder
        parts = [] if decoder is None else _flat(json.loads(decoder.__getstate__()))
        kinds = [part["type"] for part in parts]
        self._byte_level = kinds == ["ByteLevel"]
        self._byte_fallback = "ByteFallback" in kinds
        self.drops_first_space = ""
        known = self._byte_level
        if kinds == ["Metaspace"] and parts[0].get("replacement") == SPACE:
            known = True
            if parts[0].get("prepend_scheme", "always") != "never":
                self.drops_first_space = "token"
        elif kinds[:1] == ["Replace"] and set(kinds[1:]) <= {"ByteFallback", "Fuse", "Strip"}:
            strips = [part for part in parts if part["type"] == "Strip"]
            known = parts[0].get("pattern") == {"String": SPACE} and parts[0].get("content") == " "
            known = known and strips in ([], [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])
            self.drops_first_space = "text" if strips else ""
        self.decodes_bytes = known

    # -- tokens

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self.backend.id_to_token(int(token_id)) if 0 <= token_id < 2**32 else None

    # -- the form a packed model keeps

    def to_json(self) -> str:
        """Everything needed to build this tokenizer again, faster than from the model's files."""
        header = self._header()
        if self._recipe is None:
            return json.dumps(header) + "\n" + self.backend.to_str()
        recipe = json.dumps(recipe_to_dict(self._recipe), ensure_ascii=False)
        return json.dumps(header | {"recipe": True}) + "\n" + recipe

    def _header(self) -> dict:
        facts = {**vars(self.facts), "variables": dict(self.facts.variables)}
        facts["middle_ids"] = dict(self.facts.middle_ids)
        facts["languages"] = None if self.languages is None else asdict(self.languages)
        return {"facts": facts}

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote. Raises ModelFileError for anything else."""
        try:
            head, body = text.split("\n", 1)
            header = json.loads(head)
            facts = header["facts"]
            facts["eos_token_ids"] = tuple(facts["eos_token_ids"])
            if facts.get("languages") is not None:
                facts["languages"] = Languages(**facts["languages"])
            if "tokens" in header:
                from .renumbered import Renumbered  # a Tokenizer itself

                return Renumbered(backend_from_json(body), VocabularyFacts(**facts), header["tokens"],
                                  header["spelled"])
            if not header.get("recipe"):
                return cls(backend_from_json(body), VocabularyFacts(**facts))
            recipe = recipe_from_dict(json.loads(body))
            return cls(recipe.build(), VocabularyFacts(**facts), recipe)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ModelFileError(f"the stored tokenizer is damaged ({error}); delete the packed file.") from error


def backend_from_json(text: str) -> Backend:
    """A `tokenizers` object from the text of a tokenizer.json. Raises ModelFileError."""
    try:
        return Backend.from_str(text)
    except BaseException as error:
        if isinstance(error, Exception) or _panic(error):
            raise ModelFileError(f"tokenizer.json is not a tokenizer this library can read: {error}") from error
        raise


def _panic(error: BaseException) -> bool:
    """The library panics on some damaged files, and a panic is not an Exception."""
    return type(error).__name__ == "PanicException"


def _encode(backend: Backend, text: str | tuple[str, str], add_special_tokens: bool) -> Encoding:
    first, second = text if isinstance(text, tuple) else (text, None)
    if sum(len(one) for one in (first, second) if isinstance(one, str)) > LONG:
        try:
            return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            if not isinstance(error, Exception) and not _panic(error):
                raise  # else it is said below what is wrong
    try:
        return backend.encode(first, second, add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError) as error:
        if not isinstance(first, str) or not isinstance(second, str | None):
            wrong = second if isinstance(first, str) else first
            raise ParameterError(f"expected text (str), found {type(wrong).__name__}.") from error
        raise ParameterError(f"the text is not valid Unicode (it holds a lone surrogate): {error}") from error
    except BaseException as error:  # no unknown token, or a compiled table of characters that leads out of itself
        if isinstance(error, Exception) or _panic(error):
            raise ModelFileError(f"the vocabulary is damaged: the tokenizer fails with {str(error)[:100]!r}; "
                                 "fetch or convert the model again") from error
        raise


def _flat(decoder: dict) -> list[dict]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flat(inner)]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable alphabet: printable Latin-1 stands for itself, the other 68 bytes take 256, 257, ..."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


BYTE_OF = _byte_alphabet()
