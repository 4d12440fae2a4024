"""The effect of a call that passed: brought about once, and its end written down, be it later.

INV-A1  Whoever asked hears what came of an effect, also while the database is away: "try again" would do it twice.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from legation.approvals import effects
from legation.approvals.inbox import Inbox
from legation.approvals.request import Ended, Execute, Request, Returned, Ruling, Token
from legation.approvals.trace import Call
from legation.approvals.wait import AWAY, AWAY_MS, first_of

logger = logging.getLogger("legation.door")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool answered, and all that is written down of it."""

    request: Request
    ruling: Ruling
    returned: Returned
    latency_ms: int

    @property
    def call(self) -> Call:
        request, ruling = self.request, self.ruling
        return Call(
            trace_id=ruling.trace_id,
            agent=ruling.action.agent,
            tool=ruling.action.tool,
            approval_id=ruling.approval_id,
            session_id=request.session_id,
            turn_id=request.turn_id,
            tool_call_id=request.tool_call_id,
        )


async def act(inbox: Inbox, request: Request, ruling: Ruling, execute: Execute) -> Outcome:
    """Whatever becomes of the tool, there is an outcome."""
    clock, workspace = inbox.clock, request.principal.workspace
    begun = clock.monotonic()
    try:
        returned = await execute(ruling.action, Token(ruling.trace_id, ruling.approval_id, workspace))
    except Exception:  # a boundary: the tool is somebody else's
        logger.exception("a tool failed in its executor")
        returned = Returned(status_code=502, error="the tool failed")
    except asyncio.CancelledError:
        returned = Returned(status_code=499, error="the server stopped before the tool answered")
    return Outcome(request, ruling, returned, round((clock.monotonic() - begun) * 1000))


async def write_down(inbox: Inbox, outcome: Outcome) -> None:
    ledger, workspace = inbox.ledger, outcome.request.principal.workspace
    await ledger.transact(
        workspace,
        effects.end,
        ledger.chain,
        workspace,
        outcome.call,
        outcome.returned,
        outcome.request.content_owner,
        outcome.latency_ms,
        inbox.clock.now_ms(),
    )


async def write_down_later(inbox: Inbox, outcome: Outcome, closing: asyncio.Event, ended: Ended) -> None:
    """When the database is back. What the end of the door cuts off is "outcome unknown" at the next start."""
    while True:
        await first_of(inbox.clock, AWAY_MS / 1000, closing)
        try:
            await write_down(inbox, outcome)
        except AWAY:
            if closing.is_set():
                raise
        else:
            ended(outcome.request.principal.workspace, outcome.ruling.trace_id)
            return
