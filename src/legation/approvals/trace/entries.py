"""Traces as seed 001 shows them: one entry for each call, joined from its steps when it is read.

Nothing is ever updated to make an entry: what the API, the export and telemetry show is the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from legation.approvals.trace.step import STEP_COLUMNS, ChainStep, Seals, StepKind, contents_of
from legation.errors import InvalidParams, NotFound
from legation.store.audit import names_of
from legation.store.database.transaction import Database, Queries, Row, Rows, Statement, Transaction
from legation.store.secrets.sealer import Sealer
from legation.wire.api.approvals import RecentTrace, TraceDetail, TraceEntry, TraceStep, rfc3339
from legation.wire.api.shape import Page

MOST: Final = 500  # in one page
GRANTED: Final = "granted"  # the reason of a verdict that a grant lifted
_SHOWN: Final = ("params", "error", "reasoning")
_ASKED: Final = frozenset({"supervisor", "human_approval"})
_END_OF_TIME: Final = 2**53
_ENDINGS: Final = frozenset(
    {StepKind.RESOLVED, StepKind.CANCELLED, StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CONSUMED}
)

_SQL: Final = Queries("traces")


class TraceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Exact names; `since` in milliseconds, that moment included."""

    agent: str | None = None
    tool: str | None = None
    session: str | None = None
    since: int = 0


Words: TypeAlias = Mapping[tuple[str, int], Mapping[str, object]]
"""What was said, by server and number of the step, and by name."""


async def entries(
    database: Database,
    sealer: Sealer,
    workspace: str,
    wanted: TraceFilter,
    limit: int = 100,
    after: str | None = None,
) -> Page[TraceEntry]:
    """List the newest first. `after` is `next` of the page before."""
    limit = max(1, min(limit, MOST))
    calls, steps, said, names = await database.read(_page, workspace, wanted, limit, _place(after))
    words = opened(sealer, workspace, said)
    by_trace = joined(steps)
    shown = calls[:limit]
    items = [entry(by_trace[call["trace_id"]], words, names) for call in shown]
    last = shown[-1] if len(calls) > limit else None
    return Page(items=items, next=None if last is None else f"{last['at']}-{last['trace_id']}")


async def detail(database: Database, sealer: Sealer, workspace: str, trace_id: str) -> TraceDetail:
    """Show one call with every step of it, and what the tool answered."""
    rows, said, names = await database.read(_one, workspace, trace_id, (*_SHOWN, "result"))
    if not rows:
        raise NotFound("cannot find the trace; list those of the workspace, and give the whole id")
    words = opened(sealer, workspace, said)
    steps = [read_step(row) for row in rows]
    shown = entry(steps, words, names)
    returned = _said(_last(steps, StepKind.RETURNED), words)
    return TraceDetail(
        **{name: getattr(shown, name) for name in shown.__struct_fields__},
        steps=[_shown_step(step, row["hash"], names) for step, row in zip(steps, rows, strict=True)],
        result=returned.get("result"),
    )


async def ended(
    database: Database, sealer: Sealer, workspace: str, trace_id: str
) -> tuple[TraceEntry, int] | None:
    """Show one call and the time of its last step; None where there is no such call."""
    rows, said, names = await database.read(_one, workspace, trace_id, _SHOWN)
    if not rows:
        return None
    steps = [read_step(row) for row in rows]
    return entry(steps, opened(sealer, workspace, said), names), max(step.at for step in steps)


def opened(sealer: Sealer, workspace: str, said: Rows) -> Words:
    seals = Seals(sealer, workspace)
    words: dict[tuple[str, int], dict[str, object]] = {}
    for each in map(seals.open, said):
        words.setdefault((each.server, each.seq), {})[each.name] = each.value
    return words


def recent(workspace: str, agent: str, limit: int = 10) -> Transaction[list[RecentTrace]]:
    """List an agent's last calls as the context of an approval: no arguments."""
    calls = yield _calls(workspace, TraceFilter(agent=agent), limit, _place(None))
    traces = [call["trace_id"] for call in calls]
    by_trace = joined((yield _SQL.steps_of(workspace=workspace, traces=_json(traces))))
    return [_recent(by_trace[trace]) for trace in traces]


def steps_of(workspace: str, trace_id: str) -> Transaction[list[ChainStep]]:
    rows = yield _SQL.steps_of(workspace=workspace, traces=_json([trace_id]))
    return [read_step(row) for row in rows]


def entry(steps: Sequence[ChainStep], words: Words, names: Mapping[str, str] = {}) -> TraceEntry:
    """Join all steps of one call, given in their order."""
    first = _last(steps, StepKind.PROPOSED)
    verdict = _last(steps, StepKind.DECIDED) or _last(steps, StepKind.UNASKED)
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
        approval_status=_approval_status(steps, verdict),  # type: ignore[arg-type]
        approved_by=_actor(resolved or (verdict if _is_granted(verdict) else None)),
        approval_ms=resolved.at - head.at if resolved else None,
        # A supervisor that gave no reason has decided all the same: "" is found where null is not.
        supervisor_reasoning=str(said.get("reasoning") or "") if supervised else None,
        supervisor_confidence=resolved.confidence if resolved and supervised else None,
        turn_id=head.turn_id,
        tool_call_id=head.tool_call_id,
        reason=next((step.reason for step in reversed(steps) if step.reason), None),
        approved_by_name=_name(resolved, names),
    )


def read_step(row: Row) -> ChainStep:
    return ChainStep(**{name: row[name] for name in STEP_COLUMNS})


def calls_before(
    workspace: str, wanted: TraceFilter, limit: int, after: str | None
) -> Transaction[tuple[Rows, Rows]]:
    """Read the newest calls, and every step of them."""
    calls = yield _calls(workspace, wanted, limit, _place(after))
    steps = yield _SQL.steps_of(workspace=workspace, traces=_json(call["trace_id"] for call in calls))
    return calls, steps


def _page(
    workspace: str, wanted: TraceFilter, limit: int, place: tuple[int, str]
) -> Transaction[tuple[Rows, Rows, Rows, dict[str, str]]]:
    calls = yield _calls(workspace, wanted, limit + 1, place)
    traces = [call["trace_id"] for call in calls[:limit]]
    steps = yield _SQL.steps_of(workspace=workspace, traces=_json(traces))
    said = yield from contents_of(workspace, traces, _SHOWN)
    return calls, steps, said, (yield from _people(steps))


def _one(
    workspace: str, trace_id: str, names: Iterable[str]
) -> Transaction[tuple[Rows, Rows, dict[str, str]]]:
    rows = yield _SQL.steps_of(workspace=workspace, traces=_json([trace_id]))
    said = yield from contents_of(workspace, [trace_id], names)
    return rows, said, (yield from _people(rows))


def _people(steps: Rows) -> Transaction[dict[str, str]]:
    return (yield from names_of(row["actor_user"] for row in steps if row["actor_user"] is not None))


def _calls(workspace: str, wanted: TraceFilter, limit: int, place: tuple[int, str]) -> Statement:
    at, trace = place
    common = {"workspace": workspace, "since": wanted.since, "at": at, "trace": trace, "limit": limit}
    if wanted.session is not None:
        return _SQL.calls_of_session(**common, session=wanted.session, tool=wanted.tool, agent=wanted.agent)
    if wanted.tool is not None and wanted.agent is not None:
        return _SQL.calls_of_agent_tool(**common, tool=wanted.tool, agent=wanted.agent)
    if wanted.tool is not None:
        return _SQL.calls_of_tool(**common, tool=wanted.tool)
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


def joined(rows: Rows) -> dict[str, list[ChainStep]]:
    joined: dict[str, list[ChainStep]] = {}
    for row in rows:
        joined.setdefault(row["trace_id"], []).append(read_step(row))
    return joined


def _recent(steps: Sequence[ChainStep]) -> RecentTrace:
    verdict = _last(steps, StepKind.DECIDED) or _last(steps, StepKind.UNASKED)
    return RecentTrace(
        trace_id=steps[0].trace_id,
        tool=steps[0].tool,
        policy=verdict.policy if verdict else None,
        timestamp=rfc3339(steps[0].at),
    )


def _approval_status(steps: Sequence[ChainStep], verdict: ChainStep | None) -> str | None:
    # A call that nobody was asked about has none, whatever id its permission has.
    if steps[0].approval_id is None:
        return None
    ended = next((step.status for step in reversed(steps) if step.step in _ENDINGS), None)
    if ended is not None or _is_granted(verdict):
        return ended
    return "pending" if verdict is None or verdict.policy in _ASKED else None


def _is_granted(verdict: ChainStep | None) -> bool:
    return verdict is not None and verdict.reason == GRANTED and verdict.actor is not None


def _actor(step: ChainStep | None) -> str | None:
    return None if step is None or step.actor is None else f"{step.actor_kind}:{step.actor}"


def _name(step: ChainStep | None, names: Mapping[str, str]) -> str | None:
    # Only of a person: a supervisor's maker is not who decided.
    return names.get(step.actor_user or "") if step is not None and step.actor_level == 2 else None


def _shown_step(step: ChainStep, hash_: str, names: Mapping[str, str]) -> TraceStep:
    return TraceStep(
        server=step.server,
        seq=step.seq,
        at=rfc3339(step.at),
        step=step.step,
        hash=hash_,
        policy=step.policy,
        policy_rule=step.policy_rule,
        policy_version=step.policy_version,
        status=step.status,
        reason=step.reason,
        by=_actor(step),
        level=step.actor_level,
        status_code=step.status_code,
        latency_ms=step.latency_ms,
        by_name=_name(step, names),
    )


def _last(steps: Sequence[ChainStep], kind: StepKind) -> ChainStep | None:
    return next((step for step in reversed(steps) if step.step == kind), None)


def _latest(steps: Sequence[ChainStep], member: str) -> int | None:
    found = (getattr(step, member) for step in reversed(steps))
    return next((value for value in found if value is not None), None)


def _said(step: ChainStep | None, words: Words) -> Mapping[str, object]:
    return {} if step is None else words.get((step.server, step.seq), {})


def _json(words: Iterable[str]) -> str:
    return msgspec.json.encode(list(words)).decode()
