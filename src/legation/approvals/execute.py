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
from legation.store.database.transaction import Queries, Row, Transaction, rows

BATCH: Final = 100
UNKNOWN: Final = "outcome-unknown"

_SQL: Final = Queries("door")

logger = logging.getLogger("legation.door")


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The answer of a tool, and all that is written down of it."""

    request: DoorRequest
    result: DoorResult
    returned: ToolReturn
    latency_ms: int


async def act(
    queue: ApprovalQueue, request: DoorRequest, result: DoorResult, execute: Execute
) -> ToolOutcome:
    """Call the tool; whatever becomes of it, there is an outcome."""
    clock, workspace = queue.clock, request.principal.workspace
    begun = clock.monotonic()
    try:
        returned = await execute(result.action, EffectToken(result.trace_id, result.approval_id, workspace))
    except Exception:  # a boundary: the tool is somebody else's
        logger.exception("a tool failed in its executor")
        returned = ToolReturn(status_code=502, error="the tool failed")
    except asyncio.CancelledError:
        returned = ToolReturn(status_code=499, error="the server stopped before the tool answered")
    return ToolOutcome(request, result, returned, round((clock.monotonic() - begun) * 1000))


async def write_down(queue: ApprovalQueue, outcome: ToolOutcome) -> None:
    ledger, workspace = queue.ledger, outcome.request.principal.workspace
    await ledger.transact(workspace, tool_call_finished, ledger.chain, outcome, queue.clock.now_ms())


async def write_down_later(
    queue: ApprovalQueue, outcome: ToolOutcome, closing: asyncio.Event, ended: OnCallEnded | None
) -> None:
    """Write it down when the database is back. What the end of the door cuts off is "outcome unknown" at the next start."""
    while True:
        await first_of(queue.clock, AWAY_MS / 1000, closing)
        try:
            await write_down(queue, outcome)
        except AWAY:
            if closing.is_set():
                raise
        else:
            if ended is not None:
                ended(outcome.request.principal.workspace, outcome.result.trace_id)
            return


def tool_call_started(
    chain: Chain, workspace: str, call: TracedCall, waiter: str, now_ms: int
) -> Transaction[None]:
    yield _SQL.begin_effect(workspace=workspace, waiter=waiter, now=now_ms, **msgspec.structs.asdict(call))
    yield from chain.append(workspace, [StepDraft(step=StepKind.EXECUTED, call=call)], now_ms)


def tool_call_finished(chain: Chain, outcome: ToolOutcome, now_ms: int) -> Transaction[None]:
    request, result, returned = outcome.request, outcome.result, outcome.returned
    workspace, call = request.principal.workspace, request.call(result.approval_id, result.trace_id)
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
    """Trace whatever these waiters had begun as of unknown outcome; return workspaces and trace ids."""
    begun = _SQL.effects_of(waiters=msgspec.json.encode(sorted(set(dead))).decode(), limit=BATCH)
    given_up: list[tuple[str, str]] = []
    while found := await ledger.database.read(rows, begun):
        for row in found:
            await ledger.transact(row["workspace_id"], _unknown, ledger.chain, row, now_ms)
        given_up += [(row["workspace_id"], row["trace_id"]) for row in found]
    return given_up


def _unknown(chain: Chain, row: Row, now_ms: int) -> Transaction[None]:
    call = TracedCall(**{name: row[name] for name in TracedCall.__struct_fields__})
    draft = StepDraft(step=StepKind.RETURNED, call=call, status="unknown", reason=UNKNOWN)
    if (yield _SQL.end_effect(workspace=row["workspace_id"], trace_id=row["trace_id"])):
        yield from chain.append(row["workspace_id"], [draft], now_ms)
