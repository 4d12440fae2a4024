"""Soak: the same process does its work for minutes, and is no bigger for it."""

import asyncio
import ctypes
import gc
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.command import rehearse
from tests.slow.seed import seed
from tests.store.backends import DURABLE, make_backend

from legation.agents import catalogue
from legation.cli.exec import Job, run_turn
from legation.cli.view import Screen
from legation.errors import AgentExited
from legation.host.options import AgentDefinition
from legation.host.requests.handlers import ApproveAll
from legation.proc.tree import own_children
from legation.settings import load
from legation.store.log import EventLog
from legation.wire.events import Draft, Event

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SOAK_SECONDS = 600.0
WARM_UP = 10  # turns until caches, threads and the allocator have what they want
GROWTH_LIMIT = 32 * 1024 * 1024  # bytes that a soak may add to what is resident
MANY_EVENTS = 2_000_000
HISTORY_LIMIT = 256 * 1024 * 1024  # bytes that the history may cost: all of it would be several times that

TURNS = [
    rehearse("say hello", "think about it", "plan one; two", "read notes.txt"),
    rehearse("flood 5000"),
    rehearse("ask shall I go on", "say done"),
    rehearse("spawn-tree", "say done"),
    rehearse("garbage text", "garbage depth", "stderr 100000", "say done"),
    rehearse("say good-bye", "crash 3"),
    rehearse("say good-bye", "kill-self KILL"),
    rehearse("error -32603 out of luck"),
    "fix whatever fails",
]


class Silence:
    """Nobody looks."""

    def show(self, event: Event) -> None: ...
    def pause(self) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Held:
    """What this process holds of the system."""

    descriptors: int
    threads: int
    children: int

    @classmethod
    def now(cls) -> "Held":
        return cls(len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(own_children()))


def resident() -> int:
    """Without what the allocator could give back at once: it keeps that of whatever ran in this process before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def turns_for(seconds: float, turn: Callable[[], None]) -> int:
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        turn()
        count += 1
    return count


def test_turns_without_end_leave_no_process_descriptor_thread_or_memory(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("notes")
    settings = load({"data_dir": tmp_path / "data", "stop_grace": "1s", "idle_timeout": "30s"}, {})
    chance = random.Random(seed())

    def turn() -> None:
        program, *args = catalogue.command_of("rehearsal")
        agent = AgentDefinition(id="rehearsal", command=program, args=(*args, "--execute"), cwd=work)
        job = Job(agent, work, chance.choice(TURNS))
        with suppress(AgentExited):
            run_turn(job, settings, Screen(Silence()), ApproveAll())

    for _ in range(WARM_UP):
        turn()
    before, size = Held.now(), resident()
    count = turns_for(SOAK_SECONDS, turn)
    assert len(list((tmp_path / "data" / "sessions").iterdir())) == WARM_UP + count  # it really did its work
    assert Held.now() == before
    assert resident() - size < GROWTH_LIMIT
    assert not list((tmp_path / "data" / "children").glob("*"))
    assert not list((tmp_path / "data").glob("agents/*/*/tmp/*"))


@pytest.mark.parametrize("kind", DURABLE)
async def test_millions_of_events_are_read_exactly_and_not_kept_in_memory(kind: str, tmp_path: Path) -> None:
    size, text = resident(), b"x" * 200
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await log.stream("ses_a")
        for start in range(0, MANY_EVENTS, 1000):
            stream.append([Draft("x", b'"%d %b"' % (number, text)) for number in range(start, start + 1000)])
            await log.room()
        await stream.durable(MANY_EVENTS)
        expected = MANY_EVENTS // 2 + 1
        async for batch in stream.subscribe(MANY_EVENTS // 2, follow=False).batches():
            assert [event.seq for event in batch] == list(range(expected, expected + len(batch)))
            expected += len(batch)
        assert expected == MANY_EVENTS + 1
        assert resident() - size < HISTORY_LIMIT


@pytest.mark.parametrize("kind", DURABLE)
async def test_ten_thousand_streams_need_no_more_descriptors_than_a_few(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        streams = [await log.stream(f"ses_{number}") for number in range(10_000)]
        for _ in range(2):
            await asyncio.gather(*[_append(stream.append([Draft("x", b"1")])) for stream in streams])
        assert Held.now().descriptors < 300
        assert {stream.info().head for stream in streams} == {2}


async def _append(receipt: object) -> None:
    await receipt  # type: ignore[misc]
