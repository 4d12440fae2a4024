"""Kill -9 of a host in mid-turn: what it has shown is on the disk, what it started is reaped, and the next host
takes its sessions up again."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.host.rig import events, of_type, play, rig
from tests.store.backends import DURABLE, make_backend

from legation.proc import reap
from legation.proc.tree import process
from legation.store.log import EventLog

KILLS = pytest.mark.parametrize("kills", [10, pytest.param(25, marks=pytest.mark.slow)])
ON_ONE_LOG = 5  # kills, then a new log
ROOT = Path(__file__).parents[2]
STARTING = 0.6  # seconds in which a host is starting, and its agent
LINES = 200  # that a viewer has seen of a host before it is killed, unless that is killed while it starts
SHOWN_LIMIT = 60.0  # seconds for them, which only a broken machine takes
RUNNING = 0.4  # seconds of turns, up to which it is killed
REAP_LIMIT = 60.0  # seconds for killed processes to be gone: the machine's time
DEATH_LIMIT = 60.0  # seconds for an agent that was just being started to find that its client is gone


def until_reaped(children: Path) -> None:
    """Look again while some are still dying: on a busy machine that takes them longer than one look waits."""
    deadline = time.monotonic() + REAP_LIMIT
    while (found := {each.outcome for each in reap(children)}) - {"killed", "gone"}:
        assert found <= {"killed", "gone", "survived"}
        assert time.monotonic() < deadline, "something survives"


def run_until_killed(kind: str, place: Path, seen: Path, chance: random.Random) -> None:
    argv = [sys.executable, "-m", "tests.host.host_to_kill", kind, str(place), str(seen)]
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as host:
        assert host.stdout
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, STARTING))  # the random point: what is waited for is the kill itself
        else:
            assert host.stdout.readline() == b"up\n"
            time.sleep(chance.uniform(0, RUNNING))
            until_shown(seen, LINES)  # on a busy machine that takes longer
        assert host.poll() is None, "it ended by itself"
        host.kill()


def until_shown(seen: Path, lines: int) -> None:
    """Wait until so many events were seen."""
    deadline = time.monotonic() + SHOWN_LIMIT
    while sum(map(len, shown(seen).values())) < lines:
        assert time.monotonic() < deadline, "nothing is shown"
        time.sleep(0.01)


def shown(seen: Path) -> dict[str, dict[int, int]]:
    """By session, the number and the checksum of every event that a viewer has seen."""
    found: dict[str, dict[int, int]] = {}
    lines = seen.read_text().splitlines(keepends=True) if seen.exists() else []
    for line in lines:
        if line.endswith("\n"):  # the last one may be torn
            session, seq, crc = line.split()
            found.setdefault(session, {})[int(seq)] = int(crc)
    return found


async def stored(kind: str, place: Path) -> dict[str, list[tuple[int, int]]]:
    async with EventLog(make_backend(kind, place)) as log:
        found = {}
        for info in await log.streams():
            stream = await log.stream(info.name)
            events = [event async for event in stream.subscribe(follow=False)]
            found[info.name] = [(event.seq, zlib.crc32(event.raw)) for event in events]
        return found


async def take_up(kind: str, place: Path, left: dict[str, list[tuple[int, int]]], names: list[str]) -> None:
    """What a new host on the same store does: `left` is what is stored, `names` which sessions to go on with."""
    async with rig(place, backend=make_backend(kind, place)) as made:
        restored = {each.session_id: each.status for each in await made.host.restore_sessions()}
        assert set(names) <= restored.keys()
        assert set(restored.values()) <= {"disconnected"}
        agent = await made.host.spawn_agent(made.rehearsal())
        for name in names:
            await made.host.resume_session(agent.agent_id, name)
            session = made.host.session(name)
            assert (await play(session, "say back again")).stop_reason == "end_turn"
            found = [(event.seq, zlib.crc32(event.raw)) for event in await events(session)]
            assert found[: len(left[name])] == left[name], "what was there has changed"
            assert [seq for seq, _ in found] == list(range(1, len(found) + 1)), "numbers are not dense"
            assert b"back again" in (await of_type(session, "agent-message-chunk"))[-1].raw


def processes(home: Path) -> list[int]:
    """All that has this HOME: an agent, and whatever it started."""
    mark = f"HOME={home}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if (each := process(pid)) is not None and not each.dead]


def home_of(place: Path) -> Path:
    return place / "data/agents/local/rehearsal/home"


def until_no_process(home: Path) -> None:
    deadline = time.monotonic() + DEATH_LIMIT
    while left := processes(home):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Path]:
    """A folder; what a failed test has left of the agents in it is killed."""
    yield tmp_path
    for place in tmp_path.iterdir():
        for pid in processes(home_of(place)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@KILLS
@pytest.mark.parametrize("kind", DURABLE)
def test_a_host_killed_in_mid_turn_leaves_a_whole_log_no_process_and_sessions_to_go_on_with(
    kind: str, kills: int, ground: Path
) -> None:
    chance = random.Random(kind)
    left_behind = lines = taken_up = 0
    for number in range(kills):
        place = ground / f"log-{number // ON_ONE_LOG}"
        place.mkdir(exist_ok=True)
        seen = place / f"seen-{number}"
        run_until_killed(kind, place, seen, chance)
        left_behind += len(processes(home_of(place)))
        until_reaped(place / "data" / "children")
        until_no_process(home_of(place))
        log = asyncio.run(stored(kind, place))
        for session in log.values():
            assert [seq for seq, _ in session] == list(range(1, len(session) + 1)), "numbers are not dense"
        names = list(shown(seen))
        for name, numbers in shown(seen).items():
            assert numbers.items() <= set(log[name]), "what was shown is not on the disk"
            lines += len(numbers)
        asyncio.run(take_up(kind, place, log, names))
        taken_up += len(names)
    assert left_behind > kills  # else there was nothing to reap
    assert lines > kills * 100  # nor to lose
    assert taken_up > kills / 2  # nor to go on with
