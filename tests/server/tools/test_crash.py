"""Tool calls and a server that ends: killed in the middle of everything, again and again, or told to stop."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.server_process import Running, running
from tests.gateway.backend import Backend
from tests.gateway.backend import backend as open_backend

from legation.approvals.trace import entries
from legation.approvals.trace.chain import verify
from legation.server.installation import server_name
from legation.store.database.sqlite import SqliteDatabase
from legation.store.datafolder import DATABASE, KEYS, SERVER
from legation.store.secrets.sealer import Sealer, load_keys
from legation.wire.api.approvals import TraceDetail

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds: the server's time on a busy machine
STOP_LIMIT = (
    30.0  # seconds that a server told to stop may take on a busy machine; those who wait would wait an hour
)
ROUNDS = pytest.mark.parametrize("lives", [4, pytest.param(20, marks=pytest.mark.slow)])
AT_ONCE = 10
POLICY = """
name: p
loop: off
rules:
  - {id: asks, tools: db.write, action: human_approval, timeout: 1h}
"""
TOOLS = 'tools:\n  - {name: db.write, url: "%s/write", kind: edit, timeout: 60s}\n'


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, backend: Backend) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "tools.yaml").write_text(TOOLS % backend.url)
    return tmp_path


@dataclass
class Life:
    """One life of the server."""

    process: Running
    owner: httpx2.AsyncClient  # with the token of this process, a person's
    agent: httpx2.AsyncClient = field(init=False)

    async def call(self, n: int) -> httpx2.Response | None:
        """None: the server died."""
        try:
            return await self.agent.post("/tool/db.write", json={"params": {"n": n}})
        except httpx2.TransportError:
            return None

    async def answer(self, approval: str, verb: str = "approve") -> int | None:
        try:
            return (await self.owner.post(f"/approvals/{approval}/{verb}", json={})).status_code
        except httpx2.TransportError:
            return None

    async def listed(self, status: str = "pending") -> list[dict[str, Any]]:
        answer = await self.owner.get("/approvals", params={"status": status, "limit": 500})
        assert answer.status_code == 200
        found: list[dict[str, Any]] = answer.json()
        return found

    async def pending(self, many: int) -> list[dict[str, Any]]:
        """Until so many wait."""
        async with asyncio.timeout(LIMIT):
            while len(found := await self.listed()) < many:
                await asyncio.sleep(0.01)
        return found

    async def status(self, approval: str) -> str:
        found: str = (await self.owner.get(f"/approvals/{approval}")).json()["status"]
        return found


@asynccontextmanager
async def living(home: Path, token: dict[str, str]) -> AsyncIterator[Life]:
    """`token` is the agent's, made in the first life; it outlives them all."""
    flags = ("--policy", str(home / "policy.yaml"), "--tools", str(home / "tools.yaml"))
    with running(home, "server", *flags) as process:
        await asyncio.to_thread(process.line)
        here = process.server_file()
        options: Any = {"base_url": here.url, "timeout": LIMIT, "limits": httpx2.Limits(max_connections=None)}
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {here.token}"}, **options) as owner,
            httpx2.AsyncClient(**options) as agent,
        ):
            life = Life(process, owner)
            if not token:
                made = await owner.post("/v1/tokens", json={"label": "claude", "kind": "agent"})
                token["authorization"] = f"Bearer {made.json()['secret']}"
            agent.headers.update(token)
            life.agent = agent
            yield life


@dataclass
class Kept:
    """What is in the folder of a server that has ended."""

    database: SqliteDatabase
    sealer: Sealer
    server: str

    async def trace(self, trace_id: str) -> TraceDetail:
        return await entries.detail(self.database, self.sealer, "local", trace_id)

    async def must_verify(self) -> int:
        report = await verify(self.database, self.sealer, "local", self.server)
        assert report.faults == ()
        return report.steps


@asynccontextmanager
async def kept(process: Running) -> AsyncIterator[Kept]:
    folder = process.data_dir
    names = ("vault_key", "token_pepper", "cookie_key")
    keys = load_keys(folder / KEYS, dict.fromkeys(names), require_given=False)
    async with SqliteDatabase(folder / DATABASE) as database:
        yield Kept(database, Sealer(keys.vault), server_name(folder / SERVER))


@dataclass
class Round:
    approvals: dict[str, str] = field(default_factory=dict)  # their ids, and their traces
    answered: dict[str, int | None] = field(default_factory=dict)  # what whoever approved was told
    results: dict[str, httpx2.Response] = field(default_factory=dict)  # by approval


async def kill_in_the_middle(life: Life, backend: Backend, number: int, chance: random.Random) -> Round:
    """Some wait, some are approved at the same moment, some are at work, and the server is killed."""
    done = Round()
    calls = [asyncio.create_task(life.call(number * 1000 + n)) for n in range(AT_ONCE)]
    pending = await life.pending(AT_ONCE)
    traces = (await life.owner.get("/traces", params={"limit": AT_ONCE})).json()  # the newest
    done.approvals = {each["approval_id"]: each["trace_id"] for each in traces}
    assert done.approvals.keys() == {one["id"] for one in pending}
    chosen = chance.sample([*done.approvals], AT_ONCE // 2)
    before = len(backend.seen)
    if number % 2:
        backend.free.clear()  # the tools are at work when it happens

    async def approve(approval: str) -> None:
        done.answered[approval] = await life.answer(approval)

    answers = [asyncio.create_task(approve(approval)) for approval in chosen]
    wanted = chance.randrange(len(chosen) + 1)
    async with asyncio.timeout(LIMIT):
        if number % 2:
            await asyncio.to_thread(backend.wait_for, before + max(1, wanted))
        else:
            while sum(task.done() for task in answers) < wanted:
                await asyncio.wait(
                    [task for task in answers if not task.done()], return_when="FIRST_COMPLETED"
                )
    life.process.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(life.process.process.wait, LIMIT)
    backend.free.set()
    await asyncio.gather(*answers)
    for response in await asyncio.gather(*calls):
        if response is not None and response.status_code == 200:
            done.results[response.json()["approval_id"]] = response
    return done


async def look_after_it(life: Life, done: Round) -> None:
    """Nobody waits any more: nothing is left to answer, and nothing starts."""
    assert await life.listed() == []
    for approval in done.approvals:
        status = await life.status(approval)
        assert status in ("approved", "superseded")
        if status == "approved":
            assert done.answered.get(approval, 0) in (200, None)  # told so, or killed before it could be told
        assert await life.answer(approval) == 409
        assert await life.answer(approval, "deny") == 409


async def settle(found: Kept, done: Round, backend: Backend) -> tuple[int, int]:
    """How many effects were brought to an end, and of how many nobody knows."""
    counts, known, unknown = backend.counts(), 0, 0
    for approval, trace_id in done.approvals.items():
        trace = await found.trace(trace_id)
        steps = [step.step for step in trace.steps]
        returned = [step for step in trace.steps if step.step == "returned"]
        assert counts[approval] <= 1
        assert steps.count("executed") == steps.count("consumed") == len(returned) <= 1
        if counts[approval]:
            assert steps.count("executed") == 1  # written down before it happened
        if approval in done.results:
            assert counts[approval] == 1
            assert returned[0].status_code == 200
        if returned and returned[0].reason == "outcome-unknown":
            unknown += 1
            assert approval not in done.results
        elif returned:
            known += 1
            assert counts[approval] == 1
        else:
            assert steps[-1] == "superseded"
            assert trace.steps[-1].reason == "waiter-dead"
    return known, unknown


@ROUNDS
async def test_killed_again_and_again_each_effect_happens_at_most_once(
    home: Path, backend: Backend, lives: int
) -> None:
    chance, token, rounds = random.Random(11), dict[str, str](), list[Round]()
    for number in range(lives):
        async with living(home, token) as life:
            if rounds:
                await look_after_it(life, rounds[-1])
            rounds.append(await kill_in_the_middle(life, backend, number, chance))
    async with living(home, token) as life:
        await look_after_it(life, rounds[-1])
        for done in rounds:  # nor do later lives bring anything back
            for approval in done.approvals:
                assert await life.answer(approval) == 409
        life.process.process.terminate()
        assert await asyncio.to_thread(life.process.process.wait, LIMIT) == 0
    async with kept(life.process) as found:
        sums = [await settle(found, done, backend) for done in rounds]
        steps = await found.must_verify()
    known, unknown = (sum(column) for column in zip(*sums, strict=True))
    assert set(backend.counts().values()) <= {1}
    assert steps > lives * AT_ONCE * 3
    assert unknown >= lives // 2  # the kills did come in the middle
    assert known + unknown < lives * AT_ONCE


async def test_d15_what_waited_for_a_killed_server_is_superseded_and_nothing_runs(
    home: Path, backend: Backend
) -> None:
    token: dict[str, str] = {}
    async with living(home, token) as life:
        waiting = asyncio.create_task(life.call(1))
        (approval,) = await life.pending(1)
        life.process.process.send_signal(signal.SIGKILL)
        assert await waiting is None
    async with living(home, token) as life:
        assert await life.status(approval["id"]) == "superseded"
        assert await life.answer(approval["id"]) == 409
        again = asyncio.create_task(life.call(1))  # who asks again is asked about again
        (second,) = await life.pending(1)
        assert await life.answer(second["id"]) == 200
        response = await again
        assert response is not None
        assert response.json()["result"] == {"got": {"n": 1}}
    assert backend.counts() == {second["id"]: 1}


async def test_told_to_stop_it_tells_whoever_waits_and_ends(home: Path, backend: Backend) -> None:
    token: dict[str, str] = {}
    async with living(home, token) as life:
        calls = [asyncio.create_task(life.call(n)) for n in range(20)]
        pending = await life.pending(20)
        traces = (await life.owner.get("/traces", params={"limit": 500})).json()
        begun = time.monotonic()
        life.process.process.terminate()
        responses = await asyncio.gather(*calls)
        assert await asyncio.to_thread(life.process.process.wait, LIMIT) == 0
        assert time.monotonic() - begun < STOP_LIMIT
    assert [response and response.status_code for response in responses] == [503] * 20
    assert {response.json()["code"] for response in responses if response} == {"legation/unavailable"}
    async with kept(life.process) as found:
        for trace in traces:
            last = (await found.trace(trace["trace_id"])).steps[-1]
            assert (last.step, last.reason) == ("cancelled", "stopping")
        await found.must_verify()
    assert {trace["approval_id"] for trace in traces} == {one["id"] for one in pending}
    assert backend.seen == []


async def test_a_caller_that_hangs_up_takes_its_question_along(home: Path, backend: Backend) -> None:
    """D13 with real connections: uvicorn tells the application, and does not end it by itself."""
    token: dict[str, str] = {}
    async with living(home, token) as life:
        waiting = asyncio.create_task(life.call(1))
        (approval,) = await life.pending(1)
        waiting.cancel()
        async with asyncio.timeout(LIMIT):
            while await life.status(approval["id"]) != "cancelled":
                await asyncio.sleep(0.01)
        assert await life.answer(approval["id"]) == 409
    assert backend.seen == []
