"""A folder with one small file per child, so that the next start finds what a killed owner left behind.

INV-1: a process is killed only if its pid and start time are those on file, or it carries the token on file, or it
descends from such a one.
Not found: a daemon that cleared its environment, because init adopts it when the owner dies. One of a detached child is
found: the child's keeper adopts it.
INV-2: nothing is killed whose owner lives, nor what is registered as detached while it lives.
INV-3: a detached child has one owner at most. `adopt` changes the file under the folder's lock, and only where the
owner on file is dead or has released it; killed in the middle of it, either owner stands there, and both are dead.
INV-4: a detached child's file stays until its owner has taken note of its end (`remove`), or nobody has for a week.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from legation.errors import Conflict, NotFound, StorageFailed
from legation.proc.keeper import UNFINISHED, read_file, replace_file, turn
from legation.proc.tree import Identity, Look, Process, ProcessTree, boot_id, pid_namespace, process

_SUFFIX: Final = ".child"
# The time a writer has to rename its file; an older one was left by a writer that died.
_WRITING_LIMIT: Final = 60.0
# A later owner's time to ask how a detached child ended.
RECORD_KEPT: Final = 7 * 24 * 3600.0

Outcome = Literal[
    "killed",  # its owner is dead; whatever was left of the tree is gone now
    "survived",  # its owner is dead and something could not be killed; the file stays
    "gone",  # its owner is dead, and so was the tree
    "detached",  # its owner is dead; it was meant to live on and does
    "ended",  # a detached one whose owner is dead has ended; the file says how, until somebody asks
    "elsewhere",  # it belongs to another container that shares the folder
    "malformed",  # the file cannot be read; it stays
]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The exit record of a detached child, written by its keeper."""

    code: int | None
    signal: int | None
    at: float  # seconds since 1970


class ChildEntry(msgspec.Struct, frozen=True, kw_only=True):
    token: Annotated[str, msgspec.Meta(min_length=32)]  # a short one would match too much
    pid: int  # 0 until the child has started: by then only the token can name it. A detached child's keeper
    started: int
    owner: int  # 0 if it was released
    owner_started: int
    boot: str
    namespace: str
    name: str
    detached: bool
    adopted: bool = False
    ended: Ended | None = None


class Reaped(msgspec.Struct, frozen=True):
    file: Path
    outcome: Outcome
    name: str = ""
    pid: int = 0


State = Literal[
    "starting",  # its owner lives and has not heard of its start yet
    "running",  # it lives, and so does its owner
    "unowned",  # detached and alive, and its owner is dead: a later one may adopt it
    "orphaned",  # it should have ended with its owner and something of it lives: the next start ends that
    "ended",  # detached; it has ended, and the file says how until its owner, or a later one, has taken note
    "gone",  # nothing of it is left but the file: the next start removes that
    "elsewhere",  # it belongs to another container that shares the folder
]


class RegisteredChild(msgspec.Struct, frozen=True):
    """A child on file, for people to see and for a later owner to adopt."""

    file: Path
    name: str
    pid: int
    started: int
    owner: int
    owner_lives: bool
    detached: bool
    adopted: bool
    state: State
    left: tuple[int, ...]  # pids of what is left of a tree that should be gone
    ended: Ended | None


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
            self.path(token).unlink()

    def adopt(self, pid: int, started: int) -> ChildEntry:
        """Become the owner of a detached child whose own one is dead, or has released it; one of many that try."""
        with self._changed(f"adopt process {pid}"):
            entry = next(
                (
                    each
                    for _, each in _entries(self._folder)
                    if each and (each.pid, each.started) == (pid, started)
                ),
                None,
            )
            if entry is None or entry.boot != boot_id():
                raise NotFound(
                    f"cannot adopt process {pid}: none with that start time is on file in {self._folder};"
                    " `legation leaks` shows those that are"
                )
            what = f"cannot adopt {entry.name!r} (pid {pid})"
            if entry.namespace != pid_namespace():
                raise Conflict(f"{what}: it runs in another container; adopt it there")
            if not entry.detached:
                raise Conflict(f"{what}: it is not detached and ends with its owner; start another one")
            if _alive(entry.owner, entry.owner_started) is not None:
                raise Conflict(f"{what}: process {entry.owner} owns it; wait until that one has ended")
            own = os.getpid()
            adopted = msgspec.structs.replace(entry, owner=own, owner_started=_birth(own), adopted=True)
            self._replace(adopted)
            return adopted

    def release(self, token: str) -> None:
        """Own it no more, while it lives on: whoever wants may adopt it."""
        with contextlib.suppress(StorageFailed), self._changed("release a process"):
            entry = self._read(token)
            if entry is not None and (entry.owner, entry.owner_started) == (os.getpid(), _birth(os.getpid())):
                self._replace(msgspec.structs.replace(entry, owner=0, owner_started=0))

    def ended(self, token: str) -> Ended | None:
        """Read how a detached child ended, as its keeper wrote."""
        entry = self._read(token)
        return None if entry is None else entry.ended

    def detached(self) -> frozenset[Identity]:
        """Processes of any owner that sweeps must spare."""
        entries = (entry for _, entry in _entries(self._folder))
        return frozenset(
            (entry.pid, entry.started) for entry in entries if entry is not None and entry.detached
        )

    def path(self, token: str) -> Path:
        return self._folder / f"{token.rpartition('/')[2]}{_SUFFIX}"

    def _write(self, entry: ChildEntry) -> None:
        with _failures(f"register the process {entry.name!r} in {self._folder}"):
            for folder in reversed(
                (self._folder, *self._folder.parents)
            ):  # `parents=True` would not keep the mode
                folder.mkdir(mode=0o700, exist_ok=True)
            self._replace(entry)

    def _replace(self, entry: ChildEntry) -> None:
        replace_file(str(self.path(entry.token)), msgspec.json.encode(entry))

    def _read(self, token: str) -> ChildEntry | None:
        try:
            return _decoded(self.path(token))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    @contextmanager
    def _changed(self, what: str) -> Iterator[None]:
        """A file that a keeper or another owner may change is read and replaced in one turn."""
        with _failures(f"{what} in {self._folder}"), turn(str(self._folder)):
            yield


@contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"cannot {what}: {error.strerror}; make the folder writable or choose another data folder"
        ) from error


def reap(folder: Path) -> list[Reaped]:
    """Kill the trees of owners that are dead. Blocks for some milliseconds a tree: call it once, at the start."""
    _remove_unfinished(folder)
    spared = Registry(folder).detached()
    reaped = [_reap_entry(path, entry, spared) for path, entry in _entries(folder)]
    return [each for each in reaped if each is not None]


def listed(folder: Path) -> list[RegisteredChild]:
    """Every child on file that can be read, of any owner; changes nothing."""
    look, spared = Look(), Registry(folder).detached()
    return [_registered(path, entry, look, spared) for path, entry in _entries(folder) if entry is not None]


def unreadable(folder: Path) -> list[Path]:
    """Files that name no child, though they should."""
    return [path for path, entry in _entries(folder) if entry is None]


def _registered(path: Path, entry: ChildEntry, look: Look, spared: frozenset[Identity]) -> RegisteredChild:
    owned = _alive(entry.owner, entry.owner_started) is not None
    state, left = _state(entry, look, spared, owned=owned)
    return RegisteredChild(
        file=path,
        name=entry.name,
        pid=entry.pid,
        started=entry.started,
        owner=entry.owner,
        owner_lives=owned,
        detached=entry.detached,
        adopted=entry.adopted,
        state=state,
        left=left,
        ended=entry.ended,
    )


def _state(
    entry: ChildEntry, look: Look, spared: frozenset[Identity], *, owned: bool
) -> tuple[State, tuple[int, ...]]:
    if entry.boot != boot_id():
        return "gone", ()
    if entry.namespace != pid_namespace():
        return "elsewhere", ()
    lives = _alive(entry.pid, entry.started) is not None
    if lives and (owned or entry.detached):
        return "running" if owned else "unowned", ()
    if owned and not entry.pid:
        return "starting", ()
    tree = ProcessTree(entry.pid, entry.started, entry.token, whole=True, spared=lambda: spared)
    left = tuple(sorted(each.pid for each in tree.members(look) if not each.dead))
    if entry.ended is not None:
        return "ended", left
    return "orphaned" if left else "gone", left


def _reap_entry(path: Path, entry: ChildEntry | None, spared: frozenset[Identity]) -> Reaped | None:
    if entry is None:
        return Reaped(path, "malformed")
    outcome = _settle(path, entry, spared)
    if outcome is None:
        return None
    if outcome in ("killed", "gone"):
        path.unlink(missing_ok=True)
    return Reaped(path, outcome, entry.name, entry.pid)


def _settle(path: Path, entry: ChildEntry, spared: frozenset[Identity]) -> Outcome | None:
    """Settle what becomes of an entry; None if its owner looks after it."""
    if entry.boot != boot_id():
        return "gone"
    if entry.namespace != pid_namespace():
        return "elsewhere"
    if _alive(entry.owner, entry.owner_started) is not None:
        return None
    return _settle_detached(path, spared) if entry.detached else _kill(entry, spared)


def _settle_detached(path: Path, spared: frozenset[Identity]) -> Outcome | None:
    try:
        # Read again in our turn: a keeper has written how its child ended by then, or died before it could.
        with turn(str(path.parent)):
            entry = _decoded(path)
            if _alive(entry.owner, entry.owner_started) is not None:
                return None  # somebody has just adopted it
            if _alive(entry.pid, entry.started) is not None:
                return "detached"
            if not entry.pid:
                path.unlink()  # its keeper, if there is one, then starts nothing
    except (OSError, msgspec.DecodeError):
        return None  # another reaper was faster; else the next start looks again
    outcome = _kill(entry, spared)
    if entry.ended is None or outcome == "survived" or entry.ended.at < time.time() - RECORD_KEPT:
        return outcome
    return "ended"


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
            yield path, _decoded(path)
        except FileNotFoundError:
            continue  # its owner has just removed it
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            yield path, None


def _decoded(path: Path) -> ChildEntry:
    return msgspec.json.decode(read_file(str(path)), type=ChildEntry)


def _remove_unfinished(folder: Path) -> None:
    oldest = time.time() - _WRITING_LIMIT
    for path in folder.glob(f"*{UNFINISHED}"):
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
