"""/v1/images/generations: the pictures that the library draws, in OpenAI's shape."""

import base64
import json
from io import BytesIO

import numpy as np
import openai
import pytest
from PIL import Image

PATH = "/v1/images/generations"
SHORT = {"num_inference_steps": 3}


def ask(reading, **body):
    return reading.post(PATH, json={"model": "pictures", "prompt": "owl", **SHORT, **body})


def opened(one):
    return Image.open(BytesIO(base64.b64decode(one["b64_json"])))


def test_the_pictures_of_the_library(reading, shelf):
    answer = ask(reading, prompt="Cat", n=2, seed=5, guidance_scale=2.0)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    drawn = shelf.models["pictures"].draw("cat", num_images_per_prompt=2, seed=5, guidance_scale=2.0, **SHORT)
    assert said["model"] == "pictures" and said["output_format"] == "png"
    assert [one["seed"] for one in said["data"]] == [5, 6]
    for one, image in zip(said["data"], drawn.images, strict=True):
        found = opened(one)
        assert found.format == "PNG" and (np.asarray(found) == np.asarray(image)).all()
        told = json.loads(found.text["parameters"])
        assert told["prompt"] == "cat" and told["seed"] == one["seed"] and told["num_inference_steps"] == 3
    assert said["size"] == f"{drawn.images[0].width}x{drawn.images[0].height}" and "warnings" not in said


def test_formats_and_sizes(reading):
    for kind in ("jpeg", "webp"):
        assert opened(ask(reading, output_format=kind, size="16x8").json()["data"][0]).size == (16, 8)
    assert ask(reading, size="auto", response_format="b64_json").status_code == 200


def test_the_official_client(listening, shelf):
    server = listening(host=shelf)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        said = client.images.generate(model="pictures", prompt="owl", n=1, extra_body={"seed": 1, **SHORT})
        image = Image.open(BytesIO(base64.b64decode(said.data[0].b64_json)))
        assert said.size == f"{image.width}x{image.height}"
        with pytest.raises(openai.BadRequestError) as caught:
            client.images.generate(model="pictures", prompt="wol")
    assert caught.value.param == "prompt" and "owl" in caught.value.message


def test_pictures_that_would_hold_everybody_up(reading):
    """Four times the pixels that the model was trained at, of any shape, and no more."""
    for size in ("16x16", "32x8"):
        assert ask(reading, size=size, num_inference_steps=1).json()["size"] == size
    for size in ("18x16", "2x130", "4000x4000"):
        error = ask(reading, size=size).json()["error"]
        assert error["param"] == "size" and "256 in all" in error["message"] and "(8x8)" in error["message"]


@pytest.mark.parametrize("change, param", [
    ({"prompt": "dog"}, "prompt"), ({"prompt": "8" * 5000}, "prompt"),
    ({"n": 0}, "n"), ({"n": 17}, "n"), ({"n": 1.5}, "n"), ({"size": "0x8"}, "size"),
    ({"size": "9999x9999"}, "size"), ({"size": "7x8"}, "size"), ({"size": "large"}, "size"), ({"seed": -1}, "seed"),
    ({"num_inference_steps": 0}, "num_inference_steps"), ({"num_inference_steps": 1001}, "num_inference_steps"),
    ({"guidance_scale": -1}, "guidance_scale"), ({"response_format": "url"}, "response_format"),
    ({"scheduler": "MagicScheduler"}, "scheduler"), ({"negative_prompt": "fog"}, "negative_prompt"),
    ({"quality": "hd"}, None),
])
def test_what_is_refused(reading, change, param):
    answer = ask(reading, **change)
    assert answer.status_code == 400, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param, answer.text
    assert ask(reading, n=1).status_code == 200


def test_models_that_do_not_draw(reading):
    error = reading.post(PATH, json={"model": "labels", "prompt": "owl"}).json()["error"]
    assert error["code"] == "unsupported_by_model" and "classify" in error["message"]
    error = reading.post("/v1/embeddings", json={"model": "pictures", "input": "owl"}).json()["error"]
    assert error["code"] == "unsupported_by_model" and "draw" in error["message"]


def test_choices_are_named(reading):
    said = ask(reading, response_format="url").json()["error"]["message"]
    assert said == "response_format: expected 'b64_json', found \"url\""
    said = ask(reading, output_format="gif").json()["error"]["message"]
    assert said == "output_format: expected one of 'jpeg', 'png', 'webp', found \"gif\""
