"""The folders that the file routes serve, and how a path that somebody sent is read.

INV-F1  A path is judged by its text before anything is looked at: what is not beneath an allowed folder is refused
        without a word on whether it exists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from legation.errors import Forbidden, InvalidParams
from legation.server.fs.failures import shown
from legation.store.forbidden import ForbiddenPlaces, Parts

MOST_PARTS: Final = 256  # of one path; nobody nests deeper in earnest


@dataclass(frozen=True, slots=True)
class Root:
    """`parts` are its real path; `spelt` is how its owner wrote it, which may lead through links."""

    parts: Parts
    spelt: Parts


class Roots:
    """`folders` are the owner's words and trusted; `forbidden` is never served, although it lies in one of them."""

    def __init__(self, folders: Sequence[Path], forbidden: ForbiddenPlaces) -> None:
        if not folders:
            raise ValueError("cannot serve files without a folder: name one")
        self._roots = tuple(_root(folder) for folder in folders)
        self.forbidden = forbidden

    def everywhere(self) -> Confinement:
        return Confinement(self._roots, tuple(root.parts for root in self._roots), self.forbidden)

    def within(self, folders: Sequence[Path], own: Path | None = None) -> Confinement:
        """Only these, as far as they are beneath the roots. Their links were resolved when the session began. `own` is
        the folder that Legation made for it: served, although it lies in what is never served."""
        if own is not None and own in folders:
            root = Root(own.parts, own.parts)
            return Confinement((root,), (root.parts,), self.forbidden.but(own))
        allowed = tuple(
            parts for folder in folders if (parts := _real(self._roots, Path(folder).parts)) is not None
        )
        if not allowed:
            raise Forbidden(
                "cannot use the session's folder: it is outside the folders that this server serves; add it to them"
            )
        return Confinement(self._roots, allowed, self.forbidden)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one request may reach: beneath `allowed`, each of which is beneath a root."""

    roots: tuple[Root, ...]
    allowed: tuple[Parts, ...]
    forbidden: ForbiddenPlaces

    def read(self, path: str) -> Parts:
        """A path from outside, absolute or from the first folder on, as parts of an absolute one."""
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
        """With the root's real path in the place of its spelling; refused where it is not beneath a folder."""
        real = _real(self.roots, parts)
        if real is None or not any(_beneath(real, folder) for folder in self.allowed):
            raise Forbidden(
                f"cannot use {shown(said)}: it is, or leads, outside the allowed folders; choose a path in "
                "them, or have the folder added to the server's setting `folders`"
            )
        self.forbidden.check_name(real)
        return real

    def root_of(self, parts: Parts) -> Parts:
        """The outermost above it: whoever may write in one root must not move the boundary of one inside it."""
        return min((root.parts for root in self.roots if _beneath(parts, root.parts)), key=len)

    def is_folder_itself(self, parts: Parts) -> bool:
        """An allowed folder, or one above it: neither can be moved, deleted or replaced."""
        return any(_beneath(folder, parts) for folder in (*self.allowed, *(r.parts for r in self.roots)))


def _root(folder: Path) -> Root:
    spelt = Path(os.path.abspath(folder)).parts  # noqa: PTH100 - without following links
    return Root(Path(os.path.realpath(folder)).parts, spelt)


def _real(roots: tuple[Root, ...], parts: Parts) -> Parts | None:
    for root in sorted(roots, key=lambda each: -len(each.parts)):
        if _beneath(parts, root.parts):
            return parts
    for root in sorted(roots, key=lambda each: -len(each.spelt)):
        if _beneath(parts, root.spelt):
            return root.parts + parts[len(root.spelt) :]
    return None


def _beneath(parts: Parts, folder: Parts) -> bool:
    return parts[: len(folder)] == folder


def text(parts: Parts) -> str:
    return str(PurePosixPath(*parts))
