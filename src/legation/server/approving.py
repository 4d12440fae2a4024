"""The door of a server and all that it needs, opened and kept in order for as long as the server runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from legation.approvals.approval import Approval
from legation.approvals.attendance import Attendance
from legation.approvals.chain import Chain, Ledger
from legation.approvals.changes import Changes
from legation.approvals.door import Door, Habits
from legation.approvals.grants import Grants
from legation.approvals.inbox import Inbox
from legation.approvals.keeping import keeping
from legation.approvals.policies import Policies
from legation.approvals.request import Ended
from legation.approvals.trace import StepKind
from legation.approvals.wait import Moment, Notify, Why
from legation.clock import Clock
from legation.ids import new_id
from legation.server.servername import server_name
from legation.server.sessions.hosts import CHILDREN
from legation.settings import Settings
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Transaction
from legation.store.datafolder import SERVER
from legation.store.log import EventLog
from legation.store.sealing import Sealer
from legation.store.steadyclock import SteadyClock

NOTIFY_GRACE: Final = 1.0  # seconds: of notices that wait when the server stops

logger = logging.getLogger("legation.notify")

_SQL: Final = Queries("door")


@dataclass(frozen=True, slots=True)
class Approving:
    policies: Policies
    ledger: Ledger
    inbox: Inbox
    changes: Changes
    attendance: Attendance
    grants: Grants
    door: Door


@asynccontextmanager
async def approving(
    settings: Settings,
    database: Database,
    sealer: Sealer,
    log: EventLog,
    clock: Clock,
    policies: Policies,
    browser_url: str,
) -> AsyncIterator[Approving]:
    """The door closes first: whoever waits is told before anything else ends. People follow links to `browser_url`,
    where they are signed in."""
    async with AsyncExitStack() as stack:
        name = server_name(settings.data_dir / SERVER)
        ledger = Ledger(database, Chain(name, sealer, at_once=database.dialect == "postgres"))
        inbox = Inbox(ledger, clock, new_id("prc", now_ms=clock.now_ms()))
        attendance = Attendance(database, clock)
        changes = await stack.enter_async_context(Changes(log))
        inbox.on_change(changes)
        for workspace in await database.read(_workspaces):
            await changes.open(workspace)
        ended = await stack.enter_async_context(_telemetry(settings, database, sealer, name))
        if ended is not None:
            inbox.on_change(partial(_tell_end, ended, inbox.waiter))
        await stack.enter_async_context(keeping(inbox, policies, ended))
        grants = Grants(database, sealer, clock, most_ms=round(settings.max_grant * 1000))
        habits = Habits(
            timeout=settings.permission_timeout,
            most_pending=settings.pending_per_agent,
            grants=grants,
            supervisor_wait_ms=round(settings.supervisor_wait * 1000),
            ended=ended,
            notify=await stack.enter_async_context(_notifying(settings, clock, browser_url)),
        )
        door = await stack.enter_async_context(Door(inbox, policies, attendance, habits))
        yield Approving(policies, ledger, inbox, changes, attendance, grants, door)


def _workspaces() -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.workspaces())]


@asynccontextmanager
async def _telemetry(
    settings: Settings, database: Database, sealer: Sealer, server: str
) -> AsyncIterator[Ended | None]:
    if settings.otel_endpoint is None:
        yield None
        return
    from legation.approvals.telemetry import Telemetry

    async with Telemetry(settings.otel_endpoint, database, sealer, server=server) as telemetry:
        yield telemetry.ended


def _tell_end(ended: Ended, waiter: str, approval: Approval, step: StepKind) -> None:
    """Of those that the door does not wait for: its waiter is dead, or an edited one stands in its place."""
    others = approval.waiter != waiter or approval.replaced_by is not None
    if others and step in (StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CANCELLED):
        ended(approval.workspace_id, approval.trace_id)


@asynccontextmanager
async def _notifying(settings: Settings, clock: Clock, browser_url: str) -> AsyncIterator[Notify | None]:
    if not (settings.notify_webhook or settings.notify_command or settings.notify_smtp):
        yield None  # nothing of it is even imported
        return
    from legation.approvals.notify import Notice, Notifier, channels_of
    from legation.proc import ProcessLauncher, Registry

    def failed(channel: str, why: str) -> None:
        logger.warning("cannot tell people of an approval by %s: %s", channel, why)

    launcher = ProcessLauncher(registry=Registry(settings.data_dir / CHILDREN))
    # What leaves the machine bears the machine's own time: receivers compare it with theirs.
    channels = channels_of(settings, clock.wall if isinstance(clock, SteadyClock) else clock, launcher)
    async with Notifier(channels, clock, failed, grace=NOTIFY_GRACE) as notifier:

        def notify(approval: Approval, moment: Moment, why: Why) -> None:
            notifier.notify(Notice.of(approval, moment, why, browser_url, clock.now_ms(), approval.reviewers))

        yield notify
