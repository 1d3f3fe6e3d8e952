"""The application around the handlers."""

import forwardpass


def test_probes(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/health/live").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": forwardpass.__version__, "models": ["chat", "labels"]}
