"""Approvals that outlive a server: real servers on one database, killed in the middle, and those who wait for answers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.command import environment, rehearse
from tests.cli.server_process import Running, running
from tests.gateway.backend import Backend
from tests.gateway.backend import backend as open_backend
from tests.postgres import MIGRATED, Postgres, running_postgres

from legation.approvals.calls import BATCH
from legation.store.secrets.sealer import new_key_text

pytestmark = pytest.mark.heavy

LIMIT = 120.0  # seconds: the servers' time on a busy machine
DEAD = 6.0  # seconds: `waiter_dead` of these servers
SERVERS = 5  # that die at once, beside the one that stays
POLICY = """
name: p
loop: off
rules:
  - {id: reads, tools: db.read, action: allow}
  - {id: asks, action: human_approval, timeout: 1h}
"""
TOOLS = """
tools:
  - {name: db.write, url: "%(url)s/write", kind: edit, timeout: 60s}
  - {name: db.read, url: "%(url)s/read", kind: read, timeout: 60s}
"""
STAND_IN = Path(__file__).with_name("ask_stand_in.py")


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """One for this file alone: it is frozen."""
    with running_postgres() as server:
        yield server


@dataclass
class Server:
    """One life of a server: its owner, a person, and an agent that call it."""

    process: Running
    url: str
    owner: httpx2.AsyncClient
    agent: httpx2.AsyncClient

    def kill(self) -> None:
        self.process.stop(signal.SIGKILL)

    async def call(
        self, key: str | None, n: int | str = 1, tool: str = "db.write", **more: str
    ) -> httpx2.Response | None:
        """None: the server died."""
        headers = more if key is None else {"idempotency-key": key, **more}
        try:
            return await self.agent.post(f"/tool/{tool}", json={"params": {"n": n}}, headers=headers)
        except httpx2.TransportError:
            return None

    async def answer(self, approval: str, verb: str = "approve") -> httpx2.Response:
        return await self.owner.post(f"/approvals/{approval}/{verb}", json={})

    async def pending(
        self, many: int, is_wanted: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, dict[str, Any]]:
        """Until so many wait, by id."""
        async with asyncio.timeout(LIMIT):
            while True:
                listed = (await self.owner.get("/approvals?status=pending&limit=500")).json()
                if len(found := [each for each in listed if is_wanted(each)]) >= many:
                    return {each["id"]: each for each in found}
                await asyncio.sleep(0.05)

    async def approval(self, approval: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.owner.get(f"/approvals/{approval}")).json()
        return found

    async def until(self, approval: str, status: str) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT):
            while (found := await self.approval(approval))["status"] != status:
                await asyncio.sleep(0.05)
        return found

    async def ask_in_session(self, session: str) -> None:
        """A turn whose agent asks for a permission."""
        made = await self.owner.post(f"/v1/sessions/{session}", json={"agent": "rehearsal"})
        assert made.status_code == 200, made.text
        message = {"message": rehearse("ask write a.txt one")}
        sent = await self.owner.post(f"/v1/sessions/{session}/messages", json=message)
        assert sent.status_code == 204, sent.text


@dataclass
class Installation:
    """Servers on one database, each with a folder of its own."""

    folder: Path
    backend: Backend
    environ: dict[str, str]
    token: str = ""
    effects: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def server(self, name: str, port: int = 0) -> AsyncIterator[Server]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        flags = ("--policy", str(self.folder / "policy.yaml"), "--tools", str(self.folder / "tools.yaml"))
        with running(home, "server", "--port", str(port), *flags, **self.environ) as process:
            await asyncio.to_thread(process.line)
            here = process.server_file()
            no_limits = httpx2.Limits(max_connections=None)
            options: Any = {"base_url": here.url, "timeout": LIMIT, "limits": no_limits}
            async with (
                httpx2.AsyncClient(headers={"authorization": f"Bearer {here.token}"}, **options) as owner,
                httpx2.AsyncClient(**options) as agent,
            ):
                if not self.token:
                    made = await owner.post("/v1/tokens", json={"label": "claude", "kind": "agent"})
                    self.token = made.json()["secret"]
                agent.headers["authorization"] = f"Bearer {self.token}"
                yield Server(process, here.url, owner, agent)

    @contextmanager
    def stand_in(self, waiter: str, *servers: Server) -> Iterator[StandIn]:
        argv = [sys.executable, str(STAND_IN), ",".join(each.url for each in servers), waiter]
        process = subprocess.Popen(
            [*argv, f"{self.backend.url}/acted"],
            env=environment(self.folder, TOKEN=self.token),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield StandIn(process)
        finally:
            process.kill()
            process.communicate()


@dataclass
class StandIn:
    process: subprocess.Popen[str]

    async def says(self, word: str) -> str:
        """What it says after the word, which comes next."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await asyncio.to_thread(self.process.stdout.readline)
        assert line.startswith(word), line
        return line.removeprefix(word).strip()


def write_files(folder: Path, backend: Backend) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "tools.yaml").write_text(TOOLS % {"url": backend.url})


@pytest.fixture
def shared(tmp_path: Path, backend: Backend, own_postgres: Postgres) -> Installation:
    """Servers that share a Postgres."""
    write_files(tmp_path, backend)
    names = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
    environ = {name: new_key_text() for name in names}
    environ["LEGATION_DATABASE_URL"] = own_postgres.new_database(MIGRATED).reveal()
    return Installation(tmp_path, backend, {**environ, "LEGATION_WAITER_DEAD": f"{DEAD}s"})


@pytest.fixture
def single(tmp_path: Path, backend: Backend) -> Installation:
    """One server with SQLite."""
    write_files(tmp_path, backend)
    return Installation(tmp_path, backend, {})


async def approve_in_the_end(server: Server, approval: str) -> None:
    """Approve what somebody waits for. On a busy machine that is not heard of for a moment, and says so."""
    async with asyncio.timeout(LIMIT):
        while (answer := await server.answer(approval)).status_code != 200:
            assert answer.json()["data"]["reason"] == "waiter-unheard", answer.text
            if (await server.approval(approval))["status"] == "approved":
                return  # and not taken up yet
            await asyncio.sleep(0.2)


async def must_be_refused(server: Server, approval: str) -> None:
    """Whoever answers hears of it, each time."""
    for verb in ("approve", "deny"):
        answer = await server.answer(approval, verb)
        assert answer.status_code == 409, answer.text
        assert answer.json()["detail"].startswith("cannot ")


def is_of(approval: dict[str, Any], number: int) -> bool:
    """Tell what is of one round: those of the others are pending beside it."""
    said = approval["params"].get("n") or approval["params"].get("command") or ""
    return (
        approval["session_id"] == f"ses-{number}"
        or said.startswith(f"{number}-")
        or said == f"deploy run:{number}"
    )


async def a_dies(
    shared: Installation, b: Server, name: str, number: int, together: asyncio.Barrier
) -> set[str]:
    """Kill a server in the midst of it all, and see what comes of that at B. Return what was asked."""
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(shared.server(name))
        if number >= SERVERS:  # it is back, and with it the sessions that it had
            assert (await b.owner.get(f"/v1/sessions/ses-{number - SERVERS}")).status_code == 200
        keys = [f"key-{number}-{n}" for n in range(2)]
        calls = [asyncio.create_task(a.call(key, f"{number}-{key}")) for key in keys]
        plain = asyncio.create_task(a.call(None, f"{number}-plain"))
        runner = stack.enter_context(shared.stand_in(f"run:{number}", a, b))
        run = await runner.says("asked")
        await a.ask_in_session(f"ses-{number}")
        pending = await b.pending(5, lambda each: is_of(each, number))
        (in_session,) = (id_ for id_, each in pending.items() if each["session_id"] == f"ses-{number}")
        (of_plain,) = (id_ for id_, each in pending.items() if each["params"] == {"n": f"{number}-plain"})
        ends_with_a = {in_session, of_plain}
        outlives = pending.keys() - ends_with_a
        assert run in outlives
        await together.wait()  # one that dies a moment later would have taken over what this one leaves
        a.kill()
        assert [await call for call in calls] == [None, None]
        assert await plain is None
        # Before it is known that A is gone: nobody hears "approved" with nothing behind it.
        early = [asyncio.create_task(b.answer(each)) for each in ends_with_a]
        away = await b.owner.get(f"/v1/sessions/ses-{number}")
        assert away.status_code == 503, away.text
        assert a.url in away.json()["detail"]
        assert [(await b.answer(each)).status_code for each in outlives] == [200] * 3
        assert await runner.says("told") == "approved"
        assert await runner.says("used") == "200"
        await runner.says("done")
        for answer in await asyncio.gather(*early):
            assert answer.status_code == 409, answer.text
        back = await asyncio.gather(*(b.call(key, f"{number}-{key}") for key in keys))
        for response, key in zip(back, keys, strict=True):
            assert response is not None
            assert response.status_code == 200, response.text
            assert response.json()["result"] == {"got": {"n": f"{number}-{key}"}}
            assert response.json()["approval_id"] in outlives
        for each in ends_with_a:
            found = await b.until(each, "superseded")
            assert found["why"]
            await must_be_refused(b, each)
        for each in outlives:
            await must_be_refused(b, each)
        still_away = await b.owner.get(f"/v1/sessions/ses-{number}")
        assert still_away.status_code == 503, still_away.text
        assert a.url in still_away.json()["detail"]
    await together.wait()
    return {*pending}


@pytest.mark.timeout(7200)  # a hundred times a start, a death and what comes of it
@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
async def test_a_server_dies_and_what_outlives_it_is_answered_once_at_another(
    shared: Installation, backend: Backend, rounds: int
) -> None:
    ids, together = set[str](), asyncio.Barrier(SERVERS)

    async def lives_of(first: int) -> None:
        for number in range(first, rounds, SERVERS):
            ids.update(await a_dies(shared, b, f"a{first}", number, together))

    async with shared.server("b") as b:
        async with asyncio.TaskGroup() as servers:
            for first in range(SERVERS):
                servers.create_task(lives_of(first))
        assert (await b.owner.get("/approvals?status=pending")).json() == []
        verified = (await b.owner.get("/v1/trace/verify")).json()
        assert [report["problems"] for report in verified] == [[]] * len(verified)
    counts = backend.counts()
    assert set(counts.values()) == {1}  # none doubled
    assert len(counts) == rounds * 3  # none lost, and nothing of those that were superseded
    assert counts.keys() <= ids


async def test_one_server_killed_and_restarted_goes_on_with_the_same_approvals(
    single: Installation, backend: Backend
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(single.server("one"))
        port = int(first.url.rpartition(":")[2])
        call = asyncio.create_task(first.call("k1", 1))
        plain = asyncio.create_task(first.call(None, 2))
        runner = stack.enter_context(single.stand_in("run:1", first))
        asked = await runner.says("asked")
        pending = await first.pending(3)
        (of_plain,) = (id_ for id_, each in pending.items() if each["params"] == {"n": 2})
        (of_call,) = pending.keys() - {of_plain, asked}
        first.kill()
        assert (await call, await plain) == (None, None)
        second = await stack.enter_async_context(single.server("one", port))
        assert (await second.pending(2)).keys() == {of_call, asked}
        assert (await second.approval(of_plain))["why"] == (
            "the server was restarted while it waited for an answer"
        )
        await must_be_refused(second, of_plain)
        assert (await second.answer(asked)).status_code == 200
        assert await runner.says("told") == "approved"
        assert await runner.says("used") == "200"
        await runner.says("done")
        assert (await second.answer(of_call)).status_code == 200
        await asyncio.to_thread(backend.wait_for, 2)  # also if the caller never returns
        again = await second.call("k1", 1)
        assert again is not None
        assert again.json()["result"] == {"got": {"n": 1}}
        assert again.json()["approval_id"] == of_call
    assert backend.counts() == {asked: 1, of_call: 1}


async def test_however_many_calls_with_a_key_wait_the_next_server_goes_on_with_each(
    single: Installation, backend: Backend
) -> None:
    """Those after the first hundred were never taken up: approving them did nothing."""
    many = 2 * BATCH + 1
    single.environ["LEGATION_PENDING_PER_AGENT"] = str(2 * many)
    async with single.server("one") as first:
        begun = [asyncio.create_task(first.call(f"k{n}", n)) for n in range(many)]
        await first.pending(many)
        first.kill()
        assert await asyncio.gather(*begun) == [None] * many
    async with single.server("one") as second:
        newest = max(await second.pending(many))
        assert (await second.answer(newest)).status_code == 200
        await asyncio.to_thread(backend.wait_for, 1)
    assert backend.counts() == {newest: 1}


async def test_an_ask_whose_asker_is_gone_is_superseded_though_the_server_has_a_tool_of_that_name(
    single: Installation, backend: Backend
) -> None:
    """The server took it for a call that nobody carries on, waited for its answer, and called the tool."""
    single.environ["LEGATION_WAITER_DEAD"] = f"{DEAD}s"
    async with single.server("one") as server:
        ask = {"waiter": "run:1", "tool": "db.write", "params": {"n": 1}}
        asked = (await server.agent.post("/v1/asks", json=ask)).json()["id"]
        assert (await server.until(asked, "superseded"))["why"]
        await must_be_refused(server, asked)
    assert backend.seen == []


async def test_a_call_approved_with_other_arguments_waits_for_a_server_that_has_its_tool(
    shared: Installation, backend: Backend
) -> None:
    """A server without it used the approval up, and nothing was called."""
    tools = shared.folder / "tools.yaml"
    other = f'  - {{name: db.other, url: "{backend.url}/other", kind: edit}}\n'
    whole = tools.read_text() + other
    tools.write_text(whole)
    async with shared.server("a") as a:
        tools.write_text(f"tools:\n{other}")
        async with shared.server("b") as b:
            calls = [asyncio.create_task(a.call("k1"))]
            (approval,) = await b.pending(1)
            calls.append(asyncio.create_task(a.call("k2", tool="db.other")))
            (marker,) = (await b.pending(2)).keys() - {approval}
            a.kill()
            assert await asyncio.gather(*calls) == [None, None]
            edited = await b.owner.post(f"/approvals/{approval}/approve", json={"params": {"n": 7}})
            assert edited.status_code == 200, edited.text
            assert (await b.answer(marker)).status_code == 200
            await asyncio.to_thread(backend.wait_for, 1)  # B has taken up what A left, the older one first
            assert backend.counts() == {marker: 1}
            tools.write_text(whole)
            async with shared.server("a") as again:
                response = await again.call("k1")
                assert response is not None
                assert response.json()["result"] == {"got": {"n": 7}}, response.text
    assert backend.counts() == {marker: 1, edited.json()["id"]: 1}


async def test_told_to_stop_a_server_leaves_calls_with_a_key_to_the_next(
    single: Installation, backend: Backend
) -> None:
    async with single.server("one") as first:
        call = asyncio.create_task(first.call("k1"))
        (approval,) = await first.pending(1)
        first.process.process.terminate()
        told = await call
        assert told is not None
        assert told.status_code == 503
        assert "send it again with the same key" in told.json()["detail"]
        assert await asyncio.to_thread(first.process.process.wait, LIMIT) == 0
    async with single.server("one") as second:
        again = asyncio.create_task(second.call("k1"))
        assert (await second.pending(1)).keys() == {approval}
        assert (await second.answer(approval, "deny")).status_code == 200
        denied = await again
        assert denied is not None
        assert denied.status_code == 403
        once_more = await second.call("k1")
        assert once_more is not None
        assert (once_more.status_code, once_more.json()["data"]) == (403, denied.json()["data"])
    assert backend.seen == []


async def test_a_closed_connection_takes_no_call_with_a_key_back(
    single: Installation, backend: Backend
) -> None:
    async with single.server("one") as server:
        call = asyncio.create_task(server.call("k1"))
        (approval,) = await server.pending(1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = [asyncio.create_task(server.call("k1")) for _ in range(5)]  # at once, and it is one call
        assert (await server.pending(1)).keys() == {approval}
        assert (await server.answer(approval)).status_code == 200
        answers = await asyncio.gather(*again)
        assert {each.json()["approval_id"] for each in answers if each is not None} == {approval}
    assert backend.counts() == {approval: 1}


async def test_an_effect_whose_end_nobody_knows_is_told_as_that_and_never_repeated(
    single: Installation, backend: Backend
) -> None:
    backend.free.clear()
    async with single.server("one") as first:
        calls = [asyncio.create_task(first.call(*each)) for each in (("k1", 1), ("k2", 2, "db.read"))]
        (approval,) = await first.pending(1)
        assert (await first.answer(approval)).status_code == 200
        await asyncio.to_thread(backend.wait_for, 2)  # the tools are at work
        first.kill()
        assert [await call for call in calls] == [None, None]
    backend.free.set()
    async with single.server("one") as second:
        for each in (("k1", 1), ("k2", 2, "db.read")):
            for _ in range(2):
                told = await second.call(*each)
                assert told is not None
                assert told.status_code == 504, told.text
                assert "is not known" in told.json()["detail"]
                trace = (await second.owner.get(f"/traces/{told.json()['data']['trace_id']}")).json()
                assert trace["steps"][-1]["reason"] == "outcome-unknown"
    assert len(backend.seen) == 2


async def until_ready(server: Server) -> None:
    async with asyncio.timeout(LIMIT):
        while (await server.owner.get("/v1/ready")).status_code != 200:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["frozen", "stopped"])
async def test_a_postgres_that_was_away_supersedes_nobody(
    shared: Installation, own_postgres: Postgres, backend: Backend, how: str
) -> None:
    away = own_postgres.frozen if how == "frozen" else own_postgres.stopped
    async with shared.server("a") as a, shared.server("b") as b:
        call = asyncio.create_task(a.call("k1", 1))
        plain = asyncio.create_task(a.call(None, 2))
        await a.ask_in_session("ses-1")
        with shared.stand_in("run:1", a, b) as runner:
            asked = await runner.says("asked")
            pending = await b.pending(4)
            with away():
                await asyncio.sleep(2.5 * DEAD)  # the time itself is the subject
            await until_ready(b)
            await asyncio.sleep(1.5 * DEAD)  # who would be taken for gone would be by now
            assert (await b.pending(4)).keys() == pending.keys()
            for each in pending:
                await approve_in_the_end(b, each)
            assert await runner.says("told") == "approved"
            assert await runner.says("used") == "200"
            await runner.says("done")
        for waits in (call, plain):
            response = await waits
            assert response is not None
            assert response.status_code == 200, response.text
    counts = backend.counts()
    assert counts.keys() == {asked, *(id_ for id_, each in pending.items() if each["tool"] == "db.write")}
    assert set(counts.values()) == {1}


async def test_a_server_that_was_taken_for_gone_finds_that_another_has_acted(
    shared: Installation, backend: Backend
) -> None:
    async with shared.server("a") as a, shared.server("b") as b:
        call = asyncio.create_task(a.call("k1", 1))
        plain = asyncio.create_task(a.call(None, 2))
        pending = await b.pending(2)
        (of_plain,) = (id_ for id_, each in pending.items() if each["params"] == {"n": 2})
        (of_call,) = pending.keys() - {of_plain}
        a.process.process.send_signal(signal.SIGSTOP)
        try:
            assert (await b.answer(of_call)).status_code == 200
            await asyncio.to_thread(backend.wait_for, 1)  # B has taken it over
            await b.until(of_plain, "superseded")
        finally:
            a.process.process.send_signal(signal.SIGCONT)
        for waits, status in ((call, 200), (plain, 409)):
            response = await waits
            assert response is not None
            assert response.status_code == status, response.text
        assert (await b.owner.get(f"/traces/{(await call).json()['trace_id']}")).json()["status_code"] == 200  # type: ignore[union-attr]
    assert backend.counts() == {of_call: 1}


async def test_told_to_stop_a_server_leaves_calls_with_a_key_to_another_at_once(
    shared: Installation, backend: Backend
) -> None:
    shared.environ["LEGATION_WAITER_DEAD"] = "1h"  # nobody waits for that
    async with shared.server("a") as a, shared.server("b") as b:
        call = asyncio.create_task(a.call("k1"))
        (approval,) = await b.pending(1)
        assert (await asyncio.to_thread(a.process.stop)) == 0
        told = await call
        assert told is not None
        assert told.status_code == 503
        assert (await b.answer(approval)).status_code == 200
        again = await b.call("k1")
        assert again is not None
        assert again.json()["approval_id"] == approval
    assert backend.counts() == {approval: 1}
