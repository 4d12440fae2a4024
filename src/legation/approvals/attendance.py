"""Whether supervisors are there: those who looked at the approvals of a tool lately.

A supervisor that polls `?tool=filesystem.*` is there for these tools and no others. It is noted in the database, so
that it counts on whichever server it asks, and is not forgotten by a restart.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from legation.approvals.approval import label
from legation.approvals.approval_glob import Glob
from legation.clock import Clock
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Rows, Transaction
from legation.wire.principal import Principal

NOTE_EVERY_MS: Final = 5_000  # a sign of life is written this often at most
LOOK_EVERY_MS: Final = 2_000  # and read this often
KEPT_MS: Final = 86_400_000
MOST_PATTERNS: Final = 32  # of one supervisor: whoever sends another one each time makes nobody else slow

_SQL: Final = Queries("door")


class Attendance:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: dict[tuple[str, str, str], int] = {}
        self._known: dict[str, tuple[int, list[tuple[Glob | None, int]]]] = {}

    async def note(self, principal: Principal, tools: str | None) -> None:
        """It looks at the approvals of these tools, or of all."""
        if principal.level != 1:
            return
        now, key = self._clock.now_ms(), (principal.workspace, label(principal), tools or "")
        if now - self._noted.get(key, 0) < NOTE_EVERY_MS:
            return
        self._noted = {other: at for other, at in self._noted.items() if now - at < NOTE_EVERY_MS}
        self._noted[key] = now
        await self._database.transact(_note, *key, now)

    async def last(self, workspace: str, tool: str) -> int:
        """When a supervisor last looked at approvals of the tool; 0: not within a day."""
        now = self._clock.now_ms()
        looked, found = self._known.get(workspace, (0, []))
        if now - looked >= LOOK_EVERY_MS:
            rows = await self._database.read(_attending, workspace, now - KEPT_MS)
            found = [(_glob(row["tools"]) if row["tools"] else None, row["seen_at"]) for row in rows]
            self._known[workspace] = now, found
        return max((at for glob, at in found if glob is None or glob.matches(tool)), default=0)


def forget(now_ms: int) -> Transaction[None]:
    yield _SQL.forget_attendance(before=now_ms - KEPT_MS)


def _note(workspace: str, supervisor: str, tools: str, now_ms: int) -> Transaction[None]:
    yield _SQL.attend(workspace=workspace, supervisor=supervisor, tools=tools, now=now_ms)
    yield _SQL.attend_to_few(workspace=workspace, supervisor=supervisor, most=MOST_PATTERNS)


@lru_cache(maxsize=1024)
def _glob(text: str) -> Glob:
    """Many that wait look at the same moment."""
    return Glob(text)


def _attending(workspace: str, since: int) -> Transaction[Rows]:
    return (yield _SQL.attending(workspace=workspace, since=since))
