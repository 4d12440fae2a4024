"""What other servers did to approvals: read from their chains, and told here as if it had happened here.

Only with a shared database. One query asks where all chains end; only what is new is read. Grants stand in no chain: those
that count are looked at where something waits.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from legation.approvals.approval import Approval, read
from legation.approvals.grants import ids_in
from legation.approvals.inbox import Inbox
from legation.approvals.trace import StepKind
from legation.store.database.queries import Queries
from legation.store.database.transaction import Rows, Transaction

INTERVAL: Final = 0.5  # seconds: as late as an answer given at another server may come

_DOOR: Final = Queries("door")
_APPROVALS: Final = Queries("approvals")
# An effect is no change of an approval.
_TOLD: Final = frozenset(StepKind) - {StepKind.EXECUTED, StepKind.RETURNED, StepKind.UNASKED}


class Elsewhere:
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._read: dict[tuple[str, str], int] = {}
        self._granted: dict[str, dict[str, str | None]] = {}  # what counted in a workspace at the last look

    async def begin(self) -> None:
        """From here on: what was before is on record."""
        for row in await self._heads():
            self._read[row["workspace_id"], row["server"]] = row["seq"]

    async def look(self) -> int:
        """How many changes there were."""
        count = 0
        for row in await self._heads():
            workspace, server, last = row["workspace_id"], row["server"], row["seq"]
            after = self._read.get((workspace, server), 0)
            if last > after:
                changes = await self._inbox.ledger.database.read(_changes, workspace, server, after, last)
                for approval, step in changes:
                    self._inbox.tell(approval, step)
                count += len(changes)
                self._read[workspace, server] = last
        await self._look_at_grants()
        return count

    async def _look_at_grants(self) -> None:
        """One query for all workspaces where something waits. It tells of grants of this server too, once more: that is
        one more reading for those that it may cover."""
        inbox = self._inbox
        waiting = {wait.approval.workspace_id for wait in inbox.waits if wait.approval}
        if not waiting:
            return
        counting = await inbox.ledger.database.read(ids_in, waiting, inbox.clock.now_ms())
        for workspace in waiting:
            before, now = self._granted.get(workspace, {}), counting.get(workspace, {})
            for session in {now[grant] for grant in now.keys() - before.keys()}:
                inbox.granted(workspace, session)
            self._granted[workspace] = now

    async def _heads(self) -> Rows:
        return await self._inbox.ledger.database.read(_heads, self._inbox.ledger.chain.server)


def _heads(server: str) -> Transaction[Rows]:
    return (yield _DOOR.heads(server=server))


def _changes(
    workspace: str, server: str, after: int, last: int
) -> Transaction[list[tuple[Approval, StepKind]]]:
    steps = yield _DOOR.steps_after(workspace=workspace, server=server, after=after, last=last)
    newest = {row["approval_id"]: row for row in steps if StepKind(row["step"]) in _TOLD}
    found = []
    for approval_id, step in newest.items():
        rows = yield _APPROVALS.get(workspace=workspace, id=approval_id)
        found += [(replace(read(row), reason=step["reason"]), StepKind(step["step"])) for row in rows]
    return found
