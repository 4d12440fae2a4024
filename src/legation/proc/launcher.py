"""The start of children. `Launcher` is the seam: a sandbox implements it too, and drivers receive one."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from legation.errors import ConfigInvalid, InvalidParams, LegationError, Unavailable
from legation.proc.child import Child, Pipes, StartedChild, spawner
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

_OUT_OF_RESOURCES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start. `env` is the whole environment, but for the token that the launcher adds.

    A detached child is meant to outlive us: sweeps and the start-up reaper spare it while it lives.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    name: str
    detached: bool = False
    pass_fds: tuple[int, ...] = ()


class Launcher(Protocol):
    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child: ...


class ProcessLauncher:
    """Starts plain processes: a session and a process group of their own, three pipes, no other descriptors."""

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
        future = spawner().submit(partial(_start, command, self._registry))
        try:
            started = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_discard)
            raise
        child = await Child.connect(started, pipes or self._pipes)
        self._children.add(child)
        if self._hurried:
            child.hurry()
        return child


def _discard(future: Future[StartedChild]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().discard()


def _start(command: Command, registry: Registry | None) -> StartedChild:
    """Start the child; on the spawner thread."""
    _become_subreaper_once(os.getpid())
    token = new_token(detached=command.detached)
    if registry is None:
        return _look_up(command, _open(command, token), token, None)
    registry.expect(token, command.name, detached=command.detached)
    try:
        started = _look_up(command, _open(command, token), token, registry)
    except LegationError:
        registry.remove(token)
        raise
    try:
        registry.add(token, command.name, started.tree.pid, started.tree.started, detached=command.detached)
    except LegationError:
        started.discard()
        raise
    return started


def _open(command: Command, token: str) -> subprocess.Popen[bytes]:
    if not command.argv:
        raise InvalidParams(f"cannot start {command.name!r}: its command is empty; name a program")
    try:
        return subprocess.Popen(
            command.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.cwd,
            env={**command.env, TOKEN_NAME: token},
            start_new_session=True,
            pass_fds=command.pass_fds,
        )
    except ValueError:  # its text may quote the value, so it goes no further
        raise InvalidParams(
            f"cannot start {command.name!r}: an argument or a variable holds a NUL or a name with '='; remove it"
        ) from None
    except OSError as error:
        raise _refusal(command, error) from error


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
        detached=command.detached,
        unregister=_nothing if registry is None else partial(registry.remove, token),
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
