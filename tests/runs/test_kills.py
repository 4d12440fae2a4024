"""Workers that are killed or frozen at every effect of every step: each run ends once, nothing is done twice, nothing is left.

The table of kills is made of the worker's own list of steps.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import MIGRATED, Postgres, running_postgres
from tests.runs.rig import LIMIT, CountingProvider, Rig, folder_blobs, one, tell, until_packed
from tests.runs.worker_to_kill import work
from tests.store.database.databases import make, opened
from tests.store.installation import add_workspaces

from legation.errors import LegationError
from legation.runs.events import RunEventStore
from legation.runs.packs import EventPacks
from legation.runs.run import Run, request_cancel
from legation.runs.states import TERMINAL, CleanupStatus, ErrorClass, RunState
from legation.runs.steps import LOSE, PACK, STEPS
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Rows, Transaction, parse, rows
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
# Of a machine that is lost, by a worker of another one. That it begins again is written with the step's end: there is no "after".
LOST = [("lose", "restart", "before"), ("lose", "secret", "before"), ("lose", "secret", "after")]
# Of a run that has ended: what it told is moved from the database into blobs.
PACKS = [(PACK.name, effect, phase) for effect in PACK.effects for phase in ("before", "after")]
# Steps that only a run which is cancelled, or whose runner died, comes to.
CANCELLED = {"stop"}
REVIVED = {"observe"}


def test_every_step_of_the_worker_is_in_the_table() -> None:
    assert {name for name, *_ in (*TABLE, *LOST, *PACKS)} == {step.name for step in (*STEPS, LOSE, PACK)}
    assert all(step.effects for step in (*STEPS, LOSE, PACK))
    assert {effect for _, effect, _ in LOST} == {*LOSE.effects}
    assert {state for step in STEPS for state in step.states} == {*RunState} - TERMINAL
    assert PACK.states == TERMINAL


async def test_every_step_has_the_effects_that_it_says_and_no_others(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An effect that is in no step's list would be in no row of the table."""
    seen: dict[str, list[str]] = {}

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if phase == "before" and effect not in seen.setdefault(step, []):
            seen[step].append(effect)
        if (run.id, step, effect, phase) == (revived, "start", "record", "after"):
            (tmp_path / "things" / run.attempt_id).unlink()  # its runner dies
        if (run.id, step, effect) == (cancelled, "start", "record"):
            await database.transact(request_cancel, "local", run.id, now_ms=rig.clock.now_ms())
        if (run.id, step, effect, phase) == (cancelled, "stop", "stop", "before"):
            (tmp_path / "things" / run.attempt_id).unlink(missing_ok=True)  # so does that one's

    async with opened(make("sqlite", tmp_path, request)) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"))
        cancelled, revived = await rig.submit("hold"), await rig.submit()
        early, late = await lost_runs(rig, tmp_path)
        packs = EventPacks(database, rig.content, folder_blobs(tmp_path))
        others = rig.worker("w1", on_effect=on_effect, packs=packs, machine_lost=0.01, seen_every=0.1)
        await tell(rig, revived)
        async with rig.working(others):
            for each in (cancelled, revived, early, late):
                await rig.until(each)
            await until_packed(rig, revived)
    assert {name: (*effects,) for name, effects in seen.items()} == {
        step.name: step.effects for step in (*STEPS, LOSE, PACK)
    }


async def lost_runs(rig: Rig, folder: Path) -> tuple[str, str]:
    """Two of a machine that is gone: one that had no prompt yet, and one that had."""
    early, late = await rig.submit(), await rig.submit("hold")
    reached = asyncio.Event()

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if run.id == early and (step, effect, phase) == ("prepare", "journal", "after"):
            reached.set()
            await asyncio.Event().wait()
        if run.id not in (early, late):
            await asyncio.Event().wait()

    lost = rig.worker("lost", machine="gone", on_effect=on_effect, drain=0.01)
    lost.tools = replace(lost.tools, observe_ms=1)
    async with rig.working(lost):
        await asyncio.wait_for(reached.wait(), LIMIT)
        await rig.until(late, lambda run: run.state is RunState.RUNNING)
    (folder / "things" / f"{late}-1").unlink()  # with its machine
    return early, late


@pytest.mark.parametrize(("step", "effect", "phase"), LOST, ids=["-".join(each) for each in LOST])
async def test_a_worker_killed_when_it_looks_after_a_lost_machine_is_made_up_for_by_the_next(
    step: str, effect: str, phase: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    key, where = new_key_text(), tmp_path / "legation.db"
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"path": str(where), "key": key, "lease": 1, "at": [step, effect, phase], "takes_lost": True}
    async with opened(make("sqlite", tmp_path, request)) as database:
        await add_workspaces(database)
        early, late = await lost_runs(Rig(database, CountingProvider(tmp_path / "things"), sealer), tmp_path)
    with started(tmp_path, "first", config) as first:
        assert await ended(first) == -signal.SIGKILL
    async with opened(make("sqlite", tmp_path, request)) as database:
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        async with rig.working(rig.worker("second", machine_lost=0.01, seen_every=0.1)):
            again, failed = await rig.until(early), await rig.until(late)
    assert (again.state, again.attempt, again.cleanup) == (RunState.SUCCEEDED, 2, CleanupStatus.SUCCEEDED)
    assert (failed.state, failed.attempt, failed.error_class) == (RunState.FAILED, 1, ErrorClass.MACHINE_LOST)
    assert (again.secret_id, failed.secret_id, failed.cleanup) == (None, None, CleanupStatus.FAILED_TERMINAL)
    assert rig.provider.effects["create", f"{early}-2"] == 1  # type: ignore[attr-defined]
    assert rig.provider.effects["create", f"{early}-1"] == 0  # type: ignore[attr-defined]


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
        if step in REVIVED or (step in CANCELLED and effect != "stop"):
            if step in REVIVED:
                await to_running(rig, run_id)
            (tmp_path / "things" / f"{run_id}-1").unlink()
    with started(tmp_path, "first", config) as first:
        assert await ended(first) == -signal.SIGKILL
    async with opened(make("sqlite", tmp_path, request)) as database:
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        async with rig.working(rig.worker("second")):
            settled(tmp_path, [await rig.until(run_id)])


@pytest.mark.parametrize(("step", "effect", "phase"), PACKS, ids=["-".join(each) for each in PACKS])
async def test_a_worker_killed_while_it_packs_loses_no_event_and_leaves_no_blob_that_nobody_knows(
    step: str, effect: str, phase: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    key, where = new_key_text(), tmp_path / "legation.db"
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"path": str(where), "key": key, "lease": 1, "at": [step, effect, phase]}
    async with opened(make("sqlite", tmp_path, request)) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        run_id = await rig.submit()
        told = await tell(rig, run_id)
    with started(tmp_path, "first", {**config, "packs": str(tmp_path / "blobs")}) as first:
        assert await ended(first) == -signal.SIGKILL
    async with opened(make("sqlite", tmp_path, request)) as database:
        rig, blobs = Rig(database, CountingProvider(tmp_path / "things"), sealer), folder_blobs(tmp_path)
        events = RunEventStore(database, rig.content, blobs)
        assert await events.read("local", run_id, 0) == told
        async with rig.working(rig.worker("second", packs=EventPacks(database, rig.content, blobs))):
            await until_packed(rig, run_id)
        assert await events.read("local", run_id, 0) == told
        manifest = await database.read(rows, one("select blob from run_pack where packed_at is not null"))
        assert [each.key async for each in blobs.list("local/runs")] == [row["blob"] for row in manifest]
        assert len(manifest) == 1
        settled(tmp_path, [await rig.run(run_id)])


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


FROZEN = [row for row in TABLE if row[0] not in CANCELLED | REVIVED]
FROZEN_DAILY = {("prepare", "folders", "before"), ("start", "create", "before"), ("clean", "remove", "after")}


@pytest.mark.parametrize(
    ("step", "effect", "phase"),
    [pytest.param(*row, marks=() if row in FROZEN_DAILY else pytest.mark.slow) for row in FROZEN],
    ids=["-".join(row) for row in FROZEN],
)
async def test_a_worker_frozen_past_its_lease_does_nothing_more_when_it_thaws(
    step: str, effect: str, phase: str, tmp_path: Path, postgres: Postgres
) -> None:
    key, url = new_key_text(), postgres.new_database(MIGRATED)
    sealer = Sealer(KeyRing(make_key(Secret(key, "vault-key"))))
    config = {"url": url.reveal(), "key": key, "lease": 1, "at": [step, effect, phase], "how": "stop"}
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


async def test_a_postgres_that_crashes_again_and_again_loses_no_run_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Two workers in this process; Postgres is killed with -9 whenever some runs more have ended."""
    with running_postgres(durable=True) as server:
        url = server.new_database(MIGRATED)
        async with PostgresDatabase(url) as database:
            await add_workspaces(database)
            rig = Rig(database, CountingProvider(tmp_path / "things"))
            ids = [await rig.submit() for _ in range(12)]
            async with rig.working(rig.worker("w1", lease=2)), rig.working(rig.worker("w2", lease=2)):
                for each in ids[3::4]:
                    await until_it_ends(rig, each)
                    await asyncio.to_thread(server.kill)
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
