"""The server's process: it starts, serves, and ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from time import perf_counter

from forwardpass.config import memory_text as size
from forwardpass.errors import ParameterError
from forwardpass.server.keys import read_keys
from forwardpass.server.logs import RequestLog
from forwardpass.server.settings import Settings

SWITCH_S = 0.001
"""How long the interpreter lets one thread go on while another wants it. Of Python's 5 ms the event loop would wait
several for each token while the stepping thread is between two native calls, and the other way round."""
END_S = 2.0
"""For requests that are ended to say so, and for connections to take their last bytes."""
INTERRUPTED = 130


def serve(settings: Settings) -> int:
    """Serve until a signal ends it. Returns the exit status: 0 after a drain, 130 if a second signal cut it short.

    What can be wrong is found in the order of its cost: settings, keys, log, address, models.
    """
    began = perf_counter()
    keys = None if settings.api_key_file is None else read_keys(settings.api_key_file)
    with open_log(settings.log_file) as log, bind(settings) as listener, _load(settings) as host:
        from forwardpass.server.app import App

        app = App(host, settings, keys, log)
        try:
            gc.enable()
            gc.freeze()  # vocabularies and modules stay: no collection need look at them again
            sys.setswitchinterval(SWITCH_S)
            say(app, listener.getsockname(), perf_counter() - began)
            status = run(app, listener)
        finally:
            app.close()
        if app.calls:  # what a thread does that heeds nothing is not waited for
            leave(log, status)
        return status


def leave(log: RequestLog, status: int) -> None:
    """End the process now, whatever its threads are doing."""
    log.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def open_log(target: str) -> RequestLog:
    try:
        return RequestLog(target)
    except OSError as error:
        raise ParameterError(f"log-file: {target!r} cannot be written: {error.strerror}") from None


def _load(settings: Settings):
    """What load() returns. The server's imports are a thread's work meanwhile: reading weights is mostly the kernel's
    and that of native code, so both come to an end sooner."""
    thread = threading.Thread(target=_import_server, daemon=True)
    thread.start()
    try:
        return load(settings)
    finally:
        thread.join()


def _import_server() -> None:
    with contextlib.suppress(ImportError):  # raised where it is wanted, and can be told
        import forwardpass.server.app  # noqa: F401


def load(settings: Settings):
    """The host of all models, with progress while one is fetched or packed for the first time."""
    from forwardpass.cli.progress import Progress
    from forwardpass.tasks.host import Host, Loading

    models = settings.models
    if not isinstance(models, tuple):
        models = {name: Loading(one.model, one.dtype, one.kv_dtype) for name, one in models.items()}
    with Progress() as progress:
        return Host(models, aliases=settings.aliases, kv_memory=settings.kv_memory, threads=settings.threads,
                    max_tokens_in_flight=settings.max_tokens_in_flight, dtype=settings.dtype,
                    kv_dtype=settings.kv_dtype, progress=progress)


def bind(settings: Settings) -> socket.socket:
    """The address taken, but not listened to: nobody can connect before the models are there."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" is two addresses; clients that were given the other one try both.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ParameterError(f"host: {host!r} is no address of this machine: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ParameterError(f"cannot listen on {host} port {port}: {error.strerror}{_advice(error, port)}") from None
    return listener


def _advice(error: OSError, port: int) -> str:
    """What to do about an address that cannot be had."""
    if error.errno == errno.EADDRNOTAVAIL:
        return "; give --host an address of this machine, or 0.0.0.0 for all of them"
    if error.errno == errno.EACCES:
        return f"; {port} is reserved to the system: choose a --port from 1024"
    return "; choose another --port, or end what uses it"


def say(app, address: tuple, seconds: float) -> None:
    """The plan, on standard error: what is served, what it takes, where, to whom."""
    settings, lines = app.settings, list(app.host.plan.lines())
    for name, model in app.host.models.items():
        kept = f", keys and values {model.kv_dtype}" if "draw" not in model.tasks and model.network.groups else ""
        lines.append(f"{name}: {model.spec.family}, dtype {model.dtype} (computes in {model.arithmetic}){kept}; it can "
                     f"{', '.join(model.tasks)}")
    for alias, name in app.host.aliases.items():
        lines.append(f"alias {alias} = {name}")
    limits = [f"{settings.max_requests} requests at a time", f"bodies of {size(settings.max_body)}"]
    limits += [f"{name.replace('_', ' ')} {value:,}" for name in
               ("max_tokens_in_flight", "max_tokens_per_key", "max_tokens_per_request")
               if (value := getattr(settings, name)) is not None]
    lines.append("limits: " + ", ".join(limits))
    keys = "no API keys: everybody who can connect may ask" if app.keys is None else f"API keys: {len(app.keys.keys)}"
    lines.append(f"access: {keys}; pages of other origins: {', '.join(settings.cors_origin) or 'none'}")
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    lines.append(f"ready after {seconds:.2f} s: http://{host}:{address[1]}")
    if app.keys is None and not settings.loopback:
        lines.append(f"warning: {settings.host} can be reached from other machines and there are no API keys: give "
                     "--api-key-file, or listen on 127.0.0.1 only")
    if app.keys is None and "*" in settings.cors_origin:
        lines.append('warning: with --cors-origin "*" and no API keys any page that somebody opens on this machine may '
                     "use the server")
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def run(app, listener: socket.socket) -> int:
    """The event loop, until a signal ends it."""
    raise_file_limit(app)
    return asyncio.run(_serve(app, make_server(app), listener))


def make_server(app):
    """uvicorn's server of an application, with our protocol and without its handling of signals."""
    from prometheus_client import disable_created_metrics
    from uvicorn.config import Config
    from uvicorn.server import Server

    from forwardpass.server.protocol import Protocol

    disable_created_metrics()  # a line more for every one of them, and nobody reads it
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # malformed requests are answered, and no news
    config = Config(app, http=Protocol, ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False,
                    proxy_headers=False, server_header=False, timeout_graceful_shutdown=END_S)
    server = Server(config)
    server.capture_signals = contextlib.nullcontext
    return server


def raise_file_limit(app) -> None:
    """Idle connections cost a file descriptor each and little else, so take all that this process may have."""
    from forwardpass.server.protocol import most_connections

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    app.max_connections = most_connections()


async def _serve(app, server, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task] = []

    def on_signal(number: int) -> None:
        if ending:  # the second one: at once
            leave(app.log, INTERRUPTED)
        app.drain()
        print(f"{signal.Signals(number).name}: no new requests; {len(app.calls)} may finish within "
              f"{app.settings.drain_timeout:g} s", file=sys.stderr, flush=True)
        ending.append(loop.create_task(_end(app, server)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, app.log.reopen)
    await server.serve(sockets=[listener])
    return 0


async def _end(app, server) -> None:
    """Wait for the requests that run, end those that take too long, and stop listening."""
    await _without_calls(app, app.settings.drain_timeout)
    app.end_all()
    await _without_calls(app, END_S)
    server.should_exit = True


async def _without_calls(app, seconds: float) -> None:
    end = perf_counter() + seconds
    while app.calls and perf_counter() < end:
        await asyncio.sleep(0.02)
