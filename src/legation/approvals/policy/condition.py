"""Conditions of a rule: comparisons of a field, and `all`, `any`, `not` of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args

from legation.approvals.policy.fields import HIDDEN, Values, View, if_missing
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth, negate, of_each, truth

Op = Literal["==", "!=", "<", "<=", ">", ">=", "in", "glob", "regex", "exists", "under"]
MAX_VALUES: Final = 1000  # of one field, such as the paths of one call; of more nobody knows
_VALUE: Final = 10  # steps that a comparison costs, however short what it compares
OPS: Final[tuple[Op, ...]] = get_args(Op)

Test: TypeAlias = Callable[[object, View], Truth]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one comparison came to, in words for the person who asked."""

    truth: Truth
    words: str


class Condition(Protocol):
    @property
    def fields(self) -> frozenset[str]: ...

    def holds(self, view: View) -> Truth: ...

    def findings(self, view: View) -> Iterator[Finding]: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """`missing` is what the rule says a missing field is worth; None: what `if_missing` says."""

    field: str
    op: Op
    shown: str  # the value, as it was written
    read: Callable[[View], Values]
    test: Test
    missing: Truth | None = None

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def holds(self, view: View) -> Truth:
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

    def findings(self, view: View) -> Iterator[Finding]:
        values = self.read(view)
        actual = "is missing" if values is None else f"is {', '.join(map(_shown, values)) or 'an empty list'}"
        if self.field == "command" and view.part is None and view.line is not None:
            actual = f"cannot be read: {view.line.unreadable}"
        yield Finding(self.holds(view), f"{self.field} {self.op} {self.shown}: {actual}")


@dataclass(frozen=True, slots=True)
class Existence:
    field: str
    wanted: bool
    read: Callable[[View], Values]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def holds(self, view: View) -> Truth:
        return truth((self.read(view) is not None) == self.wanted)

    def findings(self, view: View) -> Iterator[Finding]:
        there = "is missing" if self.read(view) is None else "is there"
        yield Finding(self.holds(view), f"{self.field} exists {str(self.wanted).lower()}: it {there}")


@dataclass(frozen=True, slots=True)
class All:
    items: tuple[Condition, ...]

    @property
    def fields(self) -> frozenset[str]:
        return _fields(self.items)

    def holds(self, view: View) -> Truth:
        found: Truth = YES
        for item in self.items:
            held = item.holds(view)
            if held is NO:
                return NO
            found = min(found, held)
        return found

    def findings(self, view: View) -> Iterator[Finding]:
        for item in self.items:
            yield from item.findings(view)


@dataclass(frozen=True, slots=True)
class Any:
    items: tuple[Condition, ...]

    @property
    def fields(self) -> frozenset[str]:
        return _fields(self.items)

    def holds(self, view: View) -> Truth:
        found: Truth = NO
        for item in self.items:
            held = item.holds(view)
            if held is YES:
                return YES
            found = max(found, held)
        return found

    def findings(self, view: View) -> Iterator[Finding]:
        for item in self.items:
            yield from item.findings(view)


@dataclass(frozen=True, slots=True)
class Not:
    item: Condition

    @property
    def fields(self) -> frozenset[str]:
        return self.item.fields

    def holds(self, view: View) -> Truth:
        return negate(self.item.holds(view))

    def findings(self, view: View) -> Iterator[Finding]:
        for found in self.item.findings(view):
            yield Finding(negate(found.truth), f"not ({found.words})")


def _fields(items: tuple[Condition, ...]) -> frozenset[str]:
    return frozenset().union(*(item.fields for item in items))


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
