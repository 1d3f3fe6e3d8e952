"""/openapi.json: a valid document, of all routes and of nothing else, and the server does what it says."""

import gc
import json
import re

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from forwardpass.server.examples import EXAMPLES
from forwardpass.server.openapi import MEANINGS, document, statuses
from forwardpass.server.routes import ROUTES
from forwardpass.server.schemas import Body

DOCUMENT = document(ROUTES)
OPERATIONS = [(re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path), route.method.lower()) for route in ROUTES]
NAMES = [f"{method} {path}" for path, method in OPERATIONS]
EXAMPLES_EACH, MORE = 12, 400
"""Generated requests of each kind for each route."""
FITTING = {
    "ChatRequest": {"model": ["chat"]}, "CompletionRequest": {"model": ["chat", "translator"]},
    "EmbeddingsBody": {"model": ["vectors", "meaning", "labels", "chat"], "prompt_name": ["query", None]},
    "RerankBody": {"model": ["relevance"], "template": [None]}, "ClassifyBody": {"model": ["labels", "relevance"]},
    "TranslateBody": {"model": ["translator"], "source": ["en", "English"], "target": ["de", "zh"]},
    "TokenizeBody": {"model": ["chat", "labels"], "messages": [None], "add_generation_prompt": [None],
                     "continue_final_message": [None], "chat_template_kwargs": [None]},
    "DetokenizeBody": {"model": ["chat", "vectors"]},
    "ImagesBody": {"model": ["pictures"], "prompt": ["owl", "Cat"], "n": [1, 2], "num_inference_steps": [1, 3, None],
                   "scheduler": [None, "EulerDiscreteScheduler"], "size": [None, "8x8"]},
}
"""What generated bodies say in these fields: otherwise none would come further than to a model that is unknown."""


def bodies():
    return [route for route in ROUTES if route.body is not None]


def names_of(routes):
    return [route.path for route in routes]


def validator(name):
    """Of one of the document's schemas, by JSON Schema 2020-12."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


def test_the_document_is_valid():
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    text = json.dumps(DOCUMENT)
    named = set(re.findall(r'"#/components/(\w+/\w+)"', text))
    there = {f"{kind}/{name}" for kind in ("schemas", "responses") for name in DOCUMENT["components"][kind]}
    assert named == there and "x-instead" not in text


def test_it_has_all_routes_and_no_others():
    found = [(path, method) for path, at in DOCUMENT["paths"].items() for method in at]
    assert sorted(found) == sorted(OPERATIONS)
    ids = [one["operationId"] for at in DOCUMENT["paths"].values() for one in at.values()]
    assert len(set(ids)) == len(ids)
    for route, (path, method) in zip(ROUTES, OPERATIONS, strict=True):
        said = DOCUMENT["paths"][path][method]
        assert said["summary"] and set(said["responses"]) == set(map(str, statuses(route)))
        assert ("requestBody" in said) == (route.body is not None) and (said.get("security") == []) == route.public


def test_it_is_served(reading):
    answer = reading.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json" and answer.json()["paths"] == DOCUMENT["paths"]
    assert answer.json()["security"] == [{"key": []}, {}]  # this server has no keys


def test_the_clients_of_openai_find_their_routes():
    """What the issue asks for is there; the table decides about the rest."""
    paths = set(DOCUMENT["paths"])
    assert {"/v1/embeddings", "/v1/models", "/v1/models/{id}", "/v1/rerank", "/v1/classify", "/v1/translate",
            "/tokenize", "/detokenize", "/health", "/health/live", "/version", "/openapi.json"} <= paths


@pytest.mark.parametrize("route", bodies(), ids=names_of(bodies()))
def test_bodies(route):
    """The model is asked for, unknown fields are refused, every field says what it is."""
    schema = DOCUMENT["components"]["schemas"][route.body.__name__]
    assert issubclass(route.body, Body) and "model" in schema["required"]
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(route.body.__struct_encode_fields__)


@pytest.mark.parametrize("route", bodies(), ids=names_of(bodies()))
def test_examples_are_requests(route):
    for example in EXAMPLES[route.path].values():
        msgspec.json.decode(json.dumps(example), type=route.body)
        validator(route.body.__name__).validate(example)
        with pytest.raises(jsonschema_rs.ValidationError):
            validator(route.body.__name__).validate(example | {"moodel": "x"})


@pytest.mark.parametrize("route", bodies(), ids=names_of(bodies()))
def test_examples_are_answered(reading, route):
    """By the tiny models, but for what these lack: tokens for a middle, wide vectors, many tokens."""
    for name, example in EXAMPLES[route.path].items():
        fitting = {"model": FITTING[route.body.__name__]["model"][0]}
        if "dimensions" in example:
            fitting["dimensions"] = 16
        if "tokens" in example:
            fitting["tokens"] = [5, 6]
        answer = reading.post(route.path, json=example | fitting)
        if "suffix" in example:
            assert answer.json()["error"]["code"] == "unsupported_by_model"
        else:
            assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.event], ids=lambda route: route.path)
def test_events_are_as_described(reading, route):
    text = {"prompt": "ab"} if "prompt" in route.body.__struct_fields__ else {
        "messages": [{"role": "user", "content": "ab"}]}
    more = {"stream": True, "max_tokens": 5, "n": 2, "logprobs": 1 if "prompt" in text else True}
    for options in ({}, {"include_usage": True}):
        answer = reading.post(route.path, json={"model": "chat", **text, **more, "stream_options": options})
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        *events, last = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
        assert last == "[DONE]" and len(events) > 5
        for event in events:
            validator(route.event.__name__).validate(json.loads(event))
    said = DOCUMENT["paths"][route.path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    event, error, _ = said["properties"]["data"]["anyOf"]
    assert event["contentSchema"]["$ref"].endswith("/" + route.event.__name__)
    assert error["contentSchema"]["$ref"].endswith("/ErrorBody")


@pytest.mark.soak
def test_decoders_survive_the_garbage_collector():
    """Those of some combinations of types do not, in the versions of msgspec that there are: the process is killed."""
    made = [msgspec.json.Decoder(route.body) for route in bodies()]
    for _ in range(3):
        gc.collect()
    assert len(made) == len(bodies())


def test_every_example_is_of_a_route():
    assert set(EXAMPLES) <= set(names_of(bodies()))


def test_statuses_have_meanings():
    assert set(MEANINGS) >= {status for route in ROUTES for status in statuses(route)}


# ---- the server against it


@pytest.fixture(scope="module")
def described(shelf):
    """The document for schemathesis, with fewer choices: FITTING, and nothing that is to be done in a millisecond. Keys
    have tests of their own."""
    made = json.loads(json.dumps(DOCUMENT))
    del made["security"]
    for name, fields in FITTING.items():
        properties = made["components"]["schemas"][name]["properties"]
        properties |= {field: {"enum": values} for field, values in fields.items()}
        if "timeout" in properties:
            properties["timeout"] = {"enum": [None, 60, 86400]}
    made["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["schema"] = {"enum": [*shelf.models, "meaning"]}
    load_all_checks()
    return schemathesis.openapi.from_dict(made)


CHECKED = ("status_code_conformance", "content_type_conformance", "response_headers_conformance",
           "response_schema_conformance", "negative_data_rejection")


RIGHT = [(path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS]
WRONG = [(path, method, GenerationMode.NEGATIVE) for path, method in OPERATIONS if method == "post"]
CASES = dict(argnames=("path", "method", "mode"), argvalues=RIGHT + WRONG,
             ids=lambda one: getattr(one, "value", one))


@pytest.mark.parametrize(**CASES)
def test_generated_requests(reading, described, path, method, mode):
    """By the schema, and against it: no faults, known statuses, answers of the shape that was promised, and what the
    schema forbids is refused."""
    found = send_generated(reading, described[path][method], mode, EXAMPLES_EACH, derandomize=True)
    assert mode is GenerationMode.POSITIVE or 200 not in found


@pytest.mark.soak
@pytest.mark.parametrize(**CASES)
def test_many_generated_requests(reading, described, path, method, mode):
    """Others each time."""
    send_generated(reading, described[path][method], mode, MORE, derandomize=False)


def send_generated(served, operation, mode, count, derandomize):
    """The statuses of the answers."""
    checks, found = CHECKS.get_by_names(CHECKED), set()

    @settings(max_examples=count, derandomize=derandomize, database=None, deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        sent = case.as_transport_kwargs(base_url="http://test")
        names = {"headers": "headers", "json": "json", "data": "content", "params": "params"}  # requests' and httpx's
        assert not set(sent) - {"method", "url", "cookies", *names}
        answer = served.request(sent["method"], sent["url"], **{
            name: sent[old] for old, name in names.items() if sent.get(old) is not None})
        found.add(answer.status_code)
        assert answer.status_code not in (500, 501, 502), answer.text
        case.validate_response(answer, checks=checks)

    check()
    return found
