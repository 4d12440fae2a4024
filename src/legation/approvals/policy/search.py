"""The search for the rule that decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from legation.approvals.policy.facts import Facts
from legation.approvals.policy.fields import View
from legation.approvals.policy.rule import Rule
from legation.approvals.policy.truth import NO, YES
from legation.approvals.policy.verdict import DEFAULT, STRICTNESS, Verdict, stricter
from legation.wire.action import Action

_SHELL: Final = "execute"


def kinds_of(action: Action) -> tuple[str, ...]:
    """A kind is the agent's word, and some call a shell command a "read" after what it does.

    So a call that comes with a command is an `execute` too, is decided as both, and the stricter counts.
    """
    if action.command is None or action.kind == _SHELL:
        return (action.kind,)
    return (action.kind, _SHELL)


def views(action: Action, facts: Facts, kind: str) -> Iterator[View]:
    """One for each simple command; one for a line that cannot be read, or where there is none."""
    whole = View(action, facts, kind)
    if action.command is None:
        yield whole
        return
    whole.line = facts.line(action.command)
    if not whole.line.parts:
        yield whole
    for part in whole.line.parts:
        yield whole.with_part(part)


def judge(rules: Sequence[Rule], see_command: bool, action: Action, facts: Facts, kind: str) -> Verdict:
    """The strictest over the parts of a command, where any rule looks at them."""
    if action.command is None or not see_command:
        return first_match(rules, View(action, facts, kind))
    verdict: Verdict | None = None
    for view in views(action, facts, kind):
        found = first_match(rules, view)
        verdict = found if verdict is None else stricter(verdict, found)
        if verdict.action == "deny":
            break
    return verdict or DEFAULT


def first_match(rules: Sequence[Rule], view: View) -> Verdict:
    """A rule that may match lets the search go on, but nothing milder than it comes out (INV-P1)."""
    floor: Verdict | None = None
    for rule in rules:
        held = rule.holds(view)
        if held is NO:
            continue
        verdict = rule.verdict
        if held is YES:
            return verdict if floor is None else stricter(verdict, floor)
        if verdict.action == "allow":
            continue
        verdict = msgspec.structs.replace(verdict, reason=_uncertain(view, verdict))
        if verdict.action == "deny":
            return verdict
        if floor is None or STRICTNESS[verdict.action] > STRICTNESS[floor.action]:
            floor = verdict
    return DEFAULT


def _uncertain(view: View, verdict: Verdict) -> str:
    why = "something that its condition needs is missing or of another type"
    if view.line is not None and view.line.unreadable:
        why = f"the command cannot be read with certainty: {view.line.unreadable}"
    return f"rule {verdict.rule} may match, and that is enough: {why}"
