"""Runs as a queue, on Postgres with its data on the disk and fsync on: empty steps of four workers, pick-up, empty claims, idling.

    python -m bench.runs steps|procrastinate|pickup|empty|idle SCRATCH

`procrastinate` is measured by an interpreter that has it, and that is not ours: make one with

    python -m venv /tmp/rival && /tmp/rival/bin/pip install procrastinate 'psycopg[binary,pool]'

and name it in LEGATION_BENCH_RIVAL (/tmp/rival/bin/python).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.measure import Sample, emit
from legation.clock import SystemClock, new_id
from legation.runs.provider import Observation
from legation.runs.run import PACKING, TOPIC, NewRun, Run, RunCaps, add_run, claim
from legation.runs.steps import Tools
from legation.runs.worker import Worker, WorkerOptions
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Rows, Transaction, parse, rows

WORKERS: Final = 4
STEPS: Final = 10_000
JOBS: Final = 2_000  # of procrastinate, which is slower by an order
ACTIVE, FINISHED = 100_000, 400_000
CLAIMS: Final = 500
PICKUPS: Final = 200
WAITING: Final = 10_000
FILLED: Final = 10_000  # rows of one statement
IDLE_SECONDS: Final = 60.0
HOUR_MS: Final = 3_600_000
RATE: Final = "steps/s"

_FILL = """-- name: fill
insert into run (id, workspace_id, creator_kind, creator, agent, provider, caps, request_hash, priority, created_at, state,
  next_check_at, machine, ended_at)
select :prefix || number, 'local', 'token', 'tok_1', 'rehearsal', 'sandbox', '{"concurrency":4}', 'hash', 1, :now, :state,
  :next, :machine, :ended_at
from generate_series(1, :count) as number;
"""
_WORKSPACE = "-- name: add\ninsert into workspace (id, name, created_at) values ('local', 'local', 0);"
_LEFT = "-- name: unfinished\nselect count(*) as n from run where machine = 'm1' and priority = 1 and next_check_at <= :now;"


def one(text: str, **args: Any) -> Callable[[], Transaction[Rows]]:
    (query,) = parse(text)
    return lambda: rows(query(**args))


async def fill(database: PostgresDatabase, prefix: str, count: int, **values: object) -> None:
    row = {"state": "running", "next": 0, "machine": "m1", "ended_at": None, "now": 0, **values}
    for part in range(0, count, FILLED):
        await database.transact(one(_FILL, prefix=f"{prefix}{part}_", count=min(FILLED, count - part), **row))


class NothingToDo:
    """A provider whose runs work on: a step claims, looks, and gives back."""

    async def observe(self, run: Run) -> Observation:  # noqa: ARG002
        return _WORKING


_WORKING: Final = Observation("working")


def new_worker(
    database: PostgresDatabase, name: str, *, on_effect: Any = None, concurrency: int = 100
) -> Worker:
    tools = Tools(
        database,
        SystemClock(),
        "m1",
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        {"sandbox": NothingToDo},  # type: ignore[dict-item]
        HOUR_MS,
        on_effect,
    )
    return Worker(tools, WorkerOptions(id=name, concurrency=concurrency))


@asynccontextmanager
async def opened(scratch: Path) -> AsyncIterator[tuple[PostgresDatabase, Secret]]:
    from tests.postgres import running_postgres

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir=scratch) as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - once, and Postgres runs as another user
        with running_postgres(durable=True, parent=Path(folder)) as server:
            url = server.new_database()
            async with PostgresDatabase(url) as database:
                await database.migrate()
                await database.transact(one(_WORKSPACE))
                yield database, url


def work(url: str, number: int, ready: Any, go: Any) -> None:
    async def main() -> None:
        async with PostgresDatabase(Secret(url, "url")) as database:
            await database.ping()
            worker = new_worker(database, f"w{number}")
            ready.release()
            await asyncio.to_thread(go.wait)
            await worker.run()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def steps(scratch: Path) -> Sample:
    """Four workers, each a process, with everything due: from the word go until all is given back, each row fenced."""
    async with opened(scratch) as (database, url):
        await fill(database, "run_", STEPS)
        forks = multiprocessing.get_context("spawn")
        ready, go = forks.Semaphore(0), forks.Event()
        workers = [forks.Process(target=work, args=(url.reveal(), n, ready, go)) for n in range(WORKERS)]
        for each in workers:
            each.start()
        for _ in workers:
            await asyncio.to_thread(ready.acquire)
        began = time.perf_counter()
        go.set()
        now = SystemClock().now_ms()
        while (await database.read(one(_LEFT, now=now)))[0]["n"]:  # noqa: ASYNC110 - other processes' work
            await asyncio.sleep(0.02)
        wall = time.perf_counter() - began
        for each in workers:
            each.kill()
            each.join()
        return {RATE: STEPS / wall}


async def procrastinate(scratch: Path) -> Sample:
    rival = os.environ.get("LEGATION_BENCH_RIVAL")
    if rival is None:
        sys.exit(
            f"cannot measure procrastinate without an interpreter that has it{(__doc__ or '').partition(':')[0]}"
        )
    async with opened(scratch) as (_, url):
        script = Path(__file__).with_name("runs_rival.py")
        best = 0.0
        for concurrency in (1, 10):
            done = await asyncio.to_thread(
                subprocess.run,
                [rival, str(script), str(WORKERS), str(concurrency), str(JOBS)],
                env={"URL": url.reveal(), "PATH": os.defpath},
                capture_output=True,
                text=True,
                check=True,
            )
            best = max(best, float(done.stdout.split()[-1]))
        return {RATE: best}


async def pickup(scratch: Path) -> Sample:
    """From the commit of a submission to the first effect of its first step."""
    async with opened(scratch) as (database, _):
        begun: dict[str, asyncio.Future[float]] = {}

        async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:  # noqa: ARG001
            if run.id in begun and not begun[run.id].done():
                begun[run.id].set_result(time.perf_counter())

        worker = new_worker(database, "w1", on_effect=on_effect)
        task = asyncio.create_task(worker.run())
        took, commits = [], []
        for _ in range(PICKUPS):
            run_id = new_id("run")
            begun[run_id] = asyncio.get_running_loop().create_future()
            before = time.perf_counter()
            await database.transact(_submit, run_id, SystemClock().now_ms())
            after = time.perf_counter()
            database.notify(TOPIC)
            took.append((await begun[run_id] - after) * 1000)
            commits.append((after - before) * 1000)
            await asyncio.sleep(0.02)
        worker.drain()
        await task
        # Two commits lie in between: the notice's, and the claim's.
        return {
            "ms to pick-up, p50": statistics.median(took),
            "ms of a commit, p50": statistics.median(commits),
            "ms beyond commits, p50": statistics.median(took) - 2 * statistics.median(commits),
        }


def _submit(run_id: str, now_ms: int) -> Transaction[None]:
    new = NewRun(
        id=run_id,
        workspace="local",
        creator_kind="token",
        creator="tok_1",
        creator_user=None,
        agent="rehearsal",
        provider="sandbox",
        caps=RunCaps(concurrency=0),  # parked by its first step: there is no second
        request_hash="hash",
    )
    yield from add_run(new, now_ms=now_ms)


async def empty(scratch: Path) -> Sample:
    """A claim that finds nothing, among many that are not due and many more that have ended."""
    async with opened(scratch) as (database, _):
        now = SystemClock().now_ms()
        await fill(database, "run_a", ACTIVE // 2, next=now + HOUR_MS)
        await fill(database, "run_b", ACTIVE // 2, next=now + HOUR_MS, machine="")
        await fill(database, "run_c", FINISHED, next=1, state="succeeded", machine=PACKING, ended_at=1)
        await asyncio.sleep(2)
        took, asked = [], []
        for _ in range(CLAIMS):
            began = time.perf_counter()
            found = await database.transact(
                claim, "w1", "m1", new_id("lse"), 50, now_ms=now, until_ms=now + 30_000
            )
            took.append((time.perf_counter() - began) * 1000)
            assert not found
            began = time.perf_counter()
            await database.ping()
            asked.append((time.perf_counter() - began) * 1000)
        return {
            "ms, p50": statistics.median(took),
            "ms, p99": statistics.quantiles(took, n=100)[98],
            "ms of `select 1`, p50": statistics.median(asked),
        }


async def idle(scratch: Path) -> Sample:
    """CPU of a worker that has nothing to do: all is due in an hour, or all waits for a slot."""
    sample: Sample = {}
    for name, values in (
        ("due in an hour", {"next": SystemClock().now_ms() + 10 * HOUR_MS}),
        ("at the cap", {"next": None, "state": "queued", "machine": ""}),
    ):
        async with opened(scratch) as (database, _):
            await fill(database, "run_", WAITING, **values)
            worker = new_worker(database, "w1")
            task = asyncio.create_task(worker.run())
            await asyncio.sleep(2)
            cpu = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            sample[f"% of a core, {name}"] = (time.process_time() - cpu) / IDLE_SECONDS * 100
            worker.drain()
            await task
    return sample


KINDS: Final[dict[str, Callable[[Path], Awaitable[Sample]]]] = {
    "steps": steps,
    "procrastinate": procrastinate,
    "pickup": pickup,
    "empty": empty,
    "idle": idle,
}


async def main(kind: str, scratch: Path) -> None:
    emit(await KINDS[kind](scratch))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop_runner:
        loop_runner.run(main(sys.argv[1], Path(sys.argv[2])))
