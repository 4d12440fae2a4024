"""The database goes away and comes back while calls are at the door: a table that is not there fails as it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.approvals.doors import YES, Counter, Rig, open_door, request
from tests.approvals.installation import PERSON, Installation

from legation.approvals.approval import ApprovalState
from legation.approvals.request import ToolReturn
from legation.errors import StorageFailed

pytestmark = pytest.mark.heavy


@pytest.fixture
async def rig(installation: Installation, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_door(installation, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def away(installation: Installation, table: str) -> AsyncIterator[None]:
    """Every use of it fails, as it does when the database is not there."""
    await installation.sql(f"alter table {table} rename to away")
    try:
        yield
    finally:
        await installation.sql(f"alter table away rename to {table}")


async def test_d15_who_waits_goes_on_waiting_while_the_database_is_away(
    rig: Rig, installation: Installation
) -> None:
    running = asyncio.create_task(rig.door.run(request("fs.write"), counter := Counter()))
    [approval] = await rig.pending()
    async with away(installation, "attendance"):
        await rig.pass_time(60)  # whether a supervisor is there cannot be found out
        assert not running.done()
    await rig.pass_time(10)
    assert (await rig.get(approval.id)).needs == "person"
    await rig.inbox.resolve(PERSON, approval.id, YES)
    assert (await running)[0].passed
    assert len(counter.calls) == 1


async def test_what_is_away_at_the_expiry_is_told_and_passes_nothing(
    rig: Rig, installation: Installation
) -> None:
    running = asyncio.create_task(rig.door.run(request("mail.send"), counter := Counter()))
    [approval] = await rig.pending()
    async with away(installation, "trace_head"):
        await rig.pass_time(605)
        with pytest.raises(StorageFailed):
            await running
    assert [ended.id for ended in await rig.inbox.expire()] == [approval.id]
    assert counter.calls == []


async def test_d13_whoever_left_while_the_database_was_away_is_taken_back_when_it_is_there(
    rig: Rig, installation: Installation
) -> None:
    running = asyncio.create_task(rig.door.run(request("mail.send"), Counter()))
    [approval] = await rig.pending()
    async with away(installation, "trace_head"):
        running.cancel()
        await rig.pass_time(10)
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
    await rig.pass_time(10)
    assert (await rig.get(approval.id)).status is ApprovalState.CANCELLED
    assert await rig.steps(approval.trace_id) == ["proposed", "decided", "cancelled/caller-gone"]


async def test_what_a_tool_answered_is_told_at_once_and_written_down_when_the_database_is_back(
    rig: Rig, installation: Installation
) -> None:
    asked, counter = request("fs.read"), Counter()
    async with AsyncExitStack() as stack:

        async def answer() -> ToolReturn:
            await stack.enter_async_context(away(installation, "trace_head"))
            return ToolReturn(status_code=200, result="done")

        counter.answer = answer
        ruling, returned = await rig.door.run(asked, counter)
        assert (ruling.passed, returned) == (True, ToolReturn(status_code=200, result="done"))
        await rig.pass_time(10)
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "executed"]
    await rig.pass_time(10)
    assert await rig.steps(asked.trace_id) == ["proposed", "decided", "executed", "returned"]
    assert len(counter.calls) == 1
