"""One prompt to one agent, in this process: what `legation exec` and the demo do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from legation.agents.driver import Driver
from legation.approvals.policies import Policies
from legation.cli.approver import TerminalApprover
from legation.cli.door import TRACE, own_door
from legation.cli.folders import Folders
from legation.cli.view import AskedInOrder, Screen
from legation.errors import Cancelled
from legation.host.changes import Changes, Snapshot
from legation.host.host import AcpHost
from legation.host.modes import Offers, Opening, choose_mode
from legation.host.options import AgentDefinition, HostOptions, Limits, trusts_nothing
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.ids import new_id
from legation.proc.lines import Redact, unchanged
from legation.settings import Settings
from legation.store.forbidden import ForbiddenPlaces
from legation.store.jsonl import JsonlBackend
from legation.store.subscription import Subscription
from legation.wire import codec
from legation.wire.acp.content import Text
from legation.wire.acp.sessions import NewSessionResponse
from legation.wire.ask import ApproveAll, Approver
from legation.wire.diagnostic import Diagnostic
from legation.wire.events import Event

SUMMARY = 200  # characters of the prompt that the list of sessions shows
LATER = 5.0  # seconds after a permission's time is over: the door's, to say so and to write it down
SHOW_LIMIT = 10.0  # seconds the screen has to show what is left when the turn is over: the terminal's time


@dataclass(frozen=True, slots=True)
class Job:
    definition: AgentDefinition
    cwd: Path
    prompt: str
    trusts: Callable[[str], bool] = trusts_nothing
    mode: str | None = None  # one of the agent's, to work in
    redact: Redact = unchanged
    session_id: str = field(default_factory=partial(new_id, "ses"))


@dataclass(frozen=True, slots=True)
class Done:
    session_id: str
    result: PromptResult
    changes: Changes


class Canceller:
    """Cancels the turn that is running, if one is: for Ctrl-C and for whoever is asked."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.host: AcpHost | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> None:
        if self.session:
            task = asyncio.create_task(self.session.cancel())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def at_once(self) -> None:
        """Whoever stops us does not wait for the agent."""
        if self.host:
            self.host.hurry()


def run_turn(job: Job, settings: Settings, screen: Screen, person: Approver) -> Done:
    """`person` is asked what the rules leave to somebody."""
    logging.basicConfig(level=settings.log_level.upper(), format="legation: %(levelname)s: %(message)s")
    try:
        return asyncio.run(_run(job, settings, screen, person))
    except asyncio.CancelledError:
        raise Cancelled("cannot finish the turn: it was stopped; start it again") from None
    except OutputClosed as error:
        raise Cancelled(f"cannot go on: {error}; the agent was stopped") from None


class OutputClosed(Exception):
    """What happens can no longer be shown."""


async def _run(job: Job, settings: Settings, screen: Screen, person: Approver) -> Done:
    policies = Policies(settings.policy)  # first: without its rules nothing starts
    session_id, cancel = job.session_id, Canceller()
    forbidden = ForbiddenPlaces.in_force(settings, os.environ)
    forbidden.check_folder(job.cwd)
    _stop_on_hangup(cancel)
    with Folders(settings.data_dir).session(session_id) as place:
        async with await Snapshot.take(job.cwd, forbidden) as before:
            door = own_door(
                policies,
                AskedInOrder(person, screen),
                session_id=session_id,
                trace=place / TRACE,
                where=lambda session: host.where(session),
                cancel_turn=cancel,
                timeout=settings.permission_timeout,
                grants=isinstance(person, TerminalApprover),  # what was said beforehand grants nothing
                watched=isinstance(person, TerminalApprover),
                approves=isinstance(person, ApproveAll),
            )
            async with (
                _shown(screen) as show,
                door as approver,
                AcpHost(_options(job, settings, place, approver, forbidden)) as host,
            ):
                cancel.host = host
                host.subscribe(None, 0, _complain)
                result = await _prompt(host, job, session_id, cancel, show)
            return Done(session_id, result, await before.changes())


def _options(
    job: Job, settings: Settings, place: Path, approver: Approver, forbidden: ForbiddenPlaces
) -> HostOptions:
    return HostOptions(
        storage=JsonlBackend(place),
        approver=approver,
        limits=_limits(settings),
        kill_timeout_ms=settings.stop_grace * 1000,
        max_line=settings.max_line_bytes,
        data_dir=settings.data_dir,
        forbidden=forbidden,
        redact=job.redact,
        trusts=job.trusts,
    )


@asynccontextmanager
async def _shown(screen: Screen) -> AsyncIterator[Callable[[Subscription], None]]:
    """Given a session's events, the screen shows them to the last one."""
    turn, showing = asyncio.current_task(), list[asyncio.Task[None]]()

    def show(events: Subscription) -> None:
        task = asyncio.create_task(screen.follow(events))
        task.add_done_callback(partial(_stop_unseen, turn))
        showing.append(task)

    try:
        yield show
    finally:
        if showing:
            await asyncio.wait(showing, timeout=SHOW_LIMIT)
        for task in showing:
            _raise_unseen(task)
        screen.end()


def _stop_unseen(turn: asyncio.Task[Done] | None, showing: asyncio.Task[None]) -> None:
    """An agent whose doings nobody can see is stopped: nobody would ever be asked."""
    if turn and not showing.cancelled() and showing.exception():
        turn.cancel()


def _raise_unseen(showing: asyncio.Task[None]) -> None:
    error = showing.exception() if showing.done() and not showing.cancelled() else None
    if isinstance(error, OSError):
        raise OutputClosed(f"the output could not be written ({error.strerror})") from error
    if error:
        raise error


async def _prompt(
    host: AcpHost, job: Job, session_id: str, cancel: Canceller, show: Callable[[Subscription], None]
) -> PromptResult:
    agent = await host.spawn_agent(job.definition)
    await host.create_session(
        agent.agent_id,
        cwd=job.cwd,
        session_id=session_id,
        title=job.prompt[:SUMMARY],
        prepare=partial(_in_mode, job, host.limits.start) if job.mode is not None else None,
    )
    show(host.events(session_id))
    cancel.session = host.session(session_id)
    try:
        with _interrupts(cancel):
            talk = cancel.session.talk
            end = await talk.until_over(talk.begin((Text(text=job.prompt),)))
            return end.told()
    except asyncio.CancelledError:
        await asyncio.shield(host.dispose_agent(agent.agent_id))  # at once, whatever it is doing
        raise
    finally:
        await asyncio.shield(host.close_session(session_id))


async def _in_mode(job: Job, limit: float, agent: Driver, opened: NewSessionResponse) -> NewSessionResponse:
    """In the mode that was asked for, or there is no session."""
    opening = Opening(agent, opened.session_id, Offers.of(opened), limit, job.definition.modes)
    await choose_mode(opening, job.mode or "", job.definition.modes)
    return opening.offers.told_in(opened)


@contextmanager
def _interrupts(cancel: Canceller) -> Iterator[None]:
    """Ctrl-C once asks the agent to stop; twice stops it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            cancel.at_once()
            task.cancel()
        else:
            print("\nlegation: cancelling; Ctrl-C again to stop the agent at once", file=sys.stderr)
            interrupted = True
            cancel()

    before = signal.getsignal(signal.SIGINT)  # asyncio's own: it stops everything
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _stop_on_hangup(cancel: Canceller) -> None:
    """A TERM, or the end of the terminal, stops the agent, at any stage; told again, we do not give up on that."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    told = False

    def stop() -> None:
        nonlocal told
        if not told:
            told = True
            cancel.at_once()
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)


def _limits(settings: Settings) -> Limits:
    return Limits(
        start=settings.start_timeout,
        idle=settings.idle_timeout,
        permission=settings.permission_timeout + LATER,
    )


def _complain(event: Event) -> None:
    payload = codec.decode(event)
    if isinstance(payload, Diagnostic) and payload.code.startswith("storage/"):
        print(f"legation: {payload.code}: {payload.message}", file=sys.stderr)
