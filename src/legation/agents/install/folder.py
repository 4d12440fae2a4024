"""Where installed agents lie: `<data folder>/agents/<name>/<version>/`, beside the agents' homes.

INV-1  A version is there when its folder is, whole: it is made under another name, brought to disk and renamed.
INV-2  Folders whose name starts with a dot count for nothing, whoever left them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import IO, Final

import msgspec

from legation.agents.install.tree import FileMark
from legation.errors import StorageFailed, TimedOut
from legation.store.datafolder import make_folder

RECORD: Final = "installed.json"
OTHERS_LIMIT: Final = 3600.0  # seconds for another installation of the same agent to end: its network's time
LOOK_PERIOD: Final = 0.1  # seconds between two looks whether it has


class InstalledPackage(msgspec.Struct, frozen=True):
    at: str
    name: str
    version: str
    files: tuple[FileMark, ...]


class Installed(msgspec.Struct, frozen=True):
    """`lock` is the digest of what the lock named for this machine."""

    agent: str
    version: str
    lock: str
    at: int  # ms
    packages: tuple[InstalledPackage, ...]


@dataclass(frozen=True, slots=True)
class InstallFolder:
    """Of one agent."""

    path: Path
    agent: str

    @classmethod
    def of(cls, data_dir: Path, agent: str) -> InstallFolder:
        return cls(data_dir / "agents" / agent, agent)

    def version(self, version: str) -> Path:
        return self.path / version

    def find(self, version: str) -> Installed | None:
        """None also for one whose record cannot be read: it is to be installed again."""
        try:
            found = msgspec.json.decode((self.version(version) / RECORD).read_bytes(), type=Installed)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found if (found.agent, found.version) == (self.agent, version) else None

    def versions(self) -> tuple[Installed, ...]:
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
        """What killed ones have left. Only with the lock."""
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
        self.take_away(version)
        built.chmod(0o755)
        built.rename(self.version(version))
        sync_folder(self.path)

    def take_away(self, version: str) -> None:
        """At once; removing the files comes after, and may be cut off. Only with the lock."""
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
