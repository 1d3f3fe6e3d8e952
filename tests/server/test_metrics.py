"""What Prometheus reads."""

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forwardpass.scheduler.stats import Histogram
from forwardpass.server.metrics import _buckets
from forwardpass.server.routes import ROUTES, Route

CHAT = {"model": "small", "messages": [{"role": "user", "content": "w1 w2 w3"}], "max_tokens": 9, "ignore_eos": True,
        "temperature": 0}


def read(client):
    """(name, labels as a sorted tuple) -> value."""
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return {(sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text) for sample in family.samples}


def value(found, name, **labels):
    return found[("forwardpass_" + name, *sorted(labels.items()))]


def grown(before, after, name, **labels):
    key = ("forwardpass_" + name, *sorted(labels.items()))
    return after[key] - before.get(key, 0)


def test_the_time_between_tokens_is_counted_for_each(client):
    before = read(client)
    client.app.metrics.next_tokens("chat", 0.06, 3)
    after = read(client)
    assert grown(before, after, "inter_token_seconds_count", model="chat") == 3
    assert grown(before, after, "inter_token_seconds_sum", model="chat") == pytest.approx(0.06)


def test_a_chat_is_counted(client):
    before = read(client)
    usage = client.post("/v1/chat/completions", CHAT).json()["usage"]
    streamed = client.post("/v1/chat/completions", {**CHAT, "stream": True})
    assert streamed.content.endswith(b"data: [DONE]\n\n")
    after = read(client)

    def more(name, **labels):
        return grown(before, after, name, **labels)

    route = "/v1/chat/completions"
    assert more("requests_total", route=route, status="200") == 2
    assert more("prompt_tokens_total", model="chat") == 2 * usage["prompt_tokens"] > 0
    assert more("generated_tokens_total", model="chat") == 2 * usage["completion_tokens"] == 18
    assert more("request_duration_seconds_count", route=route) == 2
    assert more("request_duration_seconds_sum", route=route) > 0
    assert more("time_to_first_token_seconds_count", model="chat") == 2
    between = ("forwardpass_inter_token_seconds_count", ("model", "chat"))
    assert after.get(between, 0) - before.get(between, 0) <= 16  # tokens that come together have no time between them
    assert more("engine_generated_total", model="chat") == 18
    assert more("engine_steps_total", model="chat") >= 9
    assert more("engine_rows_total", model="chat") >= 18
    assert more("engine_ended_total", model="chat", how="done") == 2
    assert more("engine_batch_size_count", model="chat") == more("engine_steps_total", model="chat")
    assert more("engine_step_seconds_sum", model="chat", stage="decode") > 0
    assert more("engine_prefix_tokens_asked_total", model="chat") > 0
    assert more("engine_prefix_tokens_found_total", model="chat") > 0  # the second chat begins like the first
    assert 0 < value(after, "engine_prefix_hit_rate", model="chat") <= 1
    assert 0 < value(after, "engine_kv_bytes_held", model="chat") <= value(after, "engine_kv_bytes_size", model="chat")
    for name in ("requests_in_flight", "tokens_in_flight", "draining", "log_errors_total"):
        assert value(after, name) == 0
    assert more("driver_restarts_total") == 0
    for name in ("engine_running", "engine_waiting", "engine_preemptions_total"):
        assert value(after, name, model="chat") == 0
    assert value(after, "driver_alive") == 1 and after[("process_resident_memory_bytes",)] > 1 << 20
    assert value(after, "engine_steps_total", model="labels") == value(before, "engine_steps_total", model="labels")


def test_texts_that_are_read_count_too(client):
    before = read(client)
    assert client.post("/v1/classify", {"model": "labels", "input": ["w1 w2", "w3"]}).status_code == 200
    after = read(client)
    assert grown(before, after, "requests_total", route="/v1/classify", status="200") == 1
    assert grown(before, after, "prompt_tokens_total", model="labels") == 7  # [CLS] w1 w2 [SEP] [CLS] w3 [SEP]
    assert grown(before, after, "engine_rows_total", model="labels") == 7


def test_routes_of_a_client_s_own_do_not_become_labels(client):
    for number in range(30):
        client.get(f"/nowhere/{number}")
        client.get(f"/v1/models/nothing-{number}")
        client.request("DELETE", f"/version?x={number}")
    found = read(client)
    assert value(found, "requests_total", route="other", status="404") == 30
    assert value(found, "requests_total", route="other", status="405") == 30
    assert {dict(key[1:]).get("route") for key in found} <= {None, "other", *(route.path for route in ROUTES)}


def test_errors_and_clients_who_leave(app):
    async def waits(call, body):
        await asyncio.sleep(60)

    client = app(routes=(*ROUTES, Route("GET", "/waits", waits, "For a test.")))

    async def leave():
        asked = asyncio.ensure_future(client.client.get("/waits"))
        while not client.app.calls:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    client.run(leave())
    client.post("/v1/chat/completions", {**CHAT, "model": "unknown"})
    client.post("/v1/chat/completions", {})
    found = read(client)
    assert value(found, "clients_gone_total", route="/waits") == 1
    assert value(found, "requests_total", route="/waits", status="499") == 1
    assert value(found, "requests_total", route="/v1/chat/completions", status="404") == 1
    assert value(found, "requests_total", route="/v1/chat/completions", status="400") == 1


def test_two_applications_count_apart(app):
    first, second = app(), app()
    first.get("/version")
    assert value(read(first), "requests_total", route="/version", status="200") == 1
    with pytest.raises(KeyError):
        value(read(second), "requests_total", route="/version", status="200")


def test_driver_and_log_are_seen(client, host, monkeypatch):
    monkeypatch.setattr(host.driver, "restarts", 3)
    monkeypatch.setattr(host.driver, "failures", 2)
    monkeypatch.setattr(client.app, "log", SimpleNamespace(errors=5, write=lambda record: None))
    found = read(client)
    assert value(found, "driver_restarts_total") == 3 and value(found, "log_errors_total") == 5
    assert value(found, "failed_steps_total") == 2


def test_buckets_add_up():
    assert _buckets(Histogram((0.5, 1.0, 2.0), (3, 0, 4, 1), 9.0)) == [("0.5", 3), ("1.0", 3), ("2.0", 7), ("+Inf", 8)]
