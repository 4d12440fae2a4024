"""Files and terminals that a host serves itself: files unless the owner injects a handler of his own, terminals only if
he injects these.

INV-H1  No byte is read or written outside the folders, whatever links, `..` or races the agent sets up: a
        path is resolved first, and then opened part by part from the folder down, following no link. The folders
        are where they led when the session began: one that was replaced by a link since is not followed.
INV-H4  Nothing of Legation's own is opened, nor of the kernel's, by whatever name: what was opened is looked at before
        a byte of it is read or cut off (store/forbidden.py).
INV-T2  What is kept of a terminal's output is bounded by its limit, whatever is added.
INV-T3  A command has the environment it was given and what the agent asked for, nothing of ours. The agent's part
        is put on by the shell that becomes the command, so that it never reaches the launcher's own programs: a
        PATH or an LD_PRELOAD of the agent's choice must not work outside the jail.
INV-T4  After `release`, `cleanup_session` or `dispose` nothing of the command's process tree is left.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Self, TypeAlias, TypeVar

from legation.agents.rpc import RpcFault
from legation.clock import new_id
from legation.errors import ConfigInvalid, Forbidden, InvalidParams, LegationError
from legation.proc import Child, Command, Exit, Launcher, Pipes, ProcessLauncher
from legation.store.datafolder import new_mode
from legation.store.files import FOLDER, READ, open_below
from legation.store.forbidden import ForbiddenPlaces
from legation.tasks import UnderWay, finish
from legation.wire.acp.methods import (
    CreateTerminalRequest,
    ReadTextFileRequest,
    ReadTextFileResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WriteTextFileRequest,
)
from legation.wire.acp.rpc import ErrorCode
from legation.wire.action import MAX_PATH

READ_LIMIT = 8 * 1024 * 1024  # bytes of one file; an agent that wants more reads it in its own process

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SessionFiles:
    """Blocks for as long as the disk does: call it off the loop."""

    def __init__(self, folders: Sequence[Path], forbidden: ForbiddenPlaces) -> None:
        """`folders` have no links in them."""
        self._folders = [Path(os.path.abspath(folder)) for folder in folders]  # noqa: PTH100 - nor now
        self._forbidden = forbidden.of_session(self._folders)

    def read(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        told, opened = _told_to_agent(request.path), self._open(request.path, READ)
        with told, opened as fd, os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(READ_LIMIT + 1)  # not by the size it had, for it may be growing
        if len(data) > READ_LIMIT:
            raise RpcFault(ErrorCode.INVALID_PARAMS, f"{request.path} is larger than {READ_LIMIT} bytes")
        with _told_to_agent(request.path):
            return ReadTextFileResponse(content=_excerpt(data.decode(), request.line, request.limit))

    def write(self, request: WriteTextFileRequest) -> None:
        with _told_to_agent(request.path):
            data = request.content.encode()
            with self._open(request.path, _WRITE) as fd, os.fdopen(fd, "wb", closefd=False) as file:
                os.ftruncate(fd, 0)
                file.write(data)

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        folder, parts = self._locate(path)
        self._forbidden.check_name((*folder.parts, *parts))
        looked = self._forbidden.look()
        at = os.open(folder, FOLDER)
        try:
            looked.check(os.fstat(at))
            _must_be(at, folder)
            for part in parts[:-1]:
                below = open_below(at, part, mode=new_mode(at) if flags & os.O_CREAT else None)
                os.close(at)
                at = below
                looked.check(os.fstat(at))
            self._forbidden.check_open(at)  # a folder above the session's may have been replaced by a link
            fd = os.open(parts[-1], flags, 0o666, dir_fd=at)
        finally:
            os.close(at)
        try:
            if not stat.S_ISREG(self._forbidden.check_open(fd).st_mode):
                raise RpcFault(ErrorCode.INVALID_PARAMS, f"{path} is not a regular file")
            yield fd
        finally:
            os.close(fd)

    def _locate(self, path: str) -> tuple[Path, tuple[str, ...]]:
        if not path.startswith("/") or "\0" in path:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path must be absolute")
        if len(path) > MAX_PATH:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path is too long")
        real = Path(os.path.realpath(path))
        for folder in self._folders:
            if real != folder and real.is_relative_to(folder):
                return folder, real.relative_to(folder).parts
        raise RpcFault(ErrorCode.INVALID_PARAMS, f"{path} is outside the session's folders")


def _must_be(at: int, folder: Path) -> None:
    """Refuse a folder above which something may have become a link since its path was resolved."""
    with suppress(OSError):  # a system without it has only what was found on the way
        if os.readlink(f"/proc/self/fd/{at}") != str(folder):  # noqa: PTH115 - of no file
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session's folder has been moved or replaced")


@contextmanager
def _told_to_agent(path: str) -> Iterator[None]:
    code = ErrorCode.INVALID_PARAMS
    try:
        yield
    except Forbidden:
        why = "it is Legation's own or the system's, or in a dot-folder of the home that is not listed"
        raise RpcFault(code, f"{path} is not for agents: {why}") from None
    except FileNotFoundError:
        raise RpcFault(ErrorCode.RESOURCE_NOT_FOUND, f"{path} does not exist") from None
    except UnicodeError:
        raise RpcFault(code, f"{path!r}: the path or the text is not UTF-8") from None
    except OSError as error:
        raise RpcFault(code, f"{path}: {error.strerror}") from None


def _excerpt(text: str, line: int | None, limit: int | None) -> str:
    if line is None and limit is None:
        return text
    start = max((line or 1) - 1, 0)
    # Only newlines count, as in editors: `splitlines` would also split at form feeds and other rarities.
    lines = re.split(r"(?<=\n)", text)
    return "".join(lines[start : None if limit is None else start + max(limit, 0)])


FoldersOf: TypeAlias = Callable[[str], Sequence[Path] | None]
"""A session's folders, links resolved when it began; None if there is no such session."""


class DefaultFs:
    """Files of a session's folders. What is not given here is given by the host that it is given to."""

    def __init__(self, folders_of: FoldersOf | None = None, forbidden: ForbiddenPlaces | None = None) -> None:
        """`forbidden` is what no agent gets, although it lies in its session's folders."""
        self._folders_of = folders_of
        self._forbidden = forbidden

    def bind(self, folders_of: FoldersOf, forbidden: ForbiddenPlaces) -> None:
        self._folders_of = self._folders_of or folders_of
        self._forbidden = self._forbidden or forbidden

    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        return await asyncio.to_thread(self._files(request.session_id).read, request)

    async def write_text_file(self, request: WriteTextFileRequest) -> None:
        await asyncio.to_thread(self._files(request.session_id).write, request)

    def _files(self, session_id: str) -> SessionFiles:
        folders = outermost(session_folders(self._folders_of, session_id))
        return SessionFiles(folders, self._forbidden or ForbiddenPlaces())


def session_folders(folders_of: FoldersOf | None, session_id: str) -> Sequence[Path]:
    folders = folders_of(session_id) if folders_of else None
    if folders is None:
        raise RpcFault(ErrorCode.INVALID_PARAMS, "there is no such session")
    return folders


def outermost(folders: Sequence[Path]) -> list[Path]:
    """Leave out those inside another: an agent may put a link in their place, and must not move the boundary by that."""
    return [each for each in folders if not any(other in each.parents for other in folders)]


_LONGEST_REST = 3  # bytes of a character without its first


class OutputTail:
    """The end of a terminal's output, as ACP wants it: at most so many bytes of UTF-8, cut between characters (INV-T2)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        self._kept += data
        if (excess := len(self._kept) - self._limit) > 0:
            del self._kept[:excess]
            self._cut = True

    def take(self, data: bytes) -> bytes:
        """Add it, and leave nothing to whoever read it."""
        self.add(data)
        return b""

    def text(self, *, ended: bool) -> tuple[str, bool]:
        """Return the text, and whether anything is missing before it. Until the end a character that is not complete is
        left out; what is no UTF-8 becomes U+FFFD, which takes room too."""
        kept = _whole_characters(self._kept) if self._cut else bytes(self._kept)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, final=ended)
        shown = text.encode()
        if len(shown) <= self._limit:
            return text, self._cut
        return _whole_characters(shown[len(shown) - self._limit :]).decode(), True


def _whole_characters(data: bytes | bytearray) -> bytes:
    """Drop the rest of a character whose beginning was cut off."""
    start = 0
    while start < min(_LONGEST_REST, len(data)) and data[start] & 0b1100_0000 == 0b1000_0000:
        start += 1
    return bytes(data[start:])


@dataclass(slots=True)
class TerminalProcess:
    """Command that runs. Its stderr counts; its stdout should go there too, for the two to keep their order."""

    child: Child
    tail: OutputTail
    ended: asyncio.Task[Exit]

    @classmethod
    async def start(cls, launcher: Launcher, command: Command, output_limit: int) -> Self:
        """Start it. Lines would not do: a terminal shows one before it is finished. What is redacted to nothing is
        handed over once, as it came."""
        tail = OutputTail(output_limit)
        child = await launcher.spawn(command, Pipes(redact=tail.take))
        child.close_stdin()
        ended = asyncio.create_task(child.wait(), name=f"legation-terminal-{child.pid}")
        return cls(child, tail, ended)

    def output(self) -> TerminalOutputResponse:
        ended = self.ended.done()
        self.child.stderr_tail()  # hands the tail what has come since
        text, truncated = self.tail.text(ended=ended)
        status = _status(self.ended.result()) if ended else None
        return TerminalOutputResponse(output=text, truncated=truncated, exit_status=status)

    async def wait(self) -> TerminalExitStatus:
        """Wait for as long as the command runs: it is the agent who gives up, or kills it."""
        return _status(await asyncio.shield(self.ended))

    async def stop(self) -> None:
        """Stop its whole tree, bounded by the ladder of `proc`. Whoever comes second waits for all of it too."""
        await self.child.stop(grace=0.0)  # its input has been closed since its start
        await asyncio.shield(self.ended)


def _status(found: Exit) -> TerminalExitStatus:
    if found.signal is None:
        return TerminalExitStatus(exit_code=found.code)
    return TerminalExitStatus(signal=found.signal_name)


T = TypeVar("T")

SETTLE_LIMIT: Final = 30.0  # the time of those that were starting or ending when the shelf was closed
_log = logging.getLogger(__name__)


class Shelf(Generic[T]):
    """A session's things that take time to start and to end: closed once, and nothing arrives on it unseen. A thing is
    `moving` while it starts, and while one ends that was taken off. After a start the shelf may be closed: put the
    thing away."""

    def __init__(self) -> None:
        self.things: dict[str, T] = {}
        self.closed = False
        self.moving = UnderWay()

    def __len__(self) -> int:
        return len(self.things) + len(self.moving)

    def close(self) -> list[T]:
        """Close it; return what is on it, for the caller to put away."""
        self.closed = True
        things = [*self.things.values()]
        self.things.clear()
        return things

    async def settled(self) -> None:
        if not await self.moving.over(SETTLE_LIMIT):
            _log.warning(
                "cannot wait any longer for %d starts and ends in a closed session", len(self.moving)
            )


TERMINALS_PER_SESSION: Final = 32  # not yet released ones, ended or not: each keeps its output in our memory
OUTPUT_LIMIT: Final = 1024 * 1024  # bytes kept if the agent does not say how many
OUTPUT_CAP: Final = 16 * 1024 * 1024  # bytes kept, whatever it says

Environment: TypeAlias = Mapping[str, str] | Callable[[str], Mapping[str, str]]
"""The whole environment that commands start with, or what makes it from the session's id."""

_SHELL: Final = "/bin/sh"
_VARIABLE: Final = re.compile(r"(?!LEGATION_)[A-Za-z_][A-Za-z0-9_]*")
_PACKED: Final = "LEGATION_SET_"  # and a number: a variable of the agent's, as NAME=VALUE


class DefaultTerminals:
    """Give it the launcher that puts the agent's jail around each command. What is not given here, the host gives."""

    def __init__(
        self,
        launcher: Launcher | None = None,
        environment: Environment | None = None,
        folders_of: FoldersOf | None = None,
        *,
        forbidden: ForbiddenPlaces | None = None,
    ) -> None:
        """`forbidden` is where no command starts, although it lies in the session's folders."""
        self._forbidden = forbidden
        self._launcher = launcher
        self._environment = environment
        self._folders_of = folders_of
        self._shelves: dict[str, Shelf[TerminalProcess]] = {}
        self._disposed = False

    def bind(
        self, folders_of: FoldersOf, forbidden: ForbiddenPlaces, launcher: Launcher, environment: Environment
    ) -> None:
        if self._launcher is None:  # else who made it knows all of it
            self._folders_of = self._folders_of or folders_of
        self._forbidden = self._forbidden or forbidden
        self._launcher = self._launcher or launcher
        self._environment = environment if self._environment is None else self._environment

    async def create(self, request: CreateTerminalRequest) -> str:
        if self._disposed:
            raise RpcFault(ErrorCode.INTERNAL_ERROR, "the host is shutting down")
        shelf = self._shelves.setdefault(request.session_id, Shelf())
        if len(shelf) >= TERMINALS_PER_SESSION:
            limit = f"the session has {TERMINALS_PER_SESSION} terminals; release one first"
            raise RpcFault(ErrorCode.INVALID_REQUEST, limit)
        try:
            with shelf.moving:
                terminal = await self._started(request)
                if shelf.closed:
                    await self._put_away(request.session_id, shelf, terminal)
                    raise RpcFault(ErrorCode.INVALID_PARAMS, "the session was closed")
                terminal_id = new_id("term")
                shelf.things[terminal_id] = terminal
                return terminal_id
        finally:
            self._tidy(request.session_id)

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        return self._terminal(session_id, terminal_id).output()

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        return await self._terminal(session_id, terminal_id).wait()

    async def kill(self, session_id: str, terminal_id: str) -> None:
        with _errors_told():
            await self._terminal(session_id, terminal_id).stop()

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

    def _terminal(self, session_id: str, terminal_id: str) -> TerminalProcess:
        shelf = self._shelves.get(session_id)
        if shelf is None or terminal_id not in shelf.things:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session has no such terminal")
        return shelf.things[terminal_id]

    async def _put_away(
        self, session_id: str, shelf: Shelf[TerminalProcess], terminal: TerminalProcess
    ) -> None:
        """A cleanup waits for it, also where whoever asked for it has gone."""
        with ExitStack() as moves:
            moves.callback(self._tidy, session_id)
            moves.enter_context(shelf.moving)
            ending = asyncio.create_task(terminal.stop())
            ended = moves.pop_all()
        ending.add_done_callback(lambda _: ended.close())
        with _errors_told():
            await asyncio.shield(ending)

    def _tidy(self, session_id: str) -> None:
        shelf = self._shelves.get(session_id)
        if shelf is not None and not len(shelf):
            del self._shelves[session_id]

    async def _started(self, request: CreateTerminalRequest) -> TerminalProcess:
        """Start it to the end: where whoever asked has gone meanwhile, it is ended, and a cleanup waits for that."""
        starting = asyncio.create_task(self._start(request))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await finish(_stop_started(starting))
            raise

    async def _start(self, request: CreateTerminalRequest) -> TerminalProcess:
        asked, given = request.output_byte_limit, self._environment or {}
        if asked is not None and asked < 0:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "outputByteLimit must not be negative")
        limit = OUTPUT_LIMIT if asked is None else min(asked, OUTPUT_CAP)
        env = {**(given if isinstance(given, Mapping) else given(request.session_id)), **_packed(request)}
        command = Command(argv=_argv(request), cwd=await self._place(request), env=env, name="terminal")
        launcher = self._launcher or ProcessLauncher()
        with _errors_told():
            return await TerminalProcess.start(launcher, command, limit)

    async def _place(self, request: CreateTerminalRequest) -> Path:
        folders = session_folders(self._folders_of, request.session_id) if self._folders_of else None
        cwd = str(folders[0]) if folders and request.cwd is None else request.cwd
        if cwd is None or not cwd.startswith("/") or "\0" in cwd:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd must be an absolute path")
        if len(cwd) > MAX_PATH:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "cwd is too long")
        return await asyncio.to_thread(_confined, cwd, folders, self._forbidden or ForbiddenPlaces())


def _argv(request: CreateTerminalRequest) -> tuple[str, ...]:
    """Let a shell unpack the variables and become the command, with stdout in stderr's pipe, which keeps their order.
    Its arguments are neither quoted nor expanded; a missing program is told in the output and by exit code 127."""
    if not request.command or request.command.startswith("-"):
        raise RpcFault(ErrorCode.INVALID_PARAMS, "command must name a program")
    unpack = [f'export "${_PACKED}{n}"; unset {_PACKED}{n}; ' for n in range(len(request.env))]
    return (_SHELL, "-c", "".join(unpack) + 'exec "$0" "$@" >&2', request.command, *request.args)


async def _stop_started(starting: asyncio.Task[TerminalProcess]) -> None:
    await asyncio.wait({starting}, timeout=SETTLE_LIMIT)
    starting.cancel()  # then it is the launcher's, which leaves nothing of it
    if starting.done() and not starting.cancelled() and starting.exception() is None:
        await starting.result().stop()


def _packed(request: CreateTerminalRequest) -> dict[str, str]:
    for each in request.env:
        if not _VARIABLE.fullmatch(each.name):
            rule = "must be letters, digits and underscores, and not begin with LEGATION_"
            raise RpcFault(ErrorCode.INVALID_PARAMS, f"the name of a variable {rule}")
    return {f"{_PACKED}{n}": f"{each.name}={each.value}" for n, each in enumerate(request.env)}


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


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except LegationError as error:
        mistaken = isinstance(error, InvalidParams | ConfigInvalid)
        code = ErrorCode.INVALID_PARAMS if mistaken else ErrorCode.INTERNAL_ERROR
        raise RpcFault(code, error.message) from error
