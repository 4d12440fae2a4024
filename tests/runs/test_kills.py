"""Workers that are killed or frozen at every effect of every step: each run ends once, nothing is done twice, nothing is left.

The table of kills is made of the worker's own list of steps.
"""

import asyncio
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import MIGRATED, Postgres, running_postgres
from tests.runs.rig import LIMIT, CountingProvider, Rig
from tests.runs.worker_to_kill import work
from tests.store.database.databases import make, opened
from tests.store.installation import add_workspaces

from legation.errors import LegationError
from legation.runs.run import Run, request_cancel
from legation.runs.states import TERMINAL, CleanupStatus, RunState
from legation.runs.steps import LOSE, STEPS
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Rows, Transaction, parse
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text

pytestmark = pytest.mark.heavy

TABLE = [
    (step.name, effect, phase)
    for step in STEPS
    for effect in step.effects
    for phase in ("before", "after")
    # What is after a slot is taken is before the journal is written, and it is the database that takes it.
    if (step.name, effect, phase) != ("admit", "slot", "after")
]
# Steps that only a run which is cancelled, or whose runner died, comes to.
CANCELLED = {"stop"}
REVIVED = {"observe"}


def test_every_step_of_the_worker_is_in_the_table() -> None:
    assert {name for name, *_ in TABLE} == {step.name for step in STEPS}
    assert all(step.effects for step in (*STEPS, LOSE))


# Forked from a process that has loaded all of it: each start is some milliseconds of work.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.runs.worker_to_kill"])


@contextmanager
def started(folder: Path, name: str, config: dict[str, Any]) -> Iterator[ForkServerProcess]:
    whole = {"folder": str(folder), "name": name, "machine": "m1", "lease": 2, **config}
    process = FORKS.Process(target=work, args=(whole,))
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGCONT)
            process.terminate()
            process.join(LIMIT)
            process.kill()
        process.join()
        process.close()


async def ended(process: ForkServerProcess) -> int | None:
    await asyncio.to_thread(process.join, LIMIT)
    return process.exitcode


def settled(folder: Path, runs: list[Run]) -> None:
    """What must hold however often anything was killed."""
    provider = CountingProvider(folder / "things")
    for run in runs:
        assert run.state in TERMINAL, run
        assert (run.cleanup, run.secret_id, run.lease_token) == (CleanupStatus.SUCCEEDED, None, ""), run
        assert run.attempt == 1
        assert provider.effects["create", run.attempt_id] <= 1
        if run.state is RunState.SUCCEEDED:
            assert provider.effects["create", run.attempt_id] == 1
    assert provider.left() == []


@pytest.mark.parametrize(("step", "effect", "phase"), TABLE, ids=["-".join(each) for each in TABLE])
async def test_a_worker_killed_there_is_made_up_for_by_the_next(
    step: str, effect: str, phase: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On SQLite, whose one owner is killed, and then a new one opens the file. Postgres is below, with many at once."""
    key, where = new_key_text(), tmp_path / "legation.db"
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"path": str(where), "key": key, "lease": 1, "at": [step, effect, phase]}
    async with opened(make("sqlite", tmp_path, request)) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        run_id = await rig.submit("hold" if step in CANCELLED else "go")
        if step in CANCELLED:
            await to_running(rig, run_id)
            await database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
        if step in REVIVED:
            await to_running(rig, run_id)
            (tmp_path / "things" / f"{run_id}-1").unlink()
    with started(tmp_path, "first", config) as first:
        assert await ended(first) == -signal.SIGKILL
    async with opened(make("sqlite", tmp_path, request)) as database:
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        async with rig.working(rig.worker("second")):
            settled(tmp_path, [await rig.until(run_id)])


async def to_running(rig: Rig, run_id: str) -> None:
    """As far as the runner, and no further: the worker is stopped there."""
    worker = rig.worker("before")
    worker.tools = replace(worker.tools, observe_ms=3_600_000)
    async with rig.working(worker):
        await rig.until(run_id, lambda run: run.state is RunState.RUNNING and not run.lease_token)
    await rig.database.transact(_due, run_id)


def _due(run_id: str) -> Transaction[Rows]:
    (query,) = parse("-- name: due\nupdate run set next_check_at = 0 where id = :id;")
    return (yield query(id=run_id))


@pytest.mark.parametrize(
    ("step", "effect"), [("prepare", "folders"), ("start", "create"), ("clean", "remove")]
)
async def test_a_worker_frozen_past_its_lease_does_nothing_more_when_it_thaws(
    step: str, effect: str, tmp_path: Path, postgres: Postgres
) -> None:
    key, url = new_key_text(), postgres.new_database(MIGRATED)
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"url": url.reveal(), "key": key, "lease": 1, "at": [step, effect, "before"], "how": "stop"}
    async with PostgresDatabase(url) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        run_id = await rig.submit()
        with started(tmp_path, "frozen", config) as frozen:
            async with asyncio.timeout(LIMIT):
                while not (tmp_path / "killed-frozen").exists():
                    await asyncio.sleep(0.05)
            async with rig.working(rig.worker("other")):
                run = await rig.until(run_id)
            settled(tmp_path, [run])
            before = rig.provider.effects  # type: ignore[attr-defined]
            os.kill(frozen.pid or 0, signal.SIGCONT)
            frozen.terminate()
            await ended(frozen)
        assert rig.provider.effects == before  # type: ignore[attr-defined]
        assert await rig.run(run_id) == run


@pytest.mark.parametrize(
    ("runs", "every"),
    [(20, 10), pytest.param(200, 10, marks=pytest.mark.slow), pytest.param(2000, 10, marks=pytest.mark.slow)],
)
async def test_workers_that_are_killed_at_random_end_every_run_once(
    runs: int, every: int, tmp_path: Path, postgres: Postgres
) -> None:
    """Four workers on one Postgres; after each tenth step that was committed one of them is killed and another started."""
    key, url, chance = new_key_text(), postgres.new_database(MIGRATED), random.Random(runs)
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"url": url.reveal(), "key": key, "lease": 2}
    async with PostgresDatabase(url) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        await database.transact(_watch_leases)
        ids = [await rig.submit() for _ in range(runs)]
        killed = await _kill_among(rig, tmp_path, config, every, chance)
        settled(tmp_path, [await rig.run(each) for each in ids])
        assert killed >= runs * 5 // every // 3
        assert (await database.transact(_overlaps))[0]["n"] == 0
        assert set(rig.provider.effects.values()) == {1}  # type: ignore[attr-defined]


async def _kill_among(
    rig: Rig, folder: Path, config: dict[str, Any], every: int, chance: random.Random
) -> int:
    with ExitStack() as stack:
        number = 0

        def start() -> ForkServerProcess:
            nonlocal number
            number += 1
            return stack.enter_context(started(folder, f"w{number}", config))

        workers, next_at, killed = [start() for _ in range(4)], every, 0
        async with asyncio.timeout(LIMIT * 10):
            while True:
                (row,) = await rig.database.transact(_progress)
                if row["unfinished"] == 0:
                    return killed
                if row["steps"] >= next_at:
                    next_at = row["steps"] + every
                    victim = workers.pop(chance.randrange(len(workers)))
                    victim.kill()
                    await ended(victim)
                    killed += 1
                    workers.append(start())
                await asyncio.sleep(0.02)


def _progress() -> Transaction[Rows]:
    (query,) = parse(
        "-- name: progress\nselect (select count(*) from run where ended_at is null) as unfinished,"
        " (select count(*) from lease_seen where given_back) as steps;"
    )
    return (yield query())


async def test_a_postgres_that_crashes_again_and_again_loses_no_run_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Two workers in this process; Postgres is ended at once, with what it was at, whenever some runs more have ended."""
    with running_postgres(durable=True) as server:
        url = server.new_database(MIGRATED)
        async with PostgresDatabase(url) as database:
            await add_workspaces(database)
            rig = Rig(database, CountingProvider(tmp_path / "things"))
            ids = [await rig.submit() for _ in range(12)]
            async with rig.working(rig.worker("w1", lease=2)), rig.working(rig.worker("w2", lease=2)):
                for each in ids[3::4]:
                    await until_it_ends(rig, each)
                    await asyncio.to_thread(server.restart)
                for each in ids:
                    await until_it_ends(rig, each)
            settled(tmp_path, [await rig.run(each) for each in ids])
            assert set(rig.provider.effects.values()) == {1}  # type: ignore[attr-defined]


async def until_it_ends(rig: Rig, run_id: str) -> None:
    async with asyncio.timeout(LIMIT):
        while True:
            with suppress(LegationError):  # it is away for a moment
                if (await rig.run(run_id)).state in TERMINAL:
                    return
            await asyncio.sleep(0.05)


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
