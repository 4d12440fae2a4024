"""Starts of processes, in the audit log."""

from __future__ import annotations

import re
from typing import Final

from legation.clock import Clock
from legation.server.processes.processes import Record
from legation.store import audit
from legation.store.database.transaction import Database
from legation.wire.principal import Principal

# A name that stands in a table unsealed; whatever else somebody may call a program is left out.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,31}", re.ASCII)


def recording(database: Database, clock: Clock) -> Record:
    async def record(principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
        details = {"program": program if _PLAIN_NAME.fullmatch(program) else None, "tty": tty}
        await database.transact(
            audit.record, principal, "process.started", process_id, details, clock.now_ms()
        )

    return record
