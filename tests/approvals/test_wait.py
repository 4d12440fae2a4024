import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.approvals.doors import YES, Rig, open_door, request
from tests.approvals.installation import PERSON, SUPERVISOR, Installation

from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.queue import MOST_PATTERNS
from legation.approvals.sweep import LOOK_MS
from legation.errors import Forbidden

pytestmark = pytest.mark.heavy

Asked = tuple[Rig, Approval, asyncio.Task[object]]


@pytest.fixture
async def rig(installation: Installation, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_door(installation, tmp_path) as opened:
        yield opened


async def ask(rig: Rig, tool: str = "fs.write", **given: object) -> tuple[Approval, asyncio.Task[object]]:
    running: asyncio.Task[object] = asyncio.create_task(rig.door.decide(request(tool, **given)))
    [approval] = await rig.pending()
    return approval, running


async def test_escalating_what_is_with_a_person_is_no_news(rig: Rig) -> None:
    approval, running = await ask(rig)
    for _ in range(3):
        rig.clock.advance(1)
        await rig.inbox.escalate(SUPERVISOR, approval.id)
    assert [step for id_, step in rig.changes if id_ == approval.id] == ["proposed", "escalated"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_a_supervisor_for_30_seconds_it_goes_to_a_person_and_the_trace_says_so(
    rig: Rig,
) -> None:
    approval, running = await ask(rig)
    await rig.pass_time(29)
    assert (await rig.get(approval.id)).needs == "supervisor"
    assert rig.told == []
    await rig.pass_time(2)
    now = await rig.get(approval.id)
    assert (now.needs, now.escalated_by) == ("person", "legation:door")
    assert rig.told == [(approval.id, "asked", "no-supervisor")]
    assert await rig.steps(approval.trace_id) == ["proposed", "decided", "escalated/no-supervisor"]
    with pytest.raises(Forbidden):
        await rig.inbox.resolve(SUPERVISOR, approval.id, YES)
    await rig.inbox.resolve(PERSON, approval.id, YES)
    assert (await running).passed  # type: ignore[attr-defined]


async def test_a_supervisor_that_looks_keeps_it_with_level_one(rig: Rig) -> None:
    approval, running = await ask(rig)
    for _ in range(12):
        await rig.attendance.note(SUPERVISOR, "fs.*")
        await rig.pass_time(10)
    assert (await rig.get(approval.id)).needs == "supervisor"
    await rig.pass_time(30 + 2 * LOOK_MS / 1000)  # it has stopped looking
    assert (await rig.get(approval.id)).needs == "person"
    running.cancel()


async def test_a_supervisor_of_other_tools_is_not_there_for_this_one(rig: Rig) -> None:
    approval, running = await ask(rig)
    for _ in range(4):
        await rig.attendance.note(SUPERVISOR, "gmail.*")
        await rig.pass_time(10)
    assert (await rig.get(approval.id)).needs == "person"
    running.cancel()


async def test_what_supervisors_leave_undecided_goes_to_a_person_at_half_time(rig: Rig) -> None:
    approval, running = await ask(rig, timeout=200)
    for _ in range(9):
        await rig.attendance.note(SUPERVISOR, None)
        await rig.pass_time(10)
    assert (await rig.get(approval.id)).needs == "supervisor"
    await rig.attendance.note(SUPERVISOR, None)
    await rig.pass_time(11)
    assert (await rig.get(approval.id)).needs == "person"
    assert await rig.steps(approval.trace_id) == ["proposed", "decided", "escalated/undecided"]
    assert rig.told == [(approval.id, "asked", "undecided")]
    running.cancel()


async def test_people_are_told_at_once_and_once_more_before_the_expiry(rig: Rig) -> None:
    approval, running = await ask(rig, "mail.send", timeout=400)
    await rig.settle()
    assert rig.told == [(approval.id, "asked", "policy")]
    await rig.pass_time(290)
    assert len(rig.told) == 1
    await rig.pass_time(15)
    assert rig.told[1:] == [(approval.id, "reminder", "policy")]
    await rig.pass_time(100)
    assert (await running).outcome == "expired"  # type: ignore[attr-defined]
    assert len(rig.told) == 2


async def test_what_a_supervisor_escalates_tells_people_at_once(rig: Rig) -> None:
    approval, running = await ask(rig)
    await rig.inbox.escalate(SUPERVISOR, approval.id, "unsure")
    await rig.settle()
    assert rig.told == [(approval.id, "asked", "escalated")]
    running.cancel()


async def test_an_answer_in_time_ends_the_watch(rig: Rig) -> None:
    approval, running = await ask(rig, "mail.send", timeout=100)
    await rig.inbox.resolve(PERSON, approval.id, YES)
    assert (await running).passed  # type: ignore[attr-defined]
    await rig.pass_time(200)
    assert [moment for _, moment, _ in rig.told] in ([], ["asked"])
    assert (await rig.get(approval.id)).status is ApprovalState.APPROVED


async def test_a_supervisor_that_looks_at_ever_other_tools_counts_for_the_newest_alone(rig: Rig) -> None:
    for number in range(MOST_PATTERNS + 5):
        rig.clock.advance(0.01)
        await rig.attendance.note(SUPERVISOR, f"t{number}.*")
    rows = await rig.installation.sql("select tools from attendance")
    assert {row["tools"] for row in rows} == {f"t{number}.*" for number in range(5, MOST_PATTERNS + 5)}
    assert await rig.attendance.last("local", "t4.x") == 0
    assert await rig.attendance.last("local", "t36.x") == rig.clock.now_ms()
