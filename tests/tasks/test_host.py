"""Several models for many users: names, one backend, a memory plan, and answers that are those of each model alone."""

import threading
import time
import warnings
from pathlib import Path

import pytest

import forwardpass
from forwardpass import config
from forwardpass.errors import CapacityError, ForwardpassError, ModelFileError, ParameterError, UnknownModelError
from forwardpass.models import loading
from forwardpass.scheduler.terms import Terms
from forwardpass.tasks.host import Host, Loading, named

GIB = 1 << 30


@pytest.fixture(scope="module")
def folders(tiny_folder):
    return tiny_folder(), tiny_folder(num_key_value_heads=2, rope_theta=5000.0)


@pytest.fixture(scope="module")
def host(folders):
    one, two = folders
    with Host({"one": one, "two": Loading(two, dtype="float32")}, aliases={"uno": "one"}, kv_memory="32MiB", threads=2,
              max_tokens_in_flight=5000) as host:
        yield host


# ---- names


def test_models_are_found_by_name_and_alias(host):
    assert host.find("one") is host.models["one"] is host.find("uno") and host.find("two") is not host.find("one")
    assert list(host.models) == ["one", "two"] and host.aliases == {"uno": "one"}
    for name in ("three", "", "One", "one ", "x" * 100000):
        with pytest.raises(UnknownModelError, match=r"there are: one, two, uno$") as error:
            host.find(name)
        assert len(str(error.value)) < 400


def test_names_of_a_list(tmp_path, folders):
    gguf = tmp_path / "some-model.gguf"
    gguf.touch()
    odd = tmp_path / "a=b"
    odd.mkdir()
    found = named([f"mine={folders[0]}", "smollm2-135m", folders[1], "x=hf:org/name", str(gguf), str(odd)])
    assert {name: str(one.model) for name, one in found.items()} == {
        "mine": str(folders[0]), "smollm2-135m": "smollm2-135m", folders[1].name: str(folders[1]),
        "x": "hf:org/name", "some-model": str(gguf), "a=b": str(odd)}


@pytest.mark.parametrize("models, words", [
    ([], "at least one"), ({}, "at least one"), ("one", "a list of models"), (Path("one"), "a list of models"),
    (7, "a list of models"), (None, "a list of models"), (["a", "a"], "two models are named 'a'"),
    (["n=a", "n=b"], "two models are named 'n'"), (["=a"], "something in it"), ({"": "a"}, "something in it"),
    ({3: "a"}, "something in it"), ([3], "a path or a name, not 3"), ([None], "a path or a name"),
    ({"a": 3}, "a path or a name, not 3"), (["n="], "a path or a name"),
])
def test_what_are_no_models(models, words):
    with pytest.raises(ParameterError, match=words):
        named(models)


@pytest.mark.parametrize("aliases, words", [({"x": "nobody"}, "none of the models: one"),
                                            ({"one": "one"}, "cannot be")])
def test_aliases_that_make_no_sense(aliases, words, folders):
    with pytest.raises(ParameterError, match=words):
        Host({"one": folders[0]}, aliases=aliases)


@pytest.mark.parametrize("given, error", [
    ({"kv_memory": "much"}, ParameterError), ({"kv_memory": 0}, ParameterError), ({"threads": 0}, ParameterError),
    ({"dtype": "int3"}, ParameterError), ({"kv_dtype": "q"}, ParameterError),
    ({"max_tokens_in_flight": 0}, ParameterError), ({"models": {"a": "no-such-model-anywhere"}}, ForwardpassError),
    ({"models": {"a": Loading(Path(__file__))}}, ModelFileError),
])
def test_what_cannot_be_loaded_leaves_no_thread(given, error, folders):
    before = threading.active_count()
    with pytest.raises(error):
        Host(**{"models": {"one": folders[0]}, "kv_memory": "8MiB"} | given)
    assert threading.active_count() == before


# ---- one engine room


def test_models_share_threads_memory_and_a_driver(host):
    one, two = host.models.values()
    assert one.network.backend is two.network.backend and one.network.backend.threads <= 2
    assert one.engine.driver is two.engine.driver is host.driver and host.driver.alive
    assert (one.dtype, two.dtype) == ("auto", "float32") and host.account.limit == 5000


def ask(model, i):
    """Something of several kinds, each of them to be had again."""
    if i % 3 == 0:
        return model.generate([i, 2, 3] * (i + 1), max_new_tokens=9, do_sample=True, seed=i, logprobs=1)
    if i % 3 == 1:
        return [piece.token_id for piece in model.stream([i] * 20, max_new_tokens=12)]
    return model.generate([[i, 5], [i] * 30], max_new_tokens=5, num_beams=2, num_return_sequences=2)


def plain(found):
    if isinstance(found, list):
        return [plain(one) for one in found]
    return found if isinstance(found, int) else (found.token_ids, found.text, found.finish_reason, found.logprobs,
                                                 found.score)


def test_many_threads_and_two_models_each_as_if_it_were_alone(host, folders):
    found, errors = {}, []

    def work(name, i):
        try:
            found[name, i] = plain(ask(host.find(name), i))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name, i)) for i in range(9) for name in ("uno", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and len(found) == 18
    for name, folder, dtype in (("uno", folders[0], "auto"), ("two", folders[1], "float32")):
        with forwardpass.load(folder, dtype=dtype, threads=1) as alone:
            assert all(found[name, i] == plain(ask(alone, i)) for i in range(9))


def test_a_warning_of_a_model_is_its_users(host):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert host.find("one").generate([1], max_new_tokens=1)


def test_the_account_is_asked_by_terms(host):
    with Terms(account=host.account), pytest.raises(CapacityError, match="limit is 5000"):
        host.find("one").generate([[1]] * 60, max_new_tokens=100, num_return_sequences=60, do_sample=True)
    assert host.account.taken == 0


def test_closing_frees_all_and_ends_the_thread(folders):
    before = threading.active_count()
    host = Host([f"a={folders[0]}", f"b={folders[1]}"], kv_memory="8MiB", threads=1)
    model = host.find("a")
    slow = [lambda ids, row: time.sleep(0.005) or row]
    streams = [model.stream([1], max_new_tokens=100, logits_processors=slow) for _ in range(3)]
    assert all(next(stream) for stream in streams)
    host.close()
    host.close()
    for stream in streams:
        with pytest.raises(ForwardpassError, match="closed"):
            list(stream)
    with pytest.raises(ParameterError, match="closed"):
        host.find("b").generate([1])
    assert threading.active_count() == before and not host.driver.alive


# ---- the memory plan


def test_the_plan_says_what_memory_is_for(host):
    one, two = host.plan.models
    per_token = sum(host.models["one"].network.block_bytes()) // 64
    assert (one.name, one.token_bytes, one.context) == ("one", per_token, 128) and one.weights > 50_000
    assert two.token_bytes == 2 * one.token_bytes  # float32 keys and values
    assert one.tokens == 32 * 2**20 // (64 * per_token) * 64 and one.full == one.tokens // 128
    assert host.plan.kv == 32 * 2**20 and host.plan.free > host.plan.kv + host.plan.process
    first, *rest = host.plan.lines()
    assert first.startswith("KV cache 32.0 MiB, shared") and len(rest) == 2
    assert rest[0].startswith("one: weights ") and f"room for {one.tokens:,} tokens" in rest[0]


def test_half_of_the_free_memory_is_the_default(folders, monkeypatch):
    monkeypatch.setattr(config, "available_memory", lambda: 2 * GIB)
    with Host({"one": folders[0]}) as host:
        assert host.plan.kv == GIB and host.plan.free == 2 * GIB
    monkeypatch.setattr(config, "available_memory", lambda: 160 << 20)  # half would not leave enough for the rest
    with Host({"one": folders[0]}) as host:
        assert 0 < host.plan.kv == host.plan.free - host.plan.process < 80 << 20


def test_a_plan_that_cannot_work_says_what_would(folders, monkeypatch):
    monkeypatch.setattr(config, "available_memory", lambda: GIB)
    with pytest.raises(CapacityError, match=r"of 2.0 GiB does not fit: 1.0 GiB .*at most (\d+.\d MiB)$") as no:
        Host({"one": folders[0]}, kv_memory="2GiB")
    most = str(no.value).rsplit("at most ", 1)[1]
    with Host({"one": folders[0]}, kv_memory=most) as host:  # and so it does
        assert host.plan.kv == config.parse_memory(most)
    monkeypatch.setattr(config, "available_memory", lambda: 50 << 20)
    with pytest.raises(CapacityError, match="free some memory"):
        Host({"one": folders[0]}, kv_memory="40MiB")
    monkeypatch.setattr(config, "available_memory", lambda: GIB)
    with pytest.raises(CapacityError, match=r"one needs \d+.\d KiB of KV cache .*; there are 1.0 KiB"):
        Host({"one": folders[0]}, kv_memory=1024)


def test_less_than_a_full_context_is_said(folders):
    with Host({"one": folders[0]}, kv_memory=64 * 600) as host:
        assert host.plan.models[0].full == 0 and "not one full context: texts of 64 at most" in host.plan.lines()[1]
        assert len(host.find("one").generate([1] * 20, max_new_tokens=20).token_ids) == 20
        with pytest.raises(CapacityError, match="room for 64"):
            host.find("one").generate([1] * 60, max_new_tokens=20)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(folders, monkeypatch):
    monkeypatch.setattr(loading.config, "available_memory", lambda: 1000)
    for load in (lambda: forwardpass.load(folders[0]), lambda: Host({"one": folders[0]})):
        with pytest.raises(CapacityError, match=r"needs \d+\.\d KiB for its weights; 1000 B of memory are free"):
            load()


def test_models_that_only_read_need_no_cache(tmp_path_factory):
    import tiny_readers

    folder = tiny_readers.save(tiny_readers.make("none"), tmp_path_factory.mktemp("reader") / "model", None)
    with Host({"reader": folder}) as host:
        assert host.plan.kv == 0 and host.plan.models[0].token_bytes == 0
        assert host.plan.lines() == [host.plan.lines()[0]] and "it only reads" in host.plan.lines()[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert host.find("reader").embed(["w1 w2", "w3"]).shape[0] == 2
