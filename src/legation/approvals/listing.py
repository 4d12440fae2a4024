"""Lists of approvals, and one approval as seed 001 shows it.

Pending ones come oldest first, which are the most urgent; of any other status, and of all, newest first. Patterns on
tools are Go's: they are matched against the names of the tools on record, and the database looks those up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, get_args

import msgspec

from legation.approvals.approval import Approval, ApprovalState, Glob, read
from legation.approvals.grants import active_for
from legation.approvals.policy.rules import PolicySet, off_loop
from legation.approvals.policy.shell.lines import prepare
from legation.approvals.request import action_of, hide, why_ended
from legation.approvals.trace import entries
from legation.approvals.trace.evidence import (
    diffs_of,
    looks_of,
    parts_of,
    read_evidence,
    why_asked,
    writable,
)
from legation.approvals.trace.step import ChainStep, Seals, contents_of
from legation.approvals.transitions import get
from legation.errors import InvalidParams
from legation.store.audit import names_of
from legation.store.database.transaction import Database, Queries, Rows, Statement, Transaction, page_of
from legation.store.secrets.sealer import Sealer
from legation.wire.api.approvals import (
    ActiveGrant,
    ApprovalDetail,
    ApprovalPath,
    ApprovalStatus,
    ApprovalView,
    RecentTrace,
    go_duration,
    rfc3339,
)
from legation.wire.api.shape import Page

MOST: Final = 500  # in one page
RECENT: Final = 10  # of the agent's other calls, as the context of an approval
_LAST: Final = "~"  # after every id

_SQL: Final = Queries("approvals")
_TRACES: Final = Queries("traces")
# Open or answered: none ended without a word.
_OPEN: Final = (ApprovalState.PENDING, ApprovalState.APPROVED, ApprovalState.DENIED)
_STATUSES: Final = frozenset(get_args(ApprovalStatus))


class ApprovalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals that are wanted. `status` None is every status; a word that is no status, and a malformed pattern, are refused."""

    status: str | None = None
    tool: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in _STATUSES:
            raise InvalidParams(
                f"cannot list approvals of that status: give one of {', '.join(ApprovalState)}"
            )
        if self.tool is not None:
            Glob(self.tool)


def page(
    workspace: str, wanted: ApprovalFilter, now_ms: int, limit: int = 100, after: str | None = None
) -> Transaction[Page[Approval]]:
    """List a page; `after` is `next` of the page before."""
    limit = max(1, min(limit, MOST))
    tools = None if wanted.tool is None else (yield from _tools(workspace, Glob(wanted.tool)))
    common: dict[str, str | int] = {"workspace": workspace, "limit": limit + 1}
    if wanted.status == ApprovalState.PENDING:
        rows = yield _SQL.pending_page(
            **common, agent=wanted.agent, tools=tools, after=after or "", now=now_ms
        )
    else:
        rows = yield _newest(common | {"after": after or _LAST}, wanted, tools)
    return page_of(rows, limit, read, lambda approval: approval.id)


def _tools(workspace: str, glob: Glob) -> Transaction[str | None]:
    """List the tools on record that match, as JSON; None where all of them do."""
    on_record = [row["tool"] for row in (yield _SQL.tools(workspace=workspace))]
    found = [tool for tool in on_record if glob.matches(tool)]
    return None if len(found) == len(on_record) else _json(found)


def _newest(common: dict[str, str | int], wanted: ApprovalFilter, tools: str | None) -> Statement:
    if wanted.agent is None and tools is None:
        if wanted.status is None:
            return _SQL.page(**common)
        return _SQL.status_page(**common, status=wanted.status)
    statuses = _json(sorted(_STATUSES) if wanted.status is None else [wanted.status])
    if tools is None:
        return _SQL.page_of_agent(**common, statuses=statuses, agent=wanted.agent)
    if wanted.agent is None:
        return _SQL.page_of_tools(**common, statuses=statuses, tools=tools)
    return _SQL.page_of_agent_tools(**common, statuses=statuses, tools=tools, agent=wanted.agent)


def _json(words: list[str]) -> str:
    return msgspec.json.encode(words).decode()


async def views(
    database: Database, sealer: Sealer, workspace: str, approvals: Iterable[Approval], now_ms: int
) -> list[ApprovalView]:
    """Show approvals with their arguments opened; whoever shows them to a supervisor hides content first where that is set."""
    listed = list(approvals)
    people = [person for approval in listed if (person := approval.person) is not None]
    rows, names, reasons = await database.read(_said, workspace, listed, people)
    seals = Seals(sealer, workspace)
    params = {said.trace_id: said.value for said in map(seals.open, rows)}
    return [
        view(
            msgspec.structs.replace(approval, reason=reasons.get((approval.id, approval.status))),
            params.get(approval.trace_id),
            now_ms,
            names.get(approval.person or ""),
        )
        for approval in listed
    ]


async def detail(
    database: Database,
    sealer: Sealer,
    workspace: str,
    approval_id: str,
    now_ms: int,
    policies: PolicySet | None = None,
) -> ApprovalDetail:
    """Show one, with what its agent did besides, and what was granted to it. Arguments are opened, as in `views`. `policies`:
    those in force, which say what they would say of each part of a command."""
    approval, recent, active = await database.read(_context, workspace, approval_id, now_ms)
    (shown,) = await views(database, sealer, workspace, [approval], now_ms)
    steps, rows = await database.read(_steps, approval)
    said = {
        (each.server, each.seq, each.name): each.value for each in map(Seals(sealer, workspace).open, rows)
    }
    first = {name: value for (_, _, name), value in said.items()}
    context = first.get("context")
    action, facts = action_of(
        approval.agent,
        approval.tool,
        approval.kind,
        shown.params or {},
        context if isinstance(context, dict) else None,
    )
    evidence = read_evidence(first)
    asked = why_asked(approval, steps, said, now_ms)
    by = (asked.supervisor.by or "").removeprefix("token:")
    givers = {each.id: each.granted_by.partition(":")[2] for each in active}
    names = await database.read(names_of, [by, *givers.values()])
    active = [msgspec.structs.replace(each, granted_by_name=names.get(givers[each.id])) for each in active]
    supervisor = msgspec.structs.replace(asked.supervisor, by_name=names.get(by))
    facts = await prepare(action, facts)
    steps_now = [] if policies is None else await off_loop(policies.explain, action, facts)
    return ApprovalDetail(
        **{name: getattr(shown, name) for name in shown.__struct_fields__},
        recent_traces=recent,
        active_grants=active,
        command=None if action.command is None else writable(action.command),
        cwd=facts.cwd,
        workspace=facts.workspace,
        urls=[writable(each) for each in action.urls],
        # Of one that was asked by an earlier release it is not known where they led.
        paths=list(evidence.paths) or [ApprovalPath(path=each) for each in action.paths],
        diffs=diffs_of(evidence, approval.kind, action.paths, shown.params),
        asked=msgspec.structs.replace(asked, supervisor=supervisor),
        parts=await off_loop(parts_of, action, facts, steps_now),  # a long line takes its time
        unreadable=None if action.command is None else facts.line(action.command).unreadable,
        looks=looks_of(steps_now),
    )


def _steps(approval: Approval) -> Transaction[tuple[list[ChainStep], Rows]]:
    """Read the steps of its call, and what was said in them besides the arguments."""
    steps = yield from entries.steps_of(approval.workspace_id, approval.trace_id)
    names = ["context", "paths", "diffs", "why", "reasoning"]
    return steps, (yield from contents_of(approval.workspace_id, [approval.trace_id], names))


def isolated(detail: ApprovalDetail) -> ApprovalDetail:
    """Hide the content of what is shown beside the arguments, as `hide` does with those."""
    said = hide({"command": detail.command, "urls": detail.urls})
    command, urls = said["command"], said["urls"]
    return msgspec.structs.replace(
        detail,
        command=command if isinstance(command, str) else None,
        urls=[each for each in urls if isinstance(each, str)] if isinstance(urls, list) else [],
        diffs=[
            msgspec.structs.replace(each, old_text=None, new_text=None, cut=True) for each in detail.diffs
        ],
        parts=[],  # they are the command, and what rules looked at are the arguments
        looks=[],
    )


def view(approval: Approval, params: object, now_ms: int, by_name: str | None = None) -> ApprovalView:
    status = approval.status_at(now_ms)
    left = approval.expires_at - now_ms if status is ApprovalState.PENDING else 0
    return ApprovalView(
        id=approval.id,
        agent_id=approval.agent,
        tool=approval.tool,
        params=_writable(params) if isinstance(params, dict) else None,
        policy_rule=approval.policy_rule,
        status=status.value,
        created_at=rfc3339(approval.created_at),
        remaining=go_duration(left),
        injection_risk=approval.injection_risk,
        needs=approval.needs,
        expires_at=rfc3339(approval.expires_at),
        group=approval.group_key,
        editable=approval.editable,
        session_id=approval.session_id,
        claimed_by=approval.claimed_by if (approval.claimed_until or 0) > now_ms else None,
        resolved_by=approval.resolved_by,
        resolved_at=None if approval.resolved_at is None else rfc3339(approval.resolved_at),
        replaced_by=approval.replaced_by,
        reviewers=list(approval.reviewers),
        resolved_by_name=by_name,
        why=why_ended(status, approval.reason),
        kind=approval.kind,
        digest=approval.action_digest,
        policy_version=approval.policy_version,
    )


def _context(
    workspace: str, approval_id: str, now_ms: int
) -> Transaction[tuple[Approval, list[RecentTrace], list[ActiveGrant]]]:
    approval = yield from get(workspace, approval_id)
    # Its own call is no history: of an agent that nobody knows the list is empty, and a supervisor can see that.
    traces = yield from entries.recent(workspace, approval.agent, RECENT + 1)
    others = [trace for trace in traces if trace.trace_id != approval.trace_id][:RECENT]
    grants = yield from active_for(workspace, approval.agent, approval.session_id, now_ms)
    return approval, others, [grant.shown(now_ms) for grant in grants]


def _writable(params: Mapping[str, object]) -> Mapping[str, object]:
    # An agent can send half of a character (a lone surrogate), and no list may fail for that: `?` stands for it.
    try:
        msgspec.json.encode(params)
    except UnicodeEncodeError:
        text = json.dumps(params, ensure_ascii=False).encode("utf-8", "replace")
        mended: dict[str, object] = json.loads(text)
        return mended
    return params


def _said(
    workspace: str, approvals: list[Approval], people: list[str]
) -> Transaction[tuple[Rows, dict[str, str], dict[tuple[str, str], str | None]]]:
    """Read the sealed arguments, the names of people, and why those that ended without an answer did."""
    rows = yield from contents_of(workspace, [approval.trace_id for approval in approvals], ["params"])
    names = (yield from names_of(people)) if people else {}
    ended = [approval.trace_id for approval in approvals if approval.status not in _OPEN]
    if not ended:
        return rows, names, {}
    steps = yield _TRACES.endings(workspace=workspace, traces=_json(ended))
    return rows, names, {(step["approval_id"], step["step"]): step["reason"] for step in steps}
