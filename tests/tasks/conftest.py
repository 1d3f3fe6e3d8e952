"""The tiny model of tiny_chat.py, and the real one."""

import pytest

import forwardpass
from tiny_chat import tensors, write


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """tiny_folder(**what to change) -> a new directory with the tiny model."""
    return lambda **changes: write(tmp_path_factory.mktemp("models") / "tiny", **changes)


@pytest.fixture(scope="session")
def tiny_arrays():
    """Its tensors by name, to be changed and passed to tiny_folder(arrays=...)."""
    return tensors


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    with forwardpass.load(tiny_folder()) as model:
        yield model


@pytest.fixture(scope="session")
def smollm2():
    with forwardpass.load("smollm2-135m") as model:
        yield model
