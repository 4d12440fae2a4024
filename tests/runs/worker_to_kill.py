"""A worker that works until a test kills it, or that kills or freezes itself at one effect of one step.

Its configuration: {"url" or "path", "key", "folder", "name", "machine", "lease", "at": [step, effect, phase], "how": "kill", "stop" or
"wait"}; with "takes_lost" every
other machine is lost for it; "runner_dies" is an effect before which it kills the runners that it has; "packs" is a folder of blobs,
into which events of runs are packed as soon as they have ended; with "reports" it has `ReportingProvider`; with "env", the variables of a real one, its provider is the real one too. One that waits goes on when the file `done-<name>` is there.
"""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.runs.rig import LIMIT, CountingProvider
from tests.store.blob_stores import signer
from tests.store.database.databases import Either

from legation.clock import SystemClock, new_id
from legation.proc.registry import RegisteredChild, listed
from legation.runs.packs import EventPacks
from legation.runs.provider import Observation, RunJob
from legation.runs.run import Run
from legation.runs.sandbox import _ended, _runner_state
from legation.runs.steps import Tools
from legation.runs.worker import Worker, WorkerOptions
from legation.secret import Secret
from legation.server.installation import load_installation_keys
from legation.server.sessions.hosts import CHILDREN
from legation.server.worker import make_worker
from legation.settings import load
from legation.store.blobs.folder import FolderBlobs
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Database
from legation.store.secrets.sealer import KeyRing, Sealer, make_key
from legation.store.secrets.vault import ContentStore, Vault


class ReportingProvider(CountingProvider):
    """Its runners are files with their token; the test reports for them, to servers, and what the servers took says how they stand."""

    database: Database

    async def create(self, job: RunJob) -> str:
        await job.still_ours()
        new = self.folder / ".new" / new_id("thing")
        new.write_text(job.token.reveal())
        with suppress(FileExistsError):
            (self.folder / job.run.attempt_id).hardlink_to(new)
        new.unlink()
        return job.run.attempt_id

    async def observe(self, run: Run) -> Observation:
        row = await self.database.read(_runner_state, run)
        if row is None or row["ended_at"] is None:
            return Observation("working")
        return _ended(row["ended_kind"], row["ended_code"])


async def main(config: dict[str, Any]) -> None:
    at = config.get("at")
    once = Path(config["folder"]) / f"killed-{config['name']}"
    died = once.with_name("runner-died")

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if [step, effect, phase] == config.get("runner_dies") and not died.exists():
            died.touch()
            kill_runner(Path(config["data_dir"]))
        if at is not None and [step, effect, phase] == at and not once.exists():
            once.touch()
            if config.get("how") == "wait":
                async with asyncio.timeout(LIMIT):
                    while not once.with_name(f"done-{config['name']}").exists():
                        await asyncio.sleep(0.02)
                return
            os.kill(os.getpid(), signal.SIGSTOP if config.get("how") == "stop" else signal.SIGKILL)

    clock = SystemClock()
    made: Either
    if "url" in config:
        made = PostgresDatabase(Secret(config["url"], "url"))
    else:
        made = SqliteDatabase(Path(config["path"]))
    options = WorkerOptions(id=config["name"], lease=float(config["lease"]), poll=0.1)
    if "packs" in config:
        options = replace(options, seen_every=0.1)
    if config.get("takes_lost"):
        options = replace(options, machine_lost=0.01, seen_every=0.1)
    async with made as database:
        if "env" in config:
            settings = load({"data_dir": Path(config["data_dir"])}, config["env"])
            sealer = Sealer(load_installation_keys(settings).vault)
            worker = make_worker(
                settings, database, clock, sealer, config["machine"], config["report_url"], options
            )
            worker.tools = replace(
                worker.tools, observe_ms=100, on_effect=on_effect, packs=packs_of(config, database, sealer)
            )
            await until_told(worker)
            return
        sealer = Sealer(KeyRing(make_key(Secret(config["key"], "vault-key"))))
        provider = CountingProvider(Path(config["folder"]) / "things")
        if config.get("reports"):
            provider = ReportingProvider(provider.folder)
            provider.database = database
        tools = Tools(
            database,
            clock,
            config["machine"],
            Vault(database, sealer, clock),
            ContentStore(database, sealer, clock),
            {"sandbox": lambda: provider},
            20,
            20,
            on_effect,
            packs_of(config, database, sealer),
        )
        await until_told(Worker(tools, options))


def packs_of(config: dict[str, Any], database: Database, sealer: Sealer) -> EventPacks | None:
    if "packs" not in config:
        return None
    content = ContentStore(database, sealer, SystemClock())
    return EventPacks(database, content, FolderBlobs(Path(config["packs"]), signer()))


def runners(data: Path) -> list[RegisteredChild]:
    return [each for each in listed(data / CHILDREN) if each.name.startswith("run_")]


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def kill_runner(data: Path) -> int:
    """Its keeper first, and with it the runner; how many processes that were."""
    found = [pid for each in runners(data) for pid in (each.pid, *children_of(each.pid))]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


async def until_told(worker: Worker) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
    await worker.run()


def work(config: dict[str, Any]) -> None:
    asyncio.run(main(config))
