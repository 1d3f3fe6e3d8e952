"""/v1/models and /v1/models/{id}."""

import openai
import pytest

import tiny_shelf


def test_all_names_of_all_models(reading, shelf):
    answer = reading.get("/v1/models").json()
    cards = {one["id"]: one for one in answer["data"]}
    assert answer["object"] == "list" and list(cards) == ["vectors", "labels", "relevance", "translator", "chat",
                                                          "pictures", "meaning"]
    for name, card in cards.items():
        model = shelf.find(name)
        assert card["object"] == "model" and card["owned_by"] == "forwardpass" and card["tasks"] == list(model.tasks)
        assert card["root"] == ("vectors" if name == "meaning" else name) and card["dtype"] == model.dtype
        assert card["created"] == int(model.path.stat().st_mtime)
    assert "max_model_len" not in cards.pop("pictures")  # it reads no texts
    assert {name: card["max_model_len"] for name, card in cards.items()} == {
        "vectors": tiny_shelf.LIMIT, "meaning": tiny_shelf.LIMIT, "labels": 40, "relevance": 40, "translator": 40,
        "chat": 128}


def test_one_model(reading):
    listed = {one["id"]: one for one in reading.get("/v1/models").json()["data"]}
    for name in ("chat", "meaning"):
        assert reading.get(f"/v1/models/{name}").json() == listed[name]


def test_a_model_that_is_not_there(reading):
    for path in ("gpt-4", "a/b", "%2e%2e", "..%2fchat", "chat/", "Chat", "x" * 5000, "%ff"):
        answer = reading.get("/v1/models/" + path)
        error = answer.json()["error"]
        assert answer.status_code == 404 and error["code"] == "model_not_found" and error["param"] == "model"
        assert "translator" in error["message"] and len(answer.content) < 3000


@pytest.mark.parametrize("name", ["org/tiny", "hf:org/tiny-1.0", "näme ü", "a?b#c&d"])
def test_names_that_need_escaping(app, shelf, name):
    """The official client asks for a model of this name."""
    class Other:
        models, aliases, account, driver = {name: shelf.models["chat"]}, {"other": name}, None, shelf.driver

        @staticmethod
        def find(asked):
            return Other.models[Other.aliases.get(asked, asked)]

    served = app(host=Other)

    async def retrieve():
        client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=served.client)
        return await client.models.retrieve(name), [one async for one in client.models.list()]

    one, listed = served.run(retrieve())
    assert one.id == name and [each.id for each in listed] == [name, "other"]
    assert listed[1].root == name and "generate" in listed[1].tasks
