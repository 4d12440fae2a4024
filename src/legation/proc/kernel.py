"""What Linux says about processes, read from /proc, and the few calls Python has no name for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    started: int  # clock ticks since boot: with the pid it names one process until the machine restarts
    dead: bool  # a zombie: it has ended and nobody has taken its exit code yet

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")


def process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  half the cost of Path.read_bytes
            # The name in parentheses may hold anything, parentheses and spaces too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, group, session = fields[:4]
    return Process(pid, int(parent), int(group), int(session), int(fields[19]), state in b"ZX")


def processes() -> dict[int, Process]:
    found = (process(int(name)) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208
    return {each.pid: each for each in found if each is not None}


def environment_value(pid: int, name: str) -> str | None:
    """A variable as the process got it at its start; None if it has none, has ended or is another user's."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    _, found, rest = (b"\0" + environ).partition(b"\0" + name.encode() + b"=")
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def own_children() -> list[int]:
    """Our direct children, adopted ones too."""
    return children(os.getpid())


def children(pid: int) -> list[int]:
    """Direct children, without a look at every process; empty where the kernel does not list them."""
    pids: list[int] = []
    for thread in _threads(pid):
        try:
            pids += map(int, (thread / "children").read_bytes().split())
        except OSError:
            continue
    return pids


def _threads(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def boot_id() -> str:
    """Names this run of the kernel: start times mean nothing beyond it."""
    return _line(_PROC / "sys/kernel/random/boot_id")


def pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def become_subreaper() -> bool:
    """Orphans below us become our children rather than init's; False where the system refuses."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def kill(target: Process) -> None:
    """KILL that very process: held by a descriptor while its start time is compared, so never a later namesake."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return
    except OSError:
        _kill_by_pid(target)
        return
    try:
        now = process(target.pid)
        if now is not None and now.started == target.started:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


def _kill_by_pid(target: Process) -> None:
    now = process(target.pid)
    if now is None or now.started != target.started:
        return
    try:
        os.kill(target.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
