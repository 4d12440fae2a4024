"""Start a process: its folder, environment and arguments, pipes or a terminal, and the trampoline that becomes the command.

INV-P5  The environment is built up from an allow-list and from what was asked for; nothing else of the server's, and
        above all none of its settings and keys, is in it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec

from legation.errors import ConfigInvalid, Conflict, InvalidParams, StorageFailed, Unavailable
from legation.proc import Child, Command, Launcher, child_environment
from legation.server.processes import trampoline
from legation.server.processes.output import OutputName
from legation.store.datafolder import make_folder

TERMINAL_KIND: Final = "xterm-256color"
COLUMNS: Final = 80
ROWS: Final = 24
# Seconds: a loaded machine's, to load the trampoline and have it become the command.
START_LIMIT: Final = 30.0
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS: Final = "LEGATION_"
_TRAMPOLINE: Final = Path(trampoline.__file__)
_REASONS: Final[Mapping[int, str]] = {
    errno.ENOENT: "there is no such program; install it, or give its full path",
    errno.ENOTDIR: "there is no such program; install it, or give its full path",
    errno.EACCES: "it is not executable; change its permissions (chmod +x)",
    errno.ENOEXEC: "it is no program; check its first line, or start it with its interpreter",
    errno.E2BIG: "its arguments and variables are too long; pass them in a file",
}


FolderOf: TypeAlias = Callable[[str], Awaitable[Path]]
"""The real path of one that somebody sent, if it is a folder that this server serves."""


def check_words(words: Iterable[str]) -> None:
    for word in words:
        if "\0" in word:
            raise InvalidParams("cannot start the process: a word of its command holds NUL; leave it out")
        _check_text(word)


def environment(asked: Mapping[str, str], home: Path, tmp: Path, *, tty: bool) -> dict[str, str]:
    for name, value in asked.items():
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise InvalidParams(
                "cannot start the process: the name of a variable must be letters, digits and underscores, and must "
                f"not begin with {_OURS}; choose another"
            )
        if "\0" in value:
            raise InvalidParams("cannot start the process: the value of a variable holds NUL; leave it out")
        _check_text(value)
    kind = {"TERM": TERMINAL_KIND} if tty else {}
    return {**child_environment(kind, home=home, tmp=tmp), **asked}


def make_home(homes: Path, workspace: str) -> tuple[Path, Path]:
    """Make HOME and TMPDIR of a workspace's processes, which are kept. Blocks."""
    place = homes / quote(workspace, safe="")
    home, tmp = place / "home", place / "tmp"
    try:
        for folder in (home, tmp):
            make_folder(folder)
    except OSError as error:
        raise StorageFailed(
            f"cannot make the processes' home in {homes}: {error.strerror}; make room, or make it writable"
        ) from error
    return home, tmp


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParams("cannot start the process: a text in it is not UTF-8; correct it") from None


class TerminalInput:
    """Our side of a pseudo-terminal: write as far as it takes it, and the rest as soon as it does; resize it.

    It does not own the descriptor: `close` it before whoever does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        if self._descriptor is None:
            raise Conflict("cannot write to the process: it has ended; start another")
        if not self._waiting:
            self._loop.add_writer(self._descriptor, self._flush)
        self._waiting += data
        self._flush()

    def resize(self, columns: int, rows: int) -> None:
        if self._descriptor is None:
            raise Conflict("cannot resize the terminal: its process has ended; start another")
        _set_size(self._descriptor, columns, rows)

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
            self._descriptor = None
            self._waiting.clear()

    def _flush(self) -> None:
        if self._descriptor is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the other side is gone: its exit tells the rest
            self._waiting.clear()
        self._loop.remove_writer(self._descriptor)


def open_terminal() -> tuple[int, int]:
    """Open one: our end and the process's."""
    ours, theirs = os.openpty()
    _set_size(ours, COLUMNS, ROWS)
    return ours, theirs


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    # The kernel tells the programs in it (SIGWINCH).
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to start, checked."""

    name: str  # for the list of children and for messages
    words: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    tty: bool


class StartedProcess(msgspec.Struct, frozen=True):
    """It runs. Whoever has it reads the outputs and closes their descriptors, and stops the child."""

    child: Child
    outputs: tuple[tuple[OutputName, int], ...]


async def start_child(launcher: Launcher, order: ProcessSpec) -> StartedProcess:
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
    return StartedProcess(child, outputs)


def _open(*, tty: bool) -> tuple[tuple[tuple[OutputName, int], ...], tuple[int, int]]:
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


async def _spawn(launcher: Launcher, order: ProcessSpec, theirs: tuple[int, int]) -> Child:
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


def _command(order: ProcessSpec, theirs: tuple[int, int]) -> Command:
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
