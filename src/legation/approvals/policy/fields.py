"""What conditions can look at, and what it means where an action does not have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.shell.split import Line, Part
from legation.approvals.policy.truth import NO, UNKNOWN, Truth
from legation.wire.action import Action

BUILT_IN: Final = ("paths", "command", "urls", "hosts", "agent", "tool", "kind", "cwd")

PLACES: Final = frozenset({"paths", "command", "urls", "hosts"})

# Calls of these kinds have one: where it is not to be seen, it was hidden. Of other kinds there is none.
_NEEDS: Final[Mapping[str, frozenset[str]]] = {
    "paths": frozenset({"read", "edit", "delete", "move"}),
    "command": frozenset({"execute"}),
    "urls": frozenset({"fetch"}),
    "hosts": frozenset({"fetch"}),
}


@dataclass(slots=True)
class View:
    """One action as one decision sees it: as one of its kinds, with one of its commands at a time."""

    action: Action
    facts: Facts
    kind: str
    part: Part | None = None  # None: no command, or one that cannot be read
    line: Line | None = None
    budget: Budget = field(default_factory=Budget)  # of the decision: all its views share one
    _real: dict[str, str | None] = field(default_factory=dict)
    _read: dict[str, Values] = field(default_factory=dict)

    def real(self, path: str) -> str | None:
        """Each path is resolved once in a decision, so that all rules see the same place."""
        if path not in self._real:
            self._real[path] = self.facts.resolve(path)
        return self._real[path]

    def with_line(self, line: Line) -> View:
        return View(self.action, self.facts, self.kind, None, line, self.budget, self._real, self._read)

    def with_part(self, part: Part) -> View:
        return View(self.action, self.facts, self.kind, part, self.line, self.budget, self._real, self._read)

    def once(self, name: str, read: Callable[[View], Values]) -> Values:
        """What costs as much as the action is long is read once, however many rules ask for it."""
        if name not in self._read:
            self._read[name] = read(self)
        return self._read[name]


class Hidden:
    """In place of a value that is there but cannot be read."""


HIDDEN: Final = Hidden()
Values = tuple[object, ...] | None
"""Every value that the field has; None: it has none."""


def reader(name: str) -> Callable[[View], Values]:
    if name in _READERS:
        return _READERS[name]
    keys = tuple(name.removeprefix("params.").split("."))
    if len(keys) == 1:
        key = keys[0]
        return lambda view: _spread(view.action.params.get(key))
    return lambda view: view.once(name, lambda view: _dig(view, keys))


def if_missing(name: str, view: View) -> Truth:
    """What any comparison with a missing field is worth."""
    if name not in _NEEDS:
        return UNKNOWN
    return UNKNOWN if view.kind in _NEEDS[name] else NO


def _spread(value: object) -> Values:
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _dig(view: View, keys: tuple[str, ...]) -> Values:
    """Through lists too: `edits.path` is the path of every edit."""
    found: list[object] = [view.action.params]
    for key in keys:
        view.budget.spend(len(found))
        found = [
            HIDDEN if inner is None else inner
            for outer in found
            for inner in (outer if isinstance(outer, list | tuple) else (outer,))
        ]
        if not any(isinstance(inner, Mapping) and inner.get(key) is not None for inner in found):
            return None
        found = [_member(inner, key) for inner in found]
    return _flat(found)


def _member(value: object, key: str) -> object:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return HIDDEN if inner is None else inner


def _flat(values: list[object]) -> tuple[object, ...]:
    return tuple(
        inner for outer in values for inner in (outer if isinstance(outer, list | tuple) else (outer,))
    )


def _hosts(view: View) -> Values:
    return tuple(_host(url) for url in view.action.urls) or None


def _host(url: str) -> object:
    """In lower case. What clients read in different ways is not read at all."""
    if not is_plain_url(url):
        return HIDDEN
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return HIDDEN
    return host.rstrip(".") if host else HIDDEN


def is_plain_url(url: str) -> bool:
    """No user name before the host, no backslash, blank or control character, an ordinary beginning."""
    scheme, mark, rest = url.partition("://")
    if not mark or not scheme.isascii() or not scheme.islower():
        return False
    authority = rest.replace("?", "/").replace("#", "/").split("/", 1)[0]
    plain = (
        authority.isascii()
        and authority == authority.lower()
        and "@" not in authority
        and "%" not in authority
    )
    return plain and "\\" not in url and url.isprintable() and " " not in url


def _urls(view: View) -> Values:
    return tuple(url if is_plain_url(url) else HIDDEN for url in view.action.urls) or None


_READERS: Final[Mapping[str, Callable[[View], Values]]] = {
    "paths": lambda view: view.action.paths or None,
    "command": lambda view: (
        None if view.action.command is None else (HIDDEN if view.part is None else view.part,)
    ),
    "urls": lambda view: view.once("urls", _urls),
    "hosts": lambda view: view.once("hosts", _hosts),
    "agent": lambda view: (view.action.agent,),
    "tool": lambda view: (view.action.tool,),
    "kind": lambda view: (view.kind,),
    "cwd": lambda view: None if view.facts.cwd is None else (view.facts.cwd,),
}
