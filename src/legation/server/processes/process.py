"""One process: what it was asked to be, what it has written, and how it ended.

INV-P6  Its whole tree ends with it: what it started and left behind is killed and reaped (`legation.proc`), before it
        counts as exited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from legation.clock import Clock
from legation.errors import Conflict, LegationError, TransportClosed
from legation.proc import Exit
from legation.proc.exit import peek
from legation.server.processes.log import ProcessLog, Written
from legation.server.processes.output import OutputReader
from legation.server.processes.starting import Begun
from legation.server.processes.terminal import TerminalInput
from legation.wire.api.processes import NewProcess, ProcessInfo

MOST_UNSENT: Final = 1 << 20  # bytes of input that wait for the process to read them

# What ends the programs in a terminal: an interactive shell ignores TERM and heeds its terminal's end.
_STOPS_TERMINAL: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)
_STOPS: Final = (signal.SIGTERM, signal.SIGCONT)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    exit: Exit
    at_ms: int


class Process:
    """Made of what `begin` returned. `close` leaves nothing of it."""

    def __init__(
        self, id_: str, asked: NewProcess, cwd: str, begun: Begun, log: ProcessLog, clock: Clock
    ) -> None:
        self.id = id_
        self.tty = asked.tty
        self.log = log
        self._asked = asked
        self._cwd = cwd
        self._clock = clock
        self._child = begun.child
        self._created_at_ms = clock.now_ms()
        self._ended: Ended | None = None
        self._terminal = TerminalInput(begun.outputs[0][1]) if asked.tty else None
        self._readers = [OutputReader(each, self._taking(stream)) for stream, each in begun.outputs]
        self._life = asyncio.create_task(self._live(), name=f"legation-process-{begun.child.pid}")

    @property
    def running(self) -> bool:
        return self._ended is None

    @property
    def ended(self) -> Ended | None:
        return self._ended

    def info(self) -> ProcessInfo:
        asked, ended = self._asked, self._ended
        return ProcessInfo(
            id=self.id,
            command=asked.command,
            args=asked.args,
            cwd=self._cwd,
            tty=asked.tty,
            interactive=asked.interactive,
            owner="user",
            status="running" if ended is None else "exited",
            pid=self._child.pid if ended is None else None,
            exit_code=None if ended is None else ended.exit.code,
            exit_signal=None if ended is None else signal_name(ended.exit),
            created_at_ms=self._created_at_ms,
            exited_at_ms=None if ended is None else ended.at_ms,
        )

    def write(self, data: bytes) -> None:
        """To its terminal or its standard input; what it does not read at once waits, up to a bound."""
        target = self._terminal or self._child
        if not self.running:
            raise Conflict("cannot write to the process: it has ended; start another")
        if target.unsent + len(data) > MOST_UNSENT:
            raise Conflict("cannot write to the process: it does not read its input; try again when it does")
        try:
            target.write(data)
        except TransportClosed:
            raise Conflict("cannot write to the process: it has closed its input; start another") from None

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is None:
            raise Conflict("cannot resize this process: it has no terminal; start it with `tty`")
        self._terminal.resize(columns, rows)

    async def stop(self, seconds: float) -> None:
        """Ask it to end; it may take longer than we wait, and may refuse."""
        await self._signal(_STOPS_TERMINAL if self.tty else _STOPS, seconds)

    async def kill(self, seconds: float) -> None:
        await self._signal((signal.SIGKILL,), seconds)

    async def close(self) -> None:
        """Down the whole ladder, whose every step is bounded."""
        if not self._life.done():
            try:
                await self._child.stop(grace=0.0)
            except LegationError as error:  # stuck in the kernel: nobody can do anything about it
                _log.error("cannot end the process %s: %s", self.id, error)
                self._life.cancel()
        await asyncio.wait({self._life})

    async def wait(self, seconds: float) -> bool:
        await asyncio.wait({self._life}, timeout=seconds)
        return self._life.done()

    async def _signal(self, numbers: tuple[signal.Signals, ...], seconds: float) -> None:
        for number in numbers:
            # While it is our child and has not ended, its number is nobody else's.
            if self.running and peek(self._child.pid) is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, number)
        await self.wait(seconds)

    async def _live(self) -> None:
        found = Exit(None, None)
        try:
            found = await self._child.wait()
        finally:
            if self._terminal is not None:
                self._terminal.close()
            for reader in self._readers:
                reader.finish()
            self._ended = Ended(found, self._clock.now_ms())
            self.log.close()

    def _taking(self, stream: Written) -> Callable[[bytes], None]:
        return lambda data: self.log.add(stream, data, self._clock.now_ms())


def signal_name(found: Exit) -> str | None:
    if found.signal is None:
        return None
    try:
        return signal.Signals(found.signal).name
    except ValueError:  # a real-time signal other than the first and the last
        return f"SIG{found.signal}"
