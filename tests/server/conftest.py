"""Two tiny models behind one application: "chat" (tiny_chat.py) and "labels" (tiny_readers.py); or a shelf of them, one
of each kind (tiny_shelf.py)."""

import pytest

import tiny_chat
import tiny_readers
import tiny_shelf
from forwardpass.tasks.host import Host
from server_tools import InProcess, Listening, ServerProcess

CONTEXT = 1024


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Name -> directory of a tiny model."""
    made = tmp_path_factory.mktemp("served")
    tiny_chat.write(made / "chat", max_position_embeddings=CONTEXT)
    tiny_readers.save(tiny_readers.make("labels", 3), made / "labels")
    return {"chat": made / "chat", "labels": made / "labels"}


@pytest.fixture(scope="session")
def host(folders):
    """Host of both models; "small" is another name for "chat"."""
    host = Host([f"{name}={path}" for name, path in folders.items()], aliases={"small": "chat"})
    yield host
    host.close()


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Host of tiny_shelf's models, in the reference mode; "meaning" is another name for "vectors"."""
    paths = tiny_shelf.write(tmp_path_factory.mktemp("shelf"))
    host = Host([f"{name}={path}" for name, path in paths.items()], aliases={"meaning": "vectors"}, dtype="float32")
    yield host
    host.close()


@pytest.fixture
def app(host):
    """app(routes=..., **settings) -> an InProcess, closed afterwards."""
    made = []

    def make(**more):
        made.append(InProcess(more.pop("host", host), **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def listening(host):
    """listening(routes=..., **settings) -> a Listening, closed afterwards."""
    made = []

    def make(**more):
        made.append(Listening(more.pop("host", host), **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client(app):
    """The application with all routes and default settings."""
    return app()


@pytest.fixture
def reading(app, shelf):
    """The same over the shelf."""
    return app(host=shelf)


@pytest.fixture
def server(tmp_path, folders):
    """server(*arguments) -> a ServerProcess of both models, stopped afterwards."""
    started = []

    def start(*arguments, models=("chat", "labels"), **more):
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(ServerProcess(folder, *(f"{name}={folders[name]}" for name in models), *arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()
