"""The search for the rule that decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.fields import View
from legation.approvals.policy.rule import Rule
from legation.approvals.policy.truth import NO, YES, Truth
from legation.approvals.policy.verdict import DEFAULT, STRICTNESS, Verdict, stricter
from legation.wire.action import Action

_SHELL: Final = "execute"
_RULE: Final = 5  # steps that a rule costs, whatever its condition
UNCLEAR: Final = (
    "the call has arguments that look like a path, a command or an address, and nobody said what they are"
)


def kinds_of(action: Action) -> tuple[str, ...]:
    """A kind is the agent's word, and some call a shell command a "read" after what it does.

    So a call that comes with a command is an `execute` too, is decided as both, and the stricter counts.
    """
    if action.command is None or action.kind == _SHELL:
        return (action.kind,)
    return (action.kind, _SHELL)


def views(action: Action, facts: Facts, kind: str, budget: Budget) -> Iterator[View]:
    """One for each simple command; one for a line that cannot be read, or where there is none."""
    whole = View(action, facts, kind, budget=budget)
    if action.command is None:
        yield whole
    for text in action.commands:
        line = facts.line(text)
        of_line = whole.with_line(line)
        if not line.parts:
            yield of_line
        for part in line.parts:
            yield of_line.with_part(part)


def judge(
    rules: Sequence[Rule], see_command: bool, action: Action, facts: Facts, kind: str, budget: Budget
) -> Verdict:
    """The strictest over the parts of a command, where any rule looks at them."""
    if action.command is None or not see_command:
        return first_match(rules, View(action, facts, kind, budget=budget))
    verdict: Verdict | None = None
    for view in views(action, facts, kind, budget):
        was_spent = budget.is_spent
        found = first_match(rules, view)
        verdict = found if verdict is None else stricter(verdict, found)
        if verdict.action == "deny" or was_spent:  # without a budget all parts are alike
            break
    return verdict or DEFAULT


def first_match(rules: Sequence[Rule], view: View) -> Verdict:
    """A rule that may match lets the search go on, but nothing milder than it comes out (INV-P1).

    An unclear call is asked about where it would be allowed by rules that look at paths, commands or addresses.
    """
    floor: Verdict | None = None
    looks = False
    for rule in rules:
        held = held_by(rule, view)
        looks = looks or rule.sees_places
        if held is NO:
            continue
        verdict = rule.verdict
        if held is YES:
            if looks and view.action.unclear:
                verdict = asked_about(verdict)
            return verdict if floor is None else stricter(verdict, floor)
        if verdict.action == "allow":
            continue
        verdict = msgspec.structs.replace(verdict, reason=_uncertain(view, verdict))
        if verdict.action == "deny":
            return verdict
        if floor is None or STRICTNESS[verdict.action] > STRICTNESS[floor.action]:
            floor = verdict
    if view.budget.is_spent:
        return msgspec.structs.replace(DEFAULT, reason=f"no rule matches for certain: {view.budget.why}")
    return DEFAULT


def held_by(rule: Rule, view: View) -> Truth:
    """Whether the rule matches, as far as the budget reaches."""
    budget = view.budget
    budget.left -= _RULE
    held = YES if rule.when is None else rule.when.holds(view)
    if budget.left < 0 and budget.by is None:
        budget.by = rule.verdict.name
    return held


def asked_about(verdict: Verdict) -> Verdict:
    """By a person, where the rule would have allowed it."""
    if verdict.action != "allow":
        return verdict
    reason = f"rule {verdict.rule} of policy {verdict.policy} would allow it, but {UNCLEAR}"
    return msgspec.structs.replace(verdict, action="human_approval", reason=reason)


def _uncertain(view: View, verdict: Verdict) -> str:
    why = "something that its condition needs is missing or of another type"
    if view.budget.is_spent:
        why = view.budget.why
    elif view.line is not None and view.line.unreadable:
        why = f"the command cannot be read with certainty: {view.line.unreadable}"
    return f"rule {verdict.rule} may match, and that is enough: {why}"
