"""A worker on either database with what it works with, and a provider that counts what it is asked for."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
from tests.store.blob_stores import signer
from tests.store.database.databases import Either
from tests.store.installation import new_sealer

from legation.clock import Clock, SystemClock, new_id
from legation.errors import LegationError
from legation.runs.events import ReportSource, RunEventStore, keep_report
from legation.runs.packs import EventPacks
from legation.runs.provider import Observation, Provider, RunJob, RunResource
from legation.runs.run import EVENTS, SQL, SUBMISSION, TOPIC, NewRun, Run, RunCaps, add_run, find_run
from legation.runs.states import TERMINAL, RunState
from legation.runs.steps import OnEffect, Tools
from legation.runs.worker import Worker, WorkerOptions
from legation.secret import Secret
from legation.store.blobs.base import Blobs
from legation.store.blobs.folder import FolderBlobs
from legation.store.database.transaction import Statement, Transaction, parse, rows
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import ContentStore, Vault
from legation.wire.api.runs import Priority, RunCleanup, RunSpec
from legation.wire.callbacks import RunnerReport, token_digest
from legation.wire.events import Event

LIMIT = 120.0  # seconds, which only a broken machine takes


class CountingProvider:
    """Makes files instead of processes, and counts effects: what is there twice was done twice. A run whose prompt is `hold` works
    until it is cancelled.

    A runner is a file that a link makes and a rename into `.ended` ends. The effect is what is counted, so no kill falls between
    the two; a line written beside it would be missing when the kill does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for each in (folder, folder / ".new", folder / ".ended", folder / ".begun"):
            each.mkdir(exist_ok=True, parents=True)

    def note(self, what: str, run: Run) -> None:
        line = json.dumps([what, run.attempt_id, os.getpid()]) + "\n"
        fd = os.open(self.folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line.encode())
        os.close(fd)

    @property
    def effects(self) -> Counter[tuple[str, str]]:
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        noted = Counter((what, name) for what, name, _ in map(json.loads, lines))
        ended = [path.name.partition(".")[0] for path in (self.folder / ".ended").iterdir()]
        noted.update(("clean runner", name) for name in ended)
        noted.update(("create", name) for name in (*ended, *(each for each in self.left() if "-" in each)))
        return noted

    def left(self) -> list[str]:
        return sorted(
            path.name
            for path in self.folder.iterdir()
            if path.name != "effects" and not path.name.startswith(".")
        )

    def resources(self, run: Run) -> tuple[RunResource, ...]:
        return RunResource("folder", run.id), RunResource("runner", run.attempt_id)

    def journal(self, run: Run, token: Secret, now_ms: int) -> Transaction[None]:
        yield SQL.register_runner(
            id=run.attempt_id,
            workspace=run.workspace,
            token_digest=token_digest(token.reveal()),
            machine=run.machine,
            run=run.id,
            attempt=run.attempt,
            now=now_ms,
        )

    async def prepare(self, run: Run, spec: RunSpec) -> None:
        (self.folder / run.id).write_text(spec.prompts[0])

    async def find(self, run: Run) -> str | None:
        return run.attempt_id if (self.folder / run.attempt_id).exists() else None

    async def create(self, job: RunJob) -> str:
        await job.still_ours()
        if job.rest_only:  # it tells what is left, and begins nothing
            (self.folder / ".begun" / job.run.attempt_id).unlink(missing_ok=True)
            self.note("rest", job.run)
            return job.run.attempt_id
        new = self.folder / ".new" / new_id("thing")
        new.touch()
        # The prompt is with the agent from here on: that is what must not happen twice.
        with suppress(FileExistsError):
            (self.folder / job.run.attempt_id).hardlink_to(new)
        new.replace(self.folder / ".begun" / job.run.attempt_id)
        return job.run.attempt_id

    async def observe(self, run: Run) -> Observation:
        if not (self.folder / run.attempt_id).exists():
            return Observation("gone", has_rest=(self.folder / ".begun" / run.attempt_id).exists())
        if (self.folder / run.id).read_text() == "hold":
            return Observation("working")
        return Observation("ended", RunState.SUCCEEDED)

    async def cancel(self, run: Run) -> None:
        self.note("cancel", run)

    async def retain(self, run: Run, resource: RunResource) -> bool:  # noqa: ARG002
        return resource.kind == "folder" and (self.folder / resource.name).exists()

    asking = False

    async def asks_all(self, run: Run, spec: RunSpec) -> bool:  # noqa: ARG002
        return self.asking

    async def clean(self, run: Run, resource: RunResource) -> None:
        path = self.folder / resource.name
        if resource.kind == "runner":
            with suppress(FileNotFoundError):
                path.rename(self.folder / ".ended" / f"{resource.name}.{new_id('thing')}")
        elif path.exists():
            path.unlink()
            self.note(f"clean {resource.kind}", run)


@dataclass
class Rig:
    database: Either
    provider: Provider
    sealer: Sealer = field(default_factory=new_sealer)
    clock: Clock = field(default_factory=SystemClock)

    @property
    def content(self) -> ContentStore:
        return ContentStore(self.database, self.sealer, self.clock)

    @property
    def vault(self) -> Vault:
        return Vault(self.database, self.sealer, self.clock)

    def worker(
        self,
        name: str = "w1",
        *,
        machine: str = "m1",
        on_effect: OnEffect | None = None,
        packs: EventPacks | None = None,
        **options: float,
    ) -> Worker:
        tools = Tools(
            self.database,
            self.clock,
            machine,
            self.vault,
            self.content,
            {"sandbox": lambda: self.provider},
            50,
            50,
            on_effect,
            packs,
        )
        often = {"poll": 0.2} if packs is None else {"poll": 0.2, "seen_every": 0.1}
        return Worker(tools, WorkerOptions(id=name, **{**often, **options}))  # type: ignore[arg-type]

    @asynccontextmanager
    async def working(self, worker: Worker) -> AsyncIterator[Worker]:
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            async with asyncio.timeout(LIMIT):
                await task

    async def submit(
        self,
        prompt: str = "go",
        *,
        key: str | None = "sk-secret",
        agent: str = "rehearsal",
        caps: RunCaps | None = None,
        workspace: str = "local",
        priority: Priority = "normal",
        notify: bool = True,
        retain: bool | None = None,
    ) -> str:
        return await submit(
            self.database,
            self.vault,
            self.content,
            prompt,
            key,
            agent,
            caps,
            workspace,
            priority,
            notify=notify,
            retain=retain,
        )

    async def run(self, run_id: str, workspace: str = "local") -> Run:
        found = await self.database.read(find_run, workspace, run_id)
        assert found is not None
        return found

    async def until(self, run_id: str, reached: Callable[[Run], bool] | None = None) -> Run:
        async with asyncio.timeout(LIMIT):
            while True:
                run = await self.run(run_id)
                if reached(run) if reached is not None else run.state in TERMINAL:
                    return run
                await asyncio.sleep(0.02)


async def submit(
    database: Either,
    vault: Vault,
    content: ContentStore,
    prompt: str,
    key: str | None,
    agent: str = "rehearsal",
    caps: RunCaps | None = None,
    workspace: str = "local",
    priority: Priority = "normal",
    *,
    notify: bool = True,
    retain: bool | None = None,
) -> str:
    run_id, now = new_id("run"), SystemClock().now_ms()
    spec = msgspec.json.encode(RunSpec(agent=agent, prompts=[prompt], cleanup=RunCleanup(retain=retain)))

    def work() -> Transaction[None]:
        secret_id = None
        if key is not None:
            secret_id = yield from vault.put_within(
                workspace, run_id, {"MODEL_KEY": Secret(key, "MODEL_KEY")}
            )
        new = NewRun(
            id=run_id,
            workspace=workspace,
            creator_kind="token",
            creator="tok_1",
            creator_user="usr_1",
            agent=agent,
            provider="sandbox",
            caps=caps or RunCaps(concurrency=1000),
            request_hash="hash",
            priority=priority,
            secret_id=secret_id,
        )
        yield from add_run(new, now_ms=now)
        yield from content.append(workspace, run_id, SUBMISSION, 1, 1, spec)

    await database.transact(work)
    if notify:
        database.notify(TOPIC)
    return run_id


def folder_blobs(folder: Path) -> FolderBlobs:
    return FolderBlobs(folder / "blobs", signer())


async def tell(
    rig: Rig, run_id: str, texts: Sequence[str] = ("one", "two", "three"), attempt: int = 1
) -> list[Event]:
    """Have a runner's reports kept, one for each text; the events that they are."""
    source = ReportSource("local", run_id, attempt, None)
    head = await rig.database.read(rig.content.head, "local", run_id, EVENTS)
    for number, text in enumerate(texts, 1):
        said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        line = msgspec.Raw(msgspec.json.encode({"sessionId": "s", "update": said}))
        report = RunnerReport(
            kind="session_update",
            run_id=run_id,
            task_id="t",
            sandbox_id="b",
            prompt_id=f"{run_id}-{attempt}",
            sequence=number,
            notifications=(line,),
        )
        await rig.database.transact(keep_report, rig.content, source, report, {}, now_ms=number)
    return await RunEventStore(rig.database, rig.content, cast(Blobs, None)).read("local", run_id, head)


async def until_packed(rig: Rig, run_id: str, *, wanted: bool = True) -> None:
    """Until nobody is to look at it any more, and none of its events is in the database."""
    async with asyncio.timeout(LIMIT):
        while wanted:
            with suppress(LegationError):
                run = await rig.run(run_id)
                if run.state in TERMINAL and run.next_check_at is None and not run.lease_token:
                    query = f"select 1 from content_page where owner = '{run_id}' and stream = 'events'"
                    assert not await rig.database.read(rows, one(query))
                    return
            await asyncio.sleep(0.05)


def one(text: str) -> Statement:
    (query,) = parse(f"-- name: one\n{text};")
    return query()
