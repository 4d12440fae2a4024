"""How a child ended, and the moment it does, without taking its exit code from the kernel.

Until the code is taken the pid stays the child's own, so that its group can be signalled and its tree swept without
ever meeting a later process of the same number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """A code, or the signal that ended it, or neither if somebody else took the exit code first."""

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal} ({_signal_name(self.signal)})"
        return "unknown exit" if self.code is None else f"exit code {self.code}"


def peek(pid: int, *, block: bool = False) -> Exit | None:
    """How the child ended, left for others to read again; None while it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG))
    except ChildProcessError:
        return Exit(None, None)
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Exit(found.si_status, None)
    return Exit(None, found.si_status)


class ExitWatch:
    """`ended` gets the exit as soon as there is one: from a pidfd, or from a thread where there are none."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = None
        self.ended: asyncio.Future[Exit] = self._loop.create_future()
        try:
            self._descriptor = os.pidfd_open(pid)
            self._loop.add_reader(self._descriptor, self._look)
        except OSError:
            threading.Thread(target=self._wait, name=f"legation-exit-{pid}", daemon=True).start()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _look(self) -> None:
        found = peek(self._pid)
        if found is not None:
            self._resolve(found)
            self.close()

    def _wait(self) -> None:
        found = peek(self._pid, block=True)
        if found is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._resolve, found)
        except RuntimeError:  # the loop has been closed, nobody waits any more
            return

    def _resolve(self, found: Exit) -> None:
        if not self.ended.done():
            self.ended.set_result(found)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
