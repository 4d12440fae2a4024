"""Several processes and servers on one database: what dies is settled, what happens elsewhere is heard."""

import asyncio
from pathlib import Path

import pytest
from tests.approvals.doors import YES, Counter, Rig, open_door, request
from tests.approvals.installation import PERSON, SERVER, Installation

from legation.approvals import admit, upkeep
from legation.approvals.approval import ApprovalState
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import ToolReturn
from legation.approvals.trace.chain import Chain, Ledger, verify
from legation.approvals.transitions import Transitions
from legation.approvals.upkeep import RemoteChanges, approvals_upkeep
from legation.errors import AlreadyAnswered

pytestmark = pytest.mark.heavy


def another(rig: Rig, server: str, waiter: str) -> ApprovalQueue:
    chain = Chain(server, rig.installation.sealer, at_once=rig.installation.database.dialect == "postgres")
    return ApprovalQueue(Ledger(rig.installation.database, chain), rig.clock, waiter)


async def test_d15_what_a_dead_process_waited_for_is_superseded_and_says_so(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await upkeep.sign_of_life(rig.inbox)
        asked, counter = request("mail.send"), Counter()
        running = asyncio.create_task(rig.door.run(asked, counter))
        [approval] = await rig.pending()
        reborn = another(rig, SERVER, "prc_2")  # as after kill -9 and a start on the same folder
        await upkeep.sign_of_life(reborn)
        assert await upkeep.supersede_dead_waiters(reborn) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        with pytest.raises(AlreadyAnswered):
            await reborn.resolve(PERSON, approval.id, YES)
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "superseded/waiter-dead"]
        assert counter.calls == []
        assert await upkeep.supersede_dead_waiters(reborn) == 0
        running.cancel()


async def test_another_servers_process_is_dead_only_when_it_was_not_seen_for_long(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await upkeep.sign_of_life(rig.inbox)
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        other = another(rig, "srv-2", "prc_2")
        assert await upkeep.supersede_dead_waiters(other) == 0
        rig.clock.advance(upkeep.DEAD_MS / 1000 + 1)
        assert await upkeep.supersede_dead_waiters(other) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        running.cancel()


async def test_what_had_begun_and_was_not_told_is_of_unknown_outcome_and_never_repeated(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await upkeep.sign_of_life(rig.inbox)
        began, never = asyncio.Event(), asyncio.Event()

        async def hang() -> ToolReturn:
            began.set()
            await never.wait()
            return ToolReturn(status_code=200)

        asked, counter = request("fs.read"), Counter(answer=hang)
        running = asyncio.create_task(rig.door.run(asked, counter))
        await began.wait()
        reborn = another(rig, SERVER, "prc_2")
        await upkeep.supersede_dead_waiters(reborn)
        steps = ["proposed", "decided", "executed", "returned/outcome-unknown"]
        assert await rig.steps(asked.trace_id) == steps
        assert await admit.give_up(rig.installation.ledger, ["prc_1"], rig.clock.now_ms()) == []
        never.set()
        await running
        assert await rig.steps(asked.trace_id) == steps  # the end is told once
        assert len(counter.calls) == 1
        assert (await rig.installation.verify()).ok


async def test_an_answer_at_another_server_is_heard_by_whoever_waits_here(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        other = another(rig, "srv-2", "prc_2")
        here, there = RemoteChanges(rig.inbox), RemoteChanges(other)
        await here.start()
        await there.start()
        heard: list[str] = []
        other.on_change(lambda approval, step: heard.append(f"{step}:{approval.status}"))
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        assert await there.publish_new() == 1
        assert heard == ["decided:pending"]
        await other.resolve(PERSON, approval.id, YES)
        assert not running.done()
        assert await here.publish_new() == 1
        assert (await running).passed
        assert await here.publish_new() == 0
        for server in (SERVER, "srv-2"):
            assert (await verify(installation.database, installation.sealer, "local", server)).ok


async def test_keeping_settles_what_was_left_before_it_begins(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await upkeep.sign_of_life(rig.inbox)
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        reborn = another(rig, SERVER, "prc_2")
        async with approvals_upkeep(reborn, rig.policies):
            assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        running.cancel()


async def test_a_waiter_that_nobody_enrolled_is_left_alone(
    installation: Installation, tmp_path: Path
) -> None:
    """A runner waits by itself and outlives servers."""
    async with open_door(installation, tmp_path) as rig:
        approval = await installation.ask(
            waiter="run_1", now=rig.clock.now_ms(), expires_at=rig.clock.now_ms() + 60_000
        )
        await upkeep.supersede_dead_waiters(another(rig, SERVER, "prc_2"))
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
        assert isinstance(rig.inbox.life, Transitions)


async def test_a_token_revoked_at_one_server_ends_what_waits_at_another(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        elsewhere = RemoteChanges(rig.inbox)
        await elsewhere.start()
        asked, counter = request("mail.send"), Counter()
        running = asyncio.create_task(rig.door.run(asked, counter))
        [approval] = await rig.pending()
        await installation.sql("update api_token set revoked_at = 1 where id = 'tok_agent'")
        other = another(rig, "srv-2", "prc_2")
        [ended] = await other.supersede_revoked()  # as the server does at which it was revoked
        assert (ended.id, ended.status) == (approval.id, ApprovalState.SUPERSEDED)
        with pytest.raises(AlreadyAnswered):
            await rig.inbox.resolve(PERSON, approval.id, YES)
        assert await elsewhere.publish_new() == 1  # what this server does every half second
        ruling, returned = await running
        assert (ruling.outcome, returned, counter.calls) == ("superseded", None, [])
        assert "revoked" in ruling.reason
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "superseded/revoked"]
        assert await other.supersede_revoked() == []
