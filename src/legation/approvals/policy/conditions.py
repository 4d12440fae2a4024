"""Conditions of a rule: the fields that they look at, comparisons of these, and `all`, `any`, `not` of them.

No type is turned into another: "500" is not 500, and true is not 1. A value of another type than the rule's is
neither equal nor unequal to it, smaller nor greater: it is unknown.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args
from urllib.parse import urlsplit

import msgspec

from legation.approvals.policy.automaton import Automaton, Budget, Either, Pattern, literal
from legation.approvals.policy.facts import Facts, normal
from legation.approvals.policy.patterns import Style, glob_pattern, parse_regex
from legation.approvals.policy.shell.split import Part, ShellLine
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth, negate, of_each, truth
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


class ActionView(msgspec.Struct):
    """One action as one decision sees it: as one of its kinds, with one of its commands at a time."""

    action: Action
    facts: Facts
    kind: str
    part: Part | None = None  # None: no command, or one that cannot be read
    line: ShellLine | None = None
    budget: Budget = msgspec.field(default_factory=Budget)  # of the decision: all its views share one
    _real: dict[str, str | None] = msgspec.field(default_factory=dict)
    _read: dict[str, Values] = msgspec.field(default_factory=dict)

    def real(self, path: str) -> str | None:
        """Resolve a path, once in a decision, so that all rules see the same place."""
        if path not in self._real:
            self._real[path] = self.facts.resolve(path)
        return self._real[path]

    def with_line(self, line: ShellLine) -> ActionView:
        return ActionView(self.action, self.facts, self.kind, None, line, self.budget, self._real, self._read)

    def with_part(self, part: Part) -> ActionView:
        return ActionView(
            self.action, self.facts, self.kind, part, self.line, self.budget, self._real, self._read
        )

    def once(self, name: str, read: Callable[[ActionView], Values]) -> Values:
        """Read once what costs as much as the action is long, however many rules ask for it."""
        if name not in self._read:
            self._read[name] = read(self)
        return self._read[name]


class Hidden:
    """The place of a value that is there but cannot be read."""


HIDDEN: Final = Hidden()
Values = tuple[object, ...] | None
"""Every value that the field has; None: it has none."""


def reader(name: str) -> Callable[[ActionView], Values]:
    if name in _READERS:
        return _READERS[name]
    keys = tuple(name.removeprefix("params.").split("."))
    if len(keys) == 1:
        key = keys[0]
        return lambda view: _spread(view.action.params.get(key))
    return lambda view: view.once(name, lambda view: _dig(view, keys))


def if_missing(name: str, view: ActionView) -> Truth:
    """Tell what any comparison with a missing field is worth."""
    if name not in _NEEDS:
        return UNKNOWN
    return UNKNOWN if view.kind in _NEEDS[name] else NO


def _spread(value: object) -> Values:
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _dig(view: ActionView, keys: tuple[str, ...]) -> Values:
    """Read a member through lists too: `edits.path` is the path of every edit."""
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


def _hosts(view: ActionView) -> Values:
    return tuple(_host(url) for url in view.action.urls) or None


def _host(url: str) -> object:
    # In lower case. What clients read in different ways is not read at all.
    if not is_plain_url(url):
        return HIDDEN
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return HIDDEN
    return host.rstrip(".") if host else HIDDEN


def is_plain_url(url: str) -> bool:
    """Tell whether all clients read it alike: no user name before the host, no backslash, blank or control character, an
    ordinary beginning."""
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


def _urls(view: ActionView) -> Values:
    return tuple(url if is_plain_url(url) else HIDDEN for url in view.action.urls) or None


_READERS: Final[Mapping[str, Callable[[ActionView], Values]]] = {
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


Op = Literal["==", "!=", "<", "<=", ">", ">=", "in", "glob", "regex", "exists", "under"]
MAX_VALUES: Final = 1000  # of one field, such as the paths of one call; of more nobody knows
_VALUE: Final = 10  # steps that a comparison costs, however short what it compares
OPS: Final[tuple[Op, ...]] = get_args(Op)

Test: TypeAlias = Callable[[object, ActionView], Truth]


class ConditionFinding(msgspec.Struct, frozen=True):
    """The outcome of one comparison, in words for the person who asked."""

    truth: Truth
    words: str


class Condition(Protocol):
    @property
    def fields(self) -> frozenset[str]: ...

    @property
    def folders(self) -> frozenset[str]: ...

    def holds(self, view: ActionView) -> Truth: ...

    def findings(self, view: ActionView) -> Iterator[ConditionFinding]: ...


class Comparison(msgspec.Struct, frozen=True):
    """A field compared with a value. `missing` is what a missing field is worth; None: what `if_missing` says. `beginnings`
    are those of all texts that it takes, or the folders that they are under, where that is known."""

    field: str
    op: Op
    shown: str  # the value, as it was written
    read: Callable[[ActionView], Values]
    test: Test
    missing: Truth | None = None
    beginnings: tuple[str, ...] = ()

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    @property
    def folders(self) -> frozenset[str]:
        return frozenset(self.test.folders if isinstance(self.test, Under) else ())

    def holds(self, view: ActionView) -> Truth:
        values = self.read(view)
        if values is None:
            return if_missing(self.field, view) if self.missing is None else self.missing
        budget = view.budget
        budget.left -= _VALUE * len(values)
        if budget.left < 0 or len(values) > MAX_VALUES:
            return UNKNOWN
        if len(values) == 1:
            return self.test(values[0], view)
        return of_each(self.test(value, view) for value in values)

    def findings(self, view: ActionView) -> Iterator[ConditionFinding]:
        values = self.read(view)
        actual = "is missing" if values is None else f"is {', '.join(map(_shown, values)) or 'an empty list'}"
        if self.field == "command" and view.part is None and view.line is not None:
            actual = f"cannot be read: {view.line.unreadable}"
        yield ConditionFinding(self.holds(view), f"{self.field} {self.op} {self.shown}: {actual}")


class Existence(msgspec.Struct, frozen=True):
    field: str
    wanted: bool
    read: Callable[[ActionView], Values]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    @property
    def folders(self) -> frozenset[str]:
        return frozenset()

    def holds(self, view: ActionView) -> Truth:
        return truth((self.read(view) is not None) == self.wanted)

    def findings(self, view: ActionView) -> Iterator[ConditionFinding]:
        there = "is missing" if self.read(view) is None else "is there"
        yield ConditionFinding(
            self.holds(view), f"{self.field} exists {str(self.wanted).lower()}: it {there}"
        )


class Joined(msgspec.Struct, frozen=True):
    """All of some conditions, which one NO ends, or any of them, which one YES ends."""

    items: tuple[Condition, ...]
    ended_by: Truth = NO

    @property
    def fields(self) -> frozenset[str]:
        return frozenset().union(*(item.fields for item in self.items))

    @property
    def folders(self) -> frozenset[str]:
        return frozenset().union(*(item.folders for item in self.items))

    def holds(self, view: ActionView) -> Truth:
        found = negate(self.ended_by)
        for item in self.items:
            held = item.holds(view)
            if held is self.ended_by:
                return held
            if held is UNKNOWN:
                found = UNKNOWN
        return found

    def findings(self, view: ActionView) -> Iterator[ConditionFinding]:
        for item in self.items:
            yield from item.findings(view)


class Not(msgspec.Struct, frozen=True):
    item: Condition

    @property
    def fields(self) -> frozenset[str]:
        return self.item.fields

    @property
    def folders(self) -> frozenset[str]:
        return self.item.folders

    def holds(self, view: ActionView) -> Truth:
        return negate(self.item.holds(view))

    def findings(self, view: ActionView) -> Iterator[ConditionFinding]:
        for found in self.item.findings(view):
            yield ConditionFinding(negate(found.truth), f"not ({found.words})")


_SHOWN: Final = 80  # characters of a value


def _shown(value: object) -> str:
    if value is HIDDEN:
        return "something that cannot be read"
    if isinstance(value, tuple):  # a command with its holes
        value = "".join(
            piece if piece is not None else "…" for piece in cast("tuple[str | None, ...]", value)
        )
    text = repr(value) if isinstance(value, str) else str(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{text} ({kind_of(value)})"


def kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "neither text nor number"


Scalar: TypeAlias = str | int | float | bool
_ORDER: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_FOLDER: Final = 20  # steps that a path costs for each folder that it is held against,
_AT_ONCE: Final = 16  # and characters of it that cost one more


def one_of(values: Sequence[Scalar]) -> Test:
    kinds = {kind_of(value) for value in values}
    known = frozenset((kind_of(value), value) for value in values)

    def test(actual: object, _: ActionView) -> Truth:
        kind = kind_of(actual)
        if kind not in kinds or (isinstance(actual, float) and math.isnan(actual)):
            return UNKNOWN
        return truth((kind, actual) in known)

    return test


def unequal(value: Scalar) -> Test:
    equal = one_of([value])
    return lambda actual, view: negate(equal(actual, view))


def ordered(sign: str, bound: float) -> Test:
    compare = _ORDER[sign]

    def test(actual: object, _: ActionView) -> Truth:
        if isinstance(actual, bool) or not isinstance(actual, int | float) or math.isnan(actual):
            return UNKNOWN
        return truth(compare(actual, bound))

    return test


def globs(patterns: Sequence[str], style: Style) -> Automaton:
    return Automaton(_union([glob_pattern(pattern, style) for pattern in patterns]))


def regexes(patterns: Sequence[str]) -> Automaton:
    return Automaton(_union([parse_regex(pattern) for pattern in patterns]))


def literals(texts: Sequence[str]) -> Automaton:
    return Automaton(_union([literal(text) for text in texts]))


def fits(automaton: Automaton) -> Test:
    """Match texts."""
    return lambda actual, view: (
        automaton.judge((actual,), view.budget) if isinstance(actual, str) else UNKNOWN
    )


def fits_path(automaton: Automaton) -> Test:
    """Match paths, as named and as resolved, so that a link with a harmless name is not harmless."""

    def test(actual: object, view: ActionView) -> Truth:
        if not isinstance(actual, str) or actual.startswith("~"):  # a home that is not known
            return UNKNOWN
        real = view.real(actual)
        if real == actual:
            return automaton.judge((actual,), view.budget)
        if real is None:
            return UNKNOWN
        return of_each(automaton.judge((path,), view.budget) for path in (actual, real))

    return test


def fits_command(automaton: Automaton) -> Test:
    """Match one simple command with its holes."""
    return lambda actual, view: automaton.judge(actual, view.budget) if isinstance(actual, tuple) else UNKNOWN


def differs(test: Test) -> Test:
    return lambda actual, view: negate(test(actual, view))


class Under(msgspec.Struct, frozen=True):
    """Match what lies below any of the folders."""

    folders: tuple[str, ...]

    def __call__(self, actual: object, view: ActionView) -> Truth:
        path = view.facts.absolute(actual) if isinstance(actual, str) else None
        if path is None or "\0" in path:
            return UNKNOWN
        found: Truth = NO
        view.budget.spend(len(self.folders) * (_FOLDER + len(path) // _AT_ONCE))
        for folder in self.folders:
            held = _is_under(path, folder, view)
            if held is YES:
                return YES
            found = max(found, held)
        return found


def _is_under(path: str, folder: str, view: ActionView) -> Truth:
    root = view.facts.root(folder)
    if root is None:
        return UNKNOWN
    held = root.holds(path, view.real(path))
    if "/.." not in path:
        return held
    # Some programs take `link/..` as text and others follow the link first: both must say the same.
    textual = normal(path)
    return of_each((held, root.holds(textual, view.real(textual))))


def _union(patterns: list[Pattern]) -> Pattern:
    return patterns[0] if len(patterns) == 1 else Either(tuple(patterns))
