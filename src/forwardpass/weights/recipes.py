"""What each type of vocabulary is made of, and the `tokenizers` object built from it.

A recipe holds plain values only, so it can be kept as JSON, and builds faster than the library reads its own files.
Common to all: `added` are the tokens found in text before anything else, id -> whether they are special; `prefix` and
`suffix` are what goes around a text.
"""

from __future__ import annotations

import base64
import gc
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError
from .pretokenizers import pretokenizer

SPACE = "\u2581"
"""SentencePiece's visible space."""

_BYTE_NAME = "<0x{:02X}>"


@dataclass(frozen=True)
class BytePairs:
    """A byte-level vocabulary."""

    tokens: list[str]
    merges: list[str]
    pre: str
    added: Mapping[int, bool]
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def build(self) -> Backend:
        cut = pretokenizer(self.pre)
        vocab = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        backend = Backend(_bpe(vocab=vocab, merges=_halves(self.merges), ignore_merges=cut.ignore_merges))
        if (normalizer := cut.normalizer()) is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = cut.pieces()
        backend.decoder = decoders.ByteLevel()
        _add(backend, self.tokens, self.added)
        set_wrapping(backend, [self.tokens[i] for i in self.prefix], [self.tokens[i] for i in self.suffix])
        return backend


@dataclass(frozen=True)
class WordEndPairs:
    """A byte-level vocabulary of lower-case words whose last token ends with "</w>" (CLIP). What is between words does
    not count; unknown: the token for what no piece spells."""

    tokens: list[str]
    merges: list[str]
    added: Mapping[int, bool]
    unknown: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    END = "</w>"
    WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"

    def build(self) -> Backend:
        vocab = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        unknown = None if self.unknown is None else self.tokens[self.unknown]
        merges = _halves(self.merges)
        backend = Backend(_bpe(vocab=vocab, merges=merges, end_of_word_suffix=self.END, unk_token=unknown))
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                   normalizers.Lowercase()])
        backend.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(self.WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(self.END, " "),
                                             decoders.Strip(" ", 0, 1)])
        _add(backend, self.tokens, self.added)
        set_wrapping(backend, [self.tokens[i] for i in self.prefix], [self.tokens[i] for i in self.suffix])
        return backend


@dataclass(frozen=True)
class Spaces:
    """How SentencePiece prepares a text.

    prefix: a space goes before it, and is taken away again when decoding
    collapse: spaces at both ends go, and runs of spaces become one
    charsmap: the compiled table of replaced characters, in base 64
    """

    prefix: bool = True
    collapse: bool = False
    charsmap: str = ""

    def normalizer(self, added: list[str]) -> normalizers.Normalizer:
        """added: the added tokens that are looked for in the prepared text.

        The library prepares those tokens in the same way, and a space put before each would spoil them: a text that is
        nothing but such a token gets none.
        """
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            try:
                steps.append(normalizers.Precompiled(base64.b64decode(self.charsmap)))
            except Exception as error:
                raise ModelFileError(f"the vocabulary's precompiled_charsmap is damaged: {error}") from error
        if self.collapse:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        steps.append(normalizers.Replace(" ", SPACE))
        if self.prefix and added:
            alone = "|".join(re.escape(token.replace(" ", SPACE)) for token in added)
            steps.append(normalizers.Replace(Regex(rf"\A(?!(?:{alone})\z)(?=[\s\S])"), SPACE))
        elif self.prefix:
            steps.append(normalizers.Prepend(SPACE))
        return normalizers.Sequence(steps)

    def decoder(self, bytes_: bool) -> decoders.Decoder:
        parts: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
        parts += [decoders.ByteFallback()] * bytes_ + [decoders.Fuse()]
        return decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * self.prefix)


@dataclass(frozen=True)
class ScoredPairs:
    """A SentencePiece BPE vocabulary. merges: "left right", as score_merges finds them; bytes: it has byte pieces."""

    tokens: list[str]
    merges: list[str]
    added: Mapping[int, bool]
    unknown: int | None = None
    bytes: bool = False
    spaces: Spaces = field(default_factory=Spaces)
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def model(self, merges: list[tuple[str, str]]) -> models.BPE:
        vocab = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        unknown = None if self.unknown is None else self.tokens[self.unknown]
        return _bpe(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=self.bytes)

    def build(self, model: models.BPE | None = None) -> Backend:
        """model: what `model` made of the same merges, where that is at hand."""
        if model is None:
            model = self.model(_halves(self.merges))
        return _sentence_pieces(model, self)


@dataclass(frozen=True)
class Unigrams:
    """A SentencePiece unigram vocabulary. hidden: tokens that the text's own characters must not make."""

    tokens: list[str]
    scores: list[float]
    added: Mapping[int, bool]
    unknown: int | None = None
    bytes: bool = False
    hidden: tuple[int, ...] = ()
    spaces: Spaces = field(default_factory=Spaces)
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def build(self) -> Backend:
        try:
            pieces = list(zip(self.tokens, self.scores, strict=True))
            model = models.Unigram(pieces, unk_id=self.unknown, byte_fallback=self.bytes)
        except Exception as error:
            raise ModelFileError(f"the vocabulary cannot be used: {error}") from error
        backend = _sentence_pieces(model, self)
        cuts: list[pre_tokenizers.PreTokenizer] = []
        names = {self.tokens[i] for i in self.hidden}
        if self.bytes:
            names |= {_BYTE_NAME.format(byte) for byte in range(256)}
        if starts := _first_of(names):
            # The library has no notion of a hidden token: a cut behind its first character keeps it from being found.
            # (Unknown characters on both sides of such a cut stay two.)
            cuts.append(pre_tokenizers.Split(Regex(starts), behavior="merged_with_previous"))
        if self.bytes and not names <= set(self.tokens):
            # The library fuses unknown characters, then writes either all or none of them as bytes. With all 256 byte
            # pieces that is the same as one by one; otherwise the characters have to be kept apart.
            single = "".join(re.escape(token) for token in self.tokens if len(token) == 1)
            cuts.append(pre_tokenizers.Split(Regex(f"[^{single}]"), behavior="isolated"))
        if cuts:
            backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        return backend


@dataclass(frozen=True)
class WordPieces:
    """A BERT vocabulary, tokens as in vocab.txt: "##" before what goes on with a word."""

    tokens: list[str]
    added: Mapping[int, bool]
    unknown: int
    lowercase: bool = True
    strip_accents: bool = True
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def build(self) -> Backend:
        vocab = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        backend = Backend(models.WordPiece(vocab, unk_token=self.tokens[self.unknown], max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=self.strip_accents, lowercase=self.lowercase
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        _add(backend, self.tokens, self.added)
        set_wrapping(backend, [self.tokens[i] for i in self.prefix], [self.tokens[i] for i in self.suffix])
        return backend


Recipe = BytePairs | WordEndPairs | ScoredPairs | Unigrams | WordPieces

_KINDS: dict[str, type[Recipe]] = {kind.__name__: kind for kind in (BytePairs, WordEndPairs, ScoredPairs, Unigrams,
                                                                    WordPieces)}


def recipe_to_dict(recipe: Recipe) -> dict:
    """Plain values that JSON can write."""
    values = {**vars(recipe), "added": list(recipe.added.items())}
    if "spaces" in values:
        values["spaces"] = vars(values["spaces"])
    return {"kind": type(recipe).__name__, **values}


def recipe_from_dict(values: dict) -> Recipe:
    """What `recipe_to_dict` wrote. Raises KeyError or TypeError for anything else."""
    values = dict(values)
    kind = _KINDS[values.pop("kind")]
    values["added"] = {i: bool(special) for i, special in values["added"]}
    for name in ("prefix", "suffix", "hidden"):
        if name in values:
            values[name] = tuple(values[name])
    if "spaces" in values:
        values["spaces"] = Spaces(**values["spaces"])
    return kind(**values)


def _halves(merges: list[str]) -> list[tuple[str, str]]:
    # One split for all merges: no token of a merge holds a space, which byte alphabets write as "Ġ" and others as "▁".
    halves = " ".join(merges).split(" ") if merges else []
    if len(halves) != 2 * len(merges):
        bad = next(merge for merge in merges if merge.count(" ") != 1)
        raise ModelFileError(f"tokenizer.ggml.merges: expected two tokens and a space in each, found {bad!r}.")
    # Hundreds of thousands of new tuples set off collections that find nothing and take twice as long as the work.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return list(zip(halves[::2], halves[1::2], strict=True))
    finally:
        if collecting:
            gc.enable()


def _bpe(**arguments) -> models.BPE:
    try:
        return models.BPE(**arguments)
    except Exception as error:
        raise ModelFileError(f"the vocabulary and its merges contradict each other: {error}") from error


def _sentence_pieces(model: models.Model, recipe: ScoredPairs | Unigrams) -> Backend:
    """The parts that both kinds of SentencePiece vocabulary share.

    Special tokens are cut out of the text as it was written, and each part between them is prepared as a text of its
    own. Tokens that the vocabulary's author added are looked for after that, as SentencePiece does.
    """
    backend = Backend(model)
    tokens, added = recipe.tokens, recipe.added
    backend.normalizer = recipe.spaces.normalizer([tokens[i] for i, special in added.items() if not special])
    backend.decoder = recipe.spaces.decoder(recipe.bytes)
    _add(backend, tokens, added, normalized=True)
    set_wrapping(backend, [tokens[i] for i in recipe.prefix], [tokens[i] for i in recipe.suffix])
    return backend


def _first_of(names: set[str]) -> str:
    """A pattern for the first character of each of these texts (two characters or longer), "" for none."""
    rests: dict[str, list[str]] = {}
    for name in sorted(names):
        if len(name) > 1:
            rests.setdefault(name[0], []).append(re.escape(name[1:]))
    return "|".join(f"{re.escape(first)}(?={'|'.join(more)})" for first, more in rests.items())


def _add(backend: Backend, tokens: list[str], added: Mapping[int, bool], *, normalized: bool = False) -> None:
    """normalized: tokens that are not special are looked for in the prepared text."""
    add_tokens(
        backend,
        [
            AddedToken(tokens[i], special=special, normalized=normalized and not special)
            for i, special in sorted(added.items())
        ],
    )


def set_wrapping(backend: Backend, prefix: list[str], suffix: list[str]) -> None:
    """Make `add_special_tokens` put these tokens before and after a text."""
    names = [*prefix, *suffix]
    if names:
        backend.post_processor = processors.TemplateProcessing(
            single=[*prefix, "$A", *suffix], special_tokens=[(name, backend.token_to_id(name)) for name in set(names)]
        )


def add_tokens(backend: Backend, tokens: list[AddedToken]) -> None:
    """In the order given, since the library numbers tokens that the model lacks one after the other."""
    run: list[AddedToken] = []
    for token in [*tokens, None]:
        if run and (token is None or token.special != run[-1].special):
            (backend.add_special_tokens if run[-1].special else backend.add_tokens)(run)
            run = []
        if token is not None:
            run.append(token)
