"""Limits of policies: calls, sums and loops. D4 and D5 are defects of the original that must not be here."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.approvals.installation import NOW
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces

from legation.approvals.limits import DAY_MS, KEPT_MS, LimitHit, Loops, billionths, charge, peek, take
from legation.approvals.policy.load import load_text
from legation.approvals.policy.rules import Loop, NameSet, PolicyLimits, Spend
from legation.errors import InvalidParams
from legation.store.counters import forget
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Rows, Transaction
from legation.testing.clock import FakeClock
from legation.wire.action import Action

TEN = (("support", PolicyLimits(max_per_minute=10)),)
MIDNIGHT = NOW // DAY_MS * DAY_MS + DAY_MS
WHO = ("local", "claude")

pytestmark = pytest.mark.heavy

_agents = count()
Work = Callable[[str, str, Any, Action, int], Transaction[LimitHit | None]]


def refund(amount: object = 1, tool: str = "refund") -> Action:
    return Action(agent="claude", tool=tool, params={"amount": amount})


def spend(limit: float = 500, per: Any = "day", tools: str | None = "refund") -> Spend:
    return Spend("amount", per, limit, None if tools is None else NameSet((tools,)))


@pytest.fixture
async def database(database: Either) -> Either:
    await add_workspaces(database)
    return database


async def tries(
    database: Either, times: int, limits: Any = TEN, now: int = NOW, agent: str = "claude"
) -> int:
    """How many of so many pass, one after another."""
    hits = [await database.transact(take, "local", agent, limits, refund(), now) for _ in range(times)]
    return hits.count(None)


async def spent(database: Either, limits: Any, *amounts: object, now: int = NOW) -> list[bool]:
    return [await database.transact(charge, *WHO, limits, refund(amount), now) is None for amount in amounts]


def statements(work: Work, limits: Any, rows: Rows = ()) -> tuple[list[str], LimitHit | None]:
    """What a work asks of the database that holds those rows, and what it says."""
    asked: list[str] = []
    transaction = work(*WHO, limits, refund(), NOW)
    try:
        statement = next(transaction)
        while True:
            asked.append(statement.query.name)
            written: Any = ({"what": "it was as it was read"},)
            statement = transaction.send(rows if statement.query.name == "held" else written)
    except StopIteration as done:
        return asked, done.value


# Calls.


async def test_so_many_pass_in_a_minute(database: Either) -> None:
    assert await tries(database, 12) == 10
    hit = await database.transact(take, *WHO, TEN, refund(), NOW + 400)
    assert hit == LimitHit("support", "per-minute", "more than 10 calls in a minute", 59.6)
    assert hit.rule == "support:max-per-minute"
    assert await tries(database, 2, now=NOW + 59_999) == 0
    assert await tries(database, 12, now=NOW + 60_000) == 10


async def test_fifty_at_once_pass_exactly_the_limit(database: Either) -> None:
    both = (("support", PolicyLimits(max_per_minute=10)), ("all", PolicyLimits(max_total=30)))
    async with asyncio.timeout(60):
        works = [database.transact(take, *WHO, both, refund(), NOW) for _ in range(50)]
        hits = await asyncio.gather(*works)
    assert hits.count(None) == 10
    assert {hit.limit for hit in hits if hit} == {"per-minute"}
    assert await tries(database, 50, both[1:]) == 20


async def test_d5_a_total_is_never_forgotten(tmp_path: Path) -> None:
    """The original forgets it after two idle minutes."""
    path, three = tmp_path / "legation.db", (("support", PolicyLimits(max_total=3)),)
    async with SqliteDatabase(path) as database:
        await database.migrate()
        await add_workspaces(database)
        assert await tries(database, 2, three) == 2
        later = NOW + 120_001
        assert await database.transact(forget, later) == 0
        assert await tries(database, 2, three, later) == 1
    async with SqliteDatabase(path) as database:
        for later in (NOW + 240_002, NOW + 400 * DAY_MS, NOW - 400 * DAY_MS):
            assert await database.transact(forget, later) == 0
            hit = await database.transact(take, *WHO, three, refund(), later)
            assert hit == LimitHit("support", "total", "more than 3 calls in all", None)
            assert hit.rule == "support:max-total"


async def test_the_minute_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "legation.db"
    async with SqliteDatabase(path) as database:
        await database.migrate()
        await add_workspaces(database)
        assert await tries(database, 7) == 7
    async with SqliteDatabase(path) as database:
        assert await tries(database, 7, now=NOW + 59_999) == 3


async def test_counters_are_apart_by_workspace_policy_and_agent(database: Either) -> None:
    one = PolicyLimits(max_per_minute=1, max_total=1)
    for workspace in ("local", "other"):
        for policy, agent in (("a", "b:c"), ("a:b", "c"), ("a", "c"), ("c", "a:b")):
            passed = [
                await database.transact(take, workspace, agent, ((policy, one),), refund(), NOW) is None
                for _ in range(2)
            ]
            assert passed == [True, False]


async def test_what_one_limit_refuses_no_limit_counts(database: Either) -> None:
    wide, narrow = (
        ("wide", PolicyLimits(max_per_minute=5, max_total=5)),
        ("narrow", PolicyLimits(max_total=2)),
    )
    assert await tries(database, 9, (wide, narrow)) == 2
    assert await tries(database, 9, (narrow, wide)) == 0
    assert await tries(database, 9, (wide,)) == 3


async def test_a_refused_amount_counts_no_call(database: Either) -> None:
    limits = (("p", PolicyLimits(max_total=1, spend=(spend(10),))),)
    for amount in (11, "1", -1, None):
        assert await database.transact(take, *WHO, limits, refund(amount), NOW) is not None
    assert await database.transact(take, *WHO, limits, refund(10), NOW) is None


@pytest.mark.parametrize("field", ["max_per_minute", "max_total"])
async def test_a_limit_that_changes_counts_at_once_and_what_was_counted(database: Either, field: str) -> None:
    def limited(most: int) -> Any:
        limits = {
            "max_per_minute": PolicyLimits(max_per_minute=most),
            "max_total": PolicyLimits(max_total=most),
        }
        return (("p", limits[field]),)

    assert await tries(database, 9, limited(5)) == 5
    assert await tries(database, 9, limited(3)) == 0
    assert await tries(database, 9, limited(100)) == 9
    assert await tries(database, 9, limited(15)) == 1


async def test_of_several_the_one_that_holds_longest_is_told(database: Either) -> None:
    limits = (
        ("a", PolicyLimits(max_per_minute=1)),
        ("b", PolicyLimits(max_total=1)),
        ("c", PolicyLimits(max_per_minute=1)),
    )
    await tries(database, 1, limits)
    hit = await database.transact(take, *WHO, limits, refund(), NOW)
    assert hit is not None
    assert hit.rule == "b:max-total"
    await tries(database, 1, limits[2:], NOW + 60_000)
    hit = await database.transact(take, *WHO, (limits[0], limits[2]), refund(), NOW + 60_000)
    assert hit == LimitHit("c", "per-minute", "more than 1 call in a minute", 60.0)


async def test_a_clock_that_was_set_back_locks_nobody_out(database: Either) -> None:
    await tries(database, 10)
    before = NOW - 300 * DAY_MS
    assert await tries(database, 1, now=before) == 0
    assert await tries(database, 1, now=before + 59_999) == 0
    assert await tries(database, 11, now=before + 60_000) == 10


async def test_the_wait_after_a_clock_was_set_back_runs_whichever_limit_refuses(database: Either) -> None:
    used_up = (*TEN, ("b", PolicyLimits(max_total=1)))
    await tries(database, 1, used_up[1:])
    await tries(database, 10)
    before = NOW - DAY_MS
    assert await tries(database, 1, used_up, before) == 0
    assert await tries(database, 11, now=before + 60_000) == 10


async def test_peek_says_what_take_would_and_counts_nothing(database: Either) -> None:
    limits = (("p", PolicyLimits(max_per_minute=2, max_total=3, spend=(spend(10),))),)
    for now in (NOW, NOW, NOW + 1, NOW - DAY_MS, NOW + 60_000, NOW + 120_000, NOW + 120_000):
        for amount in (None, 11, 5):
            seen = [await database.read(peek, *WHO, limits, refund(amount), now) for _ in range(3)]
            taken = await database.transact(take, *WHO, limits, refund(amount), now)
            assert seen == [taken] * 3
    assert taken is not None
    assert taken.limit == "total"


async def test_a_refusal_writes_nothing(database: Either) -> None:
    await tries(database, 10)
    hit = await database.read(take, *WHO, TEN, refund(), NOW)  # in a transaction that cannot write
    assert hit is not None


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ((), []),
        ((("p", PolicyLimits()), ("q", PolicyLimits(loop=None))), []),
        ((("p", PolicyLimits(spend=(spend(tools="other"),))),), []),
        (TEN, ["held", "put"]),
        (
            (*TEN, ("q", PolicyLimits(max_total=1)), ("r", PolicyLimits(spend=(spend(),)))),
            ["held", "put", "put"],
        ),
    ],
)
def test_a_call_costs_one_read_and_a_write_for_what_counts(limits: Any, asked: list[str]) -> None:
    assert statements(take, limits) == (asked, None)
    assert statements(peek, limits) == ([name for name in asked if name == "held"], None)


async def test_a_minute_that_is_over_is_forgotten_and_no_sooner(database: Either) -> None:
    await tries(database, 10)
    assert await database.transact(forget, NOW + 119_999) == 0
    assert await tries(database, 1, now=NOW + 59_999) == 0
    assert await database.transact(forget, NOW + 120_000) == 1
    assert await tries(database, 11, now=NOW + 120_000) == 10


async def test_a_name_that_no_table_takes_is_refused(database: Either) -> None:
    for name in ("", "a" * 257, "a\x00", "\ud800"):
        with pytest.raises(InvalidParams, match="agent's name"):
            await database.transact(take, "local", name, TEN, refund(), NOW)
    assert await tries(database, 11, agent="\N{GRINNING FACE}" * 256) == 10


@given(
    most=st.integers(1, 4),
    total=st.integers(1, 9),
    waits=st.lists(st.integers(0, 40_000) | st.sampled_from([59_999, 60_000]), min_size=5, max_size=20),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
async def test_it_is_a_list_of_times(database: Either, most: int, total: int, waits: list[int]) -> None:
    """Against the definition, through the database."""
    limits, agent = (("p", PolicyLimits(max_per_minute=most, max_total=total)),), f"agent-{next(_agents)}"
    passed, now = list[int](), NOW
    for wait in waits:
        now += wait
        recent = sum(now - each < 60_000 for each in passed)
        hit = await database.transact(take, "local", agent, limits, refund(), now)
        assert (hit is None) == (recent < most and len(passed) < total)
        if hit is None:
            passed.append(now)
        else:
            assert (hit.limit == "total") == (len(passed) >= total)


# Sums.


async def test_a_day_has_its_sum(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(500),))),)
    assert await spent(database, limits, 400, 100.01, 99.99, 0.01, 0.01, 0.0) == [1, 0, 1, 1, 0, 1]
    hit = await database.transact(charge, *WHO, limits, refund(1), MIDNIGHT - 1500)
    assert hit == LimitHit("p", "spend", "more than 500 of amount in a day", 1.5)
    assert hit.rule == "p:spend"
    assert await spent(database, limits, 500, 0.01, now=MIDNIGHT) == [True, False]


async def test_a_days_sum_counts_on_that_day_whatever_the_clock_did_between(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(500),))),)
    await spent(database, limits, 500)
    assert await spent(database, limits, 500, now=NOW + 3 * DAY_MS) == [True]
    assert await database.transact(forget, NOW + 6 * DAY_MS) == 0
    assert await spent(database, limits, 1, 0.01) == [False, False]
    assert await spent(database, limits, 500, now=NOW - 300 * DAY_MS) == [True]
    assert await database.transact(forget, MIDNIGHT + KEPT_MS) == 2


async def test_d5_a_sum_in_all_is_never_forgotten(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(500, "total"),))),)
    await spent(database, limits, 499)
    assert await database.transact(forget, NOW + 4000 * DAY_MS) == 0
    assert await spent(database, limits, 2, 1, now=NOW + 4000 * DAY_MS) == [False, True]
    hit = await database.transact(charge, *WHO, limits, refund(1), NOW)
    assert hit == LimitHit("p", "spend", "more than 500 of amount in all", None)


async def test_taking_looks_at_a_sum_and_does_not_add_to_it(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(10),))),)
    takes = [await database.transact(take, *WHO, limits, refund(10), NOW) for _ in range(3)]
    assert takes == [None] * 3
    hit = await database.transact(take, *WHO, limits, refund(10.5), NOW)
    assert hit is not None
    assert hit.retry_after is None  # it will not fit tomorrow either
    assert await spent(database, limits, 4) == [True]
    assert await database.transact(take, *WHO, limits, refund(7), NOW) is not None


async def test_of_fifty_that_waited_at_once_those_that_fit_are_charged(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(1),))), ("q", PolicyLimits(spend=(spend(0.75, "total"),))))
    async with asyncio.timeout(60):
        works = [database.transact(charge, *WHO, limits, refund(0.1), NOW) for _ in range(50)]
        hits = await asyncio.gather(*works)
    assert hits.count(None) == 7
    assert await spent(database, limits[:1], 0.31, 0.3, 0.000000001) == [False, True, False]


async def test_sums_are_charged_all_or_none(database: Either) -> None:
    limits = (
        ("p", PolicyLimits(spend=(spend(10), spend(3, "total")))),
        ("q", PolicyLimits(spend=(spend(4),))),
    )
    assert await spent(database, limits, 4, 3, 1) == [False, True, False]
    assert await spent(database, (("p", PolicyLimits(spend=(spend(10),))),), 8, 7) == [False, True]
    assert await spent(database, limits[1:], 2, 1) == [False, True]


@pytest.mark.parametrize("amount", ["1", -0.01, True, None, [1], float("nan"), float("inf"), 1.1e15, {}])
@pytest.mark.parametrize("work", [take, peek, charge])
def test_an_amount_that_cannot_be_told_is_refused(work: Work, amount: object) -> None:
    transaction = work(*WHO, (("p", PolicyLimits(max_total=1, spend=(spend(),))),), refund(amount), NOW)
    with pytest.raises(StopIteration) as done:
        next(transaction)
    assert done.value.value == LimitHit("p", "spend", "it cannot be told how much amount it is", None)


async def test_a_sum_that_is_limited_twice_is_counted_once(database: Either) -> None:
    twice = (
        (
            "p",
            PolicyLimits(spend=(spend(5), spend(10), Spend("params.amount", "day", 7, NameSet(("refund",))))),
        ),
    )
    assert await spent(database, twice, 4, 2, 1) == [True, False, True]


async def test_a_sums_limit_that_changes_counts_at_once_and_what_was_spent(database: Either) -> None:
    assert await spent(database, (("p", PolicyLimits(spend=(spend(10),))),), 10, 1) == [True, False]
    assert await spent(database, (("p", PolicyLimits(spend=(spend(12),))),), 3, 2) == [False, True]
    assert await spent(database, (("p", PolicyLimits(spend=(spend(1),))),), 0.5, 0) == [False, True]


async def test_a_field_is_the_same_in_both_ways_to_write_it(database: Either) -> None:
    for field, passes in (("amount", [True, False]), ("params.amount", [False, True])):
        limits = (("p", PolicyLimits(spend=(Spend(field, "day", 5, NameSet(("refund",))),))),)
        assert await spent(database, limits, *((3, 3) if field == "amount" else (3, 2))) == passes


async def test_sums_of_other_tools_and_arguments_are_apart(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(5), spend(5, tools="pay"), Spend("cents", "day", 5)))),)
    assert await spent(database, limits, 5, 1) == [True, False]
    for paid in (None, "p:spend"):
        hit = await database.transact(charge, *WHO, limits, refund(5, "pay"), NOW)
        assert (hit.rule if hit else None) == paid
    cents = Action(agent="claude", tool="x", params={"cents": 5})
    assert await database.transact(charge, *WHO, limits, cents, NOW) is None
    assert await database.transact(charge, *WHO, limits, cents, NOW) is not None


async def test_cents_are_exact_up_to_the_largest_amount(database: Either) -> None:
    limits = (("p", PolicyLimits(spend=(spend(1e15, "total"),))),)
    assert await spent(database, limits, 999_999_999_999_999) == [True]
    assert all(await spent(database, limits, *[0.01] * 99, 0.01))
    assert await spent(database, limits, 0.01, 0.001, 1e-300) == [False] * 3


def test_amounts_count_as_they_are_written() -> None:
    assert billionths(19.99) == 19_990_000_000
    assert billionths(0.1 + 0.2) == billionths(0.3)
    assert billionths(1e15) == 10**24
    assert billionths(5e-324) == 1
    assert billionths(0.0) == 0


# Loops.


def loop(same: int = 3, within: float = 10.0, name: str = "p") -> Any:
    return ((name, PolicyLimits(loop=Loop(same, within))),)


def test_d4_loops_are_noticed_unless_the_policy_says_otherwise() -> None:
    """The original looks for loops only in policies that have a rate limit."""
    policies = load_text("name: plain\nrules: [{action: allow}]\n")
    loops, digest = Loops(FakeClock()), refund().digest()
    hits = [loops.repeated(WHO, digest, policies.limits("claude")) for _ in range(3)]
    assert hits[:2] == [None, None]
    assert hits[2] == LimitHit("plain", "loop", "the same call 3 times within 10 seconds", 10.0)
    assert hits[2].rule == "plain:loop"
    off = load_text("name: plain\nloop: off\nrules: [{action: allow}]\n")
    assert [loops.repeated(WHO, digest, off.limits("claude")) for _ in range(9)] == [None] * 9


def test_a_loop_stays_one_until_the_agent_pauses() -> None:
    clock = FakeClock()
    loops, hits = Loops(clock), list[bool]()
    for _ in range(50):
        hits.append(loops.repeated(WHO, "d", loop()) is not None)
        clock.advance(4.9)
    assert hits == [False, False] + [True] * 48
    assert len(loops) == 3
    told = loops.repeated(WHO, "d", loop())
    assert told is not None
    assert told.retry_after == pytest.approx(5.1)
    clock.advance(5.1)
    assert loops.repeated(WHO, "d", loop()) is None


def test_slow_repetition_and_different_calls_are_no_loop() -> None:
    clock = FakeClock()
    loops = Loops(clock)
    for number in range(20):
        assert loops.repeated(WHO, "slow", loop()) is None
        assert loops.repeated(WHO, f"d{number}", loop()) is None
        clock.advance(5)


def test_loops_are_apart_by_whose_they_are() -> None:
    loops = Loops(FakeClock())
    for key in (("a", "b:c"), ("a:b", "c"), ("a", "b", "c"), ("ab", "c"), ("a", "bc"), ("\ud800",)):
        assert [loops.repeated(key, "d", loop(2)) is None for _ in range(2)] == [True, False]


def test_policies_with_the_same_loop_note_a_call_once_and_with_others_each() -> None:
    loops, both = Loops(FakeClock()), (*loop(3, name="a"), *loop(3, name="b"), *loop(2, 60, name="c"))
    told = [loops.repeated(WHO, "d", both) for _ in range(3)]
    assert [hit and (hit.policy, hit.retry_after) for hit in told] == [None, ("c", 60.0), ("c", 60.0)]
    told = [loops.repeated(WHO, "e", both[:2]) for _ in range(3)]
    assert [hit and hit.policy for hit in told] == [None, None, "a"]


def test_looking_for_a_loop_notes_nothing() -> None:
    loops = Loops(FakeClock())
    for expected in (None, None, "loop", "loop"):
        for _ in range(3):
            seen = loops.repeated(WHO, "d", loop(), note=False)
            assert (seen and seen.limit) == expected
        assert loops.repeated(WHO, "d", loop()) == seen
    assert loops.repeated(("nobody",), "d", loop(), note=False) is None
    assert len(loops) == 1  # all of them in one millisecond


@given(
    same=st.integers(2, 5),
    waits=st.lists(st.integers(0, 6000) | st.sampled_from([9999, 10_000]), max_size=40),
)
@settings(deadline=None)
def test_a_loop_is_so_many_calls_in_the_time(same: int, waits: list[int]) -> None:
    clock = FakeClock(0)
    loops, times = Loops(clock), list[int]()
    for wait in waits:
        clock.advance(wait / 1000)
        times.append(clock.now_ms())
        recent = sum(times[-1] - each < 10_000 for each in times)
        assert (loops.repeated(WHO, "d", loop(same)) is not None) == (recent >= same)
        assert len(loops) <= same


def test_a_loop_of_very_many_is_counted_in_little_space() -> None:
    clock = FakeClock()
    loops, hits = Loops(clock), list[bool]()
    for _ in range(1200):
        hits.append(loops.repeated(WHO, "d", loop(1000, 60.0)) is not None)
        clock.advance(0.05)
    assert hits == [False] * 999 + [True] * 201
    assert len(loops) <= 61


def test_memory_is_bounded_whatever_agents_do() -> None:
    clock = FakeClock()
    loops = Loops(clock, most=100, most_of_one=20)
    assert loops.repeated(WHO, "d", loop(2)) is None
    for number in range(1000):
        loops.repeated(("local", "noisy"), f"{number}", loop())
        assert len(loops) <= 21
    assert (
        loops.repeated(WHO, "d", loop(2), note=False) is not None
    )  # another agent's noise did not push it out
    for number in range(1000):
        for _ in range(3):
            loops.repeated(("local", f"agent-{number}" * 1000), "d", loop())
            clock.advance(0.001)
            assert len(loops) <= 100
    assert loops.repeated(WHO, "d", loop(2), note=False) is None
    assert loops.repeated(("local", "agent-999" * 1000), "d", loop(), note=False) is not None


def test_what_was_used_longest_ago_is_dropped_first() -> None:
    loops = Loops(FakeClock(), most=4, most_of_one=3)
    for digest in "abcad":  # b is the one
        loops.repeated(WHO, digest, loop(2))
    assert [loops.repeated(WHO, digest, loop(2), note=False) is not None for digest in "abcd"] == [1, 0, 1, 1]
    loops.repeated(("second",), "a", loop(2))
    loops.repeated(WHO, "a", loop(2))
    loops.repeated(("third",), "a", loop(2))  # one too many: the second agent called longest ago
    keys = (WHO, ("second",), ("third",))
    assert [loops.repeated(key, "a", loop(2), note=False) is not None for key in keys] == [1, 0, 1]
