"""The connections of a server, from its services; imported when the first client comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from legation.server.acp.answers import InboxAnswers
from legation.server.acp.clients import Clients
from legation.server.acp.connection import SessionDeleted
from legation.server.acp.connections import Connections, SessionOpened
from legation.server.acp.facade import FolderOf
from legation.store.datafolder import WORK, make_folder

if TYPE_CHECKING:
    from legation.approvals.attendance import Attendance
    from legation.approvals.grants import Grants
    from legation.approvals.inbox import Inbox
    from legation.server.hosting import Hosting
    from legation.settings import Settings
    from legation.store.log import EventLog


async def open_connections(
    settings: Settings,
    *,
    log: EventLog,
    hosting: Hosting,
    folder_of: FolderOf,
    clients: Clients,
    opened: SessionOpened,
    deletes: SessionDeleted,
    inbox: Inbox,
    grants: Grants,
    attendance: Attendance,
) -> Connections:
    work = settings.data_dir / WORK
    await asyncio.to_thread(make_folder, work)
    return Connections(
        log=log,
        clock=log.clock,
        host=hosting.host,
        launcher=hosting.launcher,
        folder_of=folder_of,
        work=work,
        clients=clients,
        opened=opened,
        deletes=deletes,
        inbox=inbox,
        attendance=attendance,
        answers=InboxAnswers(inbox, grants, hosting.host),
        supervisor_wait_ms=round(settings.supervisor_wait * 1000),
    )
