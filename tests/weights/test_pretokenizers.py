"""How each `pre` cuts text: splits worked out by hand, at least one for every distinct pattern."""

import pytest
from tokenizers import pre_tokenizers

from forwardpass.errors import UnsupportedModelError
from forwardpass.weights.pretokenizers import PRE_TOKENIZERS, pretokenizer
from forwardpass.weights.recipes import BytePairs

_LETTERS = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _LETTERS]
_BYTE = {chr(b): b for b in _LETTERS} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}


def words(pre, text):
    pieces = pretokenizer(pre).pieces().pre_tokenize_str(text)
    return [bytes(_BYTE[char] for char in piece).decode() for piece, _ in pieces]


# Contractions in two cases, digits, signs, spaces, line ends, two scripts: one text that tells most patterns apart.
TEXT = "I'll DON'T pay12345  (ok)\n\n x中文かな e\u0301"
CUTS = {
    "gpt-2": "I|'ll| DON|'|T| pay|12345| | (|ok|)|\n\n| x中文かな| e|\u0301",
    "smollm": "I|'ll| DON|'|T| pay|1|2|3|4|5| | (|ok|)|\n\n| x中文かな| e|\u0301",
    "default": "I|'|ll| DON|'|T| pay|123|45|  |(|ok|)|\n\n| x中文かな| e|\u0301",
    "falcon": "I|'|ll| DON|'|T| pay|123|45|  |(|ok|)|\n\n| x中文かな| e|\u0301",
    "llama-bpe": "I|'ll| DON|'T| pay|123|45| | (|ok|)\n\n| x中文かな| e|\u0301",
    "smaug-bpe": "I|'ll| DON|'T| pay|123|45| | (|ok|)\n\n| x中文かな| e|\u0301",
    "minicpm5": "I|'ll| DON|'T| pay|123|45| | (|ok|)\n\n| x中文かな| e|\u0301",
    "jais-2": "I|'ll| DON|'T| pay|123|45| | (|ok|)\n\n| x中文かな| e|\u0301",
    "qwen2": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n\n| x中文かな| e|\u0301",
    "qwen35": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n\n| x中文かな| e\u0301",
    "ufakzeka": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n\n| x中文かな| e|\u0301",
    "laguna": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)|\n\n| x中文かな| e|\u0301",
    "seed-coder": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)|\n\n| x中文かな| e|\u0301",
    "bailingmoe": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n\n| x中文かな| e|\u0301",
    "exaone-moe": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n|\n| x中文かな e\u0301",
    "gpt-4o": "I'll| DON'T| pay|123|45| | (|ok|)\n\n| x中文かな| e\u0301",
    "tiny_aya": "I'll| DON'T| pay|12|345| | (|ok|)\n\n| x中文かな| e\u0301",
    "tekken": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)\n\n| x中文かな| e\u0301",
    "youtu": "I'll| DON'T| pay|1|2|3|4|5| | (|ok|)\n\n| x|中文かな| e\u0301",
    "kimi-k2": "I'll| DON'T| pay|123|45| | (|ok|)\n\n| x|中文|かな| e\u0301",
    "deepseek-v3": "I|'ll| DON|'T| pay|123|45| | (|ok|)\n\n| x|中文かな| e\u0301",
    "spark2_5": "I|'ll| DON|'T| pay|1|2|3|4|5| | (|ok|)|\n|\n| x|中文かな| e\u0301",
    "afmoe": "I|'ll| DON|'T| pay|12|345| | (|ok|)\n\n| x|中文かな| e\u0301",
    "deepseek-coder": "I|'|ll| DON|'|T| pay|1|2|3|4|5| | (|ok|)|\n|\n| x|中文かな| e|\u0301",
    "deepseek-llm": "I|'|ll| DON|'|T| pay|1|2|3|4|5| | (|ok|)|\n|\n| x|中文かな| e|\u0301",
    "bloom": "I'll| DON'T| pay12345|  (|ok|)\n\n| x中文かな| e\u0301",
    "viking": "I'll| DON'T| pay|1|2|3|4|5|  (|ok|)\n\n| x中文かな| e\u0301",
    "superbpe": "I'll DON'T pay|12|345|  (ok)\n\n x中文かな e\u0301",
    "chameleon": "I|'|ll| DON|'|T| pay|1|2|3|4|5|  |(|ok|)|\n|\n| x中文かな| e|\u0301",
}


@pytest.mark.parametrize("pre", CUTS)
def test_cuts(pre):
    assert "|".join(words(pre, TEXT)) == CUTS[pre]


def test_every_pattern_is_among_them():
    assert {cut.patterns for cut in PRE_TOKENIZERS.values()} == {PRE_TOKENIZERS[pre].patterns for pre in CUTS}


@pytest.mark.parametrize(
    ("pre", "text", "cut"),
    [
        ("gpt-2", "a   b \n", "a|  | b| \n"),
        ("llama-bpe", "x;\r\ny  \n  z", "x|;\r\n|y|  \n| | z"),
        ("qwen2", "#!\n\n", "#!\n\n"),
        ("seed-coder", "#!\n\n", "#!|\n\n"),
        ("laguna", "#!\n\n", "#!|\n\n"),
        ("bailingmoe", "a\n\nb?\n", "a|\n\n|b|?\n"),
        ("qwen2", "a\n\nb", "a|\n\n|b"),
        ("ufakzeka", "Ali'de'S", "Ali|'de|'S"),
        ("qwen2", "Ali'de'S", "Ali|'d|e|'S"),
        ("gpt-4o", "getHTTPResponse a/b//\n", "get|HTTPResponse| a|/b|//\n"),
        ("tekken", "getX1", "get|X|1"),
        ("minicpm5", "²³45678", "²³4|567|8"),
        ("jais-2", "a     b", "a|    | b"),
        ("jais-2", "a" + " " * 9 + "b", "a|" + " " * 8 + "| b"),
        ("superbpe", "1234567 8", "1|234|567| |8"),
        ("tiny_aya", "1234567", "1|234|567"),
        ("afmoe", "1234567 ไa!b", "1|234|567| |ไ|a|!b"),
        ("youtu", "한국 ok！ㄅ", "한국| ok|！|ㄅ"),
        ("kimi-k2", "Ab漢字Cd", "Ab|漢字|Cd"),
        ("deepseek-v3", ".foo x_1", ".foo| x|_|1"),
        # Its class of signs spans the Latin letters, so a letter with an accent stands alone.
        ("deepseek-llm", "naïve ωμέγα，b  ", "na|ï|ve| ωμέγα|，|b|  "),
        ("exaone-moe", "안녕 하세요 x/\n", "안녕 하세요 x|/\n"),
        ("chameleon", "<sentinel:12>IMGIMGABZ a    b", "<|sentinel|:|1|2|>|IMGIMGABZ| a|    |b"),
        ("bloom", "a,b ।c", "a|,|b| ।|c"),
        ("falcon", "a$+b1234", "a|$+|b|123|4"),
        ("default", "٣٤٥٦ `1", "٣٤٥٦| `|1"),
    ],
)
def test_where_patterns_differ(pre, text, cut):
    assert "|".join(words(pre, text)) == cut


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_nothing_is_lost(pre):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BytePairs(alphabet, [], pre, {}).build()
    for text in ("\x00 a\tb\r\n\n  c1234 don't 猫🌶 \u00e9\u00a0", "   ", "\n \n", "IMGIMGABZ 1234567"):
        assert backend.decode(backend.encode(text).ids) == text


def test_composition():
    composing = {pre for pre, cut in PRE_TOKENIZERS.items() if cut.normalizer() is not None}
    assert {"qwen2", "qwen35", "olmo", "command-r"} <= composing and not {"gpt-2", "llama-bpe", "smollm"} & composing
    assert pretokenizer("qwen2").normalizer().normalize_str("e\u0301") == "\u00e9"


def test_whole_words_that_are_tokens():
    """A word that is a token is not merged again where the model's own tokenizer says so."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc"]  # no merge makes "abc"
    for pre, found in (("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])):
        assert BytePairs(tokens, ["a b"], pre, {}).build().encode("abc").tokens == found


def test_unknown_names():
    with pytest.raises(UnsupportedModelError, match=r"'qwen3'.*nearest: 'qwen35'.*expected one of: .*llama-bpe"):
        pretokenizer("qwen3")
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer\.ggml\.pre"):
        pretokenizer(None)
