"""The start of children. `Launcher` is the seam: a sandbox implements it too, and drivers receive one."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

import msgspec

from legation.errors import ConfigInvalid, InvalidParams, LegationError, StorageFailed, TimedOut, Unavailable
from legation.proc import keeper
from legation.proc.child import Child, DetachedRecord, Exit, Pipes, StartedChild, spawner
from legation.proc.registry import Registry
from legation.proc.tree import (
    TOKEN_NAME,
    ProcessTree,
    become_subreaper,
    new_token,
    nothing_spared,
    process,
    set_mark,
)

# Isolated and without site-packages: it starts in milliseconds, and no variable of the child's changes what it does.
KEEPER: Final = (sys.executable, "-I", "-S", keeper.__file__)
KEEPER_LIMIT: Final = 60.0  # seconds for the keeper to start the child: the machine's time
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OUT_OF_RESOURCES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class FileStdio(msgspec.Struct, frozen=True):
    """Files of one folder as a child's input and output, instead of pipes. Without `stdin` there is nothing to read.

    They are regular files and the owner's alone, and no link is followed. Output is appended."""

    folder: Path
    stdout: str
    stderr: str
    stdin: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start. `env` is the whole environment, but for the token that the launcher adds.

    A detached child is meant to outlive us, so it needs `files`: a pipe would end with us. Sweeps and the start-up
    reaper spare it while it lives, and a later owner adopts it (`ProcessLauncher.adopt`). Its pid is its keeper's.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    name: str
    detached: bool = False
    pass_fds: tuple[int, ...] = ()
    files: FileStdio | None = None


class Launcher(Protocol):
    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child: ...


class ProcessLauncher:
    """Starts plain processes: a session and a process group of their own, three pipes or files, no other descriptors."""

    def __init__(self, *, registry: Registry | None = None, pipes: Pipes | None = None) -> None:
        self._registry = registry
        self._pipes = pipes or Pipes()
        self._children: WeakSet[Child] = WeakSet()
        self._hurried = False

    def hurry(self) -> None:
        """Give them little time to end by themselves, from now on: whoever has started them is ending."""
        self._hurried = True
        for child in self._children:
            child.hurry()

    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child:
        return await self._take(partial(_start, command, self._registry), pipes, command)

    async def adopt(self, pid: int, started: int) -> Child:
        """Take over a detached child from an owner that is dead or has released it, by its pid and start time. Of many
        that try at once, one succeeds: the others get `Conflict`. One that has ended says how, as far as is known."""
        if self._registry is None:
            raise InvalidParams(f"cannot adopt process {pid}: this launcher has no registry; give it one")
        return await self._take(partial(_adopt, self._registry, pid, started), None)

    async def _take(
        self, start: Callable[[], StartedChild], pipes: Pipes | None, command: Command | None = None
    ) -> Child:
        future = spawner().submit(start)
        try:
            started = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_discard)
            raise
        if command is not None and started.status is not None:
            await _hear(command, started, started.status)
        child = await Child.connect(started, pipes or self._pipes)
        self._children.add(child)
        if self._hurried:
            child.hurry()
        return child


def _discard(future: Future[StartedChild]) -> None:
    if not future.cancelled() and future.exception() is None:
        started = future.result()
        if started.status is not None:
            os.close(started.status)
        started.discard()


async def _hear(command: Command, started: StartedChild, status: int) -> None:
    """Wait for the keeper's one word, not on the spawner thread: others want to start too."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(status, readable.set)
    try:
        async with asyncio.timeout(KEEPER_LIMIT):
            await readable.wait()
        refused = _refused(command, os.read(status, 100).decode())
    except TimeoutError:
        refused = TimedOut(
            f"cannot start {command.name!r}: its keeper has not done so within {KEEPER_LIMIT:g} s;"
            " end other programs and try again"
        )
    except asyncio.CancelledError:
        spawner().submit(started.discard)
        raise
    finally:
        loop.remove_reader(status)
        os.close(status)
    if refused is not None:
        started.discard()
        raise refused


def _refused(command: Command, said: str) -> LegationError | None:
    start = f"cannot start {command.name!r}"
    word, _, number = said.partition(" ")
    if word == keeper.STARTED:
        return None
    error = OSError(int(number or 0), os.strerror(int(number or 0)))
    if word == keeper.REFUSED:
        return _refusal(command, error)
    if word == keeper.UNREGISTERED:
        return StorageFailed(
            f"{start}: its keeper cannot write its file ({error.strerror}); make room in the data folder"
        )
    return Unavailable(f"{start}: its keeper ended at once; `legation doctor` may know why")


def _start(command: Command, registry: Registry | None) -> StartedChild:
    """Start the child; on the spawner thread."""
    _become_subreaper_once(os.getpid())
    token = new_token(detached=command.detached)
    if command.detached:
        return _start_detached(command, token, registry)
    if registry is None:
        return _look_up(command, _open(command, token), token, None)
    registry.expect(token, command.name, detached=False)
    try:
        started = _look_up(command, _open(command, token), token, registry)
    except LegationError:
        registry.remove(token)
        raise
    try:
        registry.add(token, command.name, started.tree.pid, started.tree.started, detached=False)
    except LegationError:
        started.discard()
        raise
    return started


def _start_detached(command: Command, token: str, registry: Registry | None) -> StartedChild:
    """Start the keeper, which puts itself on file and then starts the child."""
    start = f"cannot start {command.name!r} detached"
    if command.files is None:
        raise InvalidParams(f"{start}: its pipes would end with us, and it with them; give it files")
    if registry is None:
        raise InvalidParams(f"{start}: nobody would find it again; give the launcher a registry")
    if not command.argv:
        raise _empty(command)
    try:
        status, writing = os.pipe()
    except OSError as error:
        raise _refusal(command, error) from error
    passed = ",".join(map(str, command.pass_fds))
    argv = (*KEEPER, str(registry.path(token)), str(writing), passed, *command.argv)
    try:
        registry.expect(token, command.name, detached=True)
        opened = _open(command, token, argv=argv, also_passed=(writing,))
    except LegationError:
        os.close(status)
        registry.remove(token)
        raise
    finally:
        os.close(writing)
    return msgspec.structs.replace(_look_up(command, opened, token, registry), status=status)


def _adopt(registry: Registry, pid: int, started: int) -> StartedChild:
    """Take it over; on the spawner thread."""
    entry = registry.adopt(pid, started)
    return StartedChild(
        name=entry.name,
        process=None,
        tree=ProcessTree(pid, started, entry.token, spared=registry.detached),
        mark=None,
        unregister=partial(registry.remove, entry.token),
        record=_record(registry, entry.token),
    )


def _record(registry: Registry, token: str) -> DetachedRecord:
    def ended() -> Exit | None:
        found = registry.ended(token)
        return None if found is None else Exit(found.code, found.signal)

    return DetachedRecord(ended, partial(registry.release, token))


def _empty(command: Command) -> InvalidParams:
    return InvalidParams(f"cannot start {command.name!r}: its command is empty; name a program")


def _open(
    command: Command, token: str, *, argv: tuple[str, ...] = (), also_passed: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    if not command.argv:
        raise _empty(command)
    opened = _open_files(command)
    stdin, stdout, stderr = opened or (subprocess.PIPE,) * 3
    try:
        return subprocess.Popen(
            argv or command.argv,
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=command.cwd,
            env={**command.env, TOKEN_NAME: token},
            start_new_session=True,
            pass_fds=(*command.pass_fds, *also_passed),
        )
    except ValueError:  # its text may quote the value, so it goes no further
        raise InvalidParams(
            f"cannot start {command.name!r}: an argument or a variable holds a NUL or a name with '='; remove it"
        ) from None
    except OSError as error:
        raise _refusal(command, error) from error
    finally:
        for descriptor in opened:  # the child has copies of its own
            os.close(descriptor)


def _open_files(command: Command) -> tuple[int, ...]:
    """Open the files for stdin, stdout and stderr; none where they are pipes."""
    files = command.files
    if files is None:
        return ()
    opened: list[int] = []
    try:
        at = os.open(files.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            opened.append(_open_file(at, files.stdin, os.O_RDONLY))
            opened.append(_open_file(at, files.stdout, _APPEND))
            opened.append(_open_file(at, files.stderr, _APPEND))
        finally:
            os.close(at)
    except (OSError, ValueError) as error:
        for descriptor in opened:
            os.close(descriptor)
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigInvalid(
            f"cannot start {command.name!r}: its files in {files.folder} cannot be opened ({reason});"
            " give it a folder and regular files of its own"
        ) from None
    return tuple(opened)


def _open_file(at: int, name: str | None, flags: int) -> int:
    if name is None:
        return os.open(os.devnull, flags | os.O_CLOEXEC)
    if "/" in name or name in ("", ".", ".."):
        raise ValueError("a name is not that of a file in the folder")
    # Without O_NONBLOCK a named pipe that somebody put there would hold us up.
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=at)
    try:
        found = os.fstat(descriptor)
        # A second name of the file may be in a folder of somebody else's.
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise ValueError("one is not a regular file, or not ours alone")
        if flags & os.O_CREAT:
            os.fchmod(descriptor, 0o600)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _look_up(
    command: Command, opened: subprocess.Popen[bytes], token: str, registry: Registry | None
) -> StartedChild:
    mark = set_mark(opened.pid)  # first of all: what it starts before that can only be told by its token
    found = process(opened.pid)
    return StartedChild(
        name=command.name,
        process=opened,
        tree=ProcessTree(
            opened.pid,
            found.started if found is not None else 0,
            token,
            mark=mark,
            spared=nothing_spared if registry is None else registry.detached,
        ),
        mark=mark,
        unregister=_nothing if registry is None else partial(registry.remove, token),
        record=_record(registry, token) if command.detached and registry is not None else None,
    )


def _refusal(command: Command, error: OSError) -> LegationError:
    """Say which of the things it needs is wrong, and what to do about it."""
    start, program = f"cannot start {command.name!r}", command.argv[0]
    if error.errno in _OUT_OF_RESOURCES:
        return Unavailable(f"{start}: {error.strerror}; end other programs or raise the limit and try again")
    if not command.cwd.is_dir():
        return ConfigInvalid(f"{start}: there is no folder {command.cwd}; create it or choose another one")
    if not os.access(command.cwd, os.X_OK):
        return ConfigInvalid(f"{start}: the folder {command.cwd} is closed to us; change its permissions")
    if error.errno == errno.E2BIG:
        return InvalidParams(f"{start}: its arguments and variables are too long; pass them in a file")
    if shutil.which(program, os.F_OK, _search_path(command)) is None:
        return ConfigInvalid(f"{start}: there is no program {program!r}; install it or give its full path")
    if error.errno == errno.EACCES:
        return ConfigInvalid(f"{start}: {program!r} is not executable; change its permissions (chmod +x)")
    return ConfigInvalid(
        f"{start}: {program!r} cannot be run ({error.strerror}); check its first line and its interpreter"
    )


def _search_path(command: Command) -> str:
    return os.pathsep.join(str(command.cwd / part) for part in os.get_exec_path(dict(command.env)))


@cache
def _become_subreaper_once(_process: int) -> bool:
    """Become one once per process: a forked copy of us is none until it asks."""
    return become_subreaper()


def _nothing() -> None:
    return None


# The environment that a coding agent starts with: built up from an allow-list, never cut down from ours.

# Where programs are, how text looks, which certificates are trusted. No proxies: egress decides on those.
# No keys: they come through `passed`, if at all.
INHERITED: Final = frozenset(
    {
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "COLORTERM",
        "SHELL",
        "USER",
        "LOGNAME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    }
)
INHERITED_PREFIX: Final = "LC_"


def child_environment(
    passed: Mapping[str, str], *, home: Path, tmp: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Names of the allow-list from `base` (ours by default), then `passed`; HOME and TMPDIR are always those given."""
    base = os.environ if base is None else base
    environment = {name: value for name, value in base.items() if _is_inherited(name)}
    environment.setdefault("PATH", os.defpath)
    return {**environment, **passed, "HOME": str(home), "TMPDIR": str(tmp)}


def _is_inherited(name: str) -> bool:
    return name in INHERITED or name.startswith(INHERITED_PREFIX)
