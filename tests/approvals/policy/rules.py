"""Short ways to a policy and a call, for tests."""

from __future__ import annotations

from typing import Any

import yaml

from legation.approvals.policy.facts import Facts
from legation.approvals.policy.load import EXAMPLE_FACTS, ExampleFolders, load_text, parse_call
from legation.approvals.policy.rules import PolicySet, Verdict
from legation.wire.action import Action


def policy(*rules: dict[str, Any], **more: Any) -> PolicySet:
    return load_text(
        yaml.safe_dump({"name": "p", "rules": list(rules), **more}, sort_keys=False, allow_unicode=True)
    )


def call(text: str | dict[str, Any] = "", **more: Any) -> Action:
    return parse_call(text or more, ExampleFolders())


def decide(
    policies: PolicySet, text: str | dict[str, Any] = "", facts: Facts = EXAMPLE_FACTS, **more: Any
) -> Verdict:
    return policies.decide(call(text, **more), facts)


def allows(when: object, text: str | dict[str, Any] = "", facts: Facts = EXAMPLE_FACTS, **more: Any) -> bool:
    """Whether an allow with this condition is reached."""
    return decide(policy({"action": "allow", "when": when}), text, facts, **more).action == "allow"


def denies(when: object, text: str | dict[str, Any] = "", facts: Facts = EXAMPLE_FACTS, **more: Any) -> bool:
    """Whether a deny with this condition stands before an allow for everything."""
    return (
        decide(policy({"action": "deny", "when": when}, {"action": "allow"}), text, facts, **more).action
        == "deny"
    )
