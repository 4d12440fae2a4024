"""Four workers and two servers on one Postgres, of which one is killed at random after every tenth step that was committed.

Submissions go to either server until one has taken them, reports by the runner's own reporter to the one that its runner was given. Only the agent's
process is not there: `test_real_kills.py` has it.
"""

import asyncio
import random
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.server_process import Running
from tests.postgres import MIGRATED, Postgres
from tests.runner.rig import DONE, QUICK, chunk
from tests.runs.rig import LIMIT, CountingProvider, Rig
from tests.runs.test_kills import ended, settled, started

from legation.client import AsyncLegation
from legation.clock import SystemClock
from legation.errors import LegationError
from legation.runner.callback import Callback
from legation.runner.reporter import Reporter, Spool, SpoolLog
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Rows, Transaction, parse
from legation.store.secrets.sealer import new_key_text
from legation.tasks import TaskSet
from legation.wire.callbacks import ReportIds

pytestmark = pytest.mark.heavy

WORKERS = 4
TOKEN = "token-of-the-chaos-and-no-other"
SAID = ("one", "two", "three")
AT_ONCE = 16  # submissions and reporters of the test itself
KEYS = ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY")


class Chaos:
    def __init__(self, folder: Path, url: str, stack: ExitStack, seed: int) -> None:
        keys = {f"LEGATION_{name}": new_key_text() for name in KEYS}
        self.env = {"LEGATION_DATABASE_URL": url, "LEGATION_TOKEN": TOKEN, **keys}
        self.env |= {"LEGATION_RUN_CONCURRENCY": "1000", "LEGATION_RUNS_PER_MINUTE": "1000000"}
        self.config = {"url": url, "key": keys["LEGATION_VAULT_KEY"], "lease": 2, "reports": True}
        self.folder, self.stack, self.random, self.number = folder, stack, random.Random(seed), 0
        self.ports = [free_port(), free_port()]
        self.servers: dict[int, Running] = {}
        self.workers: list[ForkServerProcess] = []

    def start_server(self, port: int) -> None:
        home = self.folder / f"server-{port}"
        home.mkdir(exist_ok=True)
        self.servers[port] = Running(home, "server", "--port", str(port), **self.env)
        self.servers[port].line()

    def start_worker(self) -> None:
        self.number += 1
        self.workers.append(self.stack.enter_context(started(self.folder, f"w{self.number}", self.config)))

    async def kill_one(self) -> str:
        """Any of the six, each as likely; another takes its place."""
        number = self.random.randrange(WORKERS + len(self.ports))
        if number < WORKERS:
            victim = self.workers.pop(number)
            victim.kill()
            await ended(victim)
            self.start_worker()
            return "worker"
        port = self.ports[number - WORKERS]
        self.servers[port].stop(signal.SIGKILL)
        await asyncio.to_thread(self.start_server, port)
        return "server"

    def close(self) -> None:
        for each in self.servers.values():
            each.stop(signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SLOW = (pytest.mark.slow, pytest.mark.timeout(3600))  # more kills than the usual limit has room for


@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=SLOW), pytest.param(2000, marks=SLOW)])
async def test_workers_and_servers_that_are_killed_at_random_end_every_run_once(
    runs: int, tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.new_database(MIGRATED)
    with ExitStack() as stack:
        chaos = Chaos(tmp_path, url.reveal(), stack, runs)
        stack.callback(chaos.close)
        for port in chaos.ports:
            await asyncio.to_thread(chaos.start_server, port)
        async with PostgresDatabase(url) as database:
            rig = Rig(database, CountingProvider(tmp_path / "things"))
            await database.transact(_watch_leases)
            for _ in range(WORKERS):
                chaos.start_worker()
            beside = TaskSet("chaos")
            try:
                submitting = beside.start(submit_all(chaos, runs))
                reporting = beside.start(report_all(chaos, runs))
                killed = await kill_until_all_ended(rig, chaos, runs)
                ids = await submitting
                await reporting
            finally:
                await beside.close()
            settled(tmp_path, [await rig.run(each) for each in ids])
            assert (len(set(ids)), await database.read(_count)) == (runs, runs)  # submitted twice, it is one
            assert {"worker", "server"} <= {*killed} or runs < 100, killed
            assert len(killed) >= runs * 5 // 10 // 3
            assert (await database.transact(_overlaps))[0]["n"] == 0
            assert set(rig.provider.effects.values()) == {1}  # type: ignore[attr-defined]
            await heard_all(chaos, ids)


async def kill_until_all_ended(rig: Rig, chaos: Chaos, runs: int) -> list[str]:
    next_at, killed = 10, list[str]()
    async with asyncio.timeout(LIMIT * 30):
        while True:
            (row,) = await rig.database.transact(_progress)
            if row["ended"] == runs:
                return killed
            if row["steps"] >= next_at:
                next_at = row["steps"] + 10
                killed.append(await chaos.kill_one())
            await asyncio.sleep(0.02)


async def submit_all(chaos: Chaos, runs: int) -> list[str]:
    """Each under a key of its own, at either server until one has answered."""

    async def submit(number: int) -> str:
        for port in insist(chaos, number):
            with suppress(LegationError):
                async with AsyncLegation(f"http://127.0.0.1:{port}", token=TOKEN) as client:
                    return (await client.run("rehearsal", "go", key=f"run-{number}")).id
            await asyncio.sleep(0.05)
        raise AssertionError("unreachable")

    return await in_turn([partial(submit, number) for number in range(runs)])


def insist(chaos: Chaos, number: int) -> Any:
    while True:
        number += 1
        yield chaos.ports[number % 2]


async def report_all(chaos: Chaos, runs: int) -> None:
    """For each runner that is made, once."""
    seen: set[str] = set()
    things, reports = chaos.folder / "things", TaskSet("reports")
    room = asyncio.Semaphore(AT_ONCE)
    try:
        while len(seen) < runs:
            for path in [*things.iterdir()]:
                if "-" in path.name and path.name not in seen:
                    seen.add(path.name)
                    await room.acquire()
                    task = reports.start(report(chaos, path.name, path.read_text(), len(seen)))
                    task.add_done_callback(lambda _: room.release())
            await asyncio.sleep(0.02)
        await reports.settle()
    finally:
        await reports.close()


async def report(chaos: Chaos, runner: str, token: str, number: int) -> None:
    folder = chaos.folder / "spools" / runner
    folder.mkdir(parents=True)
    spool, clock, run_id = Spool(2**40), SystemClock(), runner.rpartition("-")[0]
    url = f"http://127.0.0.1:{chaos.ports[number % 2]}/v1/runs/{runner}/reports"
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(SpoolLog(folder, spool, clock, lambda _: None))
        callback = await stack.enter_async_context(Callback(url))
        ids = ReportIds(run_id, run_id, "m1", runner)
        made = Reporter(callback, token, ids, log, clock=clock, spool=spool, times=QUICK)
        reporter = await stack.enter_async_context(made)
        stream = await log.stream("session")
        await reporter.follow(stream, stream.head, "agents-own")
        for text in SAID:
            stream.append([chunk(text)])
            await asyncio.sleep(QUICK.window * 2)  # so that each is a report of its own
        await reporter.finish("prompt_complete", DONE, stream.head, LIMIT)


async def in_turn(works: list[Callable[[], Awaitable[str]]]) -> list[str]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(work: Callable[[], Awaitable[str]]) -> str:
        async with room:
            return await work()

    return await asyncio.gather(*(one(work) for work in works))


async def heard_all(chaos: Chaos, ids: list[str]) -> None:
    """Every event once, in order."""
    async with AsyncLegation(f"http://127.0.0.1:{chaos.ports[0]}", token=TOKEN) as client:
        for each in ids:
            events = [event async for event in (await client.runs.get(each)).events()]
            assert [event.seq for event in events] == [*range(1, len(events) + 1)]
            said = [event for event in events if event.type == "agent-message-chunk"]
            assert len(said) == len(SAID)
            assert [event.type for event in events].count("prompt-finished") == 1


def _count() -> Transaction[int]:
    (query,) = parse("-- name: n\nselect count(*) as n from run;")
    return int((yield query())[0]["n"])


def _progress() -> Transaction[Rows]:
    (query,) = parse(
        "-- name: progress\nselect (select count(*) from run where ended_at is not null) as ended,"
        " (select count(*) from lease_seen where given_back) as steps;"
    )
    return (yield query())


# Every lease, as the database saw it begin and end: that no two of a run overlap is for the log to say, not for the worker.
_LOG = """
create table lease_seen (run_id text, token text, at bigserial, given_back boolean, expired boolean);
alter table lease_seen disable row level security;
create function see_lease() returns trigger as $$ begin
  if new.lease_token is distinct from old.lease_token then
    insert into lease_seen (run_id, token, given_back, expired) values (
      new.id, coalesce(new.lease_token, old.lease_token), new.lease_token is null,
      old.lease_token is not null and new.lease_token is not null
        and old.lease_expires_at <= (extract(epoch from clock_timestamp()) * 1000)::bigint + 50
    );
  end if;
  return new;
end $$ language plpgsql;
create trigger see_lease after update on run for each row execute function see_lease();
"""


def _watch_leases() -> Transaction[None]:
    for number, text in enumerate(_split(_LOG)):
        (query,) = parse(f"-- name: part{number}\n{text}")
        yield query()


def _split(text: str) -> list[str]:
    head, _, rest = text.partition("create function")
    function, _, trigger = rest.partition("language plpgsql;")
    return [
        *(each.strip() for each in head.split(";") if each.strip()),
        f"create function{function}language plpgsql",
        trigger.strip().rstrip(";"),
    ]


def _overlaps() -> Transaction[Rows]:
    """Count leases that began while another was there that had neither been given back nor run out."""
    (query,) = parse(
        "-- name: overlaps\nselect count(*) as n from (select run_id, given_back, expired,"
        " lag(given_back) over (partition by run_id order by at) as was_given_back from lease_seen) as seen"
        " where not given_back and not expired and was_given_back is not null and not was_given_back;"
    )
    return (yield query())
