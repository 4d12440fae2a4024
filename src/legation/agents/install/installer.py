"""Install an agent: fetch what the lock names, check it, unpack it, and let it count only when all is on disk.

Two at once: the second waits, and finds the work done. One that is killed leaves a folder that counts for nothing
and that the next one removes. No script of a package is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from threading import Lock as Mutex
from typing import Final, Protocol

import msgspec

from legation.agents.install.fetch import AT_ONCE, Fetcher, opened
from legation.agents.install.folder import RECORD, Installed, InstalledPackage, InstallFolder, sync_all
from legation.agents.install.lock import Package, Release
from legation.agents.install.registry import configured
from legation.agents.install.target import Target, here
from legation.agents.install.tree import digest
from legation.agents.install.unpack import Bounds, Malformed, unpack
from legation.clock import Clock, SystemClock
from legation.errors import Cancelled, Conflict, NotFound, StorageFailed
from legation.store.datafolder import make_folder

BUILT: Final = "built"
SPARE: Final = 64 * 1024 * 1024  # bytes to leave on the disk: others' share


class Progress(Protocol):
    """Called from several threads. What it raises ends the installation, and nothing of that is kept."""

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
    target: Target | None = None,
    clock: Clock | None = None,
) -> Installed:
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
                installed = Installed(folder.agent, release.version, wanted, at, done)
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
            folder.take_away(version)
    return versions


def _must_fit(path: Path, packages: tuple[Package, ...]) -> None:
    needed = sum(each.size + each.packed for each in packages) + SPARE
    free = disk_usage(path).free
    if free < needed:
        raise StorageFailed(
            f"cannot install into {path}: it needs {needed // 2**20} MiB and {free // 2**20} MiB are free;"
            " make room or choose another data folder"
        )


def _finish(built: Path, installed: Installed) -> None:
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
        except Malformed as error:
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
