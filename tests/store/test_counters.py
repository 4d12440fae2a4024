from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces

from legation.errors import Unavailable
from legation.store import counters
from legation.store.counters import FINEST, SKEW_MS, Held, Window, forget, held, put
from legation.store.database import postgres
from legation.store.database.transaction import Dangling, Overtaken

NOW = 1_700_000_000_000
SPAN = 60_000
SLOT = SPAN // FINEST

# Often within a window, around its edge, and far beyond it.
WAITS = (
    st.integers(0, 3000)
    | st.sampled_from([0, 1, 999, 1000, SPAN - 1, SPAN, SPAN + 1])
    | st.integers(0, 200_000)
)
FEW = st.integers(1, 6)
MANY = st.integers(FINEST + 1, FINEST + 3)


def attempt(window: Window, limit: int, now: int) -> tuple[bool, Window]:
    """As a limit does it: what is refused is not counted."""
    window = Window.read(window.written()).now(now, SPAN)
    return (False, window) if window.count >= limit else (True, window.counted(limit, SPAN))


def passing(limit: int, times: Iterable[int]) -> list[int]:
    window, passed = Window(0), []
    for now in times:
        allowed, window = attempt(window, limit, now)
        if allowed:
            passed.append(now)
    return passed


def most_in_any(span: int, times: list[int]) -> int:
    return max((sum(first <= each < first + span for each in times) for first in times), default=0)


@given(limit=FEW, waits=st.lists(WAITS, max_size=60))
@settings(deadline=None)
def test_a_small_window_is_the_list_of_what_passed(limit: int, waits: list[int]) -> None:
    """Against the definition: the times of all that passed, none of them rounded."""
    window, passed, now = Window(NOW), list[int](), NOW
    for wait in waits:
        now += wait
        recent = [each for each in passed if now - each < SPAN]
        allowed, window = attempt(window, limit, now)
        assert allowed == (len(recent) < limit)
        if allowed:
            passed.append(now)
        else:
            assert window.wait(limit, now, SPAN) == recent[-limit] + SPAN - now
        assert len(window.slots) <= limit


@given(limit=MANY, bursts=st.lists(st.tuples(WAITS, st.integers(1, 40)), max_size=25))
@settings(deadline=None)
def test_a_large_window_never_passes_more_and_is_late_by_a_slot_at_most(
    limit: int, bursts: list[tuple[int, int]]
) -> None:
    window, passed, now = Window(NOW), list[int](), NOW
    for wait, times in bursts:
        now += wait
        for _ in range(times):
            allowed, window = attempt(window, limit, now)
            assert allowed or sum(now - each < SPAN + SLOT for each in passed) >= limit
            if allowed:
                passed.append(now)
        assert len(window.slots) <= FINEST + 1
    assert most_in_any(SPAN, passed) <= limit


@given(
    changes=st.lists(st.tuples(WAITS, st.sampled_from([1, 3, FINEST, FINEST + 1, FINEST + 30])), max_size=60)
)
@settings(deadline=None)
def test_a_limit_that_changes_counts_what_was_counted(changes: list[tuple[int, int]]) -> None:
    window, passed, now = Window(NOW), list[int](), NOW
    for wait, limit in changes:
        now += wait
        allowed, window = attempt(window, limit, now)
        recent = sum(now - each < SPAN for each in passed)
        assert not allowed or recent < limit
        assert allowed or sum(now - each < SPAN + SLOT for each in passed) >= limit
        passed += [now] * allowed


@given(limit=st.one_of(FEW, MANY), moves=st.lists(WAITS | WAITS.map(int.__neg__), max_size=80))
@settings(deadline=None)
def test_no_clock_that_is_set_back_passes_more_or_locks_out(limit: int, moves: list[int]) -> None:
    """The true time goes on by the forward moves alone: a clock that is set back takes no time back."""
    window, passed, now, true = Window(NOW), list[int](), NOW, 0
    for move in moves:
        now += move
        true += max(move, 0)
        allowed, window = attempt(window, limit, now)
        if allowed:
            passed.append(true)
        else:
            wait = window.wait(limit, now, SPAN)
            assert 0 < wait <= SPAN + SLOT + SKEW_MS
            assert attempt(window, limit, now + wait)[0]
            assert not attempt(window, limit, now + wait - 1)[0]
    assert most_in_any(SPAN, passed) <= limit


def test_the_wait_ends_with_a_clock_that_was_set_back_a_day() -> None:
    assert passing(2, [NOW, NOW + 10_000, NOW + 10_001]) == [NOW, NOW + 10_000]
    day_before = NOW - 86_400_000
    times = [NOW, NOW + 10_000, day_before, day_before + 49_999, day_before + 50_000, day_before + 50_001]
    assert passing(2, times)[2:] == [day_before + 50_000]


def test_servers_whose_clocks_differ_pass_no_more() -> None:
    ahead, behind = NOW + 5000, NOW
    assert len(passing(10, [ahead, behind] * 10)) == 10
    assert len(passing(10, [ahead, behind] * 10 + [ahead + 59_999, behind + 59_999])) == 10
    assert len(passing(10, [ahead, behind] * 10 + [ahead + 60_000])) == 11


def test_one_call_every_two_seconds_is_thirty_a_minute() -> None:
    times = list(range(NOW, NOW + 600_000, 2000))
    assert passing(30, times) == times


@given(calls=st.integers(1, 9), slots=st.lists(st.integers(1, 5), max_size=8))
@settings(deadline=None)
def test_the_last_calls_are_kept(calls: int, slots: list[int]) -> None:
    window = Window(NOW, tuple((NOW + place, count) for place, count in enumerate(slots)))
    kept = window.last(calls)
    assert kept.slots == window.slots[len(window.slots) - len(kept.slots) :]
    assert kept.count >= min(calls, window.count)
    assert not kept.slots or kept.count - kept.slots[0][1] < calls


async def all_of(database: Either, workspace: str, agent: str) -> Held:
    return await database.read(held, workspace, agent)


async def test_a_counter_holds_what_was_last_put(database: Either) -> None:
    await add_workspaces(database)
    assert await all_of(database, "local", "claude") == {}
    for former, value in ((None, "1"), ("1", "2")):
        await database.transact(put, "local", "claude", "support", "total", value, None, former)
    await database.transact(put, "local", "claude", "support", "per-minute", "x", NOW)
    assert await all_of(database, "local", "claude") == {
        ("support", "total"): "2",
        ("support", "per-minute"): "x",
    }


@pytest.mark.parametrize("former", [None, "1"])
async def test_a_counter_that_has_changed_since_it_was_read_is_not_written(
    database: Either, former: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "TRIES", 1)
    await add_workspaces(database)
    await database.transact(put, "local", "claude", "support", "total", "2", None)
    with pytest.raises((Overtaken, Unavailable)):  # on Postgres it is tried again before it is given up
        await database.transact(put, "local", "claude", "support", "total", "3", None, former)
    assert await all_of(database, "local", "claude") == {("support", "total"): "2"}


async def test_no_name_can_be_taken_for_a_part_of_another(database: Either) -> None:
    await add_workspaces(database)
    names = ["a", "a:b", "b", "a b", "a\\", "a:b:total", "ä", "\N{GRINNING FACE}" * 256, "A", "%", "_"]
    keys = [(space, agent, policy) for space in ("local", "other") for agent in names for policy in names[:6]]
    for place, (workspace, agent, policy) in enumerate(keys):
        await database.transact(put, workspace, agent, policy, "total", str(place), None)
    for place, (workspace, agent, policy) in enumerate(keys):
        found = await all_of(database, workspace, agent)
        assert len(found) == 6
        assert found[policy, "total"] == str(place)


async def test_what_is_over_is_forgotten_in_batches(
    database: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "FORGET_BATCH", 2)
    await add_workspaces(database)
    for agent in ("a", "b", "c"):
        await database.transact(put, "local", agent, "p", "per-minute", "x", NOW)
        await database.transact(put, "local", agent, "p", "total", "1", None)
    await database.transact(put, "other", "a", "p", "per-minute", "x", NOW + 1)
    assert await database.transact(forget, NOW - 1) == 0
    assert [await database.transact(forget, NOW) for _ in range(3)] == [2, 1, 0]
    assert [await all_of(database, "local", agent) for agent in "abc"] == [{("p", "total"): "1"}] * 3
    assert await all_of(database, "other", "a") == {("p", "per-minute"): "x"}
    assert await database.transact(forget, NOW + 10**15) == 1


async def test_a_workspace_that_is_not_there_has_no_counters(database: Either) -> None:
    with pytest.raises(Dangling):
        await database.transact(put, "nowhere", "a", "p", "total", "1", None)
