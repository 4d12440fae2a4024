"""Installed agents on disk: `<data folder>/agents/<name>/<version>/`, beside the agents' homes; and whether they are what the
lock names.

INV-1  A version is there when its folder is, whole: it is made under another name, brought to disk and renamed.
INV-2  Folders whose name starts with a dot count for nothing, whoever left them.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import IO, Final

import msgspec

from legation.agents.install.lock import Package, Release, TargetMachine, here
from legation.errors import StorageFailed, TimedOut
from legation.store.datafolder import make_folder

_BLOCK = 1024 * 1024


class FileMark(msgspec.Struct, frozen=True, array_like=True):
    """`path` is relative to the package, with slashes."""

    path: str
    size: int
    sha256: str
    program: bool

    def line(self) -> str:
        return f"{'x' if self.program else '-'} {self.sha256} {self.size} {self.path}\n"


def digest(marks: Iterable[FileMark]) -> str:
    whole = hashlib.sha256()
    for mark in sorted(marks, key=lambda each: each.path):
        whole.update(mark.line().encode())
    return whole.hexdigest()


def content(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()


RECORD: Final = "installed.json"
OTHERS_LIMIT: Final = 3600.0  # seconds for another installation of the same agent to end: its network's time
LOOK_PERIOD: Final = 0.1  # seconds between two looks whether it has


class InstalledPackage(msgspec.Struct, frozen=True):
    at: str
    name: str
    version: str
    files: tuple[FileMark, ...]


class InstalledAgent(msgspec.Struct, frozen=True):
    """`lock` is the digest of what the lock named for this machine."""

    agent: str
    version: str
    lock: str
    at: int  # ms
    packages: tuple[InstalledPackage, ...]


@dataclass(frozen=True, slots=True)
class InstallFolder:
    """The versions of one agent."""

    path: Path
    agent: str

    @classmethod
    def of(cls, data_dir: Path, agent: str) -> InstallFolder:
        return cls(data_dir / "agents" / agent, agent)

    def version(self, version: str) -> Path:
        return self.path / version

    def find(self, version: str) -> InstalledAgent | None:
        """Find a version; None also where its record cannot be read: it is to be installed again."""
        try:
            found = msgspec.json.decode((self.version(version) / RECORD).read_bytes(), type=InstalledAgent)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found if (found.agent, found.version) == (self.agent, version) else None

    def versions(self) -> tuple[InstalledAgent, ...]:
        """The newest installation first."""
        try:
            names = [each.name for each in self.path.iterdir() if not each.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        found = [each for name in names if (each := self.find(name))]
        return tuple(sorted(found, key=lambda each: each.at, reverse=True))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One at a time changes it; the kernel lets go of a killed one's lock."""
        try:
            for place in (
                self.path.parents[1],
                self.path.parent,
                self.path,
            ):  # the data folder is its owner's alone
                make_folder(place)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise StorageFailed(
                f"cannot write to {self.path}: {error.strerror}; choose another data folder"
            ) from error
        with lock:
            self._wait_for(lock)
            self._sweep()
            yield

    def _wait_for(self, lock: IO[str]) -> None:
        deadline = time.monotonic() + OTHERS_LIMIT
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"cannot change {self.agent}: another installation of it does not end; end that one first"
                    ) from None
                time.sleep(LOOK_PERIOD)

    def _sweep(self) -> None:
        """Remove what killed ones have left. Only with the lock."""
        for each in self.path.iterdir():
            if each.name.startswith((".new-", ".old-")):
                rmtree(each, ignore_errors=True)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """To build in, beside the versions so that it can be renamed to one. Only with the lock."""
        place = Path(tempfile.mkdtemp(prefix=".new-", dir=self.path))
        try:
            yield place
        finally:
            rmtree(place, ignore_errors=True)

    def put(self, built: Path, version: str) -> None:
        """`built` becomes the version, in place of the one that was. Only with the lock."""
        self.remove(version)
        built.chmod(0o755)
        built.rename(self.version(version))
        sync_folder(self.path)

    def remove(self, version: str) -> None:
        """Remove a version, at once; deleting its files comes after, and may be cut off. Only with the lock."""
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=self.path))
        try:
            self.version(version).rename(old / "version")
            sync_folder(self.path)
        except FileNotFoundError:
            pass
        rmtree(old, ignore_errors=True)


def sync_all(place: Path) -> None:
    """Everything below it is on disk afterwards: one call for thousands of files, where there is that call."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _syncfs(handle) == 0:
            return
    finally:
        os.close(handle)
    for parent, _, names in os.walk(place):
        for name in names:
            with Path(parent, name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def _syncfs(handle: int) -> int:
    try:
        return int(ctypes.CDLL(None).syncfs(handle))
    except (AttributeError, OSError):
        return -1


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Verification: every file, by size, content and mode, and no other. The record that lies with the files tells which of them
# is wrong; it is believed only where the lock's own hash over a package's files agrees with it, so that a file changed
# together with the record is found too.

MOST_SHOWN: Final = 50  # problems of one agent; more say nothing more


class Verified(msgspec.Struct, frozen=True):
    agent: str
    version: str
    files: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems


def verify(
    folder: InstallFolder,
    installed: InstalledAgent,
    release: Release | None,
    target: TargetMachine | None = None,
) -> Verified:
    """Reads every file. Without a `release` the lock does not know this version any more, and that is a problem."""
    place = folder.version(installed.version)
    problems = list(_against_lock(installed, release, target or here()))
    listed = {f"{package.at}/{mark.path}": mark for package in installed.packages for mark in package.files}
    problems += _against_record(place, listed)
    size = sum(mark.size for mark in listed.values())
    return Verified(installed.agent, installed.version, len(listed), size, tuple(problems[:MOST_SHOWN]))


def _against_lock(installed: InstalledAgent, release: Release | None, target: TargetMachine) -> Iterator[str]:
    if release is None:
        yield f"{installed.version} is not in the lock of this Legation"
        return
    recorded = {package.at: package for package in installed.packages}
    wanted = {package.at: package for package in release.packages_for(target)}
    for at in sorted(recorded.keys() - wanted.keys()):
        yield f"{at} is not in the lock"
    for at, package in sorted(wanted.items()):
        yield from _package(package, recorded[at].files if at in recorded else None)


def _package(package: Package, files: tuple[FileMark, ...] | None) -> Iterator[str]:
    if files is None:
        yield f"{package.at} is missing"
    elif digest(files) != package.tree:
        yield f"{package.at} is not {package} as the lock names it"


def _against_record(place: Path, listed: dict[str, FileMark]) -> Iterator[str]:
    present = set(_present(place))
    for path in sorted(present - listed.keys() - {RECORD}):
        yield f"{path} does not belong there"
    for path in sorted(listed.keys() - present):
        yield f"{path} is missing"
    for path in sorted(listed.keys() & present):
        if problem := _difference(place / path, listed[path]):
            yield f"{path} {problem}"


def _present(place: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(place):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in (*names, *links):
            yield Path(parent, name).relative_to(place).as_posix()


def _difference(path: Path, mark: FileMark) -> str | None:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size != mark.size or content(path) != mark.sha256:
            return "has other content"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if bool(found.st_mode & 0o111) == mark.program else "has another mode"
