r"""How each byte-level vocabulary cuts text into words before merging, by the name a GGUF file gives it.

A cutter is a sequence of patterns. Each one cuts what the patterns before it left over: its matches become words of
their own, and so does the text between them. A wrong cut still yields text, only worse text, so an unknown name is an
error and never a guess. The patterns are those of the models' own tokenizer.json files, in the dialect of the
`tokenizers` package (\d and \p{N} are Unicode's; possessive `++` and `&&` in a class are understood).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, normalizers, pre_tokenizers

from ..errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns: see the module.  nfc: text is composed first.
    ignore_merges: a word that is a token as it stands is not merged again.
    add_bos: what the model expects when the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pieces(self) -> pre_tokenizers.PreTokenizer:
        """The cutter as a `tokenizers` object; it also turns bytes into the printable alphabet of the vocabulary."""
        if self.patterns[-1] == _GPT2:  # the library has this one built in, several times faster
            cuts, last = self.patterns[:-1], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        else:
            cuts, last = self.patterns, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cuts]
        return pre_tokenizers.Sequence([*splits, last]) if splits else last


# -- parts that several patterns share

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_SPACES = (r"\s+(?!\S)", r"\s+")


def _either(*parts: str) -> str:
    return "|".join(parts)


def _gpt4(digits: str, *, contractions: str = _CONTRACTIONS, word: str = _WORD, signs: str = _SIGNS,
          lines: str = _LINES, spaces: tuple[str, ...] = _SPACES) -> str:  # fmt: skip
    """The pattern of the GPT-4 generation; models differ in how many digits stay together, and in small things."""
    return _either(contractions, word, digits, signs, lines, *spaces)


def _cased(upper: str, lower: str, end: str, digits: str, signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*") -> str:
    """The pattern of the GPT-4o generation: a word is cut where a capital letter follows a small one."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{lead}{upper}*{lower}+{end}", f"{lead}{upper}+{lower}*{end}")
    return _either(*words, digits, signs, _LINES, *_SPACES)


_GPT2 = _either("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", *_SPACES)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN = r"&&[^\p{Han}]]"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_KANA_HAN = "[一-龥\u3040-ゟ゠-ヿ]+"
_GPT4O = _cased(_UPPER, _LOWER, _CONTRACTIONS + "?", r"\p{N}{1,3}")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


def _deepseek3(signs: str, lines: str) -> str:
    word = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    return _either(_ASCII_SIGN + "[A-Za-z]+", word, signs, lines, *_SPACES)


_DEEPSEEK3 = _deepseek3(r" ?[\p{P}\p{S}]+[\r\n]*", _LINES)

# Every letter that has a case, as the model's authors wrote it down.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_AFMOE_SCRIPTS = (
    "[一-鿿㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
)

_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA_HAN

_JAIS2_SPACES = (*(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)), r"\s{1,2}(?!\S)", r"\s{1}")

# -- the table

_LLAMA3 = PreTokenizer((_gpt4(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_gpt4(r"\p{N}"),), nfc=True)
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_BAILING = PreTokenizer(
    (_gpt4(r"\p{N}", contractions="'(?i:[sdmt]|ll|ve|re)", word=r"[^\r\n\p{L}\p{N}]?+\p{L}+",
           signs=r" ?[^\s\p{L}\p{N}]++[\r\n]*", lines=r"\s*[\r\n]"),)
)  # fmt: skip

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "gpt2", "phi-2", "jais", "mellum", "gigachat", "a.x-4.0", "exaone4", "trillion", "granite-docling",
         "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe"),
        PreTokenizer((_GPT2,)),
    ),
    **dict.fromkeys(("mpt", "olmo", "modern-bert"), PreTokenizer((_GPT2,), nfc=True)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS
    ),
    "command-r": PreTokenizer(_DIGITS.patterns, nfc=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _LLAMA3,
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), PreTokenizer(_LLAMA3.patterns)),
    "jais-2": PreTokenizer((_gpt4(r"\p{N}{1,3}", spaces=_JAIS2_SPACES),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignore_merges=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), _QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), PreTokenizer(_QWEN2.patterns)),
    "qwen35": PreTokenizer(
        (_gpt4(r"\p{N}", word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), nfc=True
    ),
    "ufakzeka": PreTokenizer((_either(_WORD, r"\p{N}", _SIGNS, _LINES, *_SPACES),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _gpt4(r"\p{N}"))),
    "seed-coder": PreTokenizer((_gpt4(r"\p{N}{1}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "exaone-moe": PreTokenizer(
        (_gpt4(r"\p{N}", word=r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
               signs=r" ?[^\s\p{L}\p{N}]+[\r\n/]?", lines=r"\s*[\r\n]"),)
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((_GPT4O,))),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    "tekken": PreTokenizer((_cased(_UPPER, _LOWER, "", r"\p{N}"),), ignore_merges=True, add_bos=True),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _cased(_UPPER, _LOWER, _CONTRACTIONS + "?", r"\p{N}")), ignore_merges=True),
    "kimi-k2": PreTokenizer(
        (_either(r"[\p{Han}]+", _cased(_UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, _CONTRACTIONS + "?",
                                       r"\p{N}{1,3}", _SIGNS)),)
    ),
    "deepseek-llm": PreTokenizer(
        ("[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}")
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _DEEPSEEK_V3),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, _deepseek3(r" ?[\p{P}\p{S}]+", r"[\r\n]"), r"\p{N}")),
    "afmoe": PreTokenizer((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _AFMOE_SCRIPTS, _DEEPSEEK3)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": PreTokenizer(
        ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
         r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
        add_bos=True,
    ),
}  # fmt: skip


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
