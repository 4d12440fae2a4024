"""`legation status` and `legation stop`: the server of this machine."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from legation.cli.command import (
    Console,
    LocalFlags,
    PlaceFlags,
    byte_size,
    connect,
    connect_to,
    line,
    say,
    say_json,
    settings_of,
    tell,
    when,
)
from legation.errors import Forbidden, LegationError, NotFound, StorageFailed, TimedOut, Unavailable
from legation.store.files import owner_alive
from legation.wire.api.server import OWNER_LOCK, Sizes, Stopping

if TYPE_CHECKING:
    from legation.client import Legation

STOP_LIMIT = 15.0  # seconds: a server's time to end what it does
KILL_LIMIT = 5.0  # seconds: the kernel's
CANCEL_LIMIT = 120.0  # seconds: the agents' time to end, and their runners' to report it
RUNS_PAUSE = 0.2  # seconds between looks at whether runs have ended
LOOK_PAUSE = 0.05  # seconds between looks at whether it is gone


def status(
    *,
    json: Annotated[bool, Parameter(negative="", help="One JSON object.")] = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Say whether Legation is up here, and how it is. The exit code is 0 only if it is up and ready."""
    try:
        with connect(settings) as server:
            info, problem = server.info(), _why_not_ready(server)
            edit, sizes, waiting = _why_not_in_force(server), _sizes(server), _waiting(server)
    except Unavailable as error:
        tell({"up": False, "why": error.message}, f"down: {error.message}", json=json)
        return error.status.exit
    if json:
        known = {"policyProblem": edit, "sizes": sizes, "waiting": waiting, **msgspec.to_builtins(info)}
        say_json({"up": True, "ready": problem is None, **known})
    else:
        Console().write("up", "green" if problem is None else "yellow")
        since = f"pid {info.pid} · since {when(info.started_at)}"
        say(f" · {info.url} · {info.database} · {since} · {problem or 'ready'} · {info.version}")
        if waiting:
            say(f"{waiting} wait{'s' if waiting == 1 else ''} for you: legation ps", "yellow")
        if edit is not None:
            say("the newest edit of the policies is not in force, the rules before it are:", "yellow")
            for each in edit.splitlines():
                say(f"    {line(each)}", "yellow")
        if sizes is not None:
            _say_sizes(sizes)
    return 0 if problem is None else Unavailable("").status.exit


def _why_not_ready(server: Legation) -> str | None:
    try:
        server.ready()
    except Unavailable as error:
        return error.message
    return None


def _why_not_in_force(server: Legation) -> str | None:
    """Read why the newest edit of the policies is not in force: whoever made it looks here, and not into the log."""
    try:
        return server.policy.info().problem
    except Forbidden:  # a token that may not read
        return None


def _waiting(server: Legation) -> int | None:
    try:
        return server.inbox().counts.you
    except LegationError:  # a token that may not read, a server before 0.3
        return None


def _sizes(server: Legation) -> Sizes | None:
    try:
        return server.sizes()
    except (
        LegationError
    ):  # a token of one workspace, a server before 0.3, a database that is away: it is up all the same
        return None


def _say_sizes(sizes: Sizes) -> None:
    for each in sizes.kinds:
        if each.bytes:
            say(f"    {each.kind:<9} {byte_size(each.bytes):>9}  {line(each.about)}")
    total = byte_size(sum(each.bytes for each in sizes.kinds))
    say(
        f"    {'all':<9} {total:>9}  as of {when(sizes.at)}; {byte_size(sizes.disk_free)} free on the disk",
        "dim",
    )


def stop(
    *,
    cancel_runs: Annotated[
        bool,
        Parameter(
            negative="", help="Cancel the runs that are at work on this machine, and wait for their end."
        ),
    ] = False,
    force: Annotated[bool, Parameter(negative="", help="Kill it if it does not end by itself.")] = False,
    settings: LocalFlags | None = None,
) -> None:
    """Stop the Legation of this machine. Streams get their last word; what is stored stays.

    Runs that are at work go on with their runners, and the next `legation up` finds them. Without one they end after an hour.
    """
    place = replace(settings_of(settings), url=None)  # that of this machine, whatever else is set
    lock = place.data_dir / OWNER_LOCK
    if not owner_alive(lock):
        raise NotFound(f"cannot stop Legation: none runs on {place.data_dir}; `legation up` starts one")
    pid = int(lock.read_text().strip())
    left = None
    try:
        with connect_to(place) as server:
            left = _cancel_runs(server) if cancel_runs else server.stop()
    except (Unavailable, TimedOut, StorageFailed) as error:
        if not force:
            raise TimedOut(f"{error.message}; or kill process {pid} with `legation stop --force`") from error
    if not _gone(lock, STOP_LIMIT) and force:
        os.kill(pid, signal.SIGKILL)
    if not _gone(lock, KILL_LIMIT):
        raise TimedOut(f"cannot stop Legation: process {pid} goes on; `legation stop --force` kills it")
    say(f"stopped (pid {pid})")
    if left is not None and left.runs:
        _say_left(left)


def _cancel_runs(server: Legation) -> Stopping:
    deadline = time.monotonic() + CANCEL_LIMIT
    while not (found := server.stop(cancel_runs=True)).stopping:
        if time.monotonic() > deadline:
            raise TimedOut(
                f"cannot stop Legation: {found.runs} of its runs have not ended; see `legation runs --active`, or leave out "
                "--cancel-runs"
            )
        time.sleep(RUNS_PAUSE)
    return found


def _say_left(left: Stopping) -> None:
    what = "1 run goes on with its runner" if left.runs == 1 else f"{left.runs} runs go on with their runners"
    say(
        f"{what}: `legation up` finds them again; without it they end after {left.orphan_after / 60:.0f} minutes."
        " `legation stop --cancel-runs` ends them first"
    )


def _gone(lock: Path, limit: float) -> bool:
    deadline = time.monotonic() + limit
    while owner_alive(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_PAUSE)
    return True
