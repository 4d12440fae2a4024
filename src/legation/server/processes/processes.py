"""The processes that operators start on the server's machine, by workspace. Off unless the owner turned them on.

INV-P8  Nobody sees, or can act on, a process of another workspace.
INV-P9  Every start is recorded before it happens: what cannot be recorded is not started.
INV-P10 At the end of `async with` no process is left; after a kill -9 of the server the next start ends them all,
        because the launcher registers each.
INV-P11 All logs together take no more than `LOGS_BYTES`: the more there are, the smaller the share of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Protocol, Self

from legation.clock import Clock
from legation.errors import Conflict, Forbidden, Unavailable
from legation.ids import new_id
from legation.proc import Launcher, ProcessLauncher
from legation.server.processes.log import ProcessLog
from legation.server.processes.oneoff import Gone, run_once
from legation.server.processes.process import Process
from legation.server.processes.shelf import Shelf
from legation.server.processes.starting import Order, begin
from legation.server.processes.surroundings import FolderOf, check_words, environment, make_home
from legation.wire.api.processes import (
    NewProcess,
    NewProcessRun,
    ProcessConfig,
    ProcessInfo,
    ProcessOwner,
    ProcessRunResult,
)
from legation.wire.principal import Principal

LOGS_BYTES: Final = 256 << 20
MOST_RUNNING: Final = 256  # of all workspaces together
CLOSING_LIMIT: Final = 10.0  # seconds: the time of what is starting, or run once, when the server stops
_FIRST_FOLDER: Final = "."  # a relative path begins at the first folder that is served

NewOrder = NewProcess | NewProcessRun


class Record(Protocol):
    async def __call__(self, principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
        """Into the audit log: who starts which program. Its arguments are not for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What processes are made with. `folder` confines where they start, `homes` is where they are at home."""

    launcher: Launcher
    folder: FolderOf
    homes: Path
    record: Record
    clock: Clock


class Processes:
    """`async with Processes(means, enabled=settings.processes)`."""

    def __init__(self, means: Means, *, enabled: bool) -> None:
        self._means = means
        self._enabled = enabled
        self._shelves: dict[str, Shelf] = {}
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._moving = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closed = True
        await asyncio.gather(*[each.close() for shelf in self._shelves.values() for each in shelf])
        try:
            async with asyncio.timeout(CLOSING_LIMIT):
                await self._idle.wait()
        except TimeoutError:
            return  # the launcher's registry has them: the next start ends them

    def hurry(self) -> None:
        """The server has a second to end, whatever they do."""
        if isinstance(self._means.launcher, ProcessLauncher):
            self._means.launcher.hurry()

    async def start(self, principal: Principal, asked: NewProcess) -> ProcessInfo:
        shelf = self._shelf(principal)
        process_id = new_id("proc", now_ms=self._means.clock.now_ms())
        with self._moves(), shelf.place():
            order = await self._order(principal.workspace, asked, process_id, tty=asked.tty)
            await self._record(principal, process_id, asked)
            begun = await begin(self._means.launcher, order)
            log = ProcessLog(shelf.config.max_log_bytes_per_process)
            process = Process(process_id, asked, str(order.cwd), begun, log, self._means.clock)
            if self._closed:  # meanwhile
                await process.close()
                raise _stopping()
            shelf.add(process)
        self._share()
        return process.info()

    async def run(self, principal: Principal, asked: NewProcessRun, gone: Gone) -> ProcessRunResult:
        shelf = self._shelf(principal)
        config, process_id = shelf.config, new_id("proc", now_ms=self._means.clock.now_ms())
        milliseconds = min(asked.timeout_ms or config.default_run_timeout_ms, config.max_run_timeout_ms)
        most = config.max_output_bytes if asked.max_output_bytes is None else asked.max_output_bytes
        with self._moves(), shelf.place():
            order = await self._order(principal.workspace, asked, process_id, tty=False)
            await self._record(principal, process_id, asked)
            return await run_once(
                self._means.launcher,
                order,
                seconds=milliseconds / 1000,
                most=min(most, config.max_output_bytes),
                gone=gone,
                clock=self._means.clock,
            )

    def list(self, principal: Principal, owner: ProcessOwner | None) -> list[ProcessInfo]:
        shelf = self._shelf(principal)
        return [each.info() for each in shelf] if owner in (None, "user") else []

    def find(self, principal: Principal, process_id: str) -> Process:
        return self._shelf(principal).find(process_id)

    def remove(self, principal: Principal, process_id: str) -> None:
        self._shelf(principal).remove(process_id)
        self._share()

    def config(self, principal: Principal) -> ProcessConfig:
        return self._shelf(principal).config

    def configure(self, principal: Principal, config: ProcessConfig) -> ProcessConfig:
        """Holds for what is started from now on; forgotten when the server stops."""
        self._shelf(principal).config = config
        return config

    @contextmanager
    def _moves(self) -> Iterator[None]:
        if self._closed:
            raise _stopping()
        if sum(shelf.busy for shelf in self._shelves.values()) >= MOST_RUNNING:
            raise Conflict(
                f"cannot start another process: the server runs {MOST_RUNNING} for all workspaces; try again later"
            )
        self._moving += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._moving -= 1
            if not self._moving:
                self._idle.set()

    def _shelf(self, principal: Principal) -> Shelf:
        if not self._enabled:
            raise Forbidden(
                "cannot use processes: they are off on this server, because they run any command as its user; the owner "
                "can turn them on with LEGATION_PROCESSES=true"
            )
        if principal.agent is not None:
            raise Forbidden("cannot use processes as an agent: they run outside its jail; use its own tools")
        return self._shelves.setdefault(principal.workspace, Shelf())

    async def _order(self, workspace: str, asked: NewOrder, process_id: str, *, tty: bool) -> Order:
        words = (asked.command, *asked.args)
        check_words(words)
        home, tmp = await asyncio.to_thread(make_home, self._means.homes, workspace)
        env = environment(asked.env, home, tmp, tty=tty)
        cwd = await self._means.folder(asked.cwd or _FIRST_FOLDER)
        return Order(process_id, words, cwd, env, tty)

    async def _record(self, principal: Principal, process_id: str, asked: NewOrder) -> None:
        program = PurePosixPath(asked.command).name
        tty = isinstance(asked, NewProcess) and asked.tty
        await self._means.record(principal, process_id, program, tty=tty)

    def _share(self) -> None:
        logs = [each.log for shelf in self._shelves.values() for each in shelf]
        for log in logs:
            log.limit_to(LOGS_BYTES // len(logs))


def _stopping() -> Unavailable:
    return Unavailable("cannot start processes any more: the server stops; try again when it is back")
