"""What each operator does with one value.

No type is turned into another: "500" is not 500, and true is not 1. A value of another type than the rule's is
neither equal nor unequal to it, smaller nor greater: it is unknown.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from legation.approvals.policy.automaton import Automaton, Either, Pattern, literal
from legation.approvals.policy.condition import Test, kind_of
from legation.approvals.policy.facts import normal
from legation.approvals.policy.fields import View
from legation.approvals.policy.glob import Style, glob_pattern
from legation.approvals.policy.regex import parse_regex
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth, negate, of_each, truth

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

    def test(actual: object, _: View) -> Truth:
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

    def test(actual: object, _: View) -> Truth:
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
    """For texts."""
    return lambda actual, view: (
        automaton.judge((actual,), view.budget) if isinstance(actual, str) else UNKNOWN
    )


def fits_path(automaton: Automaton) -> Test:
    """For paths: as named and as resolved, so that a link with a harmless name is not harmless."""

    def test(actual: object, view: View) -> Truth:
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
    """For one simple command with its holes."""
    return lambda actual, view: automaton.judge(actual, view.budget) if isinstance(actual, tuple) else UNKNOWN


def differs(test: Test) -> Test:
    return lambda actual, view: negate(test(actual, view))


def under(folders: Sequence[str]) -> Test:
    """Below any of the folders."""

    def test(actual: object, view: View) -> Truth:
        path = view.facts.absolute(actual) if isinstance(actual, str) else None
        if path is None or "\0" in path:
            return UNKNOWN
        found: Truth = NO
        view.budget.spend(len(folders) * (_FOLDER + len(path) // _AT_ONCE))
        for folder in folders:
            held = _is_under(path, folder, view)
            if held is YES:
                return YES
            found = max(found, held)
        return found

    return test


def _is_under(path: str, folder: str, view: View) -> Truth:
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
