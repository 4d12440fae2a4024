"""Processes that operators start on the server's machine, by workspace. Off unless the owner turned them on.

INV-P6  The whole tree of a process ends with it: what it started and left behind is killed and reaped (`legation.proc`),
        before it counts as exited.
INV-P7  However a command that is run once ends, also when its caller has gone, nothing of its process tree is left.
INV-P8  Nobody sees, or can act on, a process of another workspace.
INV-P9  Every start is recorded before it happens: what cannot be recorded is not started.
INV-P10 At the end of `async with` no process is left; after a kill -9 of the server the next start ends them all,
        because the launcher registers each.
INV-P11 All logs together take no more than `LOGS_BYTES`: the more there are, the smaller the share of each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, Protocol, Self

import msgspec

from legation.clock import Clock, new_id
from legation.errors import Conflict, Forbidden, LegationError, NotFound, TransportClosed, Unavailable
from legation.proc import Exit, Launcher, ProcessLauncher
from legation.proc.child import peek
from legation.server.auth import ANYBODY
from legation.server.processes.output import OutputName, OutputReader, ProcessLog
from legation.server.processes.start import (
    FolderOf,
    ProcessSpec,
    StartedProcess,
    TerminalInput,
    check_words,
    environment,
    make_home,
    start_child,
)
from legation.store import audit
from legation.store.database.transaction import Database
from legation.tasks import UnderWay
from legation.wire.api.processes import (
    NewProcess,
    NewProcessRun,
    ProcessConfig,
    ProcessInfo,
    ProcessOwner,
    ProcessRunResult,
)
from legation.wire.principal import Principal

MOST_UNSENT: Final = 1 << 20  # bytes of input that wait for the process to read them
KEPT_ENDED: Final = 64  # whose logs can still be read; the oldest goes first
LOGS_BYTES: Final = 256 << 20
MOST_RUNNING: Final = 256  # of all workspaces together
CLOSING_LIMIT: Final = 10.0  # seconds: the time of what is starting, or run once, when the server stops

# What ends the programs in a terminal: an interactive shell ignores TERM and heeds its terminal's end.
_STOPS_TERMINAL: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)
_STOPS: Final = (signal.SIGTERM, signal.SIGCONT)
_FIRST_FOLDER: Final = "."  # a relative path begins at the first folder that is served
# A name that stands in a table unsealed; whatever else somebody may call a program is left out.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,31}", re.ASCII)

_USUAL: Final = ProcessConfig()
_RAISED: Final = [name for name in _USUAL.__struct_fields__ if name.startswith("max_")]
_log = logging.getLogger(__name__)

Asked = NewProcess | NewProcessRun
Gone = Callable[[], Awaitable[None]]
"""Returns when nobody waits for the result any more."""


class ProcessEnd(msgspec.Struct, frozen=True):
    exit: Exit
    at_ms: int


class OperatorProcess:
    """One process: what it was asked to be, what it has written, and how it ended. `close` leaves nothing of it."""

    def __init__(
        self, id_: str, asked: NewProcess, cwd: str, started: StartedProcess, log: ProcessLog, clock: Clock
    ) -> None:
        self.id = id_
        self.tty = asked.tty
        self.log = log
        self._asked = asked
        self._cwd = cwd
        self._clock = clock
        self._child = started.child
        self._created_at_ms = clock.now_ms()
        self.ended: ProcessEnd | None = None
        self._terminal = TerminalInput(started.outputs[0][1]) if asked.tty else None
        self._readers = [OutputReader(each, self._log_as(stream)) for stream, each in started.outputs]
        self._task = asyncio.create_task(self._run(), name=f"legation-process-{started.child.pid}")

    @property
    def running(self) -> bool:
        return self.ended is None

    def info(self) -> ProcessInfo:
        asked, ended = self._asked, self.ended
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
            exit_signal=None if ended is None else ended.exit.signal_name,
            created_at_ms=self._created_at_ms,
            exited_at_ms=None if ended is None else ended.at_ms,
        )

    def write(self, data: bytes) -> None:
        """Write to its terminal or its standard input; what it does not read at once waits, up to a bound."""
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
        """End it: down the whole ladder, whose every step is bounded."""
        if not self._task.done():
            try:
                await self._child.stop(grace=0.0)
            except LegationError as error:  # stuck in the kernel: nobody can do anything about it
                _log.error("cannot end the process %s: %s", self.id, error)
                self._task.cancel()
        await asyncio.wait({self._task})

    async def wait(self, seconds: float) -> bool:
        await asyncio.wait({self._task}, timeout=seconds)
        return self._task.done()

    async def _signal(self, numbers: tuple[signal.Signals, ...], seconds: float) -> None:
        for number in numbers:
            # While it is our child and has not ended, its number is nobody else's.
            if self.running and peek(self._child.pid) is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, number)
        await self.wait(seconds)

    async def _run(self) -> None:
        found = Exit(None, None)
        try:
            found = await self._child.wait()
        finally:
            if self._terminal is not None:
                self._terminal.close()
            for reader in self._readers:
                reader.finish()
            self.ended = ProcessEnd(found, self._clock.now_ms())
            self.log.close()

    def _log_as(self, stream: OutputName) -> Callable[[bytes], None]:
        return lambda data: self.log.add(stream, data, self._clock.now_ms())


class FirstBytes:
    """The first bytes of a stream; the rest is taken and let go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()
        self.truncated = False

    def take(self, data: bytes) -> None:
        room = self._most - len(self._data)
        self._data += data[:room]
        self.truncated = self.truncated or len(data) > room

    def text(self) -> str:
        if not self.truncated:
            return self._data.decode(errors="replace")
        # Cut in the middle of a character, its beginning says nothing.
        for cut in range(4):
            with suppress(UnicodeDecodeError):
                return self._data[: len(self._data) - cut].decode()
        return self._data.decode(errors="replace")


async def run_once(
    launcher: Launcher, spec: ProcessSpec, *, seconds: float, most: int, gone: Gone, clock: Clock
) -> ProcessRunResult:
    """Run a command to its end, or to the end of its time (INV-P7)."""
    began = clock.monotonic()
    leaving = asyncio.ensure_future(gone())
    try:
        started = await start_child(launcher, spec)
        started.child.close_stdin()
        out, err = FirstBytes(most), FirstBytes(most)
        readers = [
            OutputReader(each, (out if stream == "stdout" else err).take) for stream, each in started.outputs
        ]
        ending = asyncio.ensure_future(started.child.wait())
        try:
            await asyncio.wait({ending, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not ending.done()
        finally:
            await started.child.stop(grace=0.0)
            found: Exit = await ending
            for reader in readers:
                reader.finish()
    finally:
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
    return ProcessRunResult(
        exit_code=None if timed_out else found.code,
        exit_signal=None if timed_out else found.signal_name,
        timed_out=timed_out,
        stdout=out.text(),
        stderr=err.text(),
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        duration_ms=round((clock.monotonic() - began) * 1000),
    )


class WorkspaceProcesses:
    """The processes of one workspace, running and ended, and its limits."""

    def __init__(self) -> None:
        self.config = ProcessConfig()
        self._processes: dict[str, OperatorProcess] = {}
        self._reserved = 0  # places of those that are starting, and of one-off runs

    def __iter__(self) -> Iterator[OperatorProcess]:
        """Iterate in the order of their starts."""
        return iter([self._processes[key] for key in sorted(self._processes)])

    @property
    def busy(self) -> int:
        return self._reserved + sum(each.running for each in self._processes.values())

    @contextmanager
    def reserve(self) -> Iterator[None]:
        most = self.config.max_concurrent_processes
        if self.busy >= most:
            raise Conflict(f"cannot start another process: {most} run already; stop one", {"limit": most})
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1

    def add(self, process: OperatorProcess) -> None:
        self._processes[process.id] = process
        ended = [each for each in self if each.ended is not None]
        for each in ended[: max(0, len(ended) - KEPT_ENDED)]:
            del self._processes[each.id]

    def find(self, process_id: str) -> OperatorProcess:
        found = self._processes.get(process_id)
        if found is None:
            raise NotFound("cannot find this process; list them with GET /v1/processes")
        return found

    def remove(self, process_id: str) -> None:
        if self.find(process_id).running:
            raise Conflict("cannot delete this process: it still runs; stop or kill it first")
        del self._processes[process_id]


class RecordStart(Protocol):
    async def __call__(self, principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
        """Write into the audit log who starts which program. Its arguments are not for it."""


class Processes:
    """`async with Processes(...)`: the processes of all workspaces."""

    def __init__(
        self,
        *,
        launcher: Launcher,
        folder: FolderOf,
        homes: Path,
        record: RecordStart,
        clock: Clock,
        enabled: bool,
    ) -> None:
        """`folder` confines where they start, `homes` is where they are at home."""
        self._launcher = launcher
        self._folder = folder
        self._homes = homes
        self._record = record
        self._clock = clock
        self._enabled = enabled
        self._workspaces: dict[str, WorkspaceProcesses] = {}
        self._closed = False
        self._starts = UnderWay()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await asyncio.gather(*[each.close() for own in self._workspaces.values() for each in own])
        await self._starts.over(
            CLOSING_LIMIT
        )  # else the launcher's registry has them: the next start ends them

    def hurry(self) -> None:
        """The server has a second to end, whatever they do."""
        if isinstance(self._launcher, ProcessLauncher):
            self._launcher.hurry()

    async def start(self, principal: Principal, asked: NewProcess) -> ProcessInfo:
        own = self._of(principal)
        process_id = new_id("proc", now_ms=self._clock.now_ms())
        with self._starting(), own.reserve():
            spec = await self._prepare(principal, asked, process_id)
            started = await start_child(self._launcher, spec)
            log = ProcessLog(own.config.max_log_bytes_per_process)
            process = OperatorProcess(process_id, asked, str(spec.cwd), started, log, self._clock)
            if self._closed:  # meanwhile
                await process.close()
                raise _stopping()
            own.add(process)
        self._share_log_bytes()
        return process.info()

    async def run(self, principal: Principal, asked: NewProcessRun, gone: Gone) -> ProcessRunResult:
        own = self._of(principal)
        config, process_id = own.config, new_id("proc", now_ms=self._clock.now_ms())
        milliseconds = min(asked.timeout_ms or config.default_run_timeout_ms, config.max_run_timeout_ms)
        most = config.max_output_bytes if asked.max_output_bytes is None else asked.max_output_bytes
        with self._starting(), own.reserve():
            spec = await self._prepare(principal, asked, process_id)
            return await run_once(
                self._launcher,
                spec,
                seconds=milliseconds / 1000,
                most=min(most, config.max_output_bytes),
                gone=gone,
                clock=self._clock,
            )

    def list(self, principal: Principal, owner: ProcessOwner | None) -> list[ProcessInfo]:
        own = self._of(principal)
        return [each.info() for each in own] if owner in (None, "user") else []

    def find(self, principal: Principal, process_id: str) -> OperatorProcess:
        return self._of(principal).find(process_id)

    def remove(self, principal: Principal, process_id: str) -> None:
        self._of(principal).remove(process_id)
        self._share_log_bytes()

    def config(self, principal: Principal) -> ProcessConfig:
        return self._of(principal).config

    def configure(self, principal: Principal, config: ProcessConfig) -> ProcessConfig:
        """Set the limits of what is started from now on; they are forgotten when the server stops."""
        own = self._of(principal)
        raised = [name for name in _RAISED if getattr(config, name) > getattr(_USUAL, name)]
        # A caller who needs no credential stands for the owner.
        if raised and "manage" not in principal.scopes and principal.via != ANYBODY:
            raise Forbidden(
                f'cannot raise {", ".join(raised)} without the scope "manage"; use a credential of the owner\'s'
            )
        own.config = config
        return config

    @contextmanager
    def _starting(self) -> Iterator[None]:
        if self._closed:
            raise _stopping()
        if sum(own.busy for own in self._workspaces.values()) >= MOST_RUNNING:
            raise Conflict(
                f"cannot start another process: the server runs {MOST_RUNNING} for all workspaces; try again later"
            )
        with self._starts:
            yield

    def _of(self, principal: Principal) -> WorkspaceProcesses:
        if not self._enabled:
            raise Forbidden(
                "cannot use processes: they are off on this server, because they run any command as its user; the owner "
                "can turn them on with `--processes`, or LEGATION_PROCESSES=true"
            )
        if principal.agent is not None:
            raise Forbidden("cannot use processes as an agent: they run outside its jail; use its own tools")
        return self._workspaces.setdefault(principal.workspace, WorkspaceProcesses())

    async def _prepare(self, principal: Principal, asked: Asked, process_id: str) -> ProcessSpec:
        """Check what is asked for, and record the start of it (INV-P9)."""
        words, tty = (asked.command, *asked.args), isinstance(asked, NewProcess) and asked.tty
        check_words(words)
        home, tmp = await asyncio.to_thread(make_home, self._homes, principal.workspace)
        env = environment(asked.env, home, tmp, tty=tty)
        cwd = await self._folder(asked.cwd or _FIRST_FOLDER)
        await self._record(principal, process_id, PurePosixPath(asked.command).name, tty=tty)
        return ProcessSpec(process_id, words, cwd, env, tty)

    def _share_log_bytes(self) -> None:
        logs = [each.log for own in self._workspaces.values() for each in own]
        for log in logs:
            log.limit_to(LOGS_BYTES // len(logs))


def _stopping() -> Unavailable:
    return Unavailable("cannot start processes any more: the server stops; try again when it is back")


def record_starts(database: Database, clock: Clock) -> RecordStart:
    async def record(principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
        details = {"program": program if _PLAIN_NAME.fullmatch(program) else None, "tty": tty}
        await database.transact(
            audit.record, principal, "process.started", process_id, details, clock.now_ms()
        )

    return record
