"""Legation beside the npm `sandbox-agent` binary: the same agent, the same readers, one after the other in each round.

SIDE is sandbox-agent, legation-acp (the same surface, `/v1/acp`) or legation-sessions (`/v1/sessions`). argv:
  flood SIDE READERS EVENTS SIZE SCRATCH   one prompt, as fast as the server reads: events that arrived at readers and
                                           lines that the agent wrote, a second; processor time by line; what is lost
  line SIDE SCRATCH                        a line every five milliseconds: how long each takes to the reader; and how
                                           long after a prompt its first event is there
  memory SIDE COUNT SCRATCH                of sessions; Legation's have no agent running, the other's cannot be without
  written SIDE EVENTS SIZE SCRATCH         the same flood with nobody who reads: what Legation writes for an update of SIZE
                                           bytes, as the agent tells it
  replay EVENTS PAGE SCRATCH               stored events in pages, after a restart; the other has none to give
Nothing but loopback is reached: all of it runs in a network of its own where the kernel lets it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop
from tests import real_agents

from bench.measure import CPU, RATE, Sample, emit
from bench.rival_network import enter_own_network, is_alone
from bench.rival_reader import Reader, connect
from bench.rival_server import Server, Side, started
from bench.rival_session import Session, open_session
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft

LIMIT = 120.0  # seconds for one prompt on a loaded machine
SILENCE = 1.0  # seconds after the turn's end in which a reader gets nothing: what is missing is lost
WARM_UP = 2000
LINES, PAUSE_MS = 1000, 5
PROMPTS = 30
RUNNING = 200  # sessions of Legation with agents; then it is restarted, and they have none
AT_ONCE = 10  # of them are opened
# Of an update, without its text.
AROUND = len('{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""}}')
HERE = Path(__file__).parent
FLOODING = (sys.executable, "-S", "-E", str(HERE / "rival_agent.py"))
IDLE = ("/bin/sh", str(HERE / "rival_idle_agent.sh"))


async def arrived(session: Session, reader: Reader, silence: float = SILENCE) -> None:
    """All of it, or all that will come."""
    async with asyncio.timeout(LIMIT):
        while not reader.done.is_set():
            if session.is_idle and time.perf_counter() - max(reader.last, session.ended) > silence:
                return
            await asyncio.wait([asyncio.ensure_future(reader.done.wait())], timeout=SILENCE / 4)


async def prompted(session: Session, readers: list[Reader], text: str, events: int) -> None:
    for reader in readers:
        reader.expect(events)
    await session.prompt(text)
    for reader in readers:
        await arrived(session, reader)
    await session.idle()


async def flood(side: Side, count: int, events: int, size: int, home: Path) -> Sample:
    with started(side, home, FLOODING) as server:
        session = await open_session(side, server)
        readers = [await connect(session.reading, session.member, server.port, LIMIT) for _ in range(count)]
        await prompted(session, readers, f"flood {WARM_UP} {size}", WARM_UP)
        cpu = server.cpu()
        await prompted(session, readers, f"flood {events} {size}", events)
        cpu = server.cpu() - cpu
    lost, twice = sum(reader.lost for reader in readers), sum(reader.twice for reader in readers)
    if twice or (lost and side != "sandbox-agent"):
        raise RuntimeError(f"{lost} of {count * events} events were lost, and {twice} came twice")
    wall = max(reader.last for reader in readers) - session.began
    return {
        RATE: (count * events - lost) / wall,
        "written/s": events / wall,
        CPU: cpu / events * 1e6,
        "lost %": 100 * lost / (count * events),
    }


async def line(side: Side, home: Path) -> Sample:
    times: list[float] = []
    with started(side, home, FLOODING) as server:
        session = await open_session(side, server)
        reader = await connect(session.reading, session.member, server.port, LIMIT)
        await prompted(session, [reader], f"flood {WARM_UP} 50", WARM_UP)
        reader.expect(LINES, times)
        cpu = server.cpu()
        await session.prompt(f"paced {LINES} {PAUSE_MS}")
        await arrived(session, reader)
        cpu = server.cpu() - cpu
        await session.idle()
        firsts = [await first_ms(session, reader) for _ in range(PROMPTS)]
    whole, commit = statistics.median(times), await commit_ms(home)
    late = statistics.quantiles(times, n=100)[-1]
    found = {
        "line ms": whole,
        "line p99 ms": late,
        CPU: cpu / LINES * 1e6,
        "first ms": statistics.median(firsts),
    }
    return found if side == "sandbox-agent" else found | {"commit ms": commit, "added ms": whole - commit}


async def first_ms(session: Session, reader: Reader) -> float:
    """From the prompt to the event, of a turn that has only one."""
    await prompted(session, [reader], "flood 1 50", 1)
    return (reader.first - session.began) * 1000


async def commit_ms(folder: Path) -> float:
    """The median of what one event takes to this disk, at the same pace, with nothing else in the process."""
    spent = []
    async with EventLog(SqliteBackend(folder / "commit.db")) as log:
        stream = await log.stream("commits")
        for number in range(LINES):
            await asyncio.sleep(PAUSE_MS / 1000)
            began = time.perf_counter()
            await stream.append([Draft("agent-message-chunk", b'{"number":%d}' % number)])
            spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1000


async def written(side: Side, events: int, size: int, home: Path) -> Sample:
    text = size - AROUND
    with started(side, home, FLOODING) as server:
        session = await open_session(side, server)
        await prompted(session, [], f"flood {WARM_UP} {text}", WARM_UP)
        before = server.written()
        await prompted(session, [], f"flood {events} {text}", events)
        return {"B/update": (server.written() - before) / events}


async def memory(side: Side, count: int, home: Path) -> Sample:
    if side == "sandbox-agent":
        with started(side, home, IDLE) as server:
            before = server.memory()
            for number in range(count):
                await open_session(side, server, f"s{number}")
            return {"kB/session": (server.memory() - before) / count}
    with started(side, home, IDLE) as server:
        await asyncio.to_thread(server.call, "GET", "/v1/sessions")
    with started(side, home, IDLE) as server:
        before = await _listed(server, 0)
    for start in range(0, count, RUNNING):
        with started(side, home, IDLE) as server:
            for first in range(start, start + RUNNING, AT_ONCE):
                names = [f"s{number}" for number in range(first, first + AT_ONCE)]
                await asyncio.gather(*[open_session(side, server, name) for name in names])
    with started(side, home, IDLE) as server:
        return {"kB/session": (await _listed(server, count) - before) / count}


async def _listed(server: Server, count: int) -> float:
    """Kilobytes after everything was asked for that sessions without agents give: the list, and events of each."""
    found = json.loads(await asyncio.to_thread(server.call, "GET", "/v1/sessions"))["sessions"]
    if len(found) != count:
        raise RuntimeError(f"{len(found)} of {count} sessions")
    for number in range(count):
        await asyncio.to_thread(server.call, "GET", f"/v1/sessions/s{number}/events")
    return server.memory()


async def replay(events: int, page: int, home: Path) -> Sample:
    with started("legation-sessions", home, FLOODING) as server:
        session = await open_session("legation-sessions", server)
        reader = await connect(session.reading, session.member, server.port, LIMIT)
        await prompted(session, [reader], f"flood {events} 50", events)
    with started("legation-sessions", home, FLOODING) as server:
        cpu, began = server.cpu(), time.perf_counter()
        offset, found, more = 0, 0, True
        while more:
            path = f"{session.events}?offset={offset}&limit={page}"
            answer = json.loads(await asyncio.to_thread(server.call, "GET", path))
            offset, more = answer["events"][-1]["sequence"], answer["hasMore"]
            found += sum(event["type"] == "item.delta" for event in answer["events"])
        wall, cpu = time.perf_counter() - began, server.cpu() - cpu
    if found != events:
        raise RuntimeError(f"{found} of {events} events")
    return {"CPU s": cpu, "s": wall}


async def main(what: str, *args: str) -> Sample:
    with tempfile.TemporaryDirectory(dir=args[-1]) as made:
        home = Path(made) / "home"
        if what == "replay":
            return await replay(int(args[0]), int(args[1]), home)
        side = cast(Side, args[0])
        if what == "line":
            return await line(side, home)
        if what == "written":
            return await written(side, int(args[1]), int(args[2]), home)
        if what == "memory":
            return await memory(side, int(args[1]), home)
        return await flood(side, int(args[1]), int(args[2]), int(args[3]), home)


if __name__ == "__main__":
    if "sandbox-agent" in sys.argv and not is_alone():
        real_agents.install("sandbox-agent-sdk")
    enter_own_network()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        emit(runner.run(main(*sys.argv[1:])))
