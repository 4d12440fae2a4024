"""Facts of a decision besides the action: where the agent works, and what a path really is.

INV-F1  Of an agent on another machine everything is answered from what was carried along (`ResolvedPaths`); no look at this
        machine's disk, which says nothing about that one's. What was not carried is unknown, and fails closed.
INV-F2  Nobody gains by what is carried: what a path is named counts beside where it is said to lead. A deny holds if
        either fits, an allow of a folder needs both.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from legation.approvals.policy.shell.split import ShellLine, split
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth
from legation.wire.action import Action, Sort
from legation.wire.resolved import ResolvedPaths

Resolve = Callable[[str], str | None]

_O_PATH: Final[int] = getattr(os, "O_PATH", 0)  # Linux; it opens nothing, so that no pipe or device notices
VARIABLES: Final = ("$WORKSPACE", "$HOME", "$CWD")


def real_path(path: str) -> str | None:
    """Find where the path leads through all links; None where that cannot be told."""
    try:
        return _by_kernel(path) if _O_PATH else os.path.realpath(path, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return _of_new(path)  # the part that exists is resolved: a new file in a linked folder
    except (OSError, ValueError):  # a loop, a folder that we may not look into, a NUL
        return None


def _of_new(path: str) -> str | None:
    """Resolve a path whose end is not there. The part that is there is found in few steps, however many names there are:
    behind a name that is missing no other one can be found, and none is looked for."""
    if not path.startswith("/"):
        return os.path.realpath(path)
    names = path.split("/")
    there, missing = 1, len(names)  # so many names are there, so many are not; the first is that of the root
    while missing - there > 1:
        middle = (there + missing) // 2
        if os.path.lexists("/".join(names[:middle]) or "/"):
            there = middle
        else:
            missing = middle
    # One name more than is there: it may be a link that leads to nothing yet.
    head, rest = "/".join(names[:missing]), names[missing:]
    if ".." in rest:  # some take it as text, and come back to what is there
        return os.path.realpath(path)
    return normal(posixpath.join(os.path.realpath(head), *rest)) if rest else os.path.realpath(head)


def _by_kernel(path: str) -> str:
    # Three calls instead of one for each folder, and no time between them in which a folder could be replaced.
    descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path costs more than the call
    except FileNotFoundError:  # no /proc here
        return os.path.realpath(path, strict=True)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Facts:
    """`workspace`, `cwd` and `home` are absolute. `declared` says what arguments of the tool are, by name. `policy` is that of a run: asked
    besides those in force. Make one for each session, at least.

    Folders that rules name are resolved once, when they are first needed; paths of an action every time.
    """

    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None
    resolve: Resolve = real_path
    declared: Mapping[str, Sort] = field(default_factory=dict, hash=False)
    lines: Mapping[str, ShellLine] = field(default_factory=dict, repr=False, compare=False)
    resolved: ResolvedPaths | None = field(
        default=None, hash=False
    )  # of an agent on another machine (`carried`)
    policy: str | None = None
    _roots: dict[str, RuleFolder | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.resolved is not None and self.resolve is real_path:
            raise ValueError("this disk says nothing about paths on another machine (INV-F1)")

    def line(self, command: str) -> ShellLine:
        """Return it as it was read for this decision (`shell/lines.py`), else as it can be read without any help."""
        return self.lines.get(command) or split(command)

    def with_line(self, command: str, line: ShellLine) -> Facts:
        """Add a line for one decision; the folders stay those that were resolved already."""
        facts = replace(self, lines={**self.lines, command: line})
        object.__setattr__(facts, "_roots", self._roots)
        return facts

    def once(self) -> Facts:
        """Copy it for one decision. Each path is resolved once, so that rules and grants see the same place; and what was
        resolved in a thread costs the loop no look at the disk."""
        copy = replace(self, resolve=Resolved(self.resolve))
        object.__setattr__(copy, "_roots", self._roots)  # folders are the session's, and stay what they were
        return copy

    def root(self, text: str) -> RuleFolder | None:
        if text not in self._roots:
            self._roots.setdefault(text, self._find_root(text))  # of two threads the first is right
        return self._roots[text]

    def absolute(self, path: str) -> str | None:
        """Write a path as it would be opened, `..` and all; None where that depends on what is not known."""
        if path == "~" or path.startswith("~/"):
            return None if self.home is None else self.home + path[1:]
        if path.startswith("~") or path[:5].lower() == "file:":
            return None
        if path.startswith("/"):
            return path
        return None if self.cwd is None else posixpath.join(self.cwd, path)

    def places(self, paths: Iterable[str]) -> tuple[str | None, ...]:
        """Find where paths lead at this moment; None where that cannot be told."""
        absolute = map(self.absolute, paths)
        return tuple(None if path is None else self.resolve(path) for path in absolute)

    def now(self) -> Facts:
        """Copy those of a call on record for a decision of today: paths are looked up again, but not those of an agent on
        another machine."""
        return self if self.resolved is not None else replace(self, resolve=real_path)

    def name_of(self, folder: str) -> str | None:
        """Write a folder as a rule names it, as an absolute path; None where that depends on what is not known."""
        base, tail = self._base(folder)
        return None if base is None else normal(posixpath.join(base, tail))

    def _find_root(self, text: str) -> RuleFolder | None:
        base, tail = self._base(text)
        if base is None:
            return None
        named = normal(posixpath.join(base, tail))
        if self.workspace is not None and contains(inside := normal(self.workspace), named):
            base, tail = inside, posixpath.relpath(named, inside)
        firm_base, full = self.resolve(base), self.resolve(named)
        if firm_base is None:
            return None
        firm = normal(posixpath.join(firm_base, tail))
        return RuleFolder(named, firm, full, carried=self.resolved is not None)

    def _base(self, text: str) -> tuple[str | None, str]:
        head, _, tail = text.partition("/")
        known = {"$WORKSPACE": self.workspace, "$HOME": self.home, "~": self.home, "$CWD": self.cwd}
        if head in known:
            return known[head], tail
        if text.startswith("/"):
            return text, ""
        return self.cwd, text


class Resolved(msgspec.Struct, frozen=True):
    """A resolver that looks each path up once."""

    resolve: Resolve
    known: dict[str, str | None] = msgspec.field(default_factory=dict)

    def __call__(self, path: str) -> str | None:
        if path not in self.known:
            self.known.setdefault(path, self.resolve(path))
        return self.known[path]


class RuleFolder(msgspec.Struct, frozen=True):
    """A folder that a rule names: as written, with only its base resolved, and resolved to the end.

    An agent can put a link where `$WORKSPACE/build` was. So below a base that is the owner's nothing is
    resolved for a yes, or that link would carry the folder's rule to wherever it leads.
    """

    named: str
    firm: str
    full: str | None
    carried: bool = False

    def holds(self, path: str, real: str | None) -> Truth:
        if real is None:
            return UNKNOWN
        inside = contains(self.firm, real)
        if inside and not self.carried:
            return YES
        by_name = contains(self.named, normal(path))
        if inside:  # INV-F2
            return YES if by_name or contains(self.firm, normal(path)) else UNKNOWN
        return UNKNOWN if by_name or self.full is None or contains(self.full, real) else NO


def contains(folder: str, path: str) -> bool:
    """Compare by whole names: `project` does not hold `project-evil`."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


def normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


def as_named(path: str) -> str:
    """Stand in for `real_path` without a look at the disk."""
    return normal(path)


# Agents on other machines.


class Carried(msgspec.Struct, frozen=True):
    """A resolver that knows what was carried along, and nothing else (INV-F1)."""

    known: Mapping[str, str | None]

    def __call__(self, path: str) -> str | None:
        if path in self.known or "/.." in path:
            return self.known.get(path)
        return self.known.get(normal(path))


def carried(
    action: Action,
    resolved: ResolvedPaths | None,
    declared: Mapping[str, Sort] | None = None,
    policy: str | None = None,
) -> Facts:
    """Make the facts of an action of an agent on another machine. Without `resolved` all is unknown."""
    told = resolved or ResolvedPaths(paths=(None,) * len(action.paths))
    known = {**told.folders, **dict(zip(action.paths, told.paths, strict=True))}
    where = (told.workspace, told.cwd, told.home)
    return Facts(*where, Carried(known), declared or {}, resolved=told, policy=policy)


def resolve_here(action: Action, facts: Facts, folders: Iterable[str] = ()) -> ResolvedPaths:
    """Look up on this disk what is carried to a server elsewhere. `folders` are those that the rules there name, as they
    are written (`PolicySet.folders`). For whoever acts for the agent, and not on a loop."""
    named = {facts.name_of(each) for each in folders} | {facts.workspace, facts.cwd, facts.home}
    return ResolvedPaths(
        workspace=facts.workspace,
        cwd=facts.cwd,
        home=facts.home,
        paths=facts.places(action.paths),
        folders={each: facts.resolve(each) for each in sorted(filter(None, named))},
    )
