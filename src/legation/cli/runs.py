"""`legation runs`: durable runs of the server, listed, shown, followed, waited for, spoken to, paused, resumed and cancelled."""

from __future__ import annotations

import asyncio
import sys
import termios
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import App, Parameter

from legation.cli.command import (
    SHOWN,
    Console,
    Json,
    PlaceFlags,
    Rows,
    connect,
    connect_async,
    explained,
    line,
    page_size,
    paint_diff,
    say,
    say_json,
    show,
    tell,
    when,
)
from legation.errors import Conflict, InvalidParams, LegationError, TimedOut
from legation.tasks import TaskSet

if TYPE_CHECKING:
    from legation.cli.view import SessionView
    from legation.client import AsyncLegation
    from legation.client.async_http import AsyncCaller
    from legation.client.runs import ClientRun
    from legation.wire.api.runs import RunChanges, RunView

# A-CLI-19: 0 of one that succeeded, 1 of one that ended otherwise, 3 where it was not waited for any longer.
SUCCEEDED: Final = 0
ENDED_OTHERWISE: Final = 1
NOT_ENDED: Final = 3
LOOK_EVERY: Final = 2.0  # seconds between two looks at what a run waits for: whoever sits at the terminal
INTERRUPTED: Final = "cancelling the run; Ctrl-C again to leave it alone, as it goes on without this command"

app = App(
    name="runs",
    help="""Durable runs: list, show, tail, wait, send, pause, resume, cancel.

Without a command it lists the runs, the newest first.""",
    help_epilogue='Begin with `legation up`, then: legation run "fix the test" --agent rehearsal --repo .',
)

RunId = Annotated[str, Parameter(help="Its whole id, as listed.")]
WaitLimit = Annotated[float | None, Parameter(help="Seconds to wait for its end; then the exit code is 3.")]


@app.default
@app.command(name="list")
def list_(
    *,
    state: Annotated[
        str | None, Parameter(help="Only those in this state: queued, running, failed ...")
    ] = None,
    agent: Annotated[str | None, Parameter(help="Only those of this agent.")] = None,
    active: Annotated[bool, Parameter(negative="", help="Only those that have not ended.")] = False,
    search: Annotated[
        str | None, Parameter(help="The beginning of an id, an agent's name or a template's hash.")
    ] = None,
    limit: Rows = SHOWN,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """List the runs, the newest first."""
    from itertools import islice

    columns = {
        "id": lambda each: each.id,
        "state": lambda each: each.state,
        "agent": lambda each: each.agent,
        "attempt": lambda each: str(each.attempt),
        "submitted": lambda each: when(each.created_at),
        "ended": lambda each: when(each.ended_at),
        "why": lambda each: each.error_class,
    }
    with connect(settings) as server:
        found = server.runs.list(
            state=state, agent=agent, active=active or None, search=search, limit=page_size(limit)
        )
        empty = 'no runs; submit one with: legation run "fix the test" --agent rehearsal --repo .'
        show(islice(found, limit), columns, json=json, if_empty=empty)


@app.command(name="show")
def show_(
    run: RunId,
    /,
    *,
    diff: Annotated[
        bool, Parameter(negative="", help="The changes that its agent reported, as a patch.")
    ] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Show how a run is, or with --diff what its agent reported to have changed."""
    with connect(settings) as server, explained("show", "run", run, "runs"):
        found = server.runs.get(run)
        info = found.info()
        changes = found.changes() if diff else None
    if changes is not None:
        if changes.attempt is None:
            why = "none was reported" if info.ended_at else "that comes with its end; wait for it"
            raise Conflict(f"cannot show what the run changed: {why}")
        show_changes(changes, json=json)
        return
    facts = [f"{name:<12} {line(value)}" for name, value in _facts(info).items() if value]
    tell(info, "\n".join(facts), json=json)


@app.command
def tail(
    run: RunId,
    /,
    *,
    from_: Annotated[int, Parameter(name="--from", help="Begin with the event of this number.")] = 1,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Show what was reported of a run and what is, until it has ended; the exit code is that of `wait`."""
    if from_ < 1:
        raise InvalidParams(f"cannot begin with event {from_}; give a number from 1")
    with connect(settings) as server, explained("tail", "run", run, "runs"):
        server.runs.get(run)
    return exit_code(follow_run(settings, run, from_ - 1, json=json))


@app.command
def wait(
    run: RunId,
    /,
    *,
    timeout: WaitLimit = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Wait until a run has ended: 0 where it succeeded, 1 where it ended otherwise, 3 where that took too long."""
    with connect(settings) as server, explained("wait for", "run", run, "runs"):
        try:
            ended = server.runs.get(run).wait(timeout)
        except TimedOut as error:
            say(line(error.message))
            return NOT_ENDED
    tell(ended, _end(ended), json=json)
    return exit_code(ended)


@app.command
def cancel(run: RunId, /, *, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """Ask for the end of a run."""
    with connect(settings) as server, explained("cancel", "run", run, "runs"):
        info = server.runs.get(run).cancel()
    over = "has ended already" if info.ended_at is not None else "is being cancelled"
    tell(info, f"{line(info.id)} {over}", json=json)


@app.command
def send(
    run: RunId,
    text: Annotated[str | None, Parameter(help="What to say. Without it, standard input is read.")] = None,
    /,
    *,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Say something further to the agent of a run, for its next turn."""
    from legation.cli.run import piped

    said = text if text is not None else piped()
    with connect(settings) as server, explained("send to", "run", run, "runs"):
        info = server.runs.get(run).send(said)
    tell(info, f"told {line(info.id)}; follow it with: legation runs tail {line(info.id)}", json=json)


@app.command
def pause(run: RunId, /, *, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """Have the agent of a run stop where it is, with all that it started, until `legation runs resume`."""
    with connect(settings) as server, explained("pause", "run", run, "runs"):
        info = server.runs.get(run).pause()
    tell(
        info, f"{line(info.id)} is being paused; go on with: legation runs resume {line(info.id)}", json=json
    )


@app.command
def resume(
    run: RunId,
    /,
    *,
    key_file: Annotated[str | None, Parameter(help="A file with the key of the agent's provider.")] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Have a paused run go on, a suspended one before its time, or a failed one once more.

    The key of a failed one went with its end: it is taken from the environment or --key-file again.
    """
    from legation.cli.run import keys_for

    with connect(settings) as server, explained("resume", "run", run, "runs"):
        found = server.runs.get(run)
        info = found.info()
        info = found.resume(keys=keys_for(info.agent, key_file) if info.state == "failed" else None)
    tell(info, f"{line(info.id)} goes on; follow it with: legation runs tail {line(info.id)}", json=json)


def exit_code(ended: RunView) -> int:
    return SUCCEEDED if ended.state == "succeeded" else ENDED_OTHERWISE


def follow_run(
    flags: PlaceFlags | None, run: str, after: int, *, json: bool, cancels: bool = False
) -> RunView:
    """Show a run's events until it has ended; how it ended. `cancels`: Ctrl-C once cancels the run, twice leaves it."""
    return asyncio.run(_follow(flags, run, after, json=json, cancels=cancels))


async def _follow(flags: PlaceFlags | None, run_id: str, after: int, *, json: bool, cancels: bool) -> RunView:
    from legation.cli.approver import interrupts, open_tty
    from legation.cli.view import view_of

    view, tty = view_of(json=json), open_tty()
    async with connect_async(flags) as server:
        run = await server.runs.get(run_id)
        tasks = TaskSet("legation-run")
        tasks.start(_attend(server, run, tty, view))

        def cancel() -> None:
            tasks.start(_cancel(run))

        try:
            with interrupts(INTERRUPTED, cancel) if cancels else nullcontext():
                async with run.stream_events(after) as events:
                    async for event in events:
                        view.show(event)
                ended = await run.wait()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            view.end()
            await tasks.close()
            if tty is not None:
                tty.close()
    if not json:
        say(_end(ended), "green" if ended.state == "succeeded" else "yellow")
    return ended


async def _cancel(run: ClientRun[AsyncCaller]) -> None:
    with suppress(LegationError):  # a server that is away: the next Ctrl-C leaves
        await run.cancel()


async def _attend(
    server: AsyncLegation, run: ClientRun[AsyncCaller], tty: TextIO | None, view: SessionView
) -> None:
    """Ask whoever sits at the terminal what the run waits for; without one, say once where it is answered."""
    told: set[str] = set()
    while True:
        with suppress(LegationError):  # a server that is away is told by whoever follows
            info = await run.info()
            words = info.notice
            if info.waits_for is not None and info.waits_for not in told:
                if tty is not None:
                    view.pause()
                    told.add(info.waits_for)
                    await _answer(server, info.waits_for, tty)
                else:
                    words = f"it waits for an answer: legation approvals show {info.waits_for}"
            if words is not None and words not in told:
                told |= {words, info.waits_for or words}
                print(f"legation: {line(words)}", file=sys.stderr, flush=True)
        await asyncio.sleep(LOOK_EVERY)


async def _answer(server: AsyncLegation, approval: str, tty: TextIO) -> None:
    from legation.cli.approver import read_line, show_asked

    asked, out = await server.approvals.get(approval), Console(tty)
    if asked.status != "pending":
        return
    show_asked(out, asked)
    termios.tcflush(tty.fileno(), termios.TCIFLUSH)  # what was typed before is no answer
    while True:
        out.write("Allow it, once? [y]es [n]o: ", "yellow")
        typed = await read_line(tty)
        if typed is None:
            return
        word = typed.lower()
        if word not in ("y", "yes", "n", "no"):
            continue
        decide = server.approvals.approve if word.startswith("y") else server.approvals.deny
        try:
            await decide(approval, reasoning=f"{word}, in the terminal")
        except LegationError as error:  # another was faster, or they may not
            out.say(f"legation: {line(error.message)}", "yellow")
        return


def show_changes(changes: RunChanges, *, json: bool = False) -> None:
    if json:
        say_json(changes)
        return
    paint_diff(Console(), changes.patch)
    if changes.incomplete:
        print(f"legation: {line(changes.incomplete)}", file=sys.stderr)


def _end(ended: RunView) -> str:
    why = f" ({line(ended.error_class)}: {line(ended.error_reason or '-')})" if ended.error_class else ""
    return f"{line(ended.id)} {line(ended.state)}{why}"


def _facts(info: RunView) -> dict[str, str | None]:
    return {
        "id": info.id,
        "state": f"{info.state} ({info.status})",
        "liveness": info.liveness,
        "notice": info.notice,
        "agent": info.agent,
        "attempt": str(info.attempt),
        "submitted": when(info.created_at),
        "by": info.creator_user or info.creator,
        "template": info.template,
        "started": when(info.started_at),
        "ended": when(info.ended_at),
        "waits for": info.waits_for and f"{info.waits_for} ({info.waits_on or 'answered'})",
        "goes on at": when(info.resume_at),
        "failed as": info.error_class,
        "why": info.error_reason,
        "cleanup": info.cleanup,
    }
