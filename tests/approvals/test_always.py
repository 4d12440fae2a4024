"""`always` is a grant, and the answer to this one."""

import pytest
from tests.approvals.office import NOW, PERSON, SUPERVISOR, WAITER, YES, Office, write_file

from legation.approvals import grants
from legation.approvals.approval import ApprovalState
from legation.approvals.grants import GrantService, allow_always
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.errors import AlreadyAnswered, Forbidden
from legation.testing.clock import FakeClock


def desk(office: Office) -> tuple[ApprovalQueue, GrantService]:
    clock = FakeClock(NOW + 1)
    return ApprovalQueue(office.ledger, clock, WAITER), GrantService(office.database, office.sealer, clock)


async def test_it_answers_this_one_and_leaves_the_others_to_whoever_waits_for_them(office: Office) -> None:
    asked = await office.ask(session_id="ses_1")
    same = await office.ask(write_file("/p/other.go"), session_id="ses_1")
    elsewhere = await office.ask(session_id="ses_2")
    another = await office.ask(write_file(tool="gmail.send"), session_id="ses_1")
    inbox, given = desk(office)
    await allow_always(inbox, given, PERSON, asked, "ses_1", YES)
    statuses = [(await office.get(each)).status for each in (asked, same, elsewhere, another)]
    assert statuses == [
        ApprovalState.APPROVED,
        ApprovalState.PENDING,
        ApprovalState.PENDING,
        ApprovalState.PENDING,
    ]
    rows = await office.sql("select session_id from approval_grant")
    assert [row["session_id"] for row in rows] == ["ses_1"]


async def test_who_may_not_give_it_answers_nothing(office: Office) -> None:
    asked = await office.ask(session_id="ses_1")
    same = await office.ask(session_id="ses_1")
    inbox, given = desk(office)
    with pytest.raises(Forbidden):
        await allow_always(inbox, given, SUPERVISOR, asked, "ses_1", YES)
    await office.answer(asked)
    with pytest.raises(AlreadyAnswered):
        await allow_always(inbox, given, PERSON, asked, "ses_1", YES)
    assert (await office.get(same)).status is ApprovalState.PENDING
    assert (
        await office.database.read(grants.matching, "local", write_file(), NOW + 1, "ses_1", Facts()) is None
    )
