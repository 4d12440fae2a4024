"""The log of a process (INV-P3, INV-P4), without a process."""

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from legation.server.processes.output import PIECE_COST, ProcessLog


@given(
    st.lists(st.integers(0, 4000), max_size=60),
    st.integers(1, 6 * (PIECE_COST + 1000)),
    st.integers(0, 70),
)
def test_numbers_are_dense_the_limit_holds_and_what_is_gone_is_counted(
    sizes: list[int], limit: int, after: int
) -> None:
    log = ProcessLog(limit)
    for number, size in enumerate(sizes):
        log.add("stdout" if number % 2 else "stderr", b"x" * size, number)
        assert log.size <= max(limit, size + PIECE_COST)
    kept = log.since(0)
    assert [each.sequence for each in kept] == list(range(log.first, len(sizes) + 1))
    assert log.head == len(sizes)
    assert sum(len(each.data) for each in kept) + log.dropped_bytes == sum(sizes)
    assert log.since(after) == [each for each in kept if each.sequence > after]
    assert log.since(after, 2) == log.since(after)[:2]


def test_a_byte_at_a_time_takes_no_more_than_the_limit() -> None:
    log = ProcessLog(1 << 20)
    for number in range(50_000):
        log.add("pty", b"x", number)
    assert log.size <= 1 << 20
    assert log.head - log.first + 1 == (1 << 20) // (PIECE_COST + 1)
    assert log.dropped_bytes == log.first - 1


def test_a_smaller_limit_drops_the_oldest_and_keeps_the_newest() -> None:
    log = ProcessLog(1 << 20)
    for number in range(10):
        log.add("stdout", bytes([number]) * 1000, number)
    log.limit_to(1)
    assert [each.sequence for each in log.since(0)] == [10]
    assert log.dropped_bytes == 9000


def test_the_tail_begins_where_about_so_many_bytes_follow() -> None:
    log = ProcessLog(1 << 20)
    for number in range(10):
        log.add("pty", b"x" * 100, number)
    assert log.tail_start(1000) == 0
    assert log.tail_start(350) == 7
    assert log.tail_start(0) == 10


async def test_who_waits_is_woken_by_a_piece_by_the_end_and_by_a_word() -> None:
    log = ProcessLog(1 << 20)
    assert not await log.changed(0, 0.01)
    for wake in (partial(log.add, "stdout", b"x", 0), log.wake, log.close):
        waiting = asyncio.create_task(log.changed(log.head, 30))
        await asyncio.sleep(0)
        wake()
        assert await waiting
