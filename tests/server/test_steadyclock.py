"""The clock that things expire by: no change of the machine's date makes anything last longer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.database.databases import BOTH, Either, make, opened

from legation.clock import JUMP_MS, SteadyClock
from legation.server.installation import MARK_EVERY, keep, steady
from legation.testing.clock import FakeClock

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture(params=BOTH)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Either]:
    async with opened(make(request.param, tmp_path, request)) as either:
        yield either


def test_a_clock_that_is_set_back_prolongs_nothing() -> None:
    wall = FakeClock(NOW)
    clock = SteadyClock(wall)
    wall.advance(10)
    wall.set_wall(NOW - DAY)
    assert clock.now_ms() == NOW + 10_000
    wall.advance(5)
    assert clock.now_ms() == NOW + 15_000


def test_a_clock_that_stands_still_prolongs_nothing() -> None:
    wall = FakeClock(NOW)
    clock = SteadyClock(wall)
    for _ in range(60):
        wall.advance(60)
        wall.set_wall(NOW)
    assert clock.now_ms() == NOW + HOUR


def test_a_clock_that_was_behind_and_is_set_right_counts_and_does_not_go_back() -> None:
    wall = FakeClock(NOW)
    clock = SteadyClock(wall)
    wall.set_wall(NOW + DAY)
    assert clock.now_ms() == NOW + DAY
    wall.set_wall(NOW)
    wall.advance(1)
    assert clock.now_ms() == NOW + DAY + 1000


@pytest.mark.parametrize("moved", [DAY, -DAY, JUMP_MS + 60_000, -JUMP_MS - 60_000])
def test_a_jump_of_more_than_an_hour_is_told_once(moved: int) -> None:
    wall = FakeClock(NOW)
    clock = SteadyClock(wall)
    assert clock.jump() is None
    wall.set_wall(NOW + moved)
    words = clock.jump()
    assert words is not None
    assert ("went forward" if moved > 0 else "behind") in words
    assert clock.jump() is None


def test_a_jump_that_somebody_else_noticed_first_is_told_all_the_same() -> None:
    wall = FakeClock(NOW)
    clock = SteadyClock(wall)
    wall.set_wall(NOW + DAY)
    clock.now_ms()
    assert "24 h 0 min" in (clock.jump() or "")


def test_small_corrections_are_not_told() -> None:
    for moved in (JUMP_MS, -JUMP_MS, 1000, -1000):
        wall = FakeClock(NOW)
        clock = SteadyClock(wall)
        wall.set_wall(NOW + moved)
        assert clock.jump() is None


async def test_after_a_restart_the_later_of_mark_and_wall_counts(database: Either) -> None:
    told: list[str] = []
    wall = FakeClock(NOW)
    async with steady(database, wall, told.append):
        wall.advance(100)
    assert told == []
    async with steady(database, FakeClock(NOW - DAY), told.append) as clock:
        assert clock.now_ms() == NOW + 100_000
    assert ["behind" in words for words in told] == [True]
    async with steady(database, FakeClock(NOW + DAY), told.append) as clock:
        assert clock.now_ms() == NOW + DAY
    assert len(told) == 1  # a server that was down for a day is no jump


async def test_the_mark_is_kept_while_it_runs_so_that_a_kill_forgets_little(database: Either) -> None:
    wall = FakeClock(NOW)
    async with steady(database, wall, print):
        await wall.until_sleeping()
        wall.advance(MARK_EVERY)
        await wall.until_sleeping()  # it sleeps again once the mark is written
        async with steady(database, FakeClock(NOW - DAY), print) as other:  # as after kill -9
            assert other.now_ms() == NOW + MARK_EVERY * 1000


async def test_of_two_servers_the_later_one_counts(database: Either) -> None:
    wall = FakeClock(NOW)
    async with steady(database, wall, print) as clock:
        async with steady(database, FakeClock(NOW + HOUR), print):
            pass
        await keep(clock, database)
        assert clock.now_ms() == NOW + HOUR
