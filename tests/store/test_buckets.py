import asyncio
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.database.databases import Either

from legation.errors import InternalError
from legation.store import counters
from legation.store.counters import SKEW_MS, Buckets, Limit, TakeResult, forget_full, take
from legation.store.database.sqlite import MemoryDatabase, SqliteDatabase
from legation.store.database.transaction import Transaction, parse
from legation.testing.clock import FakeClock

NOW = 1_700_000_000_000
ONE_A_SECOND = Limit(10, 10)

(COUNT,) = parse("-- name: count\nselect count(*) as rows from bucket;")

_names = count()
LIMITS = st.builds(Limit, st.integers(1, 7), st.integers(1, 5))


def rows() -> Transaction[int]:
    (row,) = yield COUNT()
    return int(row["rows"])


async def tries(
    database: Either, times: int, now_ms: int, name: str = "b", limit: Limit = ONE_A_SECOND
) -> int:
    """How many of so many pass, one after another."""
    return sum([(await database.transact(take, "", name, limit, now_ms)).allowed for _ in range(times)])


async def test_what_it_holds_passes_and_then_what_has_flowed_in(database: Either) -> None:
    assert await tries(database, 12, NOW) == 10
    assert await database.transact(take, "", "b", ONE_A_SECOND, NOW + 400) == TakeResult(False, 0.6)
    assert await database.transact(take, "", "b", ONE_A_SECOND, NOW + 1000) == TakeResult(True)
    assert await tries(database, 12, NOW + 4500) == 3
    assert await tries(database, 12, NOW + 1_000_000) == 10


async def test_buckets_are_apart_by_workspace_and_name(database: Either) -> None:
    assert await tries(database, 11, NOW) == 10
    assert await tries(database, 11, NOW, "c") == 10
    assert (await database.transact(take, "local", "b", ONE_A_SECOND, NOW)).allowed


async def test_a_costly_one_takes_more_and_waits_longer(database: Either) -> None:
    assert (await database.transact(take, "", "b", ONE_A_SECOND, NOW, cost=8)).allowed
    assert await database.transact(take, "", "b", ONE_A_SECOND, NOW, cost=5) == TakeResult(False, 3.0)
    assert (await database.transact(take, "", "b", ONE_A_SECOND, NOW, cost=2)).allowed


async def test_fifty_at_once_get_exactly_what_it_holds(database: Either) -> None:
    works = [database.transact(take, "", "b", Limit(10, 3600), NOW) for _ in range(50)]
    taken = await asyncio.gather(*works)
    assert sum(each.allowed for each in taken) == 10
    assert all(each.retry_after > 0 for each in taken if not each.allowed)


async def test_a_crowd_at_two_servers_gets_through_and_nobody_twice(database: Either) -> None:
    servers = [Buckets(database, FakeClock()) for _ in range(2)]
    works = [server.take("", "b", Limit(150, 3600)) for _ in range(100) for server in servers]
    assert sum(each.allowed for each in await asyncio.gather(*works)) == 150


async def test_a_line_that_does_not_move_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "TURN_LIMIT", 0.05)
    begun, held = asyncio.Event(), asyncio.Event()

    class Stuck(MemoryDatabase):
        async def transact(self, *args: Any, **kwargs: Any) -> Any:
            begun.set()
            await held.wait()
            return await super().transact(*args, **kwargs)

    async with Stuck() as database:
        waiting = Buckets(database, FakeClock())
        first = asyncio.create_task(waiting.take("", "b", ONE_A_SECOND))
        async with asyncio.timeout(10):
            await begun.wait()
            assert not (await waiting.take("", "b", ONE_A_SECOND)).allowed
        held.set()
        assert (await first).allowed
        assert (await waiting.take("", "b", ONE_A_SECOND)).allowed


async def test_servers_that_remember_how_they_left_it_take_no_more_than_there_is(database: Either) -> None:
    clock = FakeClock()
    servers = [Buckets(database, clock), Buckets(database, clock)]

    async def taken() -> list[bool]:
        turns = (servers[number] for number in (0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1))
        return [(await server.take("", "b", ONE_A_SECOND)).allowed for server in turns]

    assert await taken() == [True] * 10 + [False] * 3
    clock.advance(4)
    assert await taken() == [True] * 4 + [False] * 9
    clock.advance(60)
    assert await database.transact(forget_full, clock.now_ms()) == 1
    assert await taken() == [True] * 10 + [False] * 3


async def test_it_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "legation.db"
    async with SqliteDatabase(path) as database:
        await database.migrate()
        assert await tries(database, 7, NOW) == 7
    async with SqliteDatabase(path) as database:
        assert await tries(database, 7, NOW) == 3


async def test_full_ones_are_forgotten_and_others_kept(database: Either) -> None:
    await database.transact(take, "", "soon-full", ONE_A_SECOND, NOW)
    await tries(database, 5, NOW, "later-full")
    assert await database.transact(counters.forget_full, NOW + 999) == 0
    assert await database.transact(counters.forget_full, NOW + 1000) == 1
    assert await database.read(rows) == 1
    assert await tries(database, 12, NOW + 1000, "later-full") == 6
    assert await tries(database, 12, NOW + 1000, "soon-full") == 10


async def test_a_refusal_writes_nothing(database: Either) -> None:
    await tries(database, 10, NOW)

    def refused() -> Transaction[TakeResult]:
        return (yield from take("", "b", ONE_A_SECOND, NOW + 10))

    assert not (await database.read(refused)).allowed  # in a transaction that cannot write


async def test_servers_whose_clocks_differ_do_not_refill_twice(database: Either) -> None:
    await tries(database, 10, NOW)
    passed = 0
    for _ in range(5):  # one of them is five seconds behind
        passed += await tries(database, 3, NOW - 5000)
        passed += await tries(database, 3, NOW)
    assert passed == 0


async def test_a_clock_that_was_set_back_locks_nobody_out(database: Either) -> None:
    await tries(database, 10, NOW)
    day_before = NOW - 86_400_000
    assert await tries(database, 3, day_before) == 0
    assert await tries(database, 3, day_before + 1000) == 1
    await database.transact(take, "", "minute", Limit(1, 1), NOW)
    told = await database.transact(take, "", "minute", Limit(1, 1), NOW - SKEW_MS)
    assert told == TakeResult(False, SKEW_MS / 1000 + 1)


async def test_the_wait_that_is_told_is_long_enough(database: Either) -> None:
    three = Limit(3, 1)
    assert await tries(database, 4, NOW, limit=three) == 3
    assert await database.transact(take, "", "b", three, NOW) == TakeResult(False, 0.334)
    assert not (await database.transact(take, "", "b", three, NOW + 333)).allowed
    assert (await database.transact(take, "", "b", three, NOW + 334)).allowed


async def test_a_limit_may_change(database: Either) -> None:
    await database.transact(take, "", "behind", Limit(100, 100), NOW)
    assert await tries(database, 20, NOW - 1, "behind", limit=Limit(5, 5)) == 5
    await database.transact(take, "", "b", Limit(100, 100), NOW)
    assert await tries(database, 20, NOW, limit=Limit(5, 5)) == 5
    assert await tries(database, 20, NOW + 1000, limit=Limit(100, 10)) == 10


@given(
    limit=LIMITS, steps=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 7)), min_size=5, max_size=25)
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
async def test_it_is_a_token_bucket(database: Either, limit: Limit, steps: list[tuple[int, int]]) -> None:
    """Against the definition, in fractions."""
    name, now = f"model.{next(_names)}", NOW
    tokens = Fraction(limit.capacity)
    for wait, wanted in steps:
        now += wait
        tokens = min(Fraction(limit.capacity), tokens + Fraction(wait * limit.capacity, limit.per_ms))
        cost = min(wanted, limit.capacity)
        taken = await database.transact(take, "", name, limit, now, cost)
        assert taken.allowed == (tokens >= cost)
        if taken.allowed:
            tokens -= cost
        else:
            exact = (cost - tokens) * limit.per_ms / limit.capacity
            assert exact <= round(taken.retry_after * 1000) < exact + 1


@given(limit=LIMITS, moves=st.lists(st.integers(-200_000, 200_000) | st.integers(-20, 20), max_size=25))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
async def test_no_clock_gives_more_than_the_time_that_passed(
    database: Either, limit: Limit, moves: list[int]
) -> None:
    name, now = f"clock.{next(_names)}", NOW
    passed, forward = 0, 0
    for move in moves:
        now += move
        forward += max(move, 0)
        taken = await database.transact(take, "", name, limit, now)
        passed += taken.allowed
        assert passed <= limit.capacity + Fraction(forward * limit.capacity, limit.per_ms)
        assert taken.retry_after <= max(SKEW_MS / 1000, limit.per_seconds) + limit.per_seconds


async def test_what_makes_no_sense_is_refused(database: Either) -> None:
    for bad in ((0, 1), (1, 0), (2**50, 10)):
        with pytest.raises(InternalError):
            Limit(*bad)
    for cost in (0, 11):
        with pytest.raises(InternalError):
            await database.transact(take, "", "b", ONE_A_SECOND, NOW, cost=cost)


async def test_a_name_that_could_be_a_credential_is_refused(database: Either) -> None:
    with pytest.raises(InternalError, match="name of a bucket"):
        await database.transact(take, "", f"sign-in:{'0' * 43}", ONE_A_SECOND, NOW)
    assert await database.read(rows) == 0
