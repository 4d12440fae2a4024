"""From a path to an open folder and a name in it, part by part from the root down.

INV-F2  Every folder on the way is opened from the one above it without following a link. A link that is met is read,
        and what it says is judged and walked from a root like any other path: so links work that lead to where the
        caller may go, and none leads elsewhere, whoever changes what while we walk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from legation.errors import Forbidden
from legation.server.fs.failures import shown
from legation.server.fs.roots import MOST_PARTS, Confinement, text
from legation.store.datafolder import new_mode
from legation.store.forbidden import ForbiddenPlaces, Looked, Parts

MOST_TURNS: Final = 64  # links, and ways up in them, of one path; the kernel follows 40

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Spot:
    """A name in an open folder, whether something stands there or not. The name is "." of a root itself."""

    at: int
    name: str
    parts: Parts  # without links
    forbidden: ForbiddenPlaces

    @property
    def path(self) -> str:
        return text(self.parts)

    def look(self) -> os.stat_result:
        """What stands there; a link is not followed."""
        status = os.stat(self.name, dir_fd=self.at, follow_symlinks=False)
        self.forbidden.check(status)
        return status

    def look_if_there(self) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return self.look()
        return None

    def open_folder(self) -> int:
        fd = os.open(self.name, _FOLDER, dir_fd=self.at)
        return _checked(fd, self.forbidden.look())


@contextmanager
def walk(confinement: Confinement, path: str, *, follow: bool = True, make: bool = False) -> Iterator[Spot]:
    """`follow`: if the last part is a link, what it leads to. `make`: the folders above that are missing."""
    wanted = confinement.read(path)
    for _ in range(MOST_TURNS):
        walking = _Walk(confinement, wanted, make=make)
        try:
            turn = walking.to_end(follow=follow)
            if turn is None:
                yield walking.spot()
                return
            wanted = confinement.checked(turn, path)
        finally:
            os.close(walking.at)
    raise OSError(errno.ELOOP, f"too many links at {shown(path)}")


class _Walk:
    """One way down from a root, up to its end or to the first link."""

    def __init__(self, confinement: Confinement, wanted: Parts, *, make: bool) -> None:
        self._forbidden = confinement.forbidden
        self._looked = confinement.forbidden.look()  # once for the way: it is short
        self._wanted = wanted
        self._make = make
        self._done = confinement.root_of(wanted)
        self.at = _checked(os.open(text(self._done), _FOLDER), self._looked)

    def to_end(self, *, follow: bool) -> Parts | None:
        """Where to go instead, if there is a link."""
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

    def spot(self) -> Spot:
        name = self._wanted[-1] if len(self._done) < len(self._wanted) else "."
        return Spot(self.at, name, self._wanted, self._forbidden)

    def _step(self, name: str) -> bool:
        """Down into a folder; False if it is none."""
        try:
            below = self._open(name)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return False
        os.close(self.at)
        self.at = below
        self._done = (*self._done, name)
        _check(below, self._looked)
        return True

    def _open(self, name: str) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=self.at)
        except FileNotFoundError:
            if not self._make:
                raise
        with suppress(FileExistsError):  # another was faster
            os.mkdir(name, new_mode(self.at), dir_fd=self.at)
        return os.open(name, _FOLDER, dir_fd=self.at)

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
        """`..`, which only links may hold. What was walked so far has no links, so that above it is its parent."""
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
