"""The row of a run as a queue: claims, leases, slots, on both databases."""

import asyncio
from dataclasses import replace

import pytest
from tests.store.database.databases import Either

from legation.clock import new_id
from legation.runs.run import (
    Change,
    LeaseLost,
    LeaseReturn,
    NewRun,
    Run,
    RunCaps,
    add_run,
    claim,
    find_run,
    hold,
    release,
    renew,
    request_cancel,
    settle,
    wake,
)
from legation.runs.states import RunState
from legation.store.database.transaction import Duplicate
from legation.wire.api.runs import Priority

NOW = 1_700_000_000_000
LEASE = 30_000


async def submit(
    database: Either,
    *,
    priority: Priority = "normal",
    concurrency: int = 100,
    workspace: str = "local",
    key: str | None = None,
    now: int = NOW,
) -> str:
    new = NewRun(
        id=new_id("run"),
        workspace=workspace,
        creator_kind="token",
        creator="tok_1",
        creator_user="usr_1",
        agent="rehearsal",
        provider="sandbox",
        caps=RunCaps(concurrency=concurrency),
        request_hash="hash",
        priority=priority,
        idempotency_key=key,
    )
    await database.transact(add_run, new, now_ms=now)
    return new.id


async def claimed(
    database: Either, limit: int = 50, *, owner: str = "w1", machine: str = "m1", now: int = NOW
) -> list[Run]:
    token = new_id("lse")
    return await database.transact(claim, owner, machine, token, limit, now_ms=now, until_ms=now + LEASE)


async def state(database: Either, run_id: str) -> Run:
    found = await database.read(find_run, "local", run_id)
    assert found is not None
    return found


async def test_the_more_urgent_come_first_then_the_longest_due(database: Either) -> None:
    late = await submit(database, now=NOW + 1)
    low = await submit(database, priority="low", now=NOW - 5)
    early = await submit(database, now=NOW)
    high = await submit(database, priority="high", now=NOW + 2)
    first = await claimed(database, 3, now=NOW + 10)
    assert [run.id for run in first] == [high, early, late]
    assert [run.id for run in await claimed(database, 3, now=NOW + 10)] == [low]


async def test_a_run_is_claimed_once_by_many_at_once(database: Either) -> None:
    runs = {await submit(database) for _ in range(40)}
    batches = await asyncio.gather(*(claimed(database, 7, owner=f"w{number}") for number in range(12)))
    ids = [run.id for batch in batches for run in batch]
    assert len(ids) == len(set(ids))
    rest = await claimed(database, 100)
    assert {*ids, *(run.id for run in rest)} == runs


async def test_a_lease_that_ran_out_goes_to_another_and_its_former_holder_writes_nothing(
    database: Either,
) -> None:
    run_id = await submit(database)
    (mine,) = await claimed(database)
    assert await claimed(database, owner="w2") == []
    later = NOW + LEASE
    # It has run out, and nobody has it yet: it is not taken up again.
    assert await database.transact(renew, [mine], now_ms=later, until_ms=later + LEASE) == set()
    with pytest.raises(LeaseLost):
        await database.transact(hold, mine, now_ms=later)
    (theirs,) = await claimed(database, owner="w2", now=later)
    assert theirs.id == run_id
    changed = Change(mine, replace(mine, state=RunState.PREPARING), later)
    assert await database.transact(settle, [changed], now_ms=later) == {}
    assert await database.transact(release, [LeaseReturn(mine, later)], now_ms=later) == set()
    assert (await state(database, run_id)).lease_token == theirs.lease_token
    assert (await database.transact(hold, theirs, now_ms=later)).id == run_id


async def test_one_that_was_stolen_takes_no_other_along(database: Either) -> None:
    for _ in range(3):
        await submit(database)
    first, second, third = await claimed(database)
    stolen = replace(second, lease_token="another")
    kept = await database.transact(renew, [first, stolen, third], now_ms=NOW, until_ms=NOW + 1)
    assert kept == {first.id, third.id}
    given = [LeaseReturn(each, NOW + 1000) for each in (first, stolen, third)]
    assert await database.transact(release, given, now_ms=NOW) == {first.id, third.id}
    assert await claimed(database, now=NOW + 999) == []  # the stolen one is still leased
    assert {run.id for run in await claimed(database, now=NOW + 1000)} == {first.id, third.id}


async def test_one_that_is_woken_while_it_is_held_is_due_when_it_is_released(database: Either) -> None:
    run_id = await submit(database)
    (run,) = await claimed(database)
    assert await database.transact(wake, "local", run_id, now_ms=NOW + 1)
    assert await claimed(database, now=NOW + 2) == []  # it is held
    await database.transact(release, [LeaseReturn(run, NOW + 60_000)], now_ms=NOW + 3)
    (again,) = await claimed(database, now=NOW + 3)
    await database.transact(release, [LeaseReturn(again, NOW + 60_000)], now_ms=NOW + 4)
    assert await claimed(database, now=NOW + 59_999) == []


async def test_a_cancel_is_asked_for_once_and_seen_before_the_next_effect(database: Either) -> None:
    run_id = await submit(database)
    (run,) = await claimed(database)
    assert not run.is_unwanted
    assert await database.transact(request_cancel, "local", run_id, now_ms=NOW + 1)
    assert not await database.transact(request_cancel, "local", run_id, now_ms=NOW + 2)
    assert not await database.transact(request_cancel, "other", run_id, now_ms=NOW + 2)
    assert (await database.transact(hold, run, now_ms=NOW + 3)).is_unwanted


async def test_what_is_bound_to_a_machine_is_claimed_there_alone(database: Either) -> None:
    await submit(database)
    (run,) = await claimed(database)
    bound = replace(run, state=RunState.STARTING, machine="m1")
    assert run.id in await database.transact(settle, [Change(run, bound, NOW)], now_ms=NOW)
    assert await claimed(database, machine="m2") == []
    assert [each.machine for each in await claimed(database)] == ["m1"]


async def test_at_the_cap_a_run_is_parked_and_gets_the_slot_that_is_given_back(database: Either) -> None:
    first, second, third = [await submit(database, concurrency=1) for _ in range(3)]
    elsewhere = await submit(database, concurrency=1, workspace="other")
    runs = {run.id: run for run in await claimed(database)}
    taken = [
        Change(run, replace(run, state=RunState.PREPARING, has_slot=True), NOW, "take")
        for run in runs.values()
    ]
    now = await database.transact(settle, taken, now_ms=NOW)
    assert {id_: run.state for id_, run in now.items()} == {
        first: RunState.PREPARING,
        second: RunState.QUEUED,
        third: RunState.QUEUED,
        elsewhere: RunState.PREPARING,
    }
    due = {run.id: run for run in await claimed(database, now=NOW + LEASE * 100)}
    assert due.keys() == {first, elsewhere}  # nobody looks at what is parked
    over = due[first]
    ended = replace(over, state=RunState.SUCCEEDED, has_slot=False, ended_at=NOW)
    later = NOW + LEASE * 100
    await database.transact(settle, [Change(over, ended, None, "give")], now_ms=later)
    (next_,) = await claimed(database, now=later)
    assert (next_.id, next_.has_slot) == (second, True)
    assert (await state(database, first)).next_check_at is None


async def test_a_parked_run_that_is_cancelled_is_looked_at(database: Either) -> None:
    first, second = [await submit(database, concurrency=1) for _ in range(2)]
    runs = await claimed(database)
    await database.transact(
        settle, [Change(run, replace(run, state=RunState.PREPARING), NOW, "take") for run in runs], now_ms=NOW
    )
    assert (await state(database, second)).next_check_at is None
    await database.transact(request_cancel, "local", second, now_ms=NOW + 1)
    assert second in {run.id for run in await claimed(database, now=NOW + 1)}
    assert first != second


async def test_a_key_is_used_once_in_a_workspace(database: Either) -> None:
    await submit(database, key="k")
    await submit(database, key="k", workspace="other")
    with pytest.raises(Duplicate):
        await submit(database, key="k")
