"""`legation exec` as a client of the server of this machine: the same output, and what is asked is the server's to decide.

Loads where a server is up."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from legation.cli.approver import open_tty
from legation.cli.command import Console, PlaceFlags, connect_to, line, say
from legation.cli.sessions_follow import exit_code, follow_turn_of
from legation.cli.view import view_of
from legation.errors import Forbidden, Unavailable
from legation.host.changes import FolderChanges, Snapshot
from legation.settings import Settings
from legation.store.forbidden import ForbiddenPlaces

if TYPE_CHECKING:
    from legation.client import Legation
    from legation.wire.event_types import PromptFinished


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """One prompt, as the server is asked to play it."""

    agent: str
    cwd: Path
    prompt: str
    title: str
    mode: str | None
    has_keys: bool  # for the agent, in this environment
    answer: Literal["once", "reject"] | None  # to all that is asked; None: whoever sits here says
    forbidden: ForbiddenPlaces
    json: bool


def answer_of(*, yes: bool, unattended: bool) -> Literal["once", "reject"] | None:
    """Without a terminal it is no, as where `exec` runs by itself."""
    if yes:
        return "once"
    tty = None if unattended else open_tty()
    if tty is None:
        return "reject"
    tty.close()
    return None


def begin(job: RemoteJob, settings: Settings) -> str:
    """Begin a session at the server and return its id. `Unavailable` says why `exec` runs by itself instead."""
    with connect_to(settings) as server:
        try:
            if (why := _cannot(job, settings, server)) is not None:
                raise Unavailable(why)
            session = server.sessions.create(
                job.agent, directory=str(job.cwd), agent_mode=job.mode, title=job.title
            )
        except Forbidden as error:  # of this folder: the owner's own credential may do all else
            raise Unavailable(f"the server may not use this folder ({error.message})") from None
    return session.id


def _cannot(job: RemoteJob, settings: Settings, server: Legation) -> str | None:
    """Say what the server has not that is here."""
    if settings.policy is not None and server.policy.info().source != str(settings.policy):
        return f"the server has other rules than {settings.policy}"
    found = next((each for each in server.agents.list() if each.id == job.agent), None)
    if found is None:
        return f"the server does not know {job.agent}"
    if job.has_keys and not found.credentials_available:
        return f"the server has no key for {job.agent}, and there is one here"
    return None


def play(job: RemoteJob, settings: Settings, session_id: str) -> int:
    """Send the prompt, show the turn to its end and what changed, and return the exit code."""
    try:
        finished, changes = asyncio.run(_play(job, settings, session_id))
    except asyncio.CancelledError:
        told = f"not followed any more; the turn goes on: legation sessions tail {line(session_id)}"
        print(f"legation: {told}", file=sys.stderr)
        return 128 + signal.SIGTERM
    if not job.json:
        from legation.cli.exec import show_changes

        say()
        show_changes(Console(), changes)
        again = f"legation events {line(session_id)}"
        say(
            f"recorded as {line(session_id)}; see it again with: {again}; go on: legation sessions send {line(session_id)}",
            "dim",
        )
    return exit_code(finished)


async def _play(
    job: RemoteJob, settings: Settings, session_id: str
) -> tuple[PromptFinished | None, FolderChanges]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    async with await Snapshot.take(job.cwd, job.forbidden) as before:
        place = PlaceFlags(data_dir=settings.data_dir)
        finished = await follow_turn_of(
            place, session_id, job.prompt, view_of(json=job.json), answer=job.answer
        )
        return finished, await before.changes()
