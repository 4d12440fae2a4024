"""An accepted message is on the disk, whoever writes something else of its session at that moment, and whoever is killed."""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cli.server_process import Running, running
from tests.host.rig import Rig, rig
from tests.server.sessions.session_client import LIMIT, script

from legation.host.options import SessionMeta, read_meta
from legation.server.sessions.record import (
    Begun,
    Details,
    QueuedMessage,
    SessionRecord,
    SessionRecords,
    read_details,
)
from legation.store.codec import Op, SetMeta
from legation.store.sqlite import SqliteBackend
from legation.wire import event_types
from legation.wire.acp.updates import SessionInfoUpdate
from legation.wire.universal.shapes import Metadata

NAME: Final = "s"
PLACE: Final = SessionMeta(cwd="/", agent_definition_id="none", agent_session_id="a")
WANTED: Final = Details(
    agent="none", given=Metadata("none", "build", None, "default"), created_at=1, updated_at=1
)


class Slow(SqliteBackend):
    """Writes metadata when the test says so, and never before."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.allowed = threading.Semaphore(0)
        self.free = False

    def commit(self, ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetMeta) for op in ops) and not self.free:
            assert self.allowed.acquire(timeout=LIMIT)
        super().commit(ops)


class Owner:
    """What a server does with the details of one session, without the agents: each step begins, and none is waited for."""

    def __init__(self, made: Rig, disk: Slow) -> None:
        self.host, self.disk = made.host, disk
        self.records = SessionRecords(made.log)
        self.record = SessionRecord("local", NAME, PLACE, WANTED)
        self.records.add(self.record)
        self.accepted: list[str] = []
        self.played: set[str] = set()
        self.sent = 0
        self.under_way: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def send(self) -> None:
        self.sent += 1
        message = QueuedMessage(id=f"msg_{self.sent}", text="go on")
        details = self.record.details
        await self.records.save(self.record, replace(details, queue=(*details.queue, message)))
        self.accepted.append(message.id)

    async def take(self) -> None:
        """The next one goes to the agent, whose turn is over at once."""
        details = self.record.details
        if not details.queue or details.begun:
            return
        message, *rest = details.queue
        begun = Begun(message=message, after=0)
        await self.records.save(self.record, replace(details, queue=tuple(rest), begun=begun))
        self.played.add(message.id)
        await self.records.save(self.record, replace(self.record.details, begun=None))

    async def wake(self) -> None:
        """An agent takes it up: where it works is read before, and written after the agent has answered."""
        session = self.record.session = await self.host.restore_session(NAME)
        place = session.meta
        await asyncio.sleep(0)
        await session.keep(place)

    async def retitle(self) -> None:
        if self.record.session is not None:
            self.record.session.updates([event_types.draft(SessionInfoUpdate(title="Another"))])

    async def rest(self) -> None:
        if self.record.session is not None:
            self.host.forget_session(NAME)
            self.record.let_go()

    def stored(self) -> set[str]:
        """Not lost, if the server were killed now."""
        found = self.disk.lookup(NAME)
        meta = read_meta(found.meta) if found else None
        details = read_details(meta.details) if meta else None
        if details is None:
            return set()
        begun = {details.begun.message.id} if details.begun else set()
        return {message.id for message in details.queue} | begun

    def check(self) -> None:
        assert set(self.accepted) - self.played <= self.stored()


STEPS: Final = ("send", "take", "wake", "retitle", "rest", "write", "look")


async def play(place: Path, steps: Sequence[str]) -> None:
    disk = Slow(place / "events.db")
    async with rig(place, backend=disk) as made:
        owner = Owner(made, disk)
        disk.free = True
        await owner.records.save(owner.record, WANTED)
        disk.free = False
        try:
            for step in steps:
                if step == "write":
                    disk.allowed.release()
                elif step != "look":
                    owner.begin(getattr(owner, step)())
                for _ in range(3):  # as far as it comes without the disk
                    await asyncio.sleep(0)
                await asyncio.to_thread(lambda: None)  # and the threads between
                owner.check()
        finally:
            disk.free = True
            disk.allowed.release(1000)
        while owner.under_way:
            await asyncio.gather(*owner.under_way)
        owner.check()
        assert len(owner.accepted) == owner.sent


@pytest.mark.heavy
@given(st.lists(st.sampled_from(STEPS), max_size=20))
@example(
    ["send", "wake", "write", "write", "look", "look"]
)  # read what was stored while the next was being written
@example(["wake", "rest", "send", "wake", "write", "write", "write", "look"])
@settings(max_examples=60, deadline=None)
def test_whoever_writes_what_of_a_session_an_accepted_message_stays_on_the_disk(steps: list[str]) -> None:
    with TemporaryDirectory() as place:
        asyncio.run(play(Path(place), steps))


# With real kills.

SESSIONS: Final = 16
LATER: Final = 3  # messages of a round to each session that come while the first wakes its agent
LATEST: Final = 1.2  # seconds after the last was accepted: by then their agents have woken


def client(server: Running) -> httpx2.Client:
    found = server.server_file()
    headers = {"authorization": f"Bearer {found.token}"}
    return httpx2.Client(base_url=found.url, headers=headers, timeout=LIMIT)


def send(http: httpx2.Client, number: int) -> list[str]:
    """To sessions that are asleep. The first message of each has a long turn: nothing is written after the wake-up that
    would mend what it did."""

    def post(session: int, name: str, step: str) -> str:
        said = {"message": script(step), "messageId": name}
        answer = http.post(f"/v1/sessions/s{session}/messages", json=said)
        assert answer.status_code == 204, answer.text
        return name

    def to(session: int) -> list[str]:
        names = [f"msg_{number}_{session}_{each}" for each in range(LATER + 1)]
        post(session, names[0], "stall 1")
        with ThreadPoolExecutor(LATER) as pool:
            list(pool.map(lambda name: post(session, name, f"say {name}"), names[1:]))
        return names

    with ThreadPoolExecutor(SESSIONS) as pool:
        return [name for names in pool.map(to, range(SESSIONS)) for name in names]


def asleep(http: httpx2.Client) -> None:
    """All is played, and no agent runs: the next message wakes one."""
    end = time.monotonic() + 4 * LIMIT
    while True:
        listed = http.get("/v1/sessions").json()["sessions"]
        if not any(each["queued"] or each["busy"] or each["status"] == "active" for each in listed):
            return
        assert time.monotonic() < end, listed
        time.sleep(0.05)


def prompts(http: httpx2.Client, session: str) -> Counter[str]:
    found: Counter[str] = Counter()
    after = 0
    while True:
        answer = http.get(f"/v1/streams/{session}/events", params={"after": after, "limit": 1000})
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        if not items:
            return found
        found.update(each["raw"]["message"] for each in items if each["type"] == "prompt-started")
        after = items[-1]["seq"]


def lose(place: Path, wanted: int) -> None:
    """Servers are killed soon after messages came in, at another moment each time: each accepted one is played once."""
    accepted: list[str] = []
    with running(place, "server") as server:
        server.line()
        with client(server) as http:
            for each in range(SESSIONS):
                made = http.post(f"/v1/sessions/s{each}", json={"agent": "mock"})
                assert made.status_code == 200, made.text
        server.stop()
    moments = random.Random(7)
    while len(accepted) < wanted:
        with running(place, "server", LEGATION_AGENT_REST="1") as server:
            server.line()
            with client(server) as http:
                asleep(http)
                accepted += send(http, len(accepted))
                time.sleep(moments.uniform(0, LATEST))
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait(LIMIT)
    with running(place, "server", LEGATION_AGENT_REST="1") as server:
        server.line()
        with client(server) as http:
            asleep(http)
            played = sum((prompts(http, f"s{each}") for each in range(SESSIONS)), Counter[str]())
    assert [name for name in accepted if name not in played] == []
    assert [name for name, times in played.items() if times > 1] == []


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_no_accepted_message_is_lost_when_servers_are_killed(tmp_path: Path) -> None:
    lose(tmp_path, 2 * SESSIONS * (LATER + 1))  # two kills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_accepted_message_of_thousands_is_lost_when_servers_are_killed(tmp_path: Path) -> None:
    lose(tmp_path, 5000)
