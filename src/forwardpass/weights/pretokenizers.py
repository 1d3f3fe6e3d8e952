"""How each byte-level vocabulary cuts text into words before merging, by the name a GGUF file gives it.

A wrong cut still yields text, only worse text, so an unknown name is an error and never a guess. The patterns are those
of the models' own tokenizer.json files.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, normalizers, pre_tokenizers

from ..errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """digits: every digit is its own word.  pattern: words, None = GPT-2's own pattern.
    nfc: text is composed first.  ignore_merges: a word that is a token as it stands is not merged again.
    add_bos: what the model expects when the file does not say.
    """

    digits: bool = False
    pattern: str | None = None
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pieces(self) -> pre_tokenizers.PreTokenizer:
        """The cutter as a `tokenizers` object; it also turns bytes into the printable alphabet of the vocabulary."""
        if self.pattern is not None:
            split = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if self.digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        return gpt2


def _gpt4_pattern(digits: str) -> str:
    """The pattern of the GPT-4 generation; models differ in how many digits stay together."""
    return "|".join(
        [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    )


_GPT2 = PreTokenizer()
_DIGITS = PreTokenizer(digits=True)
_LLAMA3 = PreTokenizer(pattern=_gpt4_pattern(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)
_SMAUG = PreTokenizer(pattern=_gpt4_pattern(r"\p{N}{1,3}"))
_QWEN2 = PreTokenizer(pattern=_gpt4_pattern(r"\p{N}"), nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "mellum", "gigachat", "a.x-4.0"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), _SMAUG),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
}


def pretokenizer(name: str | None) -> PreTokenizer:
    """The cutter for a value of `tokenizer.ggml.pre`. Raises UnsupportedModelError, which names the value."""
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    known = ", ".join(sorted(PRE_TOKENIZERS))
    if name is None:
        raise UnsupportedModelError(
            "the file has no tokenizer.ggml.pre, so how it cuts words is unknown (files from before May 2024 lack it); "
            f"expected one of: {known}. Convert the model again or take a newer file."
        )
    near = get_close_matches(str(name), PRE_TOKENIZERS, n=1)
    hint = f" (nearest: {near[0]!r})" if near else ""
    raise UnsupportedModelError(
        f"tokenizer.ggml.pre is {name!r}, which is not implemented{hint}; expected one of: {known}."
    )
