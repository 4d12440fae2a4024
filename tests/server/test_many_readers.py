"""200 readers, 20 of them stalled, a server that is ended, killed and started again: nobody loses or doubles an
event, and the server's memory does not grow with what they have not read (INV-H1, INV-H2)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.server.stream_client import Follower
from tests.server.stream_server import Filling, Plan
from tests.server.test_serving import EXIT_LIMIT, free_port, stop, stream_server

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]

STREAMS = ("a", "b", "c")
LONG = "long"  # what the stalled ones follow, and a few that keep up
STALLED = 20
PHASE_LIMIT = 90.0  # seconds for one life of the server on a loaded machine
MEGABYTE = 1_000_000
# A queue for each of the stalled would take more than a thousand megabytes.
MOST_MEMORY = 100 * MEGABYTE  # besides its readers
MOST_PER_READER = MEGABYTE // 8  # a connection, a task, and what the kernel did not take yet


def memory(pid: int) -> int:
    """Its share of what it holds, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def plan(port: int, folder: Path, quiet: int, long: Filling) -> Plan:
    paced = Filling(quiet, burst=10, pause=0.02)
    return Plan(port, str(folder), {**dict.fromkeys(STREAMS, paced), LONG: long})


@asynccontextmanager
async def following(followers: Sequence[Follower]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.follow()) for each in followers]
    failed = asyncio.gather(*tasks)  # a follower only ends by failing
    try:
        yield
        assert not failed.done(), failed.exception()
    finally:
        failed.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_reach(followers: Sequence[Follower], seq: int) -> None:
    async with asyncio.timeout(PHASE_LIMIT):
        await asyncio.gather(*[each.until(seq) for each in followers])


async def all_connect(followers: Sequence[Follower]) -> None:
    async with asyncio.timeout(PHASE_LIMIT):
        await asyncio.gather(*[each.connected.wait() for each in followers])


async def run_through_restarts(folder: Path, readers: int, megabytes: int, size: int) -> None:
    port = free_port()
    quick = [Follower(port, STREAMS[number % 3]) for number in range(readers - STALLED - 3)]
    keeping_up = [Follower(port, LONG) for _ in range(3)]
    stalled = [Follower(port, LONG) for _ in range(STALLED)]
    everybody = [*quick, *keeping_up, *stalled]
    paced = Filling(200, burst=5, size=size, pause=0.02)
    long = Filling(200 + megabytes * MEGABYTE // size, burst=20, size=size)

    with stream_server(plan(port, folder, 10**6, paced), folder) as server:
        async with following(everybody):
            for each in stalled:
                each.reads.clear()
            await all_connect(everybody)
            await all_reach(quick, 200)
            seconds, code, said = await asyncio.to_thread(stop, server, signal.SIGTERM)
            assert (code, said) == (0, "")
            assert seconds < EXIT_LIMIT
            for each in stalled:
                each.reads.set()
            with stream_server(plan(port, folder, 10**6, paced), folder) as second:
                await all_reach(stalled, 200)
                await all_connect(everybody)
                await all_reach(quick, max(each.seq for each in quick) + 200)
                await asyncio.to_thread(stop, second, signal.SIGKILL)
                last = max(each.seq for each in quick) + 500
                await _flood(plan(port, folder, last, long), folder, quick, keeping_up, stalled)
            assert all(each.byes >= 1 for each in quick)
            assert all(each.cuts >= 1 for each in everybody)


async def _flood(
    plan: Plan,
    folder: Path,
    quick: Sequence[Follower],
    keeping_up: Sequence[Follower],
    stalled: Sequence[Follower],
) -> None:
    for each in stalled:
        each.reads.clear()
    with stream_server(plan, folder) as server:
        await all_connect([*quick, *keeping_up, *stalled])
        await all_reach(keeping_up, plan.streams[LONG].head)
        await all_reach(quick, plan.streams["a"].head)
        assert all(each.seq < plan.streams[LONG].head for each in stalled), "they were to be stalled"
        with_stalled = memory(server.pid)
        for each in stalled:
            each.reads.set()
        await all_reach(stalled, plan.streams[LONG].head)
        caught_up = memory(server.pid)
        # The process, the log's tail, the hub's frames, a chunk for each: whatever the length of the stream.
        readers = len([*quick, *keeping_up, *stalled])
        assert max(with_stalled, caught_up) < MOST_MEMORY + MOST_PER_READER * readers
        assert [each.seq for each in quick] == [plan.streams["a"].head] * len(quick)


async def test_nobody_loses_or_doubles_an_event_over_two_restarts(tmp_path: Path) -> None:
    await run_through_restarts(tmp_path, readers=200, megabytes=60, size=8000)


@pytest.mark.slow
async def test_nor_do_five_hundred_with_three_hundred_megabytes(tmp_path: Path) -> None:
    await run_through_restarts(tmp_path, readers=500, megabytes=300, size=8000)
