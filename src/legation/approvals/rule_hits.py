"""How often each rule decided: which ones do the work, and which could go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.verdict import DEFAULT
from legation.store.database.queries import Queries
from legation.store.database.transaction import Transaction
from legation.wire.api.approvals import RuleHits, rfc3339

_SQL: Final = Queries("traces")


def hits(workspace: str, policies: PolicySet, since: int = 0) -> Transaction[list[RuleHits]]:
    """Every rule that is in force, in the order they are asked, also those that never decided.

    Then whatever else decided: limits, and rules that are gone, which have no action. `since` in milliseconds.
    """
    found = yield _SQL.hits(workspace=workspace, since=since)
    on_record = {row["policy_rule"]: (row["hits"], row["last_at"]) for row in found}
    in_force = dict(_in_force(policies))
    names = [*in_force, *(name for name in on_record if name not in in_force)]
    return [_hits(name, in_force.get(name), on_record.get(name)) for name in names]


def _in_force(policies: PolicySet) -> Iterator[tuple[str, str]]:
    for policy in policies.policies:
        for rule in policy.rules:
            yield rule.verdict.name, rule.verdict.action
    yield DEFAULT.name, DEFAULT.action


def _hits(name: str, action: str | None, found: tuple[int, int] | None) -> RuleHits:
    count, last = found or (0, None)
    return RuleHits(
        policy_rule=name, action=action, hits=count, last_at=None if last is None else rfc3339(last)
    )
