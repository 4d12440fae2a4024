"""`always` is a grant, and the answer to this one."""

import pytest
from tests.approvals.installation import HOLDER, NOW, PERSON, SUPERVISOR, YES, Installation, write_file

from legation.approvals import grants
from legation.approvals.approval import ApprovalState
from legation.approvals.grants import GrantService, allow_always
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.errors import AlreadyAnswered, Forbidden
from legation.testing.clock import FakeClock


def desk(installation: Installation) -> tuple[ApprovalQueue, GrantService]:
    clock = FakeClock(NOW + 1)
    return ApprovalQueue(installation.ledger, clock, HOLDER), GrantService(
        installation.database, installation.sealer, clock
    )


async def test_it_answers_this_one_and_leaves_the_others_to_whoever_waits_for_them(
    installation: Installation,
) -> None:
    asked = await installation.ask(session_id="ses_1")
    same = await installation.ask(write_file("/p/other.go"), session_id="ses_1")
    elsewhere = await installation.ask(session_id="ses_2")
    another = await installation.ask(write_file(tool="gmail.send"), session_id="ses_1")
    inbox, given = desk(installation)
    await allow_always(inbox, given, PERSON, asked, "ses_1", YES)
    statuses = [(await installation.get(each)).status for each in (asked, same, elsewhere, another)]
    assert statuses == [
        ApprovalState.APPROVED,
        ApprovalState.PENDING,
        ApprovalState.PENDING,
        ApprovalState.PENDING,
    ]
    rows = await installation.sql("select session_id from approval_grant")
    assert [row["session_id"] for row in rows] == ["ses_1"]


async def test_who_may_not_give_it_answers_nothing(installation: Installation) -> None:
    asked = await installation.ask(session_id="ses_1")
    same = await installation.ask(session_id="ses_1")
    inbox, given = desk(installation)
    with pytest.raises(Forbidden):
        await allow_always(inbox, given, SUPERVISOR, asked, "ses_1", YES)
    await installation.answer(asked)
    with pytest.raises(AlreadyAnswered):
        await allow_always(inbox, given, PERSON, asked, "ses_1", YES)
    assert (await installation.get(same)).status is ApprovalState.PENDING
    assert (
        await installation.database.read(grants.matching, "local", write_file(), NOW + 1, "ses_1", Facts())
        is None
    )
