"""Paths that callers send: which folders they may lead to, and the walk to an open folder and a name in it.

INV-F1  A path is judged by its text before anything is looked at: what is not beneath an allowed folder is refused
        without a word on whether it exists.
INV-F2  Every folder on the way is opened from the one above it without following a link. A link that is met is read,
        and what it says is judged and walked from a root like any other path: so links work that lead to where the
        caller may go, and none leads elsewhere, whoever changes what while we walk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

import msgspec

from legation.errors import Conflict, Forbidden, InvalidParams, LegationError, NotFound, StorageFailed
from legation.store.datafolder import new_mode
from legation.store.files import FOLDER, open_below
from legation.store.forbidden import ForbiddenPlaces, Looked, Parts

LONGEST_SHOWN: Final = 200  # characters of a path in a message
MOST_NAMED: Final = 5  # allowed folders in a message
MOST_PARTS: Final = 256  # of one path; nobody nests deeper in earnest
MOST_TURNS: Final = 64  # links, and ways up in them, of one path; the kernel follows 40

_Told = tuple[type[LegationError], str]
_NO_ROOM: Final[_Told] = (StorageFailed, "the disk is full or its quota used up; make room")
_DENIED: Final[_Told] = (Forbidden, "the server's user may not; change its permissions")
# What only the disk can tell is a `Conflict`: the request was well formed, and what is there does not allow it.
_MEANINGS: Final[Mapping[int, _Told]] = MappingProxyType(
    {
        errno.ENOENT: (NotFound, "there is no such file or folder; list the folder above"),
        errno.ENOTDIR: (Conflict, "a part of it is not a folder; list the folder above"),
        errno.EISDIR: (Conflict, "it is a folder; name a file"),
        errno.ENAMETOOLONG: (Conflict, "the name is too long; choose a shorter one"),
        errno.EILSEQ: (Conflict, "its disk does not take such a name; choose another"),
        errno.EINVAL: (Conflict, "that is not possible there; choose another path"),
        errno.ELOOP: (Conflict, "links lead to links without an end; name what they lead to"),
        errno.EEXIST: (Conflict, "something stands there; choose another path"),
        errno.ENOTEMPTY: (Conflict, "the folder is not empty; send recursive=true"),
        errno.EXDEV: (Conflict, "it would go to another file system; write it there and delete it here"),
        errno.EBUSY: (Conflict, "it is in use by the system; leave it"),
        errno.EROFS: (Forbidden, "its file system is read-only; choose another folder"),
        errno.EACCES: _DENIED,
        errno.EPERM: _DENIED,
        errno.ENOSPC: _NO_ROOM,
        errno.EDQUOT: _NO_ROOM,
        errno.EFBIG: _NO_ROOM,
    }
)


@contextmanager
def translate_errors(what: str, path: str) -> Iterator[None]:
    """Tell the system's errors as ours: `cannot <what> <path>: …`, where `what` is a verb."""
    try:
        yield
    except OSError as error:
        raise _meaning(error, what, path) from error


def shown(path: str) -> str:
    """A path for a message: on one line, not endless, and of characters that every encoding has."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _meaning(error: OSError, what: str, path: str) -> LegationError:
    kind, why = _MEANINGS.get(
        error.errno or 0, (StorageFailed, f"{error.strerror}; check the disk, then try again")
    )
    return kind(f"cannot {what} {shown(path)}: {why}")


class ServedFolder(msgspec.Struct, frozen=True):
    """A folder that the file routes serve."""

    parts: Parts  # of its real path
    spelt: Parts  # as its owner wrote it, which may lead through links


class ServedFolders:
    """The folders that the owner chose, without the `forbidden` places in them."""

    def __init__(self, folders: Sequence[Path], forbidden: ForbiddenPlaces) -> None:
        if not folders:
            raise ValueError("cannot serve files without a folder: name one")
        self._roots = tuple(_served(folder) for folder in folders)
        self.forbidden = forbidden

    def everywhere(self) -> Confinement:
        return Confinement(self._roots, tuple(root.parts for root in self._roots), self.forbidden)

    def opened(self, folder: Path) -> Confinement:
        """Only this one, which counts as listed."""
        return Confinement(self._roots, (folder.parts,), self.forbidden.of_session([folder]))

    def within(self, folders: Sequence[Path], own: Path | None = None) -> Confinement:
        """Only these, as far as they are beneath the roots. Their links were resolved when the session began. `own` is
        the folder that Legation made for it: served, although it lies in what is never served."""
        if own is not None and own in folders:
            root = ServedFolder(own.parts, own.parts)
            return Confinement((root,), (root.parts,), self.forbidden.but(own))
        allowed = tuple(
            parts for folder in folders if (parts := _real(self._roots, Path(folder).parts)) is not None
        )
        if not allowed:
            raise Forbidden(
                "cannot use the session's folder: it is outside the folders that this server serves; start it with "
                "`--folder` for another"
            )
        return Confinement(self._roots, allowed, self.forbidden)


class Confinement(msgspec.Struct, frozen=True):
    """The reach of one request: beneath `allowed`, each of which is beneath a root."""

    roots: tuple[ServedFolder, ...]
    allowed: tuple[Parts, ...]
    forbidden: ForbiddenPlaces

    def read(self, path: str) -> Parts:
        """Read a path from outside, absolute or from the first folder on, as parts of an absolute one."""
        if "\0" in path:
            raise InvalidParams("cannot use a path with the character NUL; leave it out")
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if ".." in parts:
            raise InvalidParams(
                f"cannot use {shown(path)}: a path must not hold `..`; name the folder itself"
            )
        if len(parts) > MOST_PARTS:
            raise InvalidParams(f"cannot use a path of more than {MOST_PARTS} parts; nest less deeply")
        whole = ("/", *parts) if path.startswith("/") else (*self.allowed[0], *parts)
        return self.checked(whole, path)

    def checked(self, parts: Parts, said: str) -> Parts:
        """Put the root's real path in the place of its spelling; refuse what is not beneath a folder."""
        real = _real(self.roots, parts)
        if real is None or not any(_beneath(real, folder) for folder in self.allowed):
            raise Forbidden(
                f"cannot use {shown(said)}: it is, or leads, outside the allowed folders ({self._names()}); choose a path "
                "in them, or start the server with `--folder` for another"
            )
        self.forbidden.check_name(real)
        return real

    def _names(self) -> str:
        some = [shown(path_text(parts)) for parts in self.allowed[:MOST_NAMED]]
        return ", ".join([*some, "…"] if len(self.allowed) > MOST_NAMED else some)

    def root_of(self, parts: Parts) -> Parts:
        """The outermost above it: whoever may write in one root must not move the boundary of one inside it."""
        return min((root.parts for root in self.roots if _beneath(parts, root.parts)), key=len)

    def is_folder_itself(self, parts: Parts) -> bool:
        """An allowed folder, or one above it: neither can be moved, deleted or replaced."""
        return any(_beneath(folder, parts) for folder in (*self.allowed, *(r.parts for r in self.roots)))


def _served(folder: Path) -> ServedFolder:
    spelt = Path(os.path.abspath(folder)).parts  # noqa: PTH100 - without following links
    return ServedFolder(Path(os.path.realpath(folder)).parts, spelt)


def _real(roots: tuple[ServedFolder, ...], parts: Parts) -> Parts | None:
    for root in sorted(roots, key=lambda each: -len(each.parts)):
        if _beneath(parts, root.parts):
            return parts
    for root in sorted(roots, key=lambda each: -len(each.spelt)):
        if _beneath(parts, root.spelt):
            return root.parts + parts[len(root.spelt) :]
    return None


def _beneath(parts: Parts, folder: Parts) -> bool:
    return parts[: len(folder)] == folder


def path_text(parts: Parts) -> str:
    return str(PurePosixPath(*parts))


class ConfinedEntry(msgspec.Struct, frozen=True):
    """A name in an open folder, whether something stands there or not. The name is "." of a root itself."""

    at: int
    name: str
    parts: Parts  # without links
    forbidden: ForbiddenPlaces

    @property
    def path(self) -> str:
        return path_text(self.parts)

    def look(self) -> os.stat_result:
        """Look at what stands there; a link is not followed."""
        status = os.stat(self.name, dir_fd=self.at, follow_symlinks=False)
        self.forbidden.check(status)
        return status

    def look_if_there(self) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return self.look()
        return None

    def open_folder(self) -> int:
        return _checked(open_below(self.at, self.name), self.forbidden.look())


@contextmanager
def walk(
    confinement: Confinement, path: str, *, follow: bool = True, make: bool = False
) -> Iterator[ConfinedEntry]:
    """Walk to a path. `follow` the last part if it is a link; `make` the folders above that are missing."""
    wanted = confinement.read(path)
    for _ in range(MOST_TURNS):
        walking = _PathWalk(confinement, wanted, make=make)
        try:
            turn = walking.to_end(follow=follow)
            if turn is None:
                yield walking.entry()
                return
            wanted = confinement.checked(turn, path)
        finally:
            os.close(walking.at)
    raise OSError(errno.ELOOP, f"too many links at {shown(path)}")


class _PathWalk:
    """One way down from a root, up to its end or to the first link."""

    def __init__(self, confinement: Confinement, wanted: Parts, *, make: bool) -> None:
        self._forbidden = confinement.forbidden
        self._looked = confinement.forbidden.look()  # once for the way: it is short
        self._wanted = wanted
        self._make = make
        self._done = confinement.root_of(wanted)
        self.at = _checked(os.open(path_text(self._done), FOLDER), self._looked)

    def to_end(self, *, follow: bool) -> Parts | None:
        """Walk down; return the path to walk instead if there is a link."""
        while len(self._done) < len(self._wanted):
            name, last = self._wanted[len(self._done)], len(self._done) + 1 == len(self._wanted)
            if name == "..":
                return self._up()
            if last:
                return self._link(name) if follow else None
            if not self._step(name):
                target = self._link(name)
                if target is None:
                    raise NotADirectoryError(errno.ENOTDIR, "a part of the path is not a folder")
                return target
        return None

    def entry(self) -> ConfinedEntry:
        name = self._wanted[-1] if len(self._done) < len(self._wanted) else "."
        return ConfinedEntry(self.at, name, self._wanted, self._forbidden)

    def _step(self, name: str) -> bool:
        """Go down into a folder; False if it is none."""
        try:
            below = open_below(self.at, name, mode=new_mode(self.at) if self._make else None)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return False
        os.close(self.at)
        self.at = below
        self._done = (*self._done, name)
        _check(below, self._looked)
        return True

    def _link(self, name: str) -> Parts | None:
        try:
            target = os.readlink(name, dir_fd=self.at)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:  # what is said of all that is no link
                raise
            return None
        rest = self._wanted[len(self._done) + 1 :]
        led = tuple(part for part in target.split("/") if part not in ("", "."))
        if len(led) + len(rest) > 2 * MOST_PARTS:
            raise OSError(errno.ELOOP, "the links lead too far")
        start = ("/",) if target.startswith("/") else self._done
        return _without_leading_ups(start, (*led, *rest))

    def _up(self) -> Parts:
        """Resolve `..`, which only links may hold. What was walked so far has no links: above it is its parent."""
        return _without_leading_ups(self._done, self._wanted[len(self._done) :])


def _without_leading_ups(start: Parts, rest: Parts) -> Parts:
    while rest and rest[0] == "..":
        start, rest = start[:-1] or ("/",), rest[1:]
    return start + rest


def _checked(fd: int, forbidden: Looked) -> int:
    try:
        _check(fd, forbidden)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(fd: int, forbidden: Looked) -> None:
    status = os.fstat(fd)
    if not stat.S_ISDIR(status.st_mode):
        raise Forbidden("cannot use this path: it changed while it was looked at; try again")
    forbidden.check(status)
