"""One prompt to one agent, in this process: what `legation exec` and the demo do."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from legation.cli.folders import Folders
from legation.cli.view import AskedInOrder, Screen
from legation.errors import Cancelled
from legation.host.changes import Changes, Snapshot
from legation.host.host import AcpHost
from legation.host.session import Limits, PromptResult, Session
from legation.ids import new_id
from legation.proc import Command, ProcessLauncher, Registry, child_environment, reap
from legation.settings import Settings
from legation.store.backend import Trouble
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.wire.acp.content import Text
from legation.wire.ask import Approver

SUMMARY = 200  # characters of the prompt that the list of sessions shows
SHOW_LIMIT = 10.0  # seconds the screen has to show what is left when the turn is over: the terminal's time


@dataclass(frozen=True, slots=True)
class Job:
    agent: str
    argv: tuple[str, ...]
    cwd: Path
    prompt: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    session_id: str
    result: PromptResult
    changes: Changes


class Canceller:
    """Cancels the turn that is running, if one is: for Ctrl-C and for whoever is asked."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> None:
        if self.session:
            task = asyncio.create_task(self.session.cancel())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


MakeApprover = Callable[[Callable[[], None]], Approver]
"""Is given a function that cancels the turn."""


def run_turn(job: Job, settings: Settings, screen: Screen, make_approver: MakeApprover) -> Done:
    try:
        return asyncio.run(_run(job, settings, screen, make_approver))
    except asyncio.CancelledError:
        raise Cancelled("cannot finish the turn: it was stopped") from None


async def _run(job: Job, settings: Settings, screen: Screen, make_approver: MakeApprover) -> Done:
    folders, session_id, cancel = Folders(settings.data_dir), new_id("ses"), Canceller()
    await asyncio.to_thread(reap, folders.children)
    with folders.agent_places(job.agent, session_id) as (home, tmp), folders.session(session_id) as place:
        command = Command(job.argv, job.cwd, child_environment(job.env, home=home, tmp=tmp), job.agent)
        async with await Snapshot.take(job.cwd) as before:
            async with _shown(screen, place, session_id) as log:
                host = AcpHost(
                    log=log,
                    launcher=ProcessLauncher(registry=Registry(folders.children)),
                    approver=AskedInOrder(make_approver(cancel), screen),
                    limits=_limits(settings),
                    max_line=settings.max_line_bytes,
                )
                async with host:
                    result = await _prompt(host, command, job, session_id, cancel)
            return Done(session_id, result, await before.changes())


@asynccontextmanager
async def _shown(screen: Screen, place: Path, session_id: str) -> AsyncIterator[EventLog]:
    """A log of which the screen shows one stream, to the last event."""
    showing: asyncio.Task[None] | None = None
    try:
        async with EventLog(JsonlBackend(place), report=_complain) as log:
            showing = asyncio.create_task(screen.follow(await log.stream(session_id)))
            yield log
    finally:
        if showing is not None:
            await asyncio.wait({showing}, timeout=SHOW_LIMIT)
            screen.end()


async def _prompt(
    host: AcpHost, command: Command, job: Job, session_id: str, cancel: Canceller
) -> PromptResult:
    agent = await host.spawn_agent(command)
    session = await host.create_session(agent, job.cwd, session_id=session_id)
    summary = {"agent": job.agent, "cwd": str(job.cwd), "prompt": job.prompt[:SUMMARY]}
    await session.stream.set_meta(msgspec.json.encode(summary))
    cancel.session = session
    with _interrupts(cancel):
        return await session.prompt((Text(text=job.prompt),))


@contextmanager
def _interrupts(cancel: Canceller) -> Iterator[None]:
    """Ctrl-C once asks the agent to stop; twice, or a TERM, stops it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            task.cancel()
        else:
            print("\nlegation: cancelling; Ctrl-C again to stop the agent at once", file=sys.stderr)
            interrupted = True
            cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _limits(settings: Settings) -> Limits:
    return Limits(
        start=settings.start_timeout,
        idle=settings.idle_timeout,
        permission=settings.permission_timeout,
        stop=settings.stop_grace,
    )


def _complain(trouble: Trouble) -> None:
    print(f"legation: {trouble.code}: {trouble.message}", file=sys.stderr)
