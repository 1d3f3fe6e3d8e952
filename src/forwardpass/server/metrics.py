"""What the server counts, for Prometheus. The engines are only asked when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.utils import floatToGoString

from forwardpass.scheduler.stats import EngineStats
from forwardpass.scheduler.stats import Histogram as Counted

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
        ProcessCollector(registry=self.registry)  # memory, processor time and open files of this process

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
        app, host = self.app, self.app.host
        asked = sum(call.route != "/metrics" for call in app.calls)  # whoever looks is none of them
        yield _gauge("requests_in_flight", "Requests that are being answered.", asked)
        yield _gauge("tokens_in_flight", "Tokens of admitted requests, prompts and what may be generated.",
                     host.account.taken)
        yield _gauge("draining", "1 while the server shuts down.", int(app.draining))
        yield _gauge("driver_alive", "1 while the thread that steps the engines runs.", int(host.driver.alive))
        yield _count("driver_restarts", "Times that this thread had to be replaced.", host.driver.restarts)
        yield _count("failed_steps", "Steps in which something went wrong.", host.driver.failures)
        yield _count("log_errors", "Lines of the log that were lost.", app.log.errors if app.log else 0)
        yield from _engines({name: model.engine.stats() for name, model in host.models.items()})


GAUGES = {
    "running": "Sequences that hold cache blocks and are computed.",
    "waiting": "Sequences in the queue.",
    "kv_held": "Bytes of the KV cache that are in use, or kept for later.",
    "kv_kept": "Bytes of the KV cache that are only kept for later.",
    "kv_size": "Bytes of the KV cache.",
}
COUNTS = {
    "steps": "Forward passes.",
    "rows": "Positions computed in them.",
    "generated": "Tokens chosen by the engine, for whoever asked.",
    "preemptions": "Sequences that had to give up their blocks and start over.",
    "prefix_asked": "Tokens of prompts that were looked for among kept texts.",
    "prefix_found": "Those of them that were there.",
    "kv_dropped": "Bytes of kept texts that somebody needed, in all models that share the memory.",
}
NAMED = {"kv_held": "kv_bytes_held", "kv_kept": "kv_bytes_kept", "kv_size": "kv_bytes_size",
         "kv_dropped": "kv_bytes_dropped", "prefix_asked": "prefix_tokens_asked",
         "prefix_found": "prefix_tokens_found"}
"""Fields of EngineStats whose metric says the unit, too."""


def _engines(stats: dict[str, EngineStats]) -> Iterator[Metric]:
    """Of each model's engine."""
    for family, fields in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTS)):
        for field, about in fields.items():
            made = family(f"forwardpass_engine_{NAMED.get(field, field)}", about, labels=("model",))
            for name, one in stats.items():
                made.add_metric((name,), getattr(one, field))
            yield made
    ended = CounterMetricFamily("forwardpass_engine_ended", "Requests to the engine that have ended, by how.",
                                labels=("model", "how"))
    rate = GaugeMetricFamily("forwardpass_engine_prefix_hit_rate", "Part of the looked-for tokens that were there.",
                             labels=("model",))
    batch = HistogramMetricFamily("forwardpass_engine_batch_size", "Texts in a step.", labels=("model",))
    steps = HistogramMetricFamily("forwardpass_engine_step_seconds", "Time of a step, by stage.",
                                  labels=("model", "stage"))
    for name, one in stats.items():
        for how, count in one.ended.items():
            ended.add_metric((name, how), count)
        rate.add_metric((name,), one.prefix_found / one.prefix_asked if one.prefix_asked else 0.0)
        batch.add_metric((name,), _buckets(one.batch), one.batch.total)
        for stage, seconds in one.step_seconds.items():
            steps.add_metric((name, stage), _buckets(seconds), seconds.total)
    yield from (ended, rate, batch, steps)


def _buckets(counted: Counted) -> list[tuple[str, float]]:
    """Prometheus counts in each bucket what lies in those below it as well."""
    edges = [floatToGoString(edge) for edge in counted.edges] + ["+Inf"]
    return list(zip(edges, accumulate(counted.counts), strict=True))


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily("forwardpass_" + name, about, value=value)


def _count(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily("forwardpass_" + name, about, value=value)
