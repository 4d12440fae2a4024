"""Several processes and servers on one database: what dies is settled, what happens elsewhere is heard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.approvals.doors import LIMIT, NO, POLICY, YES, Counter, Rig, open_door, request
from tests.approvals.installation import NOW, PERSON, SERVER, Installation

from legation.approvals import admit, upkeep
from legation.approvals.approval import Approval, ApprovalState, Waiter
from legation.approvals.grants import GrantService, new_grant_id
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import ToolReturn
from legation.approvals.sweep import ApprovalSweep
from legation.approvals.trace.chain import Chain, Ledger, verify
from legation.approvals.transitions import Transitions, Unheard
from legation.approvals.upkeep import RemoteChanges, SignsOfLife, approvals_upkeep
from legation.errors import AlreadyAnswered
from legation.store.database.postgres import PostgresDatabase, _drive
from legation.store.database.transaction import Overtaken, Transaction, parse
from legation.wire.api.approvals import NewGrant

pytestmark = pytest.mark.heavy


LIVE = SignsOfLife()


def another(rig: Rig, server: str, holder: str) -> ApprovalQueue:
    chain = Chain(server, rig.installation.sealer, at_once=rig.installation.database.dialect == "postgres")
    return ApprovalQueue(Ledger(rig.installation.database, chain), rig.clock, holder)


async def test_d15_what_a_dead_process_waited_for_is_superseded_and_says_so(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await LIVE.sign(rig.inbox)
        asked, counter = request("mail.send"), Counter()
        running = asyncio.create_task(rig.door.run(asked, counter))
        [approval] = await rig.pending()
        reborn = another(rig, SERVER, "prc_2")  # as after kill -9 and a start on the same folder
        await LIVE.sign(reborn)
        assert await upkeep.supersede_lost(reborn, LIVE) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        with pytest.raises(AlreadyAnswered):
            await reborn.resolve(PERSON, approval.id, YES)
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "superseded/waiter-dead"]
        assert counter.calls == []
        assert await upkeep.supersede_lost(reborn, LIVE) == 0
        running.cancel()


async def test_another_servers_process_is_dead_only_when_it_was_not_seen_for_long(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await LIVE.sign(rig.inbox)
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        other = another(rig, "srv-2", "prc_2")
        assert await upkeep.supersede_lost(other, LIVE) == 0
        for _ in range(upkeep.DEAD_MS // LIVE.sign_ms - 1):
            rig.clock.advance(LIVE.sign_ms / 1000)
            await LIVE.sign(other)
        assert await upkeep.supersede_lost(other, LIVE) == 0
        rig.clock.advance(LIVE.sign_ms / 1000)
        await LIVE.sign(other)
        assert await upkeep.supersede_lost(other, LIVE) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        running.cancel()


async def test_what_had_begun_and_was_not_told_is_of_unknown_outcome_and_never_repeated(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await LIVE.sign(rig.inbox)
        began, never = asyncio.Event(), asyncio.Event()

        async def hang() -> ToolReturn:
            began.set()
            await never.wait()
            return ToolReturn(status_code=200)

        asked, counter = request("fs.read"), Counter(answer=hang)
        running = asyncio.create_task(rig.door.run(asked, counter))
        await began.wait()
        reborn = another(rig, SERVER, "prc_2")
        await upkeep.supersede_lost(reborn, LIVE)
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
        answered = asyncio.create_task(other.resolve(PERSON, approval.id, YES))
        await rig.until(lambda: rig.get(approval.id), lambda found: found.status is ApprovalState.APPROVED)
        assert not running.done()
        assert (
            not answered.done()
        )  # whoever waits has not taken it up: "approved" might have nothing behind it
        assert await here.publish_new() == 1
        assert (await running).passed
        assert (await answered).status is ApprovalState.APPROVED
        assert await here.publish_new() == 0
        for server in (SERVER, "srv-2"):
            assert (await verify(installation.database, installation.sealer, "local", server)).ok


async def test_keeping_settles_what_was_left_before_it_begins(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        await LIVE.sign(rig.inbox)
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        reborn = another(rig, SERVER, "prc_2")
        async with approvals_upkeep(reborn, rig.policies, ApprovalSweep(reborn, rig.attendance)):
            assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        running.cancel()


async def test_a_program_that_waits_by_itself_outlives_servers_and_not_its_own_silence(
    installation: Installation, tmp_path: Path
) -> None:
    """It was left alone for ever, for nobody knew whether it was there; now it says so."""
    async with open_door(installation, tmp_path) as rig:
        now, program = rig.clock.now_ms(), Waiter("run:1", "run:1 local token:tok_agent")
        approval = await installation.ask(waiter=program, now=now, expires_at=now + 600_000)
        reborn = another(rig, SERVER, "prc_2")
        await LIVE.sign_for(reborn, program.holder)
        assert await upkeep.supersede_lost(reborn, LIVE) == 0
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
        await pulse_on(installation, upkeep.DEAD_MS)
        with pytest.raises(Unheard):
            await reborn.resolve(PERSON, approval.id, YES)
        assert await upkeep.supersede_lost(reborn, LIVE) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        assert (await rig.steps(approval.trace_id))[-1] == "superseded/waiter-silent"


async def pulse_on(installation: Installation, ms: int) -> None:
    """The database answered for so long."""
    await installation.sql(f"update pulse set ms = ms + {ms}")


async def test_a_database_that_was_away_makes_nobody_silent(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        running = asyncio.create_task(rig.door.decide(request("mail.send", timeout=86_400)))
        [approval] = await rig.pending()
        other = another(rig, "srv-2", "prc_2")
        await LIVE.sign(other)
        await LIVE.sign(rig.inbox)
        rig.clock.advance(3 * upkeep.DEAD_MS / 1000)  # in which nobody gave a sign of life
        for _ in range(3):
            await LIVE.sign(other)
            assert await upkeep.supersede_lost(other, LIVE) == 0
        answered = asyncio.create_task(other.resolve(PERSON, approval.id, YES))
        await rig.until(lambda: rig.get(approval.id), lambda found: found.status is ApprovalState.APPROVED)
        await rig.inbox.refresh(approval)
        assert (await running).passed
        await answered


async def test_whoever_is_not_heard_of_is_not_answered_for_and_goes_on_when_it_is_back(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        await pulse_on(installation, upkeep.GRACE * LIVE.sign_ms)
        other = another(rig, "srv-2", "prc_2")
        for answer in (other.resolve(PERSON, approval.id, YES), other.claim(PERSON, approval.id, 60_000),
                       other.answer_group(PERSON, approval.group_key, YES)):  # fmt: skip
            with pytest.raises(Unheard, match="is not heard of") as caught:
                await answer
            assert caught.value.data == {"reason": "waiter-unheard", "waiter": approval.waiter}
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
        await LIVE.sign(rig.inbox)
        await rig.inbox.resolve(PERSON, approval.id, YES)
        assert (await running).passed


async def test_an_answer_that_nobody_takes_up_is_told_as_that(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died a moment ago, and nobody knows yet."""
    monkeypatch.setattr("legation.approvals.queue.TAKEN_LIMIT", -1.0)
    async with open_door(installation, tmp_path) as rig:
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        other = another(rig, "srv-2", "prc_2")
        with pytest.raises(Unheard, match="has not taken that up"):
            await other.resolve(PERSON, approval.id, YES)
        await installation.sql("delete from holder where id = 'prc_1'")
        assert await upkeep.supersede_lost(other, LIVE) == 1
        assert (await rig.get(approval.id)).status is ApprovalState.SUPERSEDED
        running.cancel()


async def test_of_many_servers_one_escalates_and_one_notifies(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path) as rig:
        running = asyncio.create_task(rig.door.decide(request("fs.write", timeout=400)))
        [approval] = await rig.pending()
        await rig.settle()
        others = [another(rig, f"srv-{n}", f"prc_{n}") for n in range(2, 6)]

        # One list for all of them: which server is the one to tell is chance.
        def tell(asked: Approval, moment: str, why: str) -> None:
            rig.told.append((asked.id, moment, why))

        sweeps = [ApprovalSweep(each, rig.attendance, tell) for each in others]
        for seconds in (31, 280):
            rig.clock.advance(seconds)
            await asyncio.gather(*(sweep.once() for sweep in sweeps))
            await rig.settle()
        heard = [(moment, why) for _, moment, why in rig.told]
        assert heard == [("asked", "no-supervisor"), ("reminder", "no-supervisor")]
        assert await rig.steps(approval.trace_id) == ["proposed", "decided", "escalated/no-supervisor"]
        running.cancel()


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
        assert await elsewhere.publish_new() == 1  # what this server does when it is told, and now and then
        ruling, returned = await running
        assert (ruling.outcome, returned, counter.calls) == ("superseded", None, [])
        assert "revoked" in ruling.reason
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "superseded/revoked"]
        assert await other.supersede_revoked() == []


@asynccontextmanager
async def two_servers(
    installation: Installation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Rig, ApprovalQueue, PostgresDatabase]]:
    """A door here, whose server looks at what others did only when they say so; another server; and its database."""
    here = installation.database
    assert isinstance(here, PostgresDatabase)
    monkeypatch.setattr(upkeep, "INTERVAL", 86_400.0)
    async with (
        open_door(installation, folder) as rig,
        PostgresDatabase(here._url) as database,
        approvals_upkeep(rig.inbox, rig.policies, ApprovalSweep(rig.inbox, rig.attendance)),
    ):
        ledger = Ledger(database, Chain("srv-2", installation.sealer, at_once=True))
        yield rig, ApprovalQueue(ledger, rig.clock, "prc_2"), database


async def test_answers_at_another_server_arrive_without_waiting_for_a_look(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installation.database.dialect == "sqlite":
        return
    async with two_servers(installation, tmp_path, monkeypatch) as (rig, other, _):
        for _ in range(3):
            running = asyncio.create_task(rig.door.decide(request("mail.send")))
            [approval] = await rig.pending()
            await other.resolve(PERSON, approval.id, YES)
            async with asyncio.timeout(LIMIT):
                assert (await running).passed


async def test_a_grant_at_another_server_arrives_without_waiting_for_a_look(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installation.database.dialect == "sqlite":
        return
    async with two_servers(installation, tmp_path, monkeypatch) as (rig, other, database):
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        await rig.pending()
        service = GrantService(database, installation.sealer, rig.clock)
        new, now = NewGrant(agent="*", tools="mail.*", duration=600), rig.clock.now_ms()
        giving = database.transact(service.give, PERSON, new, grant=new_grant_id(now), now_ms=now)
        await other.granting("local", giving)
        async with asyncio.timeout(LIMIT):
            assert (await running).passed


async def test_with_the_listening_connection_cut_no_answer_is_lost(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installation.database.dialect == "sqlite":
        return
    async with two_servers(installation, tmp_path, monkeypatch) as (rig, other, database):
        here = installation.database
        assert isinstance(here, PostgresDatabase)
        for _ in range(3):
            running = asyncio.create_task(rig.door.decide(request("mail.send")))
            [approval] = await rig.pending()
            async with asyncio.timeout(LIMIT):
                while here._listener is None or here._listener.is_closed():
                    await asyncio.sleep(0.01)
                async with database._connection() as connection:
                    process = here._listener.get_server_pid()
                    await connection.execute("select pg_terminate_backend($1)", process)
                await other.resolve(
                    PERSON, approval.id, YES
                )  # told to nobody, or to a connection that is going
                assert (await running).passed


async def test_a_limit_holds_at_three_servers_at_once(installation: Installation, tmp_path: Path) -> None:
    """Each counts what it read and one more, and between the two the others come (INV-L2, INV-F1)."""
    if not isinstance(installation.database, PostgresDatabase):
        return
    limited = POLICY.replace("loop: off", "loop: off\nmax_total: 25\nmax_per_minute: 1000")
    async with AsyncExitStack() as stack:
        rigs = []
        for number in range(3):
            database = await stack.enter_async_context(PostgresDatabase(installation.database._url))
            server = Installation(database, installation.sealer)
            server.ledger = Ledger(database, Chain(f"srv-{number}", installation.sealer, at_once=True))
            rigs.append(await stack.enter_async_context(open_door(server, tmp_path, limited)))
        counter = Counter()
        async with asyncio.timeout(LIMIT):
            runs = [rig.door.run(request("fs.read"), counter) for rig in rigs for _ in range(10)]
            asks = [rig.door.decide(request("fs.read")) for rig in rigs for _ in range(10)]
            ran, decided = await asyncio.gather(asyncio.gather(*runs), asyncio.gather(*asks))
        passed = [ruling.passed for ruling, _ in ran]
        assert sum(passed) + sum(ruling.passed for ruling in decided) == 25
        assert len(counter.calls) == sum(passed)
        counted = await installation.sql("select value from counter where what = 'total'")
        assert [row["value"] for row in counted] == ["25"]
        for number in range(3):
            report = await verify(installation.database, installation.sealer, "local", f"srv-{number}")
            assert report.faults == ()


async def test_of_answers_at_three_servers_one_stands(installation: Installation) -> None:
    """Each reads that it is pending, and writes: INV-L2 of the transitions."""
    if not isinstance(installation.database, PostgresDatabase):
        return
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(3):
            database = await stack.enter_async_context(PostgresDatabase(installation.database._url))
            chain = Chain(f"srv-{number}", installation.sealer, at_once=True)
            servers.append((Ledger(database, chain), Transitions(chain)))
        asked = [await installation.ask() for _ in range(10)]
        async with asyncio.timeout(LIMIT):
            found = await asyncio.gather(
                *(
                    ledger.transact("local", life.resolve, PERSON, approval.id, answer, NOW + 1)
                    for approval in asked
                    for ledger, life in servers
                    for answer in (YES, NO)
                ),
                return_exceptions=True,
            )
        assert sorted({type(each).__name__ for each in found}) == ["AlreadyAnswered", "Approval"]
        answered = [each for each in found if isinstance(each, Approval)]
        assert sorted(each.id for each in answered) == sorted(each.id for each in asked)
        for each in answered:
            assert (await installation.get(each)).status is each.status
        for server in (SERVER, "srv-0", "srv-1", "srv-2"):
            assert (await verify(installation.database, installation.sealer, "local", server)).faults == ()


async def test_an_answer_under_rules_that_changed_after_it_was_read_is_looked_at_again(
    installation: Installation,
) -> None:
    """Between reading and writing it is bound to another policy, under which another person decides."""
    approval = await installation.ask()
    life, changed = installation.approvals, False

    def resolve() -> Transaction[object]:
        nonlocal changed
        work = life.resolve(PERSON, approval.id, YES, NOW + 1)
        statement = next(work)
        try:
            while True:
                rows = yield statement
                if statement.query.name == "get" and not changed:
                    changed = True
                    yield RAW(id=approval.id)
                statement = work.send(rows)
        except StopIteration as done:
            return done.value

    if not isinstance(installation.database, PostgresDatabase):
        with pytest.raises(Overtaken):  # there nobody can come in between but the transaction itself
            await installation.do(resolve)
        return
    with pytest.raises(Overtaken):
        async with installation.database._connection() as connection, connection.transaction():
            await _drive(resolve(), connection)
    assert (await installation.get(approval)).status is ApprovalState.PENDING


(RAW,) = parse(
    "-- name: other_reviewers\nupdate approval set reviewers = '[\"eve\"]' where id = :id returning id;"
)
