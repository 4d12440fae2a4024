"""From a request to a process that runs: pipes or a terminal are made, the trampoline is started, the command heard of."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.errors import ConfigInvalid, InvalidParams, Unavailable
from legation.proc import Child, Command, Launcher
from legation.server.processes import trampoline
from legation.server.processes.log import Written
from legation.server.processes.terminal import open_terminal

# The time of a loaded machine to load the trampoline and have it become the command.
START_LIMIT: Final = 30.0

_TRAMPOLINE: Final = Path(trampoline.__file__)
_REASONS: Final[Mapping[int, str]] = {
    errno.ENOENT: "there is no such program; install it, or give its full path",
    errno.ENOTDIR: "there is no such program; install it, or give its full path",
    errno.EACCES: "it is not executable; change its permissions (chmod +x)",
    errno.ENOEXEC: "it is no program; check its first line, or start it with its interpreter",
    errno.E2BIG: "its arguments and variables are too long; pass them in a file",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What to start, checked."""

    name: str  # for the list of children and for messages
    words: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    tty: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """It runs. Whoever has it reads the outputs and closes their descriptors, and stops the child."""

    child: Child
    outputs: tuple[tuple[Written, int], ...]


async def begin(launcher: Launcher, order: Order) -> Begun:
    outputs, theirs = _open(tty=order.tty)
    try:
        child = await _spawn(launcher, order, theirs)
        try:
            await _must_run(child)
        except BaseException:
            await child.stop(grace=0.0)
            raise
    except BaseException:
        for _, each in outputs:
            os.close(each)
        raise
    return Begun(child, outputs)


def _open(*, tty: bool) -> tuple[tuple[tuple[Written, int], ...], tuple[int, int]]:
    try:
        if tty:
            ours, terminal = open_terminal()
            return (("pty", ours),), (terminal, terminal)
        out, out_end = os.pipe()
        try:
            err, err_end = os.pipe()
        except OSError:
            os.close(out)
            os.close(out_end)
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot start the process: {error.strerror}; end other processes and try again"
        ) from error
    return (("stdout", out), ("stderr", err)), (out_end, err_end)


async def _spawn(launcher: Launcher, order: Order, theirs: tuple[int, int]) -> Child:
    """Not left half-way: a descriptor that is closed before the child has it may be another's by then, a client's or the
    database's, and the command would write there. Who is cancelled waits for the fork, which is a matter of moments."""
    spawning = asyncio.ensure_future(launcher.spawn(_command(order, theirs)))
    cancelled = False
    while not spawning.done():
        try:
            await asyncio.wait({spawning})
        except asyncio.CancelledError:
            cancelled = True
    if spawning.cancelled():  # by the end of the loop: the fork may still come, so they stay open
        raise asyncio.CancelledError
    for each in set(theirs):
        os.close(each)
    try:
        child = spawning.result()
    except ConfigInvalid as error:
        raise InvalidParams(error.message) from error  # the folder went away: the caller's to correct
    if cancelled:
        await child.stop(grace=0.0)
        raise asyncio.CancelledError
    return child


def _command(order: Order, theirs: tuple[int, int]) -> Command:
    kind = "tty" if order.tty else "pipes"
    # -I and -S: nothing of the variables, the folder or the packages around decides what the trampoline loads.
    before = (sys.executable, "-I", "-S", str(_TRAMPOLINE), kind, *map(str, theirs))
    return Command((*before, *order.words), order.cwd, order.env, order.name, pass_fds=(*set(theirs),))


async def _must_run(child: Child) -> None:
    said = b""
    try:
        async with asyncio.timeout(START_LIMIT):
            async for lines in child.lines():
                said += b"".join(lines)
    except TimeoutError:
        raise Unavailable("cannot start the process: the machine is too slow now; try again later") from None
    if said:
        number = 0
        with suppress(ValueError):
            number = int(said)
        raise InvalidParams(f"cannot run the command: {_REASONS.get(number) or _other(number)}")


def _other(number: int) -> str:
    return f"the system refuses ({os.strerror(number)}); correct it and try again"
