"""All policies at once, and the one function that decides.

INV-P3  The policies are asked by how exactly they name the agent, their rules in the order they are written; the
        first that matches decides, and what none matches is denied.
INV-P4  A command line is decided part by part, and the strictest verdict counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Final

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.explain import steps
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.fields import View
from legation.approvals.policy.names import specificity
from legation.approvals.policy.rule import Policy, Rule
from legation.approvals.policy.search import first_match, judge, kinds_of
from legation.approvals.policy.verdict import Limits, Step, UnaskedWord, Verdict, stricter
from legation.wire.action import Action

# Names come from agents, who can invent as many and as long ones as they like.
_KEPT_CALLS: Final = 4096
_KEPT_LENGTH: Final = 200


class PolicySet:
    def __init__(self, policies: Iterable[Policy] = (), content: object = None) -> None:
        """`content` is what the version is made of: two sets that decide alike should have it alike."""
        self.policies: tuple[Policy, ...] = tuple(sorted(policies, key=lambda each: specificity(each.agent)))
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        self.version = hashlib.sha256(canonical.encode()).hexdigest()
        self._rules: dict[tuple[str, str, str], tuple[tuple[Rule, ...], bool]] = {}

    def decide(self, action: Action, facts: Facts, budget: Budget | None = None) -> Verdict:
        """Looks at nothing outside but, through `facts`, at where paths lead."""
        budget = budget or Budget()
        if action.command is None:
            rules, _ = self._relevant(action.agent, action.tool, action.kind)
            return first_match(rules, View(action, facts, action.kind, budget=budget))
        found = (
            judge(*self._relevant(action.agent, action.tool, kind), action, facts, kind, budget)
            for kind in kinds_of(action)
        )
        return reduce(stricter, found)

    def explain(self, action: Action, facts: Facts | None = None) -> list[Step]:
        """Every policy and rule that was looked at, in order. It shows arguments: only for the one who asks."""
        return list(steps(self.policies, action, facts or Facts()))

    def limits(self, agent: str) -> tuple[tuple[str, Limits], ...]:
        """Of every policy that covers the agent, by the policy's name."""
        return tuple((policy.name, policy.limits) for policy in self.policies if policy.covers(agent))

    def unasked(self, agent: str) -> UnaskedWord | None:
        """The strictest word of the policies that cover the agent; None: none says anything."""
        said = {policy.unasked for policy in self.policies if policy.covers(agent)}
        return "stop" if "stop" in said else "warn" if "warn" in said else None

    def _relevant(self, agent: str, tool: str, kind: str) -> tuple[tuple[Rule, ...], bool]:
        """The rules that tool and kind leave, and whether any of them looks at commands."""
        found = self._rules.get((agent, tool, kind))
        if found is None:
            rules = tuple(self._named(agent, tool, kind))
            found = (rules, any(rule.sees_command for rule in rules))
            if len(self._rules) >= _KEPT_CALLS:
                self._rules.clear()
            if len(agent) + len(tool) + len(kind) <= _KEPT_LENGTH:
                self._rules[agent, tool, kind] = found
        return found

    def _named(self, agent: str, tool: str, kind: str) -> Iterator[Rule]:
        for policy in self.policies:
            if policy.covers(agent):
                for rule in policy.rules:
                    if rule.names(tool, kind):
                        yield rule
                        if rule.when is None:
                            return  # nothing behind it is ever reached
