"""Notices by a program of the owner's: one line of JSON on its standard input, exit code 0 means delivered.

It and all it started are gone when `send` returns, however that ends: see `legation.proc`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from legation.approvals.notify.notice import ApprovalNotice, NotDelivered
from legation.errors import ConfigInvalid, LegationError, TransportClosed, Unavailable
from legation.proc import Child, Command, Exit, Launcher, Pipes, ProcessLauncher

log = logging.getLogger(__name__)

# The program's time for one notice.
TIMEOUT: Final = 30.0
# Of what it prints only this much is kept, for the log when it fails.
LAST_LINES: Final = 5
LONGEST_LINE: Final = 300
_PIPES: Final = Pipes(max_line=64 * 1024, buffer_limit=256 * 1024)
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


class CommandChannel:
    """A program of the owner's. `argv` is run as it is, without a shell, in the root folder, with PATH, HOME and LANG and nothing else of ours."""

    name = "command"
    gathers = True  # it speaks to people, as a rule, and each is a process

    def __init__(
        self,
        argv: tuple[str, ...],
        *,
        launcher: Launcher | None = None,
        environ: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        environment = clean_environment(os.environ if environ is None else environ)
        must_be_runnable(argv, environment)
        self._command = Command(argv, Path("/"), environment, "notify_command")
        self._launcher = launcher or ProcessLauncher()
        self._timeout = timeout

    async def send(self, notice: ApprovalNotice) -> None:
        try:
            child = await self._launcher.spawn(self._command, _PIPES)
        except LegationError as error:
            raise NotDelivered(error.message, again=isinstance(error, Unavailable)) from None
        output: deque[str] = deque(maxlen=LAST_LINES)
        try:
            found = await self._run(child, notice, output)
        finally:
            await child.stop(grace=0)  # its time is over: TERM, then KILL, to its whole group
        if found is None or found.code != 0:
            self._log_last_lines(child, output)
            ended = f"it took longer than {self._timeout:g} s" if found is None else f"it ended with {found}"
            raise NotDelivered(f"cannot notify by command: {ended}; its last lines are in the log")

    async def _run(self, child: Child, notice: ApprovalNotice, output: deque[str]) -> Exit | None:
        """Run it to its own end; None where that did not come in time."""
        try:
            async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as tasks:
                tasks.create_task(_keep_last(child, output))
                with suppress(TransportClosed):  # it does not care for the notice: its exit code counts
                    child.write(notice.encode() + b"\n")
                child.close_stdin()
                return await child.wait()
        except TimeoutError:
            return None

    def _log_last_lines(self, child: Child, output: deque[str]) -> None:
        for line in (*output, *child.stderr_tail().splitlines()[-LAST_LINES:]):
            log.warning("notify_command said: %s", _printable(line))


async def _keep_last(child: Child, output: deque[str]) -> None:
    """Read all of it, so that the program never waits for a reader."""
    async for lines in child.lines():
        output.extend(line.decode(errors="replace") for line in lines[-LAST_LINES:])


def _printable(line: str) -> str:
    return _UNPRINTABLE.sub("?", line[:LONGEST_LINE])


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": environ.get("PATH") or os.defpath,
        "HOME": environ.get("HOME") or "/",
        "LANG": environ.get("LANG") or "C.UTF-8",
    }


def must_be_runnable(argv: tuple[str, ...], environment: Mapping[str, str]) -> None:
    program = argv[0] if argv else ""
    if "/" in program and not program.startswith("/"):
        raise ConfigInvalid(
            f"cannot use notify_command: {program!r} is a relative path; write the whole path, or a name on PATH"
        )
    if shutil.which(program, os.F_OK, environment["PATH"]) is None:
        raise ConfigInvalid(
            f"cannot use notify_command: there is no program {program!r}; install it or write its whole path"
        )
    if shutil.which(program, os.F_OK | os.X_OK, environment["PATH"]) is None:
        raise ConfigInvalid(
            f"cannot use notify_command: {program!r} is not an executable file; change its permissions (chmod +x)"
        )
