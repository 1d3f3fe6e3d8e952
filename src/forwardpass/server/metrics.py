"""What the server counts, for Prometheus. The engines are only asked when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 60)
NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
WHOLE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """app: whose requests and host these are of. Own registry: two servers in one process do not share counts."""

    def __init__(self, app):
        self.registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter("forwardpass_" + name, about, labels, registry=self.registry)

        def seconds(name: str, about: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"forwardpass_{name}_seconds", about, (label,), buckets=buckets, registry=self.registry)

        self._requests = counter("requests", "Requests that were answered.", "route", "status")
        self._gone = counter("clients_gone", "Requests whose client left before the answer was whole.", "route")
        self._read = counter("prompt_tokens", "Tokens of prompts and texts that were read.", "model")
        self._written = counter("generated_tokens", "Tokens that were generated.", "model")
        self._whole = seconds("request_duration", "From a request's head to the last byte of its answer.", "route",
                              WHOLE_S)
        self._first = seconds("time_to_first_token", "From a request's head to its first token.", "model",
                              FIRST_TOKEN_S)
        self._next = seconds("inter_token", "Between two tokens of an answer.", "model", NEXT_TOKEN_S)
        self.registry.register(Looked(app))

    def first_token(self, model: str, seconds: float) -> None:
        self._first.labels(model).observe(seconds)

    def next_tokens(self, model: str, seconds: float, count: int) -> None:
        """count tokens came together, so many seconds after those before."""
        one = self._next.labels(model)
        for _ in range(count):
            one.observe(seconds / count)

    def request(self, route: str, status: int, seconds: float, client_gone: bool) -> None:
        self._requests.labels(route, str(status)).inc()
        self._whole.labels(route).observe(seconds)
        if client_gone:
            self._gone.labels(route).inc()

    def tokens(self, model: str, read: int, written: int) -> None:
        self._read.labels(model).inc(read)
        self._written.labels(model).inc(written)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Looked:
    """What is read off when somebody asks."""

    def __init__(self, app):
        self.app = app

    def collect(self) -> Iterator[Metric]:
        app = self.app
        asked = sum(call.route != "/metrics" for call in app.calls)  # whoever looks is none of them
        yield _gauge("requests_in_flight", "Requests that are being answered.", asked)
        yield _gauge("draining", "1 while the server shuts down.", int(app.draining))
        yield _gauge("driver_alive", "1 while the thread that steps the engines runs.", int(app.host.driver.alive))
        yield _count("driver_restarts", "Times that this thread had to be replaced.", app.host.driver.restarts)
        yield _count("log_errors", "Lines of the log that were lost.", app.log.errors if app.log else 0)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily("forwardpass_" + name, about, value=value)


def _count(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily("forwardpass_" + name, about, value=value)
