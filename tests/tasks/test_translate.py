"""Translation over a scripted model: sentences and what is between them, n-best, what was lost; then a tiny model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import forwardpass
import tiny_pairs
from forwardpass.contracts import Completion
from forwardpass.decoding.params import SamplingParams
from forwardpass.errors import ContextLengthError, ParameterError, UnsupportedModelError
from forwardpass.tasks.languages import Direction, direction
from forwardpass.tasks.translate import Translation
from forwardpass.weights.languages import Languages

TASKS = tiny_pairs.TASKS


class Words:
    """A tokenizer whose ids are those of characters, with an end token of 1."""

    languages = None

    def encode(self, text, **_):
        return [*map(ord, text), 1]


class Scripted:
    """Answers a source by `answers` (text -> texts, best first), by default in capital letters."""

    def __init__(self, answers=None, limit=1000):
        self.answers, self.source_limit, self.tokenizer = answers or {}, limit, Words()
        self.asked, self.cancelled, self.ran = [], 0, []
        self.engine = SimpleNamespace(run=self.ran.append, cancel=self._cancel)

    def _cancel(self, request):
        self.cancelled += 1

    def answer_params(self, params, settings=None):
        return SamplingParams(**{**(settings or {}), **params})

    def ask(self, ids, params, *_):
        text = "".join(map(chr, ids[:-1]))
        self.asked.append((text, params))
        found = self.answers.get(text, [text.upper()])
        done = [Completion(one, [7], ids, "stop", score=-float(i), timings={"total": 1.0}, choice_index=i)
                for i, one in enumerate((found * 4)[: params.num_return_sequences])]
        return SimpleNamespace(completions=lambda: done, done=True, error=None)


PLAIN = Direction()


def translate(model, *texts, way=PLAIN, **given):
    return [[(one.text, one.lost) for one in choices] for choices in Translation(model, way, given).documents(texts)]


def test_lines_and_blanks_stay():
    document = "\n  A title\n\n- One thing. Another.  \n\tEnd"
    assert translate(Scripted(), document) == [[("\n  A TITLE\n\n- ONE THING. ANOTHER.  \n\tEND", ())]]
    assert translate(Scripted(), "a\n12 + 3\nb") == [[("A\n12 + 3\nB", ())]]  # nothing to translate in the middle


def test_languages_without_blanks():
    way = Direction(spaced=False)
    assert translate(Scripted(), "One. Two.\nThree.", way=way) == [[("ONE.TWO.\nTHREE.", ())]]


def test_several_texts_in_order_and_a_window_of_them():
    model = Scripted()
    texts = [f"text {i}." for i in range(200)]
    done = translate(model, *texts)
    assert [one[0][0] for one in done] == [text.upper() for text in texts]
    assert len(model.asked) == 200


def test_a_stream_is_the_whole_in_sentences():
    work = Translation(Scripted(), Direction(), {})
    document = " One. Two.\n\nThree\n"
    pieces = [one.text for one in work.sentences(document)]
    assert pieces == [" ONE.", " TWO.", "\n\nTHREE\n"] and "".join(pieces) == document.upper()


def test_an_abandoned_stream_cancels_the_rest():
    model = Scripted()
    stream = Translation(model, Direction(), {}).sentences("One. Two. Three.")
    next(stream)
    stream.close()
    assert len(model.asked) == 3 and model.cancelled >= 2


def test_the_best_beam_that_lost_nothing():
    source = "Pay 12 euros."
    model = Scripted({source: ["Zahle Euro.", "Zahle 12 Euro.", "Zahle 12."]})
    assert translate(model, source, num_beams=3) == [[("Zahle 12 Euro.", ())]]
    assert model.asked[0][1].num_return_sequences == 3
    assert translate(Scripted(), "No digits.", num_beams=3) and model.asked[0][1].num_beams == 3
    plain = Scripted()
    translate(plain, "No digits.", num_beams=3)
    assert plain.asked[0][1].num_return_sequences == 1  # nothing to lose: nothing more is asked for


def test_numbers_that_no_beam_kept_are_reported():
    model = Scripted({"Pay 12 euros.": ["Zahle.", "Zahle Euro."]})
    assert translate(model, "Pay 12 euros. Now.", num_beams=2) == [[("Zahle. NOW.", ("12",))]]


def test_codes_survive_in_any_case():
    model = Scripted({"Hello {name}, go to <b>home</b>.": ["Hallo, geh."], "Hello": ["Hallo"],
                      ", go to": [", geh nach"], "home": ["Hause"]})
    assert translate(model, "Hello {name}, go to <b>home</b>.") == [[("Hallo {name}, geh nach <b>Hause</b>.", ())]]
    assert [(text, params.max_new_tokens) for text, params in model.asked[-3:]] == [
        ("Hello", 3 * 6 + 32), (", go to", 3 * 8 + 32), ("home", 3 * 5 + 32)]  # all three side by side
    assert [len(requests) for requests in model.ran] == [1, 4]  # the sentence, then with its pieces


def test_a_failing_piece_leaves_no_requests():
    model = Scripted({"Hello {name}, go.": ["Hallo."]})
    ask = model.ask
    def broken(ids, params, *_):
        if "".join(map(chr, ids[:-1])) == ", go.":
            raise KeyboardInterrupt
        return ask(ids, params)
    model.ask = broken
    with pytest.raises(KeyboardInterrupt):
        translate(model, "Hello {name}, go.")
    assert model.cancelled == 2


def test_n_best_of_several_sentences():
    model = Scripted({"One.": ["Eins.", "Ein."], "Two.": ["Zwei.", "Zwo."]})
    work = Translation(model, Direction(), {"num_beams": 2, "num_return_sequences": 2})
    done = next(work.documents(["One. Two."]))
    assert [(one.text, one.score, one.choice_index) for one in done] == [
        ("Eins. Zwei.", 0.0, 0), ("Ein. Zwo.", -1.0, 1)]
    assert done[0].token_ids == [7, 7] and done[0].finish_reason == "stop"


def test_a_sentence_that_is_too_long_is_cut_at_a_blank():
    model = Scripted(limit=12)
    assert translate(model, "aaaa bbbb cccc dddd") == [[("AAAA BBBB CCCC DDDD", ())]]
    assert [text for text, _ in model.asked] == ["aaaa bbbb", "cccc dddd"]
    with pytest.raises(ContextLengthError, match="14 tokens; the model reads 12"):
        translate(model, "\u00e4" * 13)
    assert translate(model, "see " + "a" * 13) == [[("SEE " + "a" * 13, ())]]  # data: nothing to translate
    assert translate(model, "\u00e9\u00e9\u00e9\uff0c" * 4) == [[("\u00c9\u00c9\u00c9\uff0c" * 4, ())]]
    assert [text for text, _ in model.asked[-2:]] == ["\u00e9\u00e9\u00e9\uff0c" * 2] * 2


def test_code_blocks_and_lists_stay():
    document = "# A title\n```\nx = 1\n```\n1. one\n> two"
    assert translate(Scripted(), document) == [[("# A TITLE\n```\nx = 1\n```\n1. ONE\n> TWO", ())]]
    only = "```\nx = 1\n```"
    assert translate(Scripted(), only) == [[(only, ())]]
    assert [one.text for one in Translation(Scripted(), PLAIN, {}).sentences(only)] == [only]


def test_a_translation_does_not_run_on():
    model = Scripted()
    translate(model, "abc.")
    assert model.asked[0][1].max_new_tokens == 3 * 5 + 32
    translate(model, "abc.", max_new_tokens=200)
    assert model.asked[1][1].max_new_tokens == 200


@pytest.mark.parametrize(("source", "target", "prefix"), [
    (None, "de", "to German: "), ("en", "German", "to German: "), ("French", "deu", "from French: "),
    ("english", "zh", "to Chinese: "), (None, "zho_Hant", "to Chinese: "),
])
def test_directions_told_by_a_prefix(source, target, prefix):
    way = direction(Words(), TASKS, source, target)
    assert way.prefix == prefix and way.spaced == (target[:2].lower() in ("de", "ge"))
    assert way.source_ids(Words(), "x") == [*map(ord, prefix), ord("x"), 1]


@pytest.mark.parametrize(("source", "target", "message"), [
    (None, "klingon", "no translation to 'klingon'; it translates en to de, en to zh, fr to de"),
    ("zh", "de", "from 'zh' to 'de'"), (None, None, "must be told the target"), (None, 5, "a language is a text"),
])
def test_languages_that_are_unknown(source, target, message):
    with pytest.raises(ParameterError, match=message):
        direction(Words(), TASKS, source, target)


def test_directions_told_by_tokens():
    tokenizer = Words()
    tokenizer.languages = Languages(end=1, tokens={"en_XX": 50, "ja_XX": 51}, source_place="before",
                                    target_place="first", source="en_XX")
    tokenizer.encode = lambda text, **_: list(map(ord, text))
    way = direction(tokenizer, {}, None, "Japanese")
    assert way.source_ids(tokenizer, "a") == [50, ord("a"), 1]
    assert way.parameters() == {"forced_bos_token_id": 51} and not way.spaced
    with pytest.raises(ParameterError, match=r"en_XX \(English\), ja_XX \(Japanese\)"):
        direction(tokenizer, {}, None, "de")


# ---- a real one


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny T5 whose tokens are letters."""
    folder = tmp_path_factory.mktemp("pair")
    model = tiny_pairs.write_translator(folder)
    with forwardpass.load(folder, dtype="float32") as loaded:
        yield loaded, model


def test_what_it_can_do(pair):
    model, _ = pair
    assert {"generate", "translate", "summarize", "text2text"} <= set(model.tasks)
    with pytest.raises(UnsupportedModelError, match=r"cannot token_classify.* can generate.* translate, summarize"):
        model.token_classify("hi")


def test_generate_answers_to_the_source(pair):
    import torch

    model, theirs = pair
    done = model.generate("abc def.", max_new_tokens=8, num_beams=3)
    ids = model.tokenizer.encode("abc def.", add_special_tokens=True, parse_special=False)
    assert done.prompt_token_ids == ids and ids[-1] == 1
    expected = theirs.generate(torch.tensor([ids]), max_new_tokens=8, num_beams=3, do_sample=False)
    assert expected[0].tolist() == [0, *done.token_ids]
    assert model.text2text("abc def.", max_new_tokens=8, num_beams=3).token_ids == done.token_ids


def test_the_score_of_an_answer(pair):
    import torch

    model, theirs = pair
    source, answer = (model.tokenizer.encode(text, add_special_tokens=True, parse_special=False)
                      for text in ("abc def.", "Def!"))
    with torch.no_grad():
        loss = float(theirs(input_ids=torch.tensor([source]), labels=torch.tensor([answer])).loss)
    score = model.score("Def!", source="abc def.")
    assert score.num_tokens == len(answer) and answer[-1] == 1
    assert score.log_likelihood == pytest.approx(-loss * len(answer), rel=1e-5)
    assert model.score(answer, source=source) == score
    assert model.score([5], source="abc").num_tokens == 1
    with pytest.raises(ParameterError, match="give source="):
        model.score("Def!")


def test_translate_is_generate_with_the_prefix(pair):
    model, _ = pair
    text = "A house. Two houses!"
    alone = [model.generate("to German: " + one, max_new_tokens=9, num_beams=2) for one in ("A house.", "Two houses!")]
    done = model.translate(text, target="de", max_new_tokens=9)  # the files say two beams
    assert done.text == f"{alone[0].text} {alone[1].text}"
    assert done.token_ids == [*alone[0].token_ids, *alone[1].token_ids]
    assert done.score == pytest.approx((alone[0].score + alone[1].score) / 2)
    many = model.translate([text, "A house."], target="German", max_new_tokens=9)
    assert [one.text for one in many] == [done.text, alone[0].text] and many[1].prompt_index == 1
    assert "".join(one.text for one in model.translate(text, target="de", stream=True, max_new_tokens=9)) == done.text
    best = model.translate("A house.", target="de", max_new_tokens=9, num_return_sequences=2)
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True) and len(best) == 2


def test_what_is_lost_is_told(pair):
    model, _ = pair
    with pytest.warns(UserWarning, match="not found in the translation: 0123, 33"):
        done = model.translate(["Pay 0123.", "Or 33 more!"], target="de", max_new_tokens=2)
    assert [one.lost for one in done] == [("0123",), ("33",)]
    stream = model.translate("Pay 0123.", target="de", max_new_tokens=2, stream=True)
    assert [one.lost for one in stream] == [("0123",)]


def test_summaries(pair):
    model, _ = pair
    done = model.summarize("abc def.", max_new_tokens=6)
    assert done.token_ids == model.generate("sum: abc def.", max_new_tokens=6, min_length=3).token_ids
    with pytest.warns(UserWarning, match="67 tokens was cut to the 40"):
        cut = model.summarize("a" * 60, max_new_tokens=4)
    assert len(cut.prompt_token_ids) == 40 and cut.prompt_token_ids[-1] == 1
    with pytest.warns(UserWarning, match="cut"):
        left = model.summarize("b" + "a" * 60, truncation="left", max_new_tokens=4)
    assert left.prompt_token_ids[:5] == cut.prompt_token_ids[:5]  # the prefix stays
    with pytest.raises(ContextLengthError, match="67 tokens; the model reads 40"):
        model.summarize("a" * 60, truncation="error")


@pytest.mark.parametrize(("call", "message"), [
    (lambda m: m.translate("  \n", target="de"), "nothing but blanks at 0"),
    (lambda m: m.translate([], target="de"), "empty list"),
    (lambda m: m.translate(["a", ""], target="de"), "blanks at 1"),
    (lambda m: m.translate(7, target="de"), "not int"),
    (lambda m: m.translate(["a"], target="de", stream=True), "a stream is one text"),
    (lambda m: m.translate("a", target="de", stream=True, num_return_sequences=2), "a stream is one text"),
    (lambda m: m.translate("a", target="xx"), "it translates en to de"),
    (lambda m: m.translate("a", target="de", num_beams=2, num_return_sequences=3), "num_return_sequences"),
    (lambda m: m.translate("a", target="de", beams=2), "Unknown parameter 'beams'"),
    (lambda m: m.summarize("a", truncation="middle"), "truncation must be"),
    (lambda m: m.generate("a", num_beams=65), "num_beams|vocabulary"),
])
def test_bad_input_and_still_alive(pair, call, message):
    model, _ = pair
    with pytest.raises(ParameterError, match=message):
        call(model)
    assert len(model.generate("abc", max_new_tokens=3).token_ids) == 3
