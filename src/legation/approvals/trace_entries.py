"""Traces as seed 001 shows them: one entry for each call, joined from its steps when it is read.

Nothing is ever updated to make an entry: what the API, the export and telemetry show is the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from legation.approvals.trace import STEP_COLUMNS, Step, StepKind
from legation.approvals.trace_content import Seals, contents_of
from legation.errors import InvalidParams
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Row, Rows, Statement, Transaction
from legation.store.sealing import Sealer
from legation.wire.api.approvals import RecentTrace, TraceEntry, rfc3339
from legation.wire.api.shape import Page

MOST: Final = 500  # in one page
_SHOWN: Final = ("params", "error", "reasoning")
_END_OF_TIME: Final = 2**53
_ENDINGS: Final = frozenset(
    {StepKind.RESOLVED, StepKind.CANCELLED, StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CONSUMED}
)

_SQL: Final = Queries("traces")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Exact names; `since` in milliseconds, that moment included."""

    agent: str | None = None
    tool: str | None = None
    since: int = 0


async def entries(
    database: Database,
    sealer: Sealer,
    workspace: str,
    wanted: Filter,
    limit: int = 100,
    after: str | None = None,
) -> Page[TraceEntry]:
    """The newest first. `after` is `next` of the page before."""
    limit = max(1, min(limit, MOST))
    calls, steps, said = await database.read(_page, workspace, wanted, limit, _place(after))
    seals = Seals(sealer, workspace)
    words: dict[tuple[str, int], dict[str, object]] = {}
    for opened in map(seals.open, said):
        words.setdefault((opened.server, opened.seq), {})[opened.name] = opened.value
    joined = _joined(steps)
    shown = calls[:limit]
    items = [entry(joined[call["trace_id"]], words) for call in shown]
    last = shown[-1] if len(calls) > limit else None
    return Page(items=items, next=None if last is None else f"{last['at']}-{last['trace_id']}")


def recent(workspace: str, agent: str, limit: int = 10) -> Transaction[list[RecentTrace]]:
    """An agent's last calls as the context of an approval: no arguments."""
    calls = yield _calls(workspace, Filter(agent=agent), limit, _place(None))
    traces = [call["trace_id"] for call in calls]
    joined = _joined((yield _SQL.steps_of(workspace=workspace, traces=_json(traces))))
    return [_recent(joined[trace]) for trace in traces]


def steps_of(workspace: str, trace_id: str) -> Transaction[list[Step]]:
    rows = yield _SQL.steps_of(workspace=workspace, traces=_json([trace_id]))
    return [read_step(row) for row in rows]


def entry(steps: Sequence[Step], words: Mapping[tuple[str, int], Mapping[str, object]]) -> TraceEntry:
    """Of all steps of one call, in their order."""
    first = _last(steps, StepKind.PROPOSED)
    verdict = _last(steps, StepKind.DECIDED)
    resolved = _last(steps, StepKind.RESOLVED)
    supervised = resolved is not None and resolved.actor_level == 1
    said = _said(resolved, words)
    params = _said(first, words).get("params")
    error = next((text for step in steps if (text := _said(step, words).get("error")) is not None), None)
    head = first or steps[0]
    return TraceEntry(
        trace_id=head.trace_id,
        session_id=head.session_id,
        agent_id=head.agent,
        tool=head.tool,
        params=params if isinstance(params, dict) else None,
        digest=head.action_digest,
        policy=verdict.policy if verdict else None,
        policy_rule=verdict.policy_rule if verdict else None,
        status_code=_latest(steps, "status_code"),
        latency_ms=_latest(steps, "latency_ms"),
        error=None if error is None else str(error),
        timestamp=rfc3339(head.at),
        approval_id=head.approval_id,
        approval_status=_approval_status(steps),  # type: ignore[arg-type]
        approved_by=f"{resolved.actor_kind}:{resolved.actor}" if resolved else None,
        approval_ms=resolved.at - head.at if resolved else None,
        # A supervisor that gave no reason has decided all the same: "" is found where null is not.
        supervisor_reasoning=str(said.get("reasoning") or "") if supervised else None,
        supervisor_confidence=resolved.confidence if resolved and supervised else None,
    )


def read_step(row: Row) -> Step:
    return Step(**{name: row[name] for name in STEP_COLUMNS})


def _page(
    workspace: str, wanted: Filter, limit: int, place: tuple[int, str]
) -> Transaction[tuple[Rows, Rows, Rows]]:
    calls = yield _calls(workspace, wanted, limit + 1, place)
    traces = [call["trace_id"] for call in calls[:limit]]
    steps = yield _SQL.steps_of(workspace=workspace, traces=_json(traces))
    return calls, steps, (yield from contents_of(workspace, traces, _SHOWN))


def _calls(workspace: str, wanted: Filter, limit: int, place: tuple[int, str]) -> Statement:
    at, trace = place
    common = {"workspace": workspace, "since": wanted.since, "at": at, "trace": trace, "limit": limit}
    if wanted.tool is not None:
        return _SQL.calls_of_tool(**common, tool=wanted.tool, agent=wanted.agent)
    if wanted.agent is not None:
        return _SQL.calls_of_agent(**common, agent=wanted.agent)
    return _SQL.calls(**common)


def _place(after: str | None) -> tuple[int, str]:
    if after is None:
        return _END_OF_TIME, ""
    at, _, trace = after.partition("-")
    if not (at.isascii() and at.isdigit() and len(at) < 17 and trace.isascii() and trace.isalnum()):
        raise InvalidParams("cannot go on from there: give `after` as the page before named it")
    return int(at), trace


def _joined(rows: Rows) -> dict[str, list[Step]]:
    joined: dict[str, list[Step]] = {}
    for row in rows:
        joined.setdefault(row["trace_id"], []).append(read_step(row))
    return joined


def _recent(steps: Sequence[Step]) -> RecentTrace:
    verdict = _last(steps, StepKind.DECIDED)
    return RecentTrace(
        trace_id=steps[0].trace_id,
        tool=steps[0].tool,
        policy=verdict.policy if verdict else None,
        timestamp=rfc3339(steps[0].at),
    )


def _approval_status(steps: Sequence[Step]) -> str | None:
    if steps[0].approval_id is None:
        return None
    return next((step.status for step in reversed(steps) if step.step in _ENDINGS), "pending")


def _last(steps: Sequence[Step], kind: StepKind) -> Step | None:
    return next((step for step in reversed(steps) if step.step == kind), None)


def _latest(steps: Sequence[Step], member: str) -> int | None:
    found = (getattr(step, member) for step in reversed(steps))
    return next((value for value in found if value is not None), None)


def _said(step: Step | None, words: Mapping[tuple[str, int], Mapping[str, object]]) -> Mapping[str, object]:
    return {} if step is None else words.get((step.server, step.seq), {})


def _json(words: Iterable[str]) -> str:
    return msgspec.json.encode(list(words)).decode()
