"""Grown records for `growth.py`: `python -m bench.growth_fill KIND FOLDER SIZE ...` makes FOLDER/KIND-SIZE of each size.

A real server, over HTTP, makes one session and one turn in it; the rest is that again, written by the package's own stores
while no server has the folder: events and their sessions by the documented log (docs/event-log.md), calls through the door
of an opened installation, approvals by their transitions. Whichever `legation` stands on PYTHONPATH fills, so that an older tree's
record is what that tree would have left. Each size grows out of the one below it.

KIND is `traces` (SIZE steps; of 20 calls one was asked about and denied), `sessions` (SIZE of them besides their model, one turn
each, one in ten ended), `events` (SIZE in one session, in turns of 100 chunks) or `messages` (the same, with 2,000 chunks of a kilobyte to a message).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import legation
from bench.growth_server import AGENT, FOLDER, LONG, Home, Tree, running
from legation.clock import SystemClock
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft, Event

if TYPE_CHECKING:
    from legation.server.instance import Services

TREE: Final = Tree(Path(legation.__file__).parents[2])
MODEL: Final = "model"  # the session that the others are made after
AT_ONCE: Final = 2_000  # sessions whose commits are waited for together
BATCH: Final = 20_000  # events that are appended before the disk is waited for
CALLERS: Final = 64
SAID: Final = {"events": "say 100", "messages": "say 2000 long"}
ASKED: Final = 20  # calls to one that a person was asked about
YEAR_MS: Final = 400 * 86_400_000
CALL_MS: Final = (
    50_000  # from one call to the next: those of all callers are no hour, which would be a jump of the clock
)
CLOCK: Final = "clock"  # the file with the time that a record has reached


class PastClock(SystemClock):
    """The time of a record of a year: it moves with what is recorded, and never beyond now."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return min(self.at_ms, super().now_ms())


def fill(kind: str, folder: Path, sizes: Sequence[int]) -> None:
    """Make those that are not there. What is cut off leaves nothing under a size's name."""
    work = folder / f"{kind}-filling-{os.getpid()}"
    try:
        for size in sorted(sizes):
            if (folder / f"{kind}-{size}").exists():
                continue
            below = max((each for each in _there(kind, folder) if each < size), default=None)
            shutil.rmtree(work, ignore_errors=True)
            if below is None:
                work.mkdir(parents=True)
                _begin(kind, _home(work))
            else:
                copy(folder / f"{kind}-{below}", work)
            began = time.monotonic()
            asyncio.run(_FILL[kind](_home(work), size))
            work.rename(folder / f"{kind}-{size}")
            print(f"filled {kind}-{size} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _home(folder: Path) -> Home:
    """With the settings of our own environment: it names the database, if that is no file."""
    return Home(
        folder, TREE, {name: text for name, text in os.environ.items() if name.startswith("LEGATION_")}
    )


def copy(store: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", "--reflink=auto", str(store), str(to)], check=True)


def _there(kind: str, folder: Path) -> list[int]:
    names = (path.name.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*"))
    return [int(name) for name in names if name.isdecimal()]


def _begin(kind: str, home: Home) -> None:
    """A session with one turn of the length that is repeated. Traces begin in the past, before any server's start."""
    if kind == "traces":
        return
    with running(home) as server:
        server.call("POST", f"/v1/sessions/{MODEL}", {"agent": AGENT, "directory": FOLDER})
        server.play(MODEL, SAID.get(kind, "say 3"))


# Sessions and their events, by the log.


@asynccontextmanager
async def opened(home: Home) -> AsyncIterator[tuple[EventLog, list[Event], dict[str, Any]]]:
    """The log, with the events and the metadata of the model."""
    async with EventLog(SqliteBackend(home.data / "events.db")) as log:
        model = await log.stream(MODEL)
        yield log, [event async for event in model.subscribe(follow=False)], json.loads(model.meta)


async def fill_sessions(home: Home, size: int) -> None:
    async with opened(home) as (log, events, meta):
        host = await log.stream("host")
        updates = [event async for event in host.subscribe(follow=False) if b'"model"' in event.raw]
        there = {info.name for info in await log.streams()}
        missing = [name for number in range(size) if (name := f"ses-{number:07}") not in there]
        for start in range(0, len(missing), AT_ONCE):
            names = missing[start : start + AT_ONCE]
            await asyncio.gather(*(_session(log, name, events, meta) for name in names))
            host.append(
                [_again(event, b'"model"', b'"%b"' % name.encode()) for name in names for event in updates]
            )
        await host.durable(host.head)


async def _session(log: EventLog, name: str, events: Sequence[Event], meta: dict[str, Any]) -> None:
    number = int(name.rpartition("-")[2])
    stream = await log.stream(name)
    stream.append([_draft(events[0]), *_turns(events, 1, number), _draft(events[-1])])
    made = meta["details"]["createdAt"] - YEAR_MS + number * 1000
    details = meta["details"] | {"createdAt": made, "updatedAt": made + 500}
    await stream.set_meta(json.dumps(meta | {"details": details}, separators=(",", ":")).encode())
    if number % 10 == 9:
        await stream.close()


async def fill_events(home: Home, size: int) -> None:
    async with opened(home) as (log, events, meta):
        stream = await log.stream(LONG)
        if stream.head == 0:
            await stream.set_meta(json.dumps(meta, separators=(",", ":")).encode())
        turn = len(events) - 2
        stream.append([_draft(events[0])])  # that it is active
        while size - stream.head >= turn:
            turns = min(BATCH, size - stream.head) // turn
            stream.append(_turns(events, max(1, turns), stream.head // turn + 1))
            await stream.durable(stream.head)
        await stream.append([_draft(events[-1])])  # and that its agent is gone


def _turns(events: Sequence[Event], turns: int, first: int) -> list[Draft]:
    """The turn of the model again and again, each under a name of its own; without what stands around it, its agent's coming
    and going."""
    started = json.loads(next(event.raw for event in events if event.type == "prompt-started"))
    old, message = started["turn"].encode(), started["message"].encode()
    found: list[Draft] = []
    for number in range(first, first + turns):
        new = b"trn_%026d" % number, b"msg_%026d" % number
        found += [_again(_again(event, old, new[0]), message, new[1]) for event in events[1:-1]]
    return found


def _again(event: Event | Draft, old: bytes, new: bytes) -> Draft:
    """With another name in it. That of a turn stands in events of ours, which are all payload: no span moves."""
    if old not in event.raw:
        return _draft(event)
    return Draft(event.type, event.raw.replace(old, new))


def _draft(event: Event | Draft) -> Draft:
    if isinstance(event, Draft):
        return event
    return Draft(event.type, event.raw, event.native, event.span, event.digest, event.blob)


# Calls and approvals, through an opened installation.


async def fill_traces(home: Home, size: int) -> None:
    mark = home.folder / CLOCK
    clock = PastClock(int(mark.read_text()) if mark.exists() else SystemClock().now_ms() - YEAR_MS)
    async with installation(home, clock) as services:
        numbers, steps = count(clock.at_ms // CALL_MS), await steps_of(services)
        while steps < size:
            calls = max(1, min(5_000, (size - steps) // 2))
            batch = [next(numbers) for _ in range(calls)]
            await deny(services, batch[::ASKED])
            await allow(services, [number for place, number in enumerate(batch) if place % ASKED], clock)
            steps = await steps_of(services)
        mark.write_text(str(clock.at_ms))


@asynccontextmanager
async def installation(home: Home, clock: PastClock) -> AsyncIterator[Services]:
    """All that a server works with, without its HTTP."""
    from legation.server.instance import open_instance
    from legation.settings import load

    home.prepare()
    variables = home.environment() | {"LEGATION_PORT": "0"}
    async with open_instance(load({}, variables), mode="server", clock=clock, stop=lambda: None) as (
        services,
        _,
    ):
        yield services


async def steps_of(services: Services) -> int:
    from legation.approvals.trace.chain import head

    workspace, server = services.installed.workspace, services.ledger.chain.server
    return (await services.database.read(head, workspace, server)).seq


async def allow(services: Services, numbers: Sequence[int], clock: PastClock) -> None:
    """Calls that a rule allows, through the door: some at a time, as from as many agents."""
    from legation.approvals.policy.facts import Facts
    from legation.approvals.request import DoorRequest

    facts = Facts(workspace=FOLDER, cwd=FOLDER, home=FOLDER)
    waiting = iter(numbers)

    async def caller() -> None:
        for number in waiting:
            clock.at_ms = max(clock.at_ms, number * CALL_MS)
            request = DoorRequest(
                principal=services.process_tokens.principal,
                action=action(number),
                facts=facts,
                session_id=f"ses-{number // 50}",
            )
            assert (await services.door.decide(request)).passed

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def deny(services: Services, numbers: Sequence[int]) -> None:
    """Calls that a person was asked about, and said no: an approval's whole life in two steps of its own."""
    from legation.approvals import approval as approvals
    from legation.approvals.approval import ApprovalAnswer, Proposal, new_approval_id
    from legation.approvals.trace.step import new_trace_id
    from legation.wire.principal import Principal

    workspace, version = services.installed.workspace, services.policies.current.version
    asks = services.process_tokens.principal
    person = Principal(
        kind="user", id=services.installed.user, workspace=workspace, scopes=asks.scopes, level=2
    )
    answer = ApprovalAnswer(approve=False, reasoning="not in this project", confidence=0.9)

    inbox: Any = services.inbox
    # An older tree's waiter was the process itself.
    waiter: Any = (
        approvals.Waiter("session:growth", inbox.holder) if hasattr(approvals, "Waiter") else inbox.waiter
    )

    def lives(some: Sequence[int]) -> Generator[Any, Any, None]:
        for number in some:
            at = number * CALL_MS
            proposal = Proposal(
                id=new_approval_id(at),
                trace_id=new_trace_id(),
                workspace=workspace,
                waiter=waiter,
                requester_kind="process",
                requester="bench",
                action=action(number),
                verdict="human_approval",
                policy_version=version,
                policy_rule="bench:asked",
                expires_at=at + CALL_MS,
            )
            yield from services.inbox.life.propose(proposal, at)
            yield from services.inbox.life.resolve(person, proposal.id, answer, at + 1)

    for start in range(0, len(numbers), 100):
        await services.ledger.transact(workspace, lives, numbers[start : start + 100])


def action(number: int) -> Any:
    from legation.wire.action import Action

    tool = ("filesystem.write_file", "filesystem.read_file", "gmail.send", "shell.run")[number % 4]
    params = {"path": f"{FOLDER}/{number}.py", "content": "x" * 400}
    return Action(agent="claude", tool=tool, kind="edit", params=params)


_FILL: Final = {
    "traces": fill_traces,
    "sessions": fill_sessions,
    "events": fill_events,
    "messages": fill_events,
}


if __name__ == "__main__":
    fill(sys.argv[1], Path(sys.argv[2]), [int(size) for size in sys.argv[3:]])
