"""Why a call is decided as it is, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.fields import View
from legation.approvals.policy.rule import Policy, Rule
from legation.approvals.policy.search import UNCLEAR, held_by, kinds_of, views
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth
from legation.approvals.policy.verdict import Outcome, Step
from legation.wire.action import Action

_OUTCOMES: Final[dict[Truth, Outcome]] = {YES: "matches", UNKNOWN: "may match", NO: "no match"}
_WORDS: Final[dict[Truth, str]] = {YES: "yes", UNKNOWN: "unknown", NO: "no"}


def steps(policies: Iterable[Policy], action: Action, facts: Facts) -> Iterator[Step]:
    for policy in policies:
        if not policy.covers(action.agent):
            why = f"the agent {action.agent!r} does not fit {policy.agent!r}"
            yield Step(policy=policy.name, rule=None, outcome="no match", why=why, place=policy.place)
    covering = [policy for policy in policies if policy.covers(action.agent)]
    see_command = any(rule.sees_command for policy in covering for rule in policy.rules)
    budget = Budget()
    for kind in kinds_of(action):
        whole = View(action, facts, kind, budget=budget)
        for view in views(action, facts, kind, budget) if see_command else [whole]:
            was_spent = budget.is_spent
            yield from _search(covering, view)
            if was_spent:  # without a budget all parts are alike
                break


def _search(policies: list[Policy], view: View) -> Iterator[Step]:
    """Up to the rule that ends the search."""
    looks = False
    for policy in policies:
        for rule in policy.rules:
            step = _step(policy, rule, view)
            looks = looks or (rule.sees_places and rule.names(view.action.tool, view.kind))
            if looks and view.action.unclear and step.outcome == "matches" and step.action == "allow":
                step = _asked_about(step, view.action)
            yield step
            if step.outcome == "matches" or (step.outcome == "may match" and step.action == "deny"):
                return


def _asked_about(step: Step, action: Action) -> Step:
    named = ", ".join(map(repr, action.unclear))
    return msgspec.structs.replace(
        step, action="human_approval", why=f"{step.why}; but {UNCLEAR}: {named} -> asked"
    )


def _step(policy: Policy, rule: Rule, view: View) -> Step:
    held, why = _judge(rule, view)
    return Step(
        policy=policy.name,
        rule=rule.id,
        outcome=_OUTCOMES[held],
        why=why,
        action=rule.verdict.action,
        part=None if view.part is None else "".join("…" if piece is None else piece for piece in view.part),
        kind=view.kind,
        place=rule.place,
    )


def _judge(rule: Rule, view: View) -> tuple[Truth, str]:
    if not rule.tools.holds(view.action.tool):
        return NO, f"the tool {view.action.tool!r} does not fit {', '.join(rule.tools.globs)}"
    if not rule.names(view.action.tool, view.kind):
        return NO, f"the kind {view.kind!r} is not {', '.join(sorted(rule.kinds))}"
    if rule.when is None:
        return YES, "tool and kind fit, and it has no condition"
    held = held_by(rule, view)
    if view.budget.is_spent:
        return held, view.budget.why
    # Said with steps of their own: the words must not change what comes of the rules that follow.
    told = replace(view, budget=Budget())
    words = [f"{found.words} -> {_WORDS[found.truth]}" for found in rule.when.findings(told)]
    return held, "; ".join(words)
