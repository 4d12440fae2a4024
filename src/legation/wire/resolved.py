"""Paths of an action as resolved on another machine, told by whoever acts for the agent there.

A server cannot look at that machine's disk, and its own says nothing about it. So it is looked up there, right before
it is asked and once more right before it is acted on, and carried along. What was not carried is unknown.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from legation.errors import InvalidParams

MAX_FOLDERS: Final = 500
"""Folders besides the action's own paths: those that rules name."""
MAX_LENGTH: Final = 256 * 1024
"""Characters of all paths together."""
_MAX_PATH: Final = 4096  # characters; the kernel opens no longer one


class ResolvedPaths(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`workspace`, `cwd` and `home` are folders as the agent names them. `paths` are where the paths of the action lead
    through all links, in their order, and `folders` where folders do, by their names: these three, and those that rules
    name. None: that could not be told."""

    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None
    paths: tuple[str | None, ...] = ()
    folders: Mapping[str, str | None] = {}

    @property
    def places(self) -> tuple[tuple[str | None, str | None], ...]:
        """List where the agent works, by name and as resolved."""
        return tuple((name, self.folders.get(name or "")) for name in (self.workspace, self.cwd, self.home))

    def check(self, paths: Sequence[str], at: str = "$.resolved") -> None:
        """Refuse one that is not about these paths, or that nobody could have found on a disk: `InvalidParams`."""
        if len(self.paths) != len(paths):
            raise _invalid(f"{at}.paths", f"as many as the call has paths ({len(paths)}), null where unknown")
        if len(self.folders) > MAX_FOLDERS:
            raise _invalid(f"{at}.folders", f"at most {MAX_FOLDERS} folders")
        named = {"workspace": self.workspace, "cwd": self.cwd, "home": self.home}
        told = [(f"{at}.{name}", path) for name, path in named.items()]
        told += [(f"{at}.paths[{number}]", path) for number, path in enumerate(self.paths)]
        told += [(f"{at}.folders", path) for pair in self.folders.items() for path in pair]
        for place, path in told:
            if path is not None and not _is_canonical(path):
                raise _invalid(place, "an absolute path without `.`, `..`, `//`, NUL or a slash at its end")
        if sum(len(path or "") for _, path in told) > MAX_LENGTH:
            raise _invalid(at, f"at most {MAX_LENGTH} characters in all")
        # Everything lies below it: each rule for the workspace would be one for the whole machine.
        if self.workspace == "/" or (self.workspace and self.folders.get(self.workspace) == "/"):
            raise _invalid(f"{at}.workspace", "a folder other than the root")
        for path, real in zip(paths, self.paths, strict=True):
            if path in self.folders and self.folders[path] != real:
                raise _invalid(f"{at}.folders", "the same place for a path as in `paths`")


def _is_canonical(path: str) -> bool:
    return (
        path.startswith("/")
        and not path.startswith("//")
        and "\0" not in path
        and len(path) <= _MAX_PATH
        and posixpath.normpath(path) == path
    )


def _invalid(path: str, expected: str) -> InvalidParams:
    return InvalidParams(
        f"cannot use what was resolved where the agent is: {path} is not {expected}; resolve it there again",
        {"path": path, "expected": expected},
    )
