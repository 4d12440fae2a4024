"""Runs by real runners with the rehearsal agent, that report to a real server with its worker in it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.runs.rig import LIMIT, Rig, until_packed
from tests.runs.worker_to_kill import children_of

from legation.clock import SystemClock
from legation.proc.registry import RegisteredChild, listed
from legation.proc.tree import process
from legation.runs.run import TOPIC, Run, RunCaps, request_cancel
from legation.runs.sandbox import FOLDER, _write_all
from legation.runs.states import ErrorClass, RunState
from legation.runs.worker import Worker, WorkerOptions
from legation.server import worker as server_worker
from legation.server.auth import make_authenticate
from legation.server.http.app import AppOptions, make_app
from legation.server.http.server import UvicornServer
from legation.server.instance import Services, open_instance
from legation.server.routes import ROUTES
from legation.server.sessions.hosts import CHILDREN
from legation.server.worker import embedded_worker, make_worker
from legation.settings import load
from legation.store.database.transaction import Rows, Transaction, parse

pytestmark = pytest.mark.heavy

SAYS = "#!rehearse\nsay I am here.\n"
WAITS = "#!rehearse\nsay I am here.\nstall 600\n"


@dataclass
class Server:
    services: Services
    rig: Rig
    data_dir: Path

    def runners(self) -> list[RegisteredChild]:
        return [each for each in listed(self.data_dir / CHILDREN) if each.name.startswith("run_")]

    async def reports(self, run: Run) -> int:
        from legation.runner.receiver import find_runner

        found = await self.services.database.read(find_runner, run.attempt_id)
        return 0 if found is None else found.head

    def left(self) -> list[str]:
        folder = self.data_dir / FOLDER
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@asynccontextmanager
async def serving(data_dir: Path, **variables: str) -> AsyncIterator[Server]:
    """A server on its file, or on the database that `variables` name, as `legation up` is, in this process."""
    settings = load({"data_dir": data_dir, "port": 0}, {"HOME": str(data_dir), **variables})
    async with open_instance(settings, mode="up", clock=SystemClock(), stop=lambda: None) as (
        services,
        address,
    ):
        app = make_app(
            ROUTES,
            services=services,
            authenticate=make_authenticate(services),
            options=AppOptions(allowed_hosts=services.address.hosts, clock=services.clock),
        )
        server = UvicornServer(app)
        task = asyncio.create_task(server.serve_on([address.listener], signals=False))
        rig = Rig(services.database, None, services.sealer, services.clock)  # type: ignore[arg-type]
        try:
            async with embedded_worker(services):
                yield Server(services, rig, data_dir)
        finally:
            server.stop()
            await task


async def test_a_run_goes_all_the_way_with_a_real_runner_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        run = await server.rig.until(await server.rig.submit(SAYS))
        assert (run.state, run.error_reason) == (RunState.SUCCEEDED, None)
        assert await server.reports(run) > 0
        assert server.left() == []
        assert server.runners() == []
        assert run.secret_id is None


async def test_what_it_said_is_packed_by_the_servers_own_worker_and_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = server_worker._options
    monkeypatch.setattr(server_worker, "_options", lambda *given: replace(options(*given), seen_every=0.1))
    async with serving(tmp_path, LEGATION_RUN_PACK_AFTER="0") as server:
        run_id = await server.rig.submit(SAYS)
        await until_packed(server.rig, run_id)
        events = await server.services.run_events.read("local", run_id, 0)
        assert [each.type for each in events] == ["agent-message-chunk", "prompt-finished"]
    assert [path.name for path in (tmp_path / "blobs/local/runs" / run_id).iterdir()] == ["events-1-2"]


async def test_a_cancel_ends_the_runner_and_its_agent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        run_id = await server.rig.submit(WAITS)
        run = await server.rig.until(run_id, lambda run: run.state is RunState.RUNNING)
        await until(lambda: server.reports(run))
        await server.services.database.transact(
            request_cancel, "local", run_id, now_ms=server.services.clock.now_ms()
        )
        server.services.database.notify(TOPIC)
        run = await server.rig.until(run_id)
        assert (run.state, run.error_class) == (RunState.CANCELLED, None)
        assert (server.left(), server.runners()) == ([], [])


async def test_a_runner_that_is_killed_is_started_again_and_tells_what_was_not_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        run_id = await server.rig.submit(WAITS)
        run = await server.rig.until(run_id, lambda run: run.state is RunState.RUNNING)
        await until(lambda: server.reports(run))
        [runner] = server.runners()
        # Its keeper, and with it the runner: who they are is asked before the first of them is dead.
        for pid in (runner.pid, *children_of(runner.pid)):
            os.kill(pid, signal.SIGKILL)
        run = await server.rig.until(run_id)
        assert (run.state, run.error_class, run.error_code) == (
            RunState.FAILED,
            ErrorClass.MACHINE_LOST,
            "runner",
        )
        assert run.attempt == 1
        assert (server.left(), server.runners()) == ([], [])


async def test_a_server_that_stops_leaves_the_runner_and_the_next_one_finds_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        run_id = await server.rig.submit(WAITS)
        run = await server.rig.until(run_id, lambda run: run.state is RunState.RUNNING)
        await until(lambda: server.reports(run))
        [before] = server.runners()
    async with serving(tmp_path) as server:
        [after] = server.runners()
        assert (after.pid, after.state) == (before.pid, "unowned")
        assert (await server.rig.run(run_id)).state is RunState.RUNNING
        await server.services.database.transact(
            request_cancel, "local", run_id, now_ms=server.services.clock.now_ms()
        )
        server.services.database.notify(TOPIC)
        assert (await server.rig.until(run_id)).state is RunState.CANCELLED
        assert (server.left(), server.runners()) == ([], [])


async def test_an_agent_that_is_not_there_fails_the_run_with_its_class(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        caps = RunCaps(retries=0)
        run = await server.rig.until(await server.rig.submit(SAYS, agent="no-such-agent", caps=caps))
        assert run.state is RunState.FAILED
        assert run.error_class in (ErrorClass.UNAVAILABLE, ErrorClass.TENANT_PERMANENT)
        assert "no-such-agent" in (run.error_reason or "")


async def until(found: object) -> None:
    async with asyncio.timeout(LIMIT):
        while not await found():  # type: ignore[operator]
            await asyncio.sleep(0.02)


def worker_elsewhere(server: Server) -> Worker:
    """A worker of another machine, that takes any other for lost at once."""
    services = server.services
    options = WorkerOptions(id="elsewhere", poll=0.05, machine_lost=0.001, seen_every=0.1)
    return make_worker(
        replace(services.settings, data_dir=server.data_dir / "elsewhere"),
        services.database,
        services.clock,
        services.sealer,
        "elsewhere",
        services.address.local_url,
        options,
    )


async def test_a_run_whose_runner_reports_stays_though_its_machine_has_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is looked for nowhere but on its own machine: elsewhere its heartbeats tell."""
    async with serving(tmp_path) as server:
        run_id = await server.rig.submit(WAITS)
        run = await server.rig.until(run_id, lambda run: run.state is RunState.RUNNING)
        await until(lambda: server.reports(run))
        other = worker_elsewhere(server)
        with monkeypatch.context() as patched:
            patched.setattr("legation.runs.sandbox.process", lambda _pid: None)  # as on another machine
            assert (await other.tools.providers["sandbox"]().observe(run)).kind == "working"
        async with server.rig.working(other):
            await server.services.database.transact(make_due, run_id)
            await until(lambda: _value(other.figures.steps > 0))
        run = await server.rig.run(run_id)
        assert (run.state, run.error_reason) == (RunState.RUNNING, None)
        await cancel(server, run_id)
        assert (await server.rig.until(run_id)).state is RunState.CANCELLED


async def test_a_runner_of_a_run_that_was_given_up_is_refused_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine was taken for lost and was not: the agent does not go on for nobody."""
    monkeypatch.setattr("legation.runs.sandbox.SILENT_MS", -3_600_000)
    async with serving(tmp_path) as server:
        run_id = await server.rig.submit(WAITS)
        run = await server.rig.until(run_id, lambda run: run.state is RunState.RUNNING)
        await until(lambda: server.reports(run))
        [runner] = server.runners()
        async with server.rig.working(worker_elsewhere(server)):
            await server.services.database.transact(make_due, run_id)
            run = await server.rig.until(run_id)
        assert (run.state, run.error_class, run.secret_id) == (
            RunState.FAILED,
            ErrorClass.MACHINE_LOST,
            None,
        )
        await until(lambda: _value(is_over(runner)))


def is_over(runner: RegisteredChild) -> bool:
    found = process(runner.pid)
    return found is None or found.dead or found.started != runner.started


async def _value(found: object) -> object:
    return found


def make_due(run_id: str) -> Transaction[Rows]:
    (query,) = parse("-- name: due\nupdate run set next_check_at = 0 where id = :id;")
    return (yield query(id=run_id))


async def cancel(server: Server, run_id: str) -> None:
    services = server.services
    await services.database.transact(request_cancel, "local", run_id, now_ms=services.clock.now_ms())
    services.database.notify(TOPIC)


async def test_a_runner_that_never_reads_its_task_is_given_up_in_time() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(_write_all, writing, bytes(1_000_000), 0.1)
    finally:
        os.close(reading)
        os.close(writing)
