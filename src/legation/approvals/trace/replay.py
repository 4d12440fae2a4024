"""Rules and the calls on record: how often each decided, and what others would have decided.

A replay reads and decides, and writes nothing. Limits and grants stay out of it: the policy's verdict of that day is held
against the policy's verdict of now. Paths are taken as they are named (`action_of`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from legation.approvals.policy.rules import DEFAULT, PolicySet
from legation.approvals.policy.shell.lines import prepare_here
from legation.approvals.request import LimitName, action_of
from legation.approvals.trace.entries import TraceFilter, Words, calls_before, joined, opened
from legation.approvals.trace.step import ChainStep, StepKind, contents_of
from legation.store.database.transaction import Database, Queries, Rows, Transaction
from legation.store.secrets.sealer import Sealer
from legation.wire.api.approvals import Replay, Replayed, RuleHits, rfc3339

BATCH: Final = 32  # calls in one read: their arguments are in memory together
MOST_SHOWN: Final = 1000  # of those that would be decided otherwise; all are counted

_SQL: Final = Queries("traces")
_SAID: Final = ("params", "context")
# What the door names in place of a rule, and as the reason, where a limit stopped a call.
_LIMIT_RULES: Final = frozenset({"max-per-minute", "max-total", "spend", "loop", "pending"})
_LIMIT_REASONS: Final = frozenset(get_args(LimitName))


async def replay(
    database: Database,
    sealer: Sealer,
    workspace: str,
    policies: PolicySet,
    wanted: TraceFilter,
    limit: int,
) -> Replay:
    """Decide the newest `limit` calls that are wanted by other policies."""
    count, after = _Count(), None
    while count.calls < limit:
        size = min(BATCH, limit - count.calls)
        calls, steps, said = await database.read(_batch, workspace, wanted, size, after)
        if calls:
            # Opening and deciding are work for the processor: not on the loop that serves everybody.
            await asyncio.to_thread(_judge, count, policies, sealer, workspace, steps, said)
            after = f"{calls[-1]['at']}-{calls[-1]['trace_id']}"
        if len(calls) < size:
            break
    return count.replay(policies.version)


@dataclass(slots=True)
class _Count:
    calls: int = 0
    unknown: int = 0
    limited: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    changed: list[Replayed] = field(default_factory=list)

    def differing(self, each: Replayed) -> None:
        self.kinds[f"{each.was} -> {each.now}"] += 1
        if len(self.changed) < MOST_SHOWN:
            self.changed.append(each)

    def replay(self, version: str) -> Replay:
        return Replay(
            version=version,
            calls=self.calls,
            unknown=self.unknown,
            limited=self.limited,
            differing=self.kinds.total(),
            counts=dict(self.kinds.most_common()),
            changed=self.changed,
        )


def _batch(
    workspace: str, wanted: TraceFilter, size: int, after: str | None
) -> Transaction[tuple[Rows, Rows, Rows]]:
    calls, steps = yield from calls_before(workspace, wanted, size, after)
    return calls, steps, (yield from contents_of(workspace, [call["trace_id"] for call in calls], _SAID))


def _judge(
    count: _Count, policies: PolicySet, sealer: Sealer, workspace: str, steps: Rows, said: Rows
) -> None:
    words = opened(sealer, workspace, said)
    for first, verdict in _newest_first(joined(steps).values()):
        count.calls += 1
        if verdict is None or not _is_there(first, words):
            count.unknown += 1
        elif _is_limit(verdict):
            count.limited += 1
        elif (changed := _replayed(policies, first, verdict, words)) is not None:
            count.differing(changed)


def _newest_first(traces: Iterable[Sequence[ChainStep]]) -> list[tuple[ChainStep, ChainStep | None]]:
    found = [
        (
            next(step for step in steps if step.step == StepKind.PROPOSED),
            next((step for step in reversed(steps) if step.step == StepKind.DECIDED), None),
        )
        for steps in traces
    ]
    return sorted(found, key=lambda each: (each[0].at, each[0].trace_id), reverse=True)


def _replayed(policies: PolicySet, first: ChainStep, verdict: ChainStep, words: Words) -> Replayed | None:
    """Decide one anew; None where it would be decided as it was."""
    said = words[first.server, first.seq]
    params, context = said["params"], said.get("context")
    action, facts = action_of(first.agent, first.tool, first.kind, _mapping(params), _mapping(context))
    now = policies.decide(action, prepare_here(action, facts))
    if now.action == verdict.policy:
        return None
    return Replayed(
        trace_id=first.trace_id,
        timestamp=rfc3339(first.at),
        agent_id=first.agent,
        tool=first.tool,
        was=verdict.policy or "",
        was_rule=verdict.policy_rule or "",
        now=now.action,
        now_rule=now.name,
    )


def _is_there(first: ChainStep, words: Words) -> bool:
    """Tell whether all that a policy would look at can still be read."""
    said = words.get((first.server, first.seq), {})
    return "params" in said and said.keys() >= first.content_digests.keys() & {*_SAID}


def _is_limit(verdict: ChainStep) -> bool:
    # By both: an owner may call a rule `loop` too.
    rule = (verdict.policy_rule or "").rpartition(":")[2]
    return rule in _LIMIT_RULES and verdict.reason in _LIMIT_REASONS


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def hits(workspace: str, policies: PolicySet, since: int = 0) -> Transaction[list[RuleHits]]:
    """Count how often each rule decided: those in force, in the order they are asked, also those that never did.

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
