"""`always`, said to one approval of a session: a grant for the same tool there, and the answer to what waits for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from legation.approvals.approval import Answer, Approval, Status
from legation.approvals.approval_endings import MOST_OF_SESSION, get
from legation.approvals.grants import Grants, exactly, must_be_person, new_grant_id
from legation.approvals.inbox import Inbox
from legation.approvals.trace import StepKind
from legation.errors import LegationError
from legation.store.database.queries import Queries
from legation.store.database.transaction import Transaction
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal

_SQL: Final = Queries("approvals")


async def allow_always(
    inbox: Inbox, grants: Grants, by: Principal, approval: Approval, session: str, answer: Answer
) -> None:
    """It takes a person."""
    must_be_person(by, "give")

    def work(now_ms: int) -> Transaction[Approval]:
        answered = yield from inbox.life.resolve(by, approval.id, answer, now_ms)
        new = NewGrant(
            agent=exactly(approval.agent),
            tools=exactly(approval.tool),
            kinds=[approval.kind],
            duration=grants.longest,
            reason=f"always, said in session {session}",
        )
        yield from grants.give(by, new, grant=new_grant_id(now_ms), now_ms=now_ms, session=session)
        return answered

    await inbox.changed(by.workspace, StepKind.RESOLVED, work)
    for other in await inbox.ledger.database.read(_waiting, approval, session):
        with suppress(LegationError):  # somebody was faster, or it is not for this person to answer
            await inbox.resolve(by, other, answer)


def _waiting(approval: Approval, session: str) -> Transaction[list[str]]:
    """What else of the session a grant like that would have let pass."""
    workspace = approval.workspace_id
    rows = yield _SQL.open_of_session(workspace=workspace, session=session, turn=None, limit=MOST_OF_SESSION)
    found = []
    for row in rows:
        other = yield from get(workspace, row["id"])
        same = (other.agent, other.tool, other.kind) == (approval.agent, approval.tool, approval.kind)
        if same and other.status is Status.PENDING:
            found.append(other.id)
    return found
