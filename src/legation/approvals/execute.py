"""Effects that Legation itself brings about: each is written down before it begins, and when its end is known.

INV-F1  An effect begins at most once for a request: the row that says so is in the transaction that lets it pass.
INV-F2  What a process began and did not live to tell is "outcome unknown". It is traced as that, and never repeated.
INV-F3  Whoever asked hears what came of an effect, also while the database is away: "try again" would do it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from legation.approvals.queue import AWAY, AWAY_MS, ApprovalQueue, first_of
from legation.approvals.request import DoorRequest, DoorResult, EffectToken, Execute, OnCallEnded, ToolReturn
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.step import ContentName, StepDraft, StepKind, TracedCall
from legation.store.database.transaction import Queries, Row, Rows, Transaction

BATCH: Final = 100
UNKNOWN: Final = "outcome-unknown"

_SQL: Final = Queries("door")

logger = logging.getLogger("legation.door")


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool answered, and all that is written down of it."""

    request: DoorRequest
    ruling: DoorResult
    returned: ToolReturn
    latency_ms: int


async def act(
    inbox: ApprovalQueue, request: DoorRequest, ruling: DoorResult, execute: Execute
) -> ToolOutcome:
    """Whatever becomes of the tool, there is an outcome."""
    clock, workspace = inbox.clock, request.principal.workspace
    begun = clock.monotonic()
    try:
        returned = await execute(ruling.action, EffectToken(ruling.trace_id, ruling.approval_id, workspace))
    except Exception:  # a boundary: the tool is somebody else's
        logger.exception("a tool failed in its executor")
        returned = ToolReturn(status_code=502, error="the tool failed")
    except asyncio.CancelledError:
        returned = ToolReturn(status_code=499, error="the server stopped before the tool answered")
    return ToolOutcome(request, ruling, returned, round((clock.monotonic() - begun) * 1000))


async def write_down(inbox: ApprovalQueue, outcome: ToolOutcome) -> None:
    ledger, workspace = inbox.ledger, outcome.request.principal.workspace
    await ledger.transact(workspace, tool_call_finished, ledger.chain, outcome, inbox.clock.now_ms())


async def write_down_later(
    inbox: ApprovalQueue, outcome: ToolOutcome, closing: asyncio.Event, ended: OnCallEnded | None
) -> None:
    """When the database is back. What the end of the door cuts off is "outcome unknown" at the next start."""
    while True:
        await first_of(inbox.clock, AWAY_MS / 1000, closing)
        try:
            await write_down(inbox, outcome)
        except AWAY:
            if closing.is_set():
                raise
        else:
            if ended is not None:
                ended(outcome.request.principal.workspace, outcome.ruling.trace_id)
            return


def tool_call_started(
    chain: Chain, workspace: str, call: TracedCall, waiter: str, now_ms: int
) -> Transaction[None]:
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
    yield from chain.append(workspace, [StepDraft(step=StepKind.EXECUTED, call=call)], now_ms)


def tool_call_finished(chain: Chain, outcome: ToolOutcome, now_ms: int) -> Transaction[None]:
    request, ruling, returned = outcome.request, outcome.ruling, outcome.returned
    workspace, call = request.principal.workspace, request.call(ruling.approval_id, ruling.trace_id)
    contents: dict[ContentName, object] = {}
    if returned.result is not None:
        contents["result"] = returned.result
    if returned.error is not None:
        contents["error"] = returned.error
    draft = StepDraft(
        step=StepKind.RETURNED,
        call=call,
        contents=contents,
        owner=request.content_owner,
        status_code=returned.status_code,
        latency_ms=outcome.latency_ms,
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
    call = TracedCall(**{name: row[name] for name in TracedCall.__struct_fields__})
    draft = StepDraft(step=StepKind.RETURNED, call=call, status="unknown", reason=UNKNOWN)
    if (yield _SQL.end_effect(workspace=row["workspace_id"], trace_id=row["trace_id"])):
        yield from chain.append(row["workspace_id"], [draft], now_ms)
