"""A folder with one small file per running child, so that the next start finds what a killed owner left behind.

INV-1: a process is killed only if its pid and start time are those on file, or it carries the token on file, or it
descends from such a one.
Not found: a daemon that cleared its environment, because init adopts it when the owner dies.
INV-2: nothing is killed whose owner lives, nor what is registered as detached while it lives.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from legation.errors import StorageFailed
from legation.proc.tree import Identity, Process, ProcessTree, boot_id, pid_namespace, process

_SUFFIX: Final = ".child"
_UNFINISHED: Final = ".unfinished"
# The time a writer has to rename its file; an older one was left by a writer that died.
_WRITING_LIMIT: Final = 60.0

Outcome = Literal[
    "killed",  # its owner is dead; whatever was left of the tree is gone now
    "survived",  # its owner is dead and something could not be killed; the file stays
    "gone",  # its owner is dead, and so was the tree
    "detached",  # its owner is dead; it was meant to live on and does
    "elsewhere",  # it belongs to another container that shares the folder
    "malformed",  # the file cannot be read; it stays
]


class ChildEntry(msgspec.Struct, frozen=True, kw_only=True):
    token: Annotated[str, msgspec.Meta(min_length=32)]  # a short one would match too much
    pid: int  # 0 until the child has started: by then only the token can name it
    started: int
    owner: int
    owner_started: int
    boot: str
    namespace: str
    name: str
    detached: bool


@dataclass(frozen=True, slots=True)
class Reaped:
    file: Path
    outcome: Outcome
    name: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class RegisteredChild:
    """A child on file, for people to see."""

    name: str
    pid: int
    owner: int
    owner_lives: bool


class Registry:
    """The files of this owner's children."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def expect(self, token: str, name: str, *, detached: bool) -> None:
        """Write the file before the child starts: killed in between, we still leave its token behind."""
        self._write(_entry(token, name, 0, _birth(os.getpid()), detached=detached))

    def add(self, token: str, name: str, pid: int, started: int, *, detached: bool) -> None:
        self._write(_entry(token, name, pid, started, detached=detached))

    def remove(self, token: str) -> None:
        # One that stays behind does no harm: the next start finds that its process is gone.
        with contextlib.suppress(OSError):
            self._path(token).unlink()

    def detached(self) -> frozenset[Identity]:
        """Processes of any owner that sweeps must spare."""
        entries = (entry for _, entry in _entries(self._folder))
        return frozenset(
            (entry.pid, entry.started) for entry in entries if entry is not None and entry.detached
        )

    def _write(self, entry: ChildEntry) -> None:
        path = self._path(entry.token)
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            for folder in reversed(
                (self._folder, *self._folder.parents)
            ):  # `parents=True` would not keep the mode
                folder.mkdir(mode=0o700, exist_ok=True)
            unfinished.write_bytes(msgspec.json.encode(entry))
            unfinished.replace(path)
        except OSError as error:
            raise StorageFailed(
                f"cannot register the process {entry.name!r} in {self._folder}: {error.strerror};"
                " make the folder writable or choose another data folder"
            ) from error

    def _path(self, token: str) -> Path:
        return self._folder / f"{token.rpartition('/')[2]}{_SUFFIX}"


def reap(folder: Path) -> list[Reaped]:
    """Kill the trees of owners that are dead. Blocks for some milliseconds a tree: call it once, at the start."""
    _remove_unfinished(folder)
    spared = Registry(folder).detached()
    reaped = [_reap_entry(path, entry, spared) for path, entry in _entries(folder)]
    return [each for each in reaped if each is not None]


def listed(folder: Path) -> list[RegisteredChild]:
    """Every child on file, of any owner; changes nothing."""
    entries = [entry for _, entry in _entries(folder) if entry is not None]
    return [
        RegisteredChild(
            entry.name, entry.pid, entry.owner, _alive(entry.owner, entry.owner_started) is not None
        )
        for entry in entries
    ]


def _reap_entry(path: Path, entry: ChildEntry | None, spared: frozenset[Identity]) -> Reaped | None:
    if entry is None:
        return Reaped(path, "malformed")
    outcome = _settle(entry, spared)
    if outcome is None:
        return None
    if outcome in ("killed", "gone"):
        path.unlink(missing_ok=True)
    return Reaped(path, outcome, entry.name, entry.pid)


def _settle(entry: ChildEntry, spared: frozenset[Identity]) -> Outcome | None:
    """Settle what becomes of an entry; None if its owner looks after it."""
    if entry.boot != boot_id():
        return "gone"
    if entry.namespace != pid_namespace():
        return "elsewhere"
    if _alive(entry.owner, entry.owner_started) is not None:
        return None
    if entry.detached and _alive(entry.pid, entry.started) is not None:
        return "detached"
    return _kill(entry, spared)


def _kill(entry: ChildEntry, spared: frozenset[Identity]) -> Outcome:
    tree = ProcessTree(entry.pid, entry.started, entry.token, whole=True, spared=lambda: spared)
    found = tree.kill()
    if tree.sweep():
        return "survived"
    return "killed" if found else "gone"


def _alive(pid: int, started: int) -> Process | None:
    found = process(pid) if pid else None
    return found if found is not None and found.started == started and not found.dead else None


def _entries(folder: Path) -> Iterator[tuple[Path, ChildEntry | None]]:
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            yield path, msgspec.json.decode(path.read_bytes(), type=ChildEntry)
        except FileNotFoundError:
            continue  # its owner has just removed it
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            yield path, None


def _remove_unfinished(folder: Path) -> None:
    oldest = time.time() - _WRITING_LIMIT
    for path in folder.glob(f"*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _entry(token: str, name: str, pid: int, started: int, *, detached: bool) -> ChildEntry:
    return ChildEntry(
        token=token,
        pid=pid,
        started=started,
        owner=os.getpid(),
        owner_started=_birth(os.getpid()),
        boot=boot_id(),
        namespace=pid_namespace(),
        name=name,
        detached=detached,
    )


def _birth(pid: int) -> int:
    found = process(pid)
    return found.started if found is not None else 0
