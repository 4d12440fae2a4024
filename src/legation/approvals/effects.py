"""Effects that Legation itself brings about: each is written down before it begins, and when its end is known.

INV-F1  An effect begins at most once for a request: the row that says so is in the transaction that lets it pass.
INV-F2  What a process began and did not live to tell is "outcome unknown". It is traced as that, and never repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from legation.approvals.chain import Chain, Ledger
from legation.approvals.request import Returned
from legation.approvals.trace import Call, ContentName, Draft, StepKind
from legation.store.database.queries import Queries
from legation.store.database.transaction import Row, Rows, Transaction

BATCH: Final = 100
UNKNOWN: Final = "outcome-unknown"

_SQL: Final = Queries("door")


def begin(chain: Chain, workspace: str, call: Call, waiter: str, now_ms: int) -> Transaction[None]:
    yield _SQL.begin_effect(
        workspace=workspace,
        trace_id=call.trace_id,
        waiter=waiter,
        agent=call.agent,
        tool=call.tool,
        approval_id=call.approval_id,
        session_id=call.session_id,
        turn_id=call.turn_id,
        tool_call_id=call.tool_call_id,
        now=now_ms,
    )
    yield from chain.append(workspace, [Draft(step=StepKind.EXECUTED, call=call)], now_ms)


def end(
    chain: Chain,
    workspace: str,
    call: Call,
    returned: Returned,
    owner: str | None,
    latency_ms: int,
    now_ms: int,
) -> Transaction[None]:
    contents: dict[ContentName, object] = {}
    if returned.result is not None:
        contents["result"] = returned.result
    if returned.error is not None:
        contents["error"] = returned.error
    draft = Draft(
        step=StepKind.RETURNED,
        call=call,
        contents=contents,
        owner=owner,
        status_code=returned.status_code,
        latency_ms=latency_ms,
    )
    if (yield _SQL.end_effect(workspace=workspace, trace_id=call.trace_id)):
        yield from chain.append(workspace, [draft], now_ms)


async def give_up(ledger: Ledger, dead: Iterable[str], now_ms: int) -> list[tuple[str, str]]:
    """Whatever these waiters had begun: workspaces and trace ids."""
    waiters = msgspec.json.encode(sorted(set(dead))).decode()
    given_up: list[tuple[str, str]] = []
    while rows := await ledger.database.read(_of, waiters):
        for row in rows:
            await ledger.transact(row["workspace_id"], _unknown, ledger.chain, row, now_ms)
        given_up += [(row["workspace_id"], row["trace_id"]) for row in rows]
    return given_up


def _of(waiters: str) -> Transaction[Rows]:
    return (yield _SQL.effects_of(waiters=waiters, limit=BATCH))


def _unknown(chain: Chain, row: Row, now_ms: int) -> Transaction[None]:
    call = Call(**{name: row[name] for name in Call.__struct_fields__})
    draft = Draft(step=StepKind.RETURNED, call=call, status="unknown", reason=UNKNOWN)
    if (yield _SQL.end_effect(workspace=row["workspace_id"], trace_id=row["trace_id"])):
        yield from chain.append(row["workspace_id"], [draft], now_ms)
