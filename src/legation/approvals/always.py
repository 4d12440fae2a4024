"""`always`, said to one approval of a session: this one, and a grant for the same tool there, also for what waits."""

from __future__ import annotations

from legation.approvals.approval import Answer, Approval
from legation.approvals.grants import Grants, exactly, must_be_person, new_grant_id
from legation.approvals.inbox import Inbox
from legation.approvals.trace import StepKind
from legation.store.database.transaction import Transaction
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal


async def allow_always(
    inbox: Inbox, grants: Grants, by: Principal, approval: Approval, session: str, answer: Answer
) -> None:
    """It takes a person. What waits there already is not answered here: whoever waits for it asks anew whether the
    grant lets it pass (`wait.py`)."""
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

    giving = inbox.changed(by.workspace, StepKind.RESOLVED, work)
    await inbox.granting(by.workspace, giving, session=session)
