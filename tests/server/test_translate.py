"""/v1/translate: the library's translations."""

import asyncio

import pytest

PATH = "/v1/translate"
TEXT = "abc def. Ghi!\n\n- jkl 12, mno."


@pytest.fixture
def model(shelf):
    return shelf.models["translator"]


def ask(reading, **body):
    answer = reading.post(PATH, json={"model": "translator", "input": TEXT, "source": "en", "target": "de", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def flat(answer):
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [(one["index"], each["text"], each["score"], tuple(each.get("lost", ())), each["finish_reason"])
            for one in answer["data"] for each in one["translations"]]


def expected(model, texts, **params):
    with pytest.warns(UserWarning, match="not found in the translation"):
        done = model.translate(texts, "en", "de", **params)
    return [(one.prompt_index, one.text, one.score, one.lost, one.finish_reason) for one in done]


def test_the_translations_of_the_library(reading, model):
    """The model is random and loses the 12, which is said in the translation, and nowhere else."""
    answer = ask(reading, input=[TEXT, "pqr."])
    assert flat(answer) == expected(model, [TEXT, "pqr."])
    first = answer["data"][0]["translations"][0]
    assert first["lost"] == ["12"] and "warnings" not in answer
    assert first["text"].count("\n") >= 2 and "lost" not in answer["data"][1]["translations"][0]
    assert flat(ask(reading)) == flat(answer)[:1]


def test_several_translations(reading, model):
    answer = ask(reading, input=[TEXT], num_beams=4, n=3)
    assert flat(answer) == expected(model, [TEXT], num_beams=4, num_return_sequences=3)
    scores = [one["score"] for one in answer["data"][0]["translations"]]
    assert len(scores) == 3 and all(score < 0 for score in scores)
    assert flat(ask(reading, input=[TEXT], n=3)) == expected(model, [TEXT], num_beams=3, num_return_sequences=3)


def test_without_beams_there_is_no_score(reading, model):
    answer = ask(reading, input=[TEXT], num_beams=1, n=1, max_tokens=3)
    assert flat(answer) == expected(model, [TEXT], num_beams=1, max_new_tokens=3)
    (one,) = answer["data"][0]["translations"]
    assert one["score"] is None and one["finish_reason"] == "length"


def test_usage(reading, model):
    """What is read has the prefix in it, and the end token."""
    answer = ask(reading, input=["ab.", "cd."], max_tokens=5)
    ids = [model.tokenizer.encode("to German: " + one, add_special_tokens=True, parse_special=False)
           for one in ("ab.", "cd.")]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(map(len, ids))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] > 0


def test_the_limit_of_a_request(app, shelf):
    """Of all sentences together, and as much for each translation of them."""
    served = app(host=shelf, max_tokens_per_request=500)
    usual = {"model": "translator", "input": ["abcde. " * 20, "fg."], "target": "de"}
    assert served.post(PATH, json=usual).status_code == 200
    for change in ({"n": 3}, {"input": "abcde. " * 60}):
        refused = served.post(PATH, json=usual | change).json()["error"]
        assert refused["param"] == "input" and "limit is 500" in refused["message"]


def test_languages_by_any_name(reading):
    named = flat(ask(reading))
    for source, target in (("English", "German"), ("en-GB", "deu"), (None, "de-AT")):
        assert flat(ask(reading, source=source, target=target)) == named
    assert flat(ask(reading, target="Chinese")) != named


def test_many_at_once_are_each_as_if_alone(reading, model):
    texts = ["ab cd.", "Efg!", "hij klm nop, qrs.", "x", TEXT] * 4
    alone = [flat(ask(reading, input=one)) for one in texts[:5]]

    async def together():
        return await asyncio.gather(*(reading.client.post(PATH, json={
            "model": "translator", "input": one, "target": "tlh" if i == 7 else "de", "source": "en"})
            for i, one in enumerate(texts)))

    answers = reading.run(together())
    assert answers[7].status_code == 400
    assert all(flat(one.json()) == alone[i % 5] for i, one in enumerate(answers) if i != 7)


@pytest.mark.parametrize(("change", "param", "said"), [
    ({"input": []}, "input", ">= 1"), ({"input": 5}, "input", "int"), ({"input": ["a", None]}, "input[1]", "null"),
    ({"input": " \n"}, "input", "nothing but blanks"), ({"input": ["a", ""]}, "input[1]", "nothing but blanks"),
    ({"input": ["a"] * 2049}, "input", "2048"), ({"target": "Klingon"}, "target", "translates en to de"),
    ({"source": "de"}, "target", "from 'de' to 'de'"), ({"target": None}, "target", "must be told"),
    ({"target": ""}, "target", ">= 1"), ({"target": 5}, "target", "int"), ({"source": "x" * 65}, "source", "64"),
    ({"num_beams": 0}, "num_beams", ">= 1"), ({"num_beams": 33}, "num_beams", "<= 32"), ({"n": 0}, "n", ">= 1"),
    ({"n": 3, "num_beams": 2}, "n", "num_beams"), ({"n": 10**6}, "n", "<= 32"), ({"max_tokens": 0}, "max_tokens", "1"),
    ({"temperature": 1}, "temperature", "unknown field")])
def test_wrong_fields_are_named(reading, change, param, said):
    answer = reading.post(PATH, json={"model": "translator", "input": "a", "source": "en", "target": "de", **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and said in error["message"], error


def test_a_model_that_translates_nothing(reading):
    error = reading.post(PATH, json={"model": "chat", "input": "a", "target": "de"}).json()["error"]
    assert error["param"] == "model" and "cannot translate" in error["message"]
