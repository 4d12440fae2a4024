"""What a decision may know besides the action: where the agent works, and what a path really is."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from legation.approvals.policy.shell.split import Line, split
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth

Resolve = Callable[[str], str | None]

_O_PATH: Final[int] = getattr(os, "O_PATH", 0)  # Linux; it opens nothing, so that no pipe or device notices
VARIABLES: Final = ("$WORKSPACE", "$HOME", "$CWD")


def real_path(path: str) -> str | None:
    """Where the path leads through all links; None where that cannot be told."""
    try:
        return _by_kernel(path) if _O_PATH else os.path.realpath(path, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.realpath(path)  # the part that exists is resolved: a new file in a linked folder
    except (OSError, ValueError):  # a loop, a folder that we may not look into, a NUL
        return None


def _by_kernel(path: str) -> str:
    """Three calls instead of one for each folder, and no time between them in which a folder could be replaced."""
    descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path costs more than the call
    except FileNotFoundError:  # no /proc here
        return os.path.realpath(path, strict=True)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Facts:
    """`workspace`, `cwd` and `home` are absolute. Make one for each session, at least.

    Folders that rules name are resolved once, when they are first needed; paths of an action every time.
    """

    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None
    resolve: Resolve = real_path
    lines: Mapping[str, Line] = field(default_factory=dict, repr=False, compare=False)
    _roots: dict[str, Root | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def line(self, command: str) -> Line:
        """As it was read for this decision (`shell/lines.py`), else as it can be read without any help."""
        return self.lines.get(command) or split(command)

    def with_line(self, command: str, line: Line) -> Facts:
        """For one decision; the folders stay those that were resolved already."""
        facts = replace(self, lines={**self.lines, command: line})
        object.__setattr__(facts, "_roots", self._roots)
        return facts

    def root(self, text: str) -> Root | None:
        if text not in self._roots:
            self._roots[text] = self._find_root(text)
        return self._roots[text]

    def absolute(self, path: str) -> str | None:
        """As it would be opened, `..` and all; None where that depends on what is not known."""
        if path == "~" or path.startswith("~/"):
            return None if self.home is None else self.home + path[1:]
        if path.startswith("~") or path[:5].lower() == "file:":
            return None
        if path.startswith("/"):
            return path
        return None if self.cwd is None else posixpath.join(self.cwd, path)

    def _find_root(self, text: str) -> Root | None:
        base, tail = self._base(text)
        if base is None:
            return None
        named = normal(posixpath.join(base, tail))
        if self.workspace is not None and contains(inside := normal(self.workspace), named):
            base, tail = inside, posixpath.relpath(named, inside)
        firm_base, full = self.resolve(base), self.resolve(named)
        if firm_base is None:
            return None
        return Root(named, normal(posixpath.join(firm_base, tail)), full)

    def _base(self, text: str) -> tuple[str | None, str]:
        head, _, tail = text.partition("/")
        known = {"$WORKSPACE": self.workspace, "$HOME": self.home, "~": self.home, "$CWD": self.cwd}
        if head in known:
            return known[head], tail
        if text.startswith("/"):
            return text, ""
        return self.cwd, text


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that a rule names: as written, with only its base resolved, and resolved to the end.

    An agent can put a link where `$WORKSPACE/build` was. So below a base that is the owner's nothing is
    resolved for a yes, or that link would carry the folder's rule to wherever it leads.
    """

    named: str
    firm: str
    full: str | None

    def holds(self, path: str, real: str | None) -> Truth:
        if real is None:
            return UNKNOWN
        if contains(self.firm, real):
            return YES
        by_name = contains(self.named, normal(path))
        return UNKNOWN if by_name or self.full is None or contains(self.full, real) else NO


def contains(folder: str, path: str) -> bool:
    """By whole names: `project` does not hold `project-evil`."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


def normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


def as_named(path: str) -> str:
    """A stand-in for `real_path` that never looks at the disk."""
    return normal(path)
