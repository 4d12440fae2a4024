"""The door of a server and all that it needs, opened and kept in order for as long as the server runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from legation.approvals.attendance import Attendance
from legation.approvals.chain import Chain, Ledger
from legation.approvals.changes import Changes
from legation.approvals.door import Door, Habits
from legation.approvals.grants import Grants
from legation.approvals.inbox import Inbox
from legation.approvals.keeping import keeping
from legation.approvals.policies import Policies
from legation.clock import Clock
from legation.ids import new_id
from legation.server.servername import server_name
from legation.settings import Settings
from legation.store.database.transaction import Database
from legation.store.datafolder import SERVER
from legation.store.log import EventLog
from legation.store.sealing import Sealer


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
    settings: Settings, database: Database, sealer: Sealer, log: EventLog, clock: Clock, policies: Policies
) -> AsyncIterator[Approving]:
    """The door closes first: whoever waits is told before anything else ends."""
    async with AsyncExitStack() as stack:
        name = server_name(settings.data_dir / SERVER)
        ledger = Ledger(database, Chain(name, sealer, at_once=database.dialect == "postgres"))
        inbox = Inbox(ledger, clock, new_id("prc", now_ms=clock.now_ms()))
        attendance = Attendance(database, clock)
        changes = await stack.enter_async_context(Changes(log))
        inbox.on_change(changes)
        await stack.enter_async_context(keeping(inbox, policies))
        habits = Habits(
            timeout=settings.permission_timeout, supervisor_wait_ms=round(settings.supervisor_wait * 1000)
        )
        door = await stack.enter_async_context(Door(inbox, policies, attendance, habits))
        grants = Grants(database, sealer, clock, most_ms=round(settings.max_grant * 1000))
        yield Approving(policies, ledger, inbox, changes, attendance, grants, door)
