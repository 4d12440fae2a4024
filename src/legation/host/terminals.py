"""Terminals for agents: commands without input, whose output is kept for them. Off unless the owner injects them.

INV-T3  A command has the environment it was given and what the agent asked for, nothing of ours. The agent's part
        is put on by the shell that becomes the command, so that it never reaches the launcher's own programs: a
        PATH or an LD_PRELOAD of the agent's choice must not work outside the jail.
INV-T4  After `release`, `cleanup_session` or `dispose` nothing of the command's process tree is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from legation.agents.rpc import RpcFault
from legation.errors import ConfigInvalid, Forbidden, InvalidParams, LegationError
from legation.host.fs import FoldersOf, outermost, session_folders
from legation.host.shelf import Shelf
from legation.host.terminal import Terminal
from legation.ids import new_id
from legation.proc import Command, Launcher
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.reverse import CreateTerminalRequest, TerminalExitStatus, TerminalOutputResponse
from legation.wire.acp.rpc import ErrorCode
from legation.wire.action import MAX_PATH

TERMINALS_PER_SESSION: Final = 32  # not yet released ones, ended or not: each keeps its output in our memory
OUTPUT_LIMIT: Final = 1024 * 1024  # bytes kept if the agent does not say how many
OUTPUT_CAP: Final = 16 * 1024 * 1024  # bytes kept, whatever it says

Environment: TypeAlias = Mapping[str, str] | Callable[[str], Mapping[str, str]]
"""The whole environment that commands start with, or what makes it from the session's id."""

_SHELL: Final = "/bin/sh"
_NAME: Final = re.compile(r"(?!LEGATION_)[A-Za-z_][A-Za-z0-9_]*")
_PACKED: Final = "LEGATION_SET_"  # and a number: a variable of the agent's, as NAME=VALUE
_log = logging.getLogger(__name__)


class DefaultTerminals:
    """Give it the launcher that puts the agent's jail around each command."""

    def __init__(
        self,
        launcher: Launcher,
        environment: Environment,
        folders_of: FoldersOf | None = None,
        *,
        forbidden: ForbiddenPlaces,
    ) -> None:
        """`forbidden` is where no command starts, although it lies in the session's folders."""
        self._forbidden = forbidden
        self._launcher = launcher
        self._environment = environment
        self._folders_of = folders_of
        self._shelves: dict[str, Shelf[Terminal]] = {}
        self._disposed = False

    async def create(self, request: CreateTerminalRequest) -> str:
        shelf = self._shelf(request.session_id)
        try:
            with shelf.moving():
                return await self._create(request, shelf)
        finally:
            self._tidy(request.session_id)

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        return self._terminal(session_id, terminal_id).output()

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        return await self._terminal(session_id, terminal_id).wait()

    async def kill(self, session_id: str, terminal_id: str) -> None:
        await _stop(self._terminal(session_id, terminal_id))

    async def release(self, session_id: str, terminal_id: str) -> None:
        terminal, shelf = self._terminal(session_id, terminal_id), self._shelves[session_id]
        del shelf.things[terminal_id]
        await self._put_away(session_id, shelf, terminal)

    async def cleanup_session(self, session_id: str) -> None:
        """Does not raise: whoever closes a session can do nothing about a process stuck in the kernel."""
        shelf = self._shelves.pop(session_id, None)
        if shelf is None:
            return
        stopping = [terminal.stop() for terminal in shelf.close()]
        for failure in await asyncio.gather(*stopping, return_exceptions=True):
            if isinstance(failure, BaseException):
                _log.error("cannot end a terminal", exc_info=failure)
        await shelf.settled()

    async def dispose(self) -> None:
        self._disposed = True
        await asyncio.gather(*[self.cleanup_session(session_id) for session_id in [*self._shelves]])

    def _shelf(self, session_id: str) -> Shelf[Terminal]:
        if self._disposed:
            raise RpcFault(ErrorCode.INTERNAL_ERROR, "the host is shutting down")
        shelf = self._shelves.setdefault(session_id, Shelf())
        if len(shelf) >= TERMINALS_PER_SESSION:
            limit = f"the session has {TERMINALS_PER_SESSION} terminals; release one first"
            raise RpcFault(ErrorCode.INVALID_REQUEST, limit)
        return shelf

    def _terminal(self, session_id: str, terminal_id: str) -> Terminal:
        shelf = self._shelves.get(session_id)
        if shelf is None or terminal_id not in shelf.things:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session has no such terminal")
        return shelf.things[terminal_id]

    async def _put_away(self, session_id: str, shelf: Shelf[Terminal], terminal: Terminal) -> None:
        """A cleanup waits for it, also where whoever asked for it has gone."""
        with ExitStack() as moves:
            moves.callback(self._tidy, session_id)
            moves.enter_context(shelf.moving())
            ending = asyncio.create_task(_stop(terminal))
            ended = moves.pop_all()
        ending.add_done_callback(lambda _: ended.close())
        await asyncio.shield(ending)

    def _tidy(self, session_id: str) -> None:
        shelf = self._shelves.get(session_id)
        if shelf is not None and not len(shelf):
            del self._shelves[session_id]

    async def _create(self, request: CreateTerminalRequest, shelf: Shelf[Terminal]) -> str:
        terminal = await self._start(request)
        if shelf.closed:
            await self._put_away(request.session_id, shelf, terminal)
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session was closed")
        terminal_id = new_id("term")
        shelf.things[terminal_id] = terminal
        return terminal_id

    async def _start(self, request: CreateTerminalRequest) -> Terminal:
        command = Command(
            argv=_argv(request),
            cwd=await self._place(request),
            env={**self._base(request.session_id), **_packed(request)},
            name="terminal",
        )
        try:
            return await Terminal.start(self._launcher, command, _output_limit(request.output_byte_limit))
        except LegationError as error:
            raise _fault(error) from error

    def _base(self, session_id: str) -> Mapping[str, str]:
        given = self._environment
        return given if isinstance(given, Mapping) else given(session_id)

    async def _place(self, request: CreateTerminalRequest) -> Path:
        folders = session_folders(self._folders_of, request.session_id) if self._folders_of else None
        cwd = str(folders[0]) if folders and request.cwd is None else request.cwd
        if cwd is None or not cwd.startswith("/") or "\0" in cwd:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd must be an absolute path")
        if len(cwd) > MAX_PATH:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd is too long")
        return await asyncio.to_thread(_confined, cwd, folders, self._forbidden)


def create_default_terminal_handler(
    launcher: Launcher,
    environment: Environment,
    folders_of: FoldersOf | None = None,
    *,
    forbidden: ForbiddenPlaces,
) -> DefaultTerminals:
    return DefaultTerminals(launcher, environment, folders_of, forbidden=forbidden)


def _argv(request: CreateTerminalRequest) -> tuple[str, ...]:
    """A shell that unpacks the variables and becomes the command, with stdout in stderr's pipe: with one pipe
    for both their order is kept. The arguments are the shell's own, so nothing in them is quoted or expanded.
    A program that is not there is told in the output and by exit code 127, as in any shell."""
    if not request.command or request.command.startswith("-"):
        raise RpcFault(ErrorCode.INVALID_PARAMS, "command must name a program")
    unpack = [f'export "${_PACKED}{n}"; unset {_PACKED}{n}; ' for n in range(len(request.env))]
    return (_SHELL, "-c", "".join(unpack) + 'exec "$0" "$@" >&2', request.command, *request.args)


def _packed(request: CreateTerminalRequest) -> dict[str, str]:
    for each in request.env:
        if not _NAME.fullmatch(each.name):
            what = (
                "the name of a variable must be letters, digits and underscores, and not begin with LEGATION_"
            )
            raise RpcFault(ErrorCode.INVALID_PARAMS, what)
    return {f"{_PACKED}{n}": f"{each.name}={each.value}" for n, each in enumerate(request.env)}


def _output_limit(asked: int | None) -> int:
    if asked is None:
        return OUTPUT_LIMIT
    if asked < 0:
        raise RpcFault(ErrorCode.INVALID_PARAMS, "outputByteLimit must not be negative")
    return min(asked, OUTPUT_CAP)


def _confined(cwd: str, folders: Sequence[Path] | None, forbidden: ForbiddenPlaces) -> Path:
    """A courtesy to the agent, not a fence: its command may go wherever the launcher's jail lets it."""
    try:
        place = Path(os.path.realpath(cwd))
        forbidden.of_session(folders or ()).check_folder(place)
    except UnicodeError:
        raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd is not UTF-8") from None
    except Forbidden as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, error.message) from None
    if folders is None:
        return Path(cwd)
    if not any(place.is_relative_to(folder) for folder in outermost(folders)):
        raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd is outside the session's folders")
    return place


async def _stop(terminal: Terminal) -> None:
    try:
        await terminal.stop()
    except LegationError as error:
        raise _fault(error) from error


def _fault(error: LegationError) -> RpcFault:
    mistaken = isinstance(error, InvalidParams | ConfigInvalid)
    return RpcFault(ErrorCode.INVALID_PARAMS if mistaken else ErrorCode.INTERNAL_ERROR, error.message)
