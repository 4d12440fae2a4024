"""`legation exec`: one prompt, with live output and the diff at the end: by the server that is up here, else in this process."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from legation.agents.catalogue import Catalogue
from legation.agents.catalogue.catalogue import LOCAL
from legation.agents.modes import choose_mode
from legation.approvals.policies import Policies
from legation.cli.approver import TerminalApprover, interrupts, open_tty
from legation.cli.command import SUMMARY, Console, SettingsFlags, line, paint_diff, say, settings_of
from legation.cli.door import TRACE, own_door
from legation.cli.folders import Folders
from legation.cli.view import AskedInOrder, Screen, view_of
from legation.clock import new_id
from legation.errors import STATUS, Cancelled, Code, InvalidParams, Unavailable
from legation.host.changes import FolderChanges, Snapshot
from legation.host.host import AcpHost
from legation.host.launch import Launch, hide, launch_of
from legation.host.options import AgentDefinition, HostOptions, Limits, trusts_nothing
from legation.host.requests.handlers import ApproveAll, Approver, DenyAll
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc.lines import Redact, unchanged
from legation.redact import Redactor
from legation.settings import Settings
from legation.store.files import owner_alive
from legation.store.forbidden import ForbiddenPlaces
from legation.store.jsonl import JsonlBackend
from legation.store.stream import Subscription
from legation.store.trust import TrustedFolders
from legation.tasks import TaskSet
from legation.wire import event_types
from legation.wire.acp.updates import Text
from legation.wire.api.server import OWNER_LOCK
from legation.wire.event_types import Diagnostic
from legation.wire.events import Event

LATER = 5.0  # seconds after a permission's time is over: the door's, to say so and to write it down
INTERRUPTED = "cancelling; Ctrl-C again to stop the agent at once"
SHOW_LIMIT = 10.0  # seconds the screen has to show what is left when the turn is over: the terminal's time


def exec_(
    prompt: Annotated[str | None, Parameter(help="What to do. Without it, standard input is read.")] = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(help="A known agent, by name.")] = None,
    command: Annotated[str | None, Parameter(help="Any ACP agent, as a command line.")] = None,
    cwd: Annotated[Path, Parameter(help="The folder to work in.")] = Path(),
    mode: Annotated[
        str | None, Parameter(help="A mode of the agent's, like plan; none in which it does not ask.")
    ] = None,
    yes: Annotated[
        bool, Parameter(negative="", help="Approve what would be asked. What a rule denies stays denied.")
    ] = False,
    unattended: Annotated[bool, Parameter(negative="", help="Deny what would be asked.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print every event as one JSON line.")] = False,
    trust: Annotated[
        bool,
        Parameter(
            negative="",
            help="Let the folder's own agent configuration count, this time. See `legation trust`.",
        ),
    ] = False,
    env: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Pass NAME from this environment, or NAME=VALUE, to the agent."),
    ] = (),
    settings: SettingsFlags | None = None,
) -> int:
    """Run one prompt with an agent, here and now.

    With a server up, it is one of the server's sessions, under its rules. With --command, --env, --policy, --trust, a setting of its
    own, or in a folder that the server may not use, and without a server, it runs by itself, and says so.

    The agent starts with a clean environment, its own key if that is set here, and a HOME of its own. What it asks is decided by rules: --policy, else
    the starter `careful`. What they leave to somebody is asked in the terminal; without a terminal it is denied. The
    session is recorded; see `legation events`. The exit code is 0 only when the agent ended its turn by itself.
    """
    name, chosen = _name(agent, command), settings_of(settings)
    folder, trusts = _folder(cwd), _trusts(chosen.data_dir, this_time=trust)
    if agent is not None:
        catalogue = Catalogue(chosen.data_dir, custom_file=chosen.agents, executes=True)
        entry, start = catalogue.entry(agent), catalogue.start(agent)
        launch = launch_of(catalogue, entry, start, folder, trusted=trusts(str(folder)))
        passed = [each for each in entry.passes if each in os.environ]
    else:
        program, *args = _split(command or "")
        launch = Launch(AgentDefinition(id=name, command=program, args=tuple(args), cwd=folder))
        passed = []
    redactor = Redactor()
    hide(launch.keys, redactor)
    if yes and unattended:
        raise InvalidParams("cannot both approve and deny everything; give --yes or --unattended")
    job = Job(
        definition=replace(launch.definition, env={**launch.definition.env, **_passed(env, os.environ)}),
        cwd=folder,
        prompt=_read_prompt(prompt),
        mode=mode,
        trusts=trusts,
        redact=redactor.bytes,
    )
    why = _why_alone(command, env, settings, trust=trust)
    if why is None and passed:  # an address above all: what is meant for one must not go to another
        why = f"{passed[0]} is set here, and the server may have another"
    if why is None:
        try:
            return _run_at_server(
                job, agent or "", chosen, json=json, yes=yes, unattended=unattended, keys=bool(launch.keys)
            )
        except _Alone as alone:
            why = str(alone)
    print(f"legation: runs by itself: {line(why)}", file=sys.stderr, flush=True)
    person = _person(yes=yes, unattended=unattended)
    try:
        done = run_turn(job, chosen, Screen(view_of(json=json)), person)
        if not json:
            say()
            show_changes(Console(), done.changes)
    finally:  # also if the agent crashed, or was stopped: then it is wanted most
        if not json and Folders(chosen.data_dir).is_recorded(job.session_id):
            _say_where(job.session_id)
    return exit_code(done)


class _Alone(Exception):
    """Reason why the server does not play it."""


def _why_alone(
    command: str | None, env: tuple[str, ...], settings: SettingsFlags | None, *, trust: bool
) -> str | None:
    """Say which option a session of the server cannot have; None where there is none."""
    given = {"--command": command is not None, "--env": bool(env), "--trust": trust}
    for each in fields(SettingsFlags):
        if each.name != "data_dir":
            given[f"--{each.name.replace('_', '-')}"] = getattr(settings, each.name, None) is not None
    name = next((name for name, is_given in given.items() if is_given), None)
    return None if name is None else f"{name} is given"


def _run_at_server(
    job: Job, agent: str, chosen: Settings, *, json: bool, yes: bool, unattended: bool, keys: bool
) -> int:
    """Return the exit code. Raises `_Alone` where there is no server, or none that can."""
    if chosen.url is not None:
        raise _Alone("LEGATION_URL names a server elsewhere")
    if not owner_alive(chosen.data_dir / OWNER_LOCK):
        raise _Alone("no server is up here")
    from legation.cli import exec_server

    asked = exec_server.RemoteJob(
        agent=agent,
        cwd=job.cwd,
        prompt=job.prompt,
        title=job.prompt[:SUMMARY],
        mode=job.mode,
        has_keys=keys,
        answer=exec_server.answer_of(yes=yes, unattended=unattended),
        forbidden=ForbiddenPlaces.in_force(chosen, os.environ),
        json=json,
    )
    try:
        session_id = exec_server.begin(asked, chosen)
    except Unavailable as error:
        raise _Alone(error.message) from None
    print(f"legation: session {line(session_id)} of the server that is up", file=sys.stderr, flush=True)
    return exec_server.play(asked, chosen, session_id)


def _say_where(session_id: str) -> None:
    with suppress(OSError):  # an output that is gone: what is told of that, or of the crash, counts more
        say(f"recorded as {session_id}; see it again with: legation events {session_id}", "dim")


def show_changes(out: Console, changes: FolderChanges) -> None:
    if changes.files:
        paint_diff(out, changes.diff)
        for file in changes.files:
            if file.binary:
                out.say(f"{file.status}: {line(file.path)} (not text)", "dim")
        added, removed = (
            sum(file.added for file in changes.files),
            sum(file.removed for file in changes.files),
        )
        out.say(f"{len(changes.files)} file(s) changed, +{added} -{removed}", "bold")
    else:
        out.say("no file changed", "bold")
    if changes.incomplete:
        out.say(f"not shown: {line(changes.incomplete)}", "yellow")


def exit_code(done: Done) -> int:
    if done.result.error:
        return STATUS[Code.AGENT_ERROR].exit
    if done.result.stop_reason == "cancelled":
        return STATUS[Code.CANCELLED].exit
    return 0 if done.result.stop_reason == "end_turn" else STATUS[Code.AGENT_ERROR].exit


def _name(agent: str | None, command: str | None) -> str:
    if (agent is None) == (command is None):
        raise InvalidParams(
            "cannot tell which agent to run; give --agent NAME or --command CMD, and not both"
        )
    return agent if agent is not None else Path(_split(command or "")[0]).name.strip(".") or "agent"


def _split(command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidParams(f"cannot read --command: {error}; check its quotes") from None
    if not argv:
        raise InvalidParams("cannot run an empty --command; give the program and its arguments")
    return argv


def _folder(cwd: Path) -> Path:
    try:
        folder = cwd.resolve()  # agent, rules and record see the same folder, without `..` and links
        str(folder).encode()
    except OSError:
        raise InvalidParams("cannot work here: this folder is gone; choose one with --cwd") from None
    except UnicodeEncodeError:
        raise InvalidParams("cannot work in a folder whose path is not UTF-8 text; rename it") from None
    if not folder.is_dir():
        raise InvalidParams(f"cannot work in {folder}: it is no folder; choose one with --cwd")
    return folder


def _trusts(data_dir: Path, *, this_time: bool) -> Callable[[str], bool]:
    return (lambda _folder: True) if this_time else TrustedFolders(data_dir, LOCAL).trusts


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_text(sys.stdin)
    if not prompt or not prompt.strip():
        raise InvalidParams("cannot run without a prompt; say what to do, or pipe it to standard input")
    return prompt


def _read_text(source: TextIO) -> str:
    try:
        text = source.read()
        text.encode()  # in some locales Python lets everything through
    except UnicodeError:
        raise InvalidParams("cannot read the prompt: it is not UTF-8 text; convert it") from None
    return text


def _passed(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    passed: dict[str, str] = {}
    for given in names:
        name, is_set, value = given.partition("=")
        if not name:
            raise InvalidParams("cannot pass a variable without a name; give --env NAME or --env NAME=VALUE")
        if not is_set and name not in environ:
            raise InvalidParams(f"cannot pass {name} on: it is not set here; give --env {name}=VALUE")
        passed[name] = value if is_set else environ[name]
    return passed


def _person(*, yes: bool, unattended: bool) -> Approver:
    if yes:
        return ApproveAll()
    tty = None if unattended else open_tty()
    return DenyAll() if tty is None else TerminalApprover(tty)


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
    changes: FolderChanges


class Canceller:
    """A way to cancel the turn that is running, if one is: for Ctrl-C and for whoever is asked."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.host: AcpHost | None = None
        self._tasks = TaskSet("legation-cancel")

    def __call__(self) -> None:
        if self.session:
            self._tasks.start(self.session.cancel())

    def at_once(self) -> None:
        """Have the agent stop without the time it is given: whoever stops us does not wait for it."""
        if self.host:
            self.host.hurry()


def run_turn(job: Job, settings: Settings, screen: Screen, person: Approver) -> Done:
    """Run one prompt with one agent in this process. `person` is asked what the rules leave to somebody."""
    logging.basicConfig(level=settings.log_level.upper(), format="legation: %(levelname)s: %(message)s")
    try:
        return asyncio.run(_run(job, settings, screen, person))
    except asyncio.CancelledError:
        raise Cancelled("cannot finish the turn: it was stopped; start it again") from None
    except OutputClosed as error:
        raise Cancelled(f"cannot go on: {error}; the agent was stopped") from None


class OutputClosed(Exception):
    """The output is gone: nothing that happens can be shown any more."""


async def _run(job: Job, settings: Settings, screen: Screen, person: Approver) -> Done:
    policies = Policies(settings.policy)  # first: without its rules nothing starts
    session_id, cancel = job.session_id, Canceller()
    forbidden = ForbiddenPlaces.in_force(settings, os.environ, [job.cwd])
    forbidden.check_folder(job.cwd)
    _stop_on_hangup(cancel)
    with Folders(settings.data_dir).session(session_id) as place:
        async with await Snapshot.take(job.cwd, forbidden) as before:
            door = own_door(
                policies,
                AskedInOrder(person, screen),
                session_id=session_id,
                trace=place / TRACE,
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
    """Give a function that has the screen show a session's events, to the last one."""
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
    """Stop an agent whose doings nobody can see: nobody would ever be asked."""
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
        prepare=None if job.mode is None else partial(choose_mode, name=job.mode, known=job.definition.modes),
    )
    show(host.events(session_id))
    cancel.session = host.session(session_id)
    try:
        with interrupts(INTERRUPTED, cancel, cancel.at_once):
            talk = cancel.session.talk
            end = await talk.until_over(talk.begin((Text(text=job.prompt),)))
            return end.told()
    except asyncio.CancelledError:
        await asyncio.shield(host.dispose_agent(agent.agent_id))  # at once, whatever it is doing
        raise
    finally:
        await asyncio.shield(host.close_session(session_id))


def _stop_on_hangup(cancel: Canceller) -> None:
    """Have a TERM, or the end of the terminal, stop the agent at any stage; told again, we do not give up on that."""
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
    payload = event_types.decode(event)
    if isinstance(payload, Diagnostic) and payload.code.startswith("storage/"):
        print(f"legation: {payload.code}: {payload.message}", file=sys.stderr)
