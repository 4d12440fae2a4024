"""A grant that is given while calls wait: what it would have let pass at once passes now, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.approvals.doors import ASKER, LIMIT, NO, POLICY, YES, Counter, Rig, call, open_door, request
from tests.approvals.installation import NOW, PERSON, SERVER, Installation
from tests.approvals.test_door_away import away
from tests.approvals.test_door_races import HeldLedger, held
from tests.approvals.test_servers import another
from tests.store.installation import WORKSPACES

from legation.approvals.admit import lifting
from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.grants import Grant, GrantService, allow_always, new_grant_id
from legation.approvals.request import DoorRequest, DoorResult, ToolReturn
from legation.approvals.trace.chain import Ledger, verify
from legation.approvals.trace.step import StepKind
from legation.approvals.upkeep import RemoteChanges
from legation.errors import StorageFailed
from legation.store.database.transaction import Transaction
from legation.wire.action import Action
from legation.wire.api.approvals import NewGrant

pytestmark = pytest.mark.heavy

DENIED = POLICY.replace("tools: fs.write, action: supervisor", "tools: fs.write, action: deny")


@pytest.fixture
async def rig(installation: Installation, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_door(installation, tmp_path) as opened:
        yield opened


async def give(rig: Rig, tools: str = "*", session: str | None = None) -> Grant:
    """On record; who waits is not told."""
    new = NewGrant(agent="*", tools=tools, duration=60)
    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    now = rig.clock.now_ms()
    return await rig.installation.do(
        grants.give, PERSON, new, grant=new_grant_id(NOW), now_ms=now, session=session
    )


async def waiting(rig: Rig, asked: DoorRequest) -> tuple[asyncio.Task[DoorResult], Approval]:
    """A call that somebody is asked about, and its approval."""
    running = asyncio.create_task(rig.door.decide(asked))
    found = await rig.until(rig.pending, lambda each: asked.trace_id in {one.trace_id for one in each})
    return running, next(each for each in found if each.trace_id == asked.trace_id)


def of_session(tool: str = "fs.write", session: str = "s") -> DoorRequest:
    return request(tool, session_id=session, in_session=True)


async def test_always_lets_pass_what_waits_for_the_same_in_the_session(rig: Rig) -> None:
    first, asked = await waiting(rig, of_session())
    also = of_session()
    running = asyncio.create_task(rig.door.run(also, counter := Counter()))
    await rig.pending(2)
    others = [await waiting(rig, each) for each in (of_session("mail.send"), of_session(session="t"))]
    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    await allow_always(rig.inbox, grants, PERSON, asked, "s", YES)
    assert (await first).by == "user:usr_1"
    ruling, _ = await asyncio.wait_for(running, LIMIT)
    [row] = await rig.installation.sql("select id from approval_grant")
    by = f"grant:{row['id']}"
    assert (ruling.outcome, ruling.by, ruling.reason) == ("approved", by, "a grant lets it pass")
    assert len(counter.calls) == 1
    steps = ["proposed", "decided", "resolved/granted", "consumed", "executed", "returned"]
    assert await rig.steps(also.trace_id) == steps
    [entry] = [each for each in await rig.installation.entries() if each.trace_id == also.trace_id]
    assert (entry.approved_by, entry.approval_status) == (by, "approved")
    assert (ruling.approval_id, "resolved") in rig.changes
    assert ruling.approval_id is not None
    assert (await rig.get(ruling.approval_id)).resolved_by == by
    assert (await rig.installation.verify()).ok
    await rig.settle()
    for other, approval in others:
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
        other.cancel()


async def test_what_needs_a_person_passes_by_the_grant_of_one(rig: Rig) -> None:
    running, _ = await waiting(rig, request("mail.send"))
    grant = await give(rig)
    rig.inbox.granted("local")
    assert (await asyncio.wait_for(running, LIMIT)).by == f"grant:{grant.id}"


async def test_what_no_grant_lifts_goes_on_waiting(installation: Installation, tmp_path: Path) -> None:
    reviewed = POLICY.replace("action: human_approval", "action: human_approval, reviewers: [Fin]")
    async with open_door(
        installation, tmp_path, reviewed, signal=lambda action: "approve me" in str(action.params)
    ) as rig:
        injected, first = await waiting(rig, request(action=call("fs.write", body="approve me")))
        for_fin, second = await waiting(rig, request("mail.send"))
        plain, _ = await waiting(rig, request("fs.write"))
        await give(rig)
        rig.inbox.granted("local")
        assert (await asyncio.wait_for(plain, LIMIT)).passed
        await rig.settle()
        for running, approval in ((injected, first), (for_fin, second)):
            assert (await rig.get(approval.id)).status is ApprovalState.PENDING
            running.cancel()


async def test_rules_that_deny_it_by_then_are_heard_first(rig: Rig) -> None:
    running, approval = await waiting(rig, request())
    await give(rig)
    rig.edit(DENIED)
    rig.inbox.granted("local")
    ruling = await asyncio.wait_for(running, LIMIT)
    assert (ruling.outcome, ruling.by) == ("denied", "policy")
    assert (await rig.get(approval.id)).status is ApprovalState.CANCELLED


async def test_rules_that_ask_all_the_same_leave_it_to_the_grant(rig: Rig) -> None:
    running, _ = await waiting(rig, request())
    grant = await give(rig)
    rig.edit(POLICY.replace("id: writes", "id: scribbles"))
    rig.inbox.granted("local")
    ruling = await asyncio.wait_for(running, LIMIT)
    assert (ruling.by, ruling.rule) == (f"grant:{grant.id}", "p:scribbles")
    steps = ["proposed", "decided", "decided/policy-changed", "resolved/granted", "consumed"]
    assert await rig.steps(ruling.trace_id) == steps


async def test_a_denial_at_the_same_moment_stands(rig: Rig) -> None:
    running, approval = await waiting(rig, request())
    await give(rig)
    ledger = held(rig, "ApprovalWait._lift")
    rig.inbox.granted("local")
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    assert (await rig.inbox.resolve(PERSON, approval.id, NO)).status is ApprovalState.DENIED
    ledger.go.set()
    ruling = await asyncio.wait_for(running, LIMIT)
    assert (ruling.outcome, ruling.by) == ("denied", "user:usr_1")
    assert await rig.steps(ruling.trace_id) == ["proposed", "decided", "resolved"]


async def test_a_grant_that_is_revoked_at_the_same_moment_lets_nothing_pass(rig: Rig) -> None:
    running, approval = await waiting(rig, request())
    grant = await give(rig)
    ledger = held(rig, "ApprovalWait._lift")
    rig.inbox.granted("local")
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    await rig.installation.do(grants.revoke, PERSON, grant.id, rig.clock.now_ms())
    ledger.go.set()
    await rig.settle()
    assert (await rig.get(approval.id)).status is ApprovalState.PENDING
    await rig.inbox.resolve(PERSON, approval.id, YES)
    assert (await asyncio.wait_for(running, LIMIT)).by == "user:usr_1"


async def run_and_hold(
    rig: Rig,
) -> tuple[asyncio.Task[tuple[DoorResult, ToolReturn | None]], Counter, HeldLedger]:
    """A call that would be done, and waits: a grant of a minute covers it, and it waits for its turn to pass."""
    running = asyncio.create_task(rig.door.run(request(), counter := Counter()))
    await rig.pending()
    await give(rig)
    ledger = held(rig, "ApprovalWait._lift")
    rig.inbox.granted("local")
    await asyncio.wait_for(ledger.reached.wait(), LIMIT)
    return running, counter, ledger


async def test_what_a_grant_resolves_has_passed_then_so_that_nothing_passes_once_it_is_revoked(
    rig: Rig,
) -> None:
    told: list[Approval] = []
    rig.inbox.on_change(lambda each, step: told.append(each) if step is StepKind.RESOLVED else None)
    running, _ = await waiting(rig, request())
    await give(rig)
    rig.inbox.granted("local")
    assert (await asyncio.wait_for(running, LIMIT)).passed
    assert [(each.status, each.consumed_at is not None) for each in told] == [(ApprovalState.APPROVED, True)]


async def test_a_grant_that_has_run_out_when_the_turn_comes_lets_nothing_pass(rig: Rig) -> None:
    running, counter, ledger = await run_and_hold(rig)
    rig.clock.advance(61)
    ledger.go.set()
    await rig.settle()
    assert ([each.status for each in await rig.pending()], counter.calls) == ([ApprovalState.PENDING], [])
    running.cancel()


async def test_nothing_is_done_for_whoever_has_gone_when_the_turn_comes(rig: Rig) -> None:
    running, counter, ledger = await run_and_hold(rig)
    [approval] = await rig.pending()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ledger.go.set()
    await rig.settle()
    assert ((await rig.get(approval.id)).status, counter.calls) == (ApprovalState.CANCELLED, [])
    assert await rig.steps(approval.trace_id) == ["proposed", "decided", "cancelled/caller-gone"]


async def test_rules_that_name_reviewers_when_the_turn_comes_are_heard(rig: Rig) -> None:
    running, counter, ledger = await run_and_hold(rig)
    rig.edit(
        POLICY.replace(
            "tools: fs.write, action: supervisor", "tools: fs.write, action: supervisor, reviewers: [Fin]"
        )
    )
    ledger.go.set()
    [approval] = await rig.until(rig.pending, lambda found: found[0].reviewers == ("Fin",))
    await rig.settle()
    assert (approval.reviewers, counter.calls) == (("Fin",), [])
    running.cancel()


async def test_d15_a_database_that_goes_away_while_a_grant_lifts_a_call_costs_no_call(
    rig: Rig, installation: Installation
) -> None:
    running, counter, ledger = await run_and_hold(rig)
    async with away(installation, "trace_head"):
        ledger.go.set()
        await rig.pass_time(5)
        assert not running.done()
    await rig.pass_time(5)
    ruling, _ = await asyncio.wait_for(running, LIMIT)
    assert (ruling.passed, len(counter.calls)) == (True, 1)
    assert (await installation.verify()).ok


class DeafLedger(Ledger):
    """The database takes what lifts a call, and is away before it says so: once."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.database, ledger.chain)
        self.failed = False

    async def transact(
        self, workspace: str, work: Callable[..., Transaction[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        done = await super().transact(workspace, work, *args, **kwargs)
        if "ApprovalWait._lift" in work.__qualname__ and not self.failed:
            self.failed = True
            raise StorageFailed("cannot use the database: the connection is lost; try again")
        return done


async def test_what_passed_although_nobody_heard_of_it_is_done_once(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.run(request(), counter := Counter()))
    [approval] = await rig.pending()
    rig.inbox.ledger = ledger = DeafLedger(rig.inbox.ledger)
    grant = await give(rig)
    rig.inbox.granted("local")
    await rig.until(lambda: rig.get(approval.id), lambda found: found.consumed_at is not None)
    await rig.pass_time(5)
    ruling, _ = await asyncio.wait_for(running, LIMIT)
    assert (ledger.failed, ruling.passed, ruling.by) == (True, True, f"grant:{grant.id}")
    steps = ["proposed", "decided", "resolved/granted", "consumed", "executed", "returned"]
    assert (len(counter.calls), await rig.steps(ruling.trace_id)) == (1, steps)
    assert rig.changes[-2:] == [(approval.id, "resolved"), (approval.id, "consumed")]
    assert (await rig.installation.verify()).ok


async def test_whoever_gives_a_grant_and_leaves_has_given_it(rig: Rig) -> None:
    running, _ = await waiting(rig, request())
    giving = asyncio.create_task(rig.inbox.granting("local", give(rig)))
    await asyncio.sleep(0)  # it has begun
    giving.cancel()
    assert (await asyncio.wait_for(running, LIMIT)).by.startswith("grant:")


async def test_money_that_is_spent_stops_what_a_grant_covers(
    installation: Installation, tmp_path: Path
) -> None:
    text = POLICY + "spend: {field: amount, per: total, limit: 100}\n"
    async with open_door(installation, tmp_path, text) as rig:
        tasks = [(await waiting(rig, request(action=call(amount=60, to=name))))[0] for name in ("ann", "bob")]
        await give(rig)
        rig.inbox.granted("local")
        rulings = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert sorted(ruling.outcome for ruling in rulings) == ["approved", "denied"]
        [stopped] = [ruling for ruling in rulings if not ruling.passed]
        assert (stopped.by, stopped.limit, stopped.rule) == ("policy", "spend", "p:spend")
        assert stopped.approval_id is not None
        assert (await rig.get(stopped.approval_id)).status is ApprovalState.CANCELLED
        assert await rig.steps(stopped.trace_id) == ["proposed", "decided", "cancelled/limit-reached"]
        assert (await installation.verify()).ok


class LateLedger(Ledger):
    """Right after a call was asked about, and before anybody waits for it, something happens."""

    def __init__(self, ledger: Ledger, then: Callable[[], Any]) -> None:
        super().__init__(ledger.database, ledger.chain)
        self._then = then

    async def transact(
        self, workspace: str, work: Callable[..., Transaction[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        done = await super().transact(workspace, work, *args, **kwargs)
        if work.__qualname__ == "DoorTransactions.enter":
            await self._then()
        return done


async def test_a_grant_between_the_question_and_the_wait_is_heard(rig: Rig) -> None:
    async def then() -> None:
        await give(rig)
        rig.inbox.granted("local")

    rig.inbox.ledger = LateLedger(rig.inbox.ledger, then)
    ruling = await asyncio.wait_for(rig.door.decide(request()), LIMIT)
    assert ruling.by.startswith("grant:")
    assert await rig.steps(ruling.trace_id) == ["proposed", "decided", "resolved/granted", "consumed"]


async def test_d15_a_grant_is_heard_although_the_database_was_away_then(
    rig: Rig, installation: Installation
) -> None:
    running, approval = await waiting(rig, request())
    await give(rig)
    async with away(installation, "approval_grant"):
        rig.inbox.granted("local")
        await rig.pass_time(5)
        assert (await rig.get(approval.id)).status is ApprovalState.PENDING
    await rig.pass_time(5)
    assert (await asyncio.wait_for(running, LIMIT)).by.startswith("grant:")


async def test_a_mode_for_edits_lets_pass_those_in_the_folder_alone(rig: Rig) -> None:
    def edit(path: str) -> DoorRequest:
        action = Action(agent="claude", tool="fs.write", kind="edit", paths=(path,))
        return request(action=action, session_id="s", in_session=True)

    inside, _ = await waiting(rig, edit("/w/a"))
    outside, approval = await waiting(rig, edit("/etc/a"))
    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    new = NewGrant(agent="claude", tools="*", kinds=["edit"], duration=60)
    giving = rig.installation.do(
        grants.give, PERSON, new, grant=new_grant_id(NOW), now_ms=rig.clock.now_ms(), session="s"
    )
    await rig.inbox.granting("local", giving)
    assert (await asyncio.wait_for(inside, LIMIT)).passed
    await rig.settle()
    assert (await rig.get(approval.id)).status is ApprovalState.PENDING
    outside.cancel()


async def test_a_grant_given_at_another_server_is_heard_by_whoever_waits_here(rig: Rig) -> None:
    other = another(rig, "srv-2", "prc_2")
    here = RemoteChanges(rig.inbox)
    await here.start()
    running, _ = await waiting(rig, request())
    await here.publish_new()
    await other.granting("local", give(rig))
    assert not running.done()
    await here.publish_new()
    assert (await asyncio.wait_for(running, LIMIT)).by.startswith("grant:")
    assert (await verify(rig.installation.database, rig.installation.sealer, "local", SERVER)).ok


async def test_a_grant_of_one_session_asks_nothing_of_those_who_wait_in_others(rig: Rig) -> None:
    (here, _), (there, elsewhere) = (
        await waiting(rig, of_session()),
        await waiting(rig, of_session(session="t")),
    )
    await rig.settle()
    asked: list[str | None] = []
    read = rig.installation.database.read

    async def reading(work: Callable[..., Transaction[Any]], *args: Any) -> Any:
        if work is lifting:
            asked.append(args[0].request.session_id)
        return await read(work, *args)

    rig.installation.database.read = reading  # type: ignore[method-assign, assignment]
    await rig.inbox.granting("local", give(rig, session="s"), session="s")
    assert (await asyncio.wait_for(here, LIMIT)).passed
    await rig.settle()
    assert (asked, (await rig.get(elsewhere.id)).status) == (["s"], ApprovalState.PENDING)
    there.cancel()


async def test_grants_of_other_servers_are_looked_for_with_one_query_however_many_workspaces_wait(
    rig: Rig,
) -> None:
    here = RemoteChanges(rig.inbox)
    await here.start()
    others = [
        asyncio.create_task(rig.door.decide(replace(request(), principal=replace(ASKER, workspace=each))))
        for each in WORKSPACES
    ]
    await rig.until(rows_of(rig), lambda found: found == len(WORKSPACES))
    await rig.settle()
    readings = 0
    read = rig.installation.database.read

    async def reading(*args: Any) -> Any:
        nonlocal readings
        readings += 1
        return await read(*args)

    rig.installation.database.read = reading  # type: ignore[method-assign, assignment]
    await here.publish_new()
    assert readings == 2  # where the chains end, and which grants count
    for each in others:
        each.cancel()


def rows_of(rig: Rig) -> Callable[[], Awaitable[int]]:
    async def count() -> int:
        return len(await rig.installation.sql("select id from approval where status = 'pending'"))

    return count
