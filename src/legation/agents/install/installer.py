"""Install an agent: fetch what the lock names, check it, unpack it, and let it count only when all is on disk.

Two at once: the second waits, and finds the work done. One that is killed leaves a folder that counts for nothing
and that the next one removes. A tarball is unpacked into a folder that is new and ours:

INV-1  Only regular files and folders come out of it, below the folder: a link, a device, an absolute path, a `..`
       or a name twice ends the unpacking, and the caller throws everything away.
INV-2  No more files and bytes come out than the lock says, and no more is decompressed than those can need.
INV-3  Nothing in it is run, no script of a package ever.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import disk_usage
from threading import Lock as Mutex
from typing import Final, Protocol

import msgspec

from legation.agents.install.fetch import AT_ONCE, Fetcher, configured, opened
from legation.agents.install.folder import (
    RECORD,
    FileMark,
    InstalledAgent,
    InstalledPackage,
    InstallFolder,
    digest,
    sync_all,
)
from legation.agents.install.lock import Package, Release, TargetMachine, here
from legation.clock import Clock, SystemClock
from legation.errors import Cancelled, Conflict, NotFound, StorageFailed
from legation.store.datafolder import make_folder

# The programs that a package names in its package.json: npm makes them executable, and so do we.

PROGRAM_MODE: Final = 0o555
_LISTING: Final = "package.json"
_MAX_LISTING: Final = 4 * 1024 * 1024  # bytes; a longer one names no programs


def make_programs(folder: Path, marks: tuple[FileMark, ...]) -> tuple[FileMark, ...]:
    """`marks` as they are afterwards. Only files of the package itself are touched."""
    named = _named(folder) if any(mark.path == _LISTING for mark in marks) else set()
    done = []
    for mark in marks:
        if mark.path in named and not mark.program:
            (folder / mark.path).chmod(PROGRAM_MODE)
            mark = msgspec.structs.replace(mark, program=True)
        done.append(mark)
    return tuple(done)


def _named(folder: Path) -> set[str]:
    listing = folder / _LISTING
    if listing.stat().st_size > _MAX_LISTING:
        return set()
    try:
        named = msgspec.json.decode(listing.read_bytes(), type=_Listing).bin
    except (msgspec.DecodeError, UnicodeDecodeError):
        return set()
    paths = [named] if isinstance(named, str) else named.values()
    return {PurePosixPath(path).as_posix() for path in paths if isinstance(path, str)}


class _Listing(msgspec.Struct):
    bin: str | dict[str, object] = msgspec.field(default_factory=dict)


# Unpacking.

_BLOCK: Final = 1024 * 1024
# What a tar may need around its files: headers with long names, padding, folders, the two empty blocks, padding.
_AROUND_EACH: Final = 4096
_AROUND_ALL: Final = 1024 * 1024
_PROGRAM, _FILE = 0o555, 0o444  # nobody updates them in place: a version is a folder of its own


@dataclass(frozen=True, slots=True)
class Bounds:
    files: int
    size: int


class MalformedTarball(Exception):
    """The tarball is not what it must be; the words say why."""


class _BoundedReader:
    """Reads what gzip unpacks, up to a limit: a small file can unpack to any size."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self._source, self._left = source, limit

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > self._left + _BLOCK:
            raise MalformedTarball("it unpacks to more than the lock allows")
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise MalformedTarball("it unpacks to more than the lock allows")
        return data


def unpack(tarball: Path, into: Path, bounds: Bounds) -> tuple[FileMark, ...]:
    """`into` is made; what was unpacked, by path. Raises `MalformedTarball`. The first folder of every name is left out, as npm does."""
    limit = bounds.size + bounds.files * _AROUND_EACH + _AROUND_ALL
    make_folder(into.parent)
    into.mkdir(mode=0o700)
    try:
        with gzip.open(tarball) as plain, _tar(_BoundedReader(plain, limit)) as tar:
            return make_programs(into, _members(tar, into, bounds))
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MalformedTarball(f"it is no whole tarball ({error})") from None


def _tar(source: _BoundedReader) -> tarfile.TarFile:
    """Open it as a stream: it only ever reads, and never goes back."""
    return tarfile.open(fileobj=source, mode="r|")  # type: ignore[call-overload,no-any-return]


def _members(tar: tarfile.TarFile, into: Path, bounds: Bounds) -> tuple[FileMark, ...]:
    marks: list[FileMark] = []
    left = bounds.size
    for member in tar:
        path = _path(member)
        if member.isdir():
            if path:
                _folder(into, path)
            continue
        if not member.isreg() or not path:
            raise MalformedTarball(f"{member.name!r} is neither file nor folder")
        left -= member.size
        if left < 0 or len(marks) == bounds.files:
            raise MalformedTarball("it holds more than the lock allows")
        marks.append(_file(tar, member, into, path))
    return tuple(sorted(marks, key=lambda mark: mark.path))


def _path(member: tarfile.TarInfo) -> str:
    """Below the package's first folder."""
    parts = member.name.rstrip("/").split("/")
    fine = all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)
    if not fine:
        raise MalformedTarball(f"{member.name!r} is not a path below it")
    return "/".join(parts[1:])


def _folder(into: Path, path: str) -> None:
    try:
        make_folder(into / path)
    except (FileExistsError, NotADirectoryError):
        raise MalformedTarball(f"{path!r} is both a file and a folder") from None


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, path: str) -> FileMark:
    program = bool(member.mode & 0o111)
    if "/" in path:
        _folder(into, path.rpartition("/")[0])
    source = tar.extractfile(member)
    assert source is not None
    try:
        handle = os.open(into / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise MalformedTarball(f"{path!r} is in it twice") from None
    whole, size = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as file:
        while block := source.read(_BLOCK):
            whole.update(block)
            size += len(block)
            file.write(block)
        os.fchmod(file.fileno(), PROGRAM_MODE if program else _FILE)
    if size != member.size:
        raise MalformedTarball(f"{path!r} is cut off")
    return FileMark(path, size, whole.hexdigest(), program)


# Installing.

BUILT: Final = "built"
SPARE: Final = 64 * 1024 * 1024  # bytes to leave on the disk: others' share


class Progress(Protocol):
    """A view of the progress, called from several threads. What it raises ends the installation, and nothing of that is kept."""

    def __call__(self, done: int, total: int) -> None: ...


def unseen(done: int, total: int) -> None:
    """No progress is shown."""


def install(
    release: Release,
    folder: InstallFolder,
    *,
    environ: Mapping[str, str] = os.environ,
    progress: Progress = unseen,
    again: bool = False,
    target: TargetMachine | None = None,
    clock: Clock | None = None,
) -> InstalledAgent:
    """Blocks. What is there already is left, unless `again`."""
    machine = target or here()
    if not release.covers(machine):
        raise NotFound(
            f"cannot install {folder.agent} {release.version}: it is not locked for {machine.cpu} with"
            f" {machine.libc}; install it yourself and Legation finds it on PATH"
        )
    wanted = release.digest(machine)
    with folder.locked():
        found = folder.find(release.version)
        if found and found.lock == wanted and not again:
            return found
        packages = release.packages_for(machine)
        _must_fit(folder.path, packages)
        try:
            with opened(configured(environ)) as fetcher, folder.workspace() as place:
                done = _Fetching(fetcher, place, packages, progress).run()
                at = (clock or SystemClock()).now_ms()
                installed = InstalledAgent(folder.agent, release.version, wanted, at, done)
                _finish(place / BUILT, installed)
                folder.put(place / BUILT, release.version)
        except OSError as error:
            raise StorageFailed(
                f"cannot install {folder.agent}: {error.strerror} in {folder.path}; make room or choose another"
                " data folder, and try again"
            ) from error
        return installed


def uninstall(folder: InstallFolder) -> tuple[str, ...]:
    """The versions that were there. Homes, and with them sign-ins and sessions, stay."""
    if not folder.path.is_dir():
        return ()
    with folder.locked():
        versions = tuple(found.version for found in folder.versions())
        for version in versions:
            folder.remove(version)
    return versions


def _must_fit(path: Path, packages: tuple[Package, ...]) -> None:
    needed = sum(each.size + each.packed for each in packages) + SPARE
    free = disk_usage(path).free
    if free < needed:
        raise StorageFailed(
            f"cannot install into {path}: it needs {needed // 2**20} MiB and {free // 2**20} MiB are free;"
            " make room or choose another data folder"
        )


def _finish(built: Path, installed: InstalledAgent) -> None:
    with (built / RECORD).open("wb") as file:
        file.write(msgspec.json.encode(installed))
        file.flush()
        os.fsync(file.fileno())
    sync_all(built)


@dataclass(slots=True)
class _Tally:
    """Bytes received, summed up over the threads."""

    total: int
    progress: Progress
    done: int
    mutex: Mutex

    def __call__(self, received: int) -> None:
        with self.mutex:
            self.done += received
            self.progress(self.done, self.total)


class _Fetching:
    """Several tarballs at a time; each is unpacked by the thread that fetched it."""

    def __init__(
        self, fetcher: Fetcher, place: Path, packages: tuple[Package, ...], progress: Progress
    ) -> None:
        self._fetcher, self._place, self._packages = fetcher, place, packages
        self._tally = _Tally(sum(each.packed for each in packages), progress, 0, Mutex())
        self._stopped = False

    def run(self) -> tuple[InstalledPackage, ...]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="legation-fetch") as pool:
            try:
                futures = [pool.submit(self._one, number) for number in range(len(self._packages))]
                finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for failed in (each.exception() for each in finished):
                    if failed:
                        raise failed
                done = tuple(each.result() for each in futures)
            finally:  # also when Ctrl-C comes: the threads end at the next bytes
                self._stopped = True
                pool.shutdown(cancel_futures=True)
        self._assemble()
        return done

    def _received(self, count: int) -> None:
        if self._stopped:
            raise Cancelled("cannot go on fetching: the installation has ended; start it again")
        self._tally(count)

    def _one(self, number: int) -> InstalledPackage:
        package, tarball = self._packages[number], self._place / f"{number}.tgz"
        self._fetcher.fetch(package, tarball, self._received)
        try:
            marks = unpack(tarball, self._place / str(number), Bounds(package.files, package.size))
        except MalformedTarball as error:
            raise Conflict(f"cannot unpack {package}: {error}; nothing of it was kept") from None
        tarball.unlink()
        if digest(marks) != package.tree:
            raise Conflict(
                f"cannot install {package}: its files are not those that the lock names; install Legation again"
            )
        return InstalledPackage(package.at, package.name, package.version, marks)

    def _assemble(self) -> None:
        """Outer packages first: inner ones lie in their folders."""
        for number, package in sorted(enumerate(self._packages), key=lambda each: each[1].at):
            at = self._place / BUILT / package.at
            make_folder(at.parent)
            (self._place / str(number)).rename(at)
