"""A child as the spawner thread hands it over: it runs, and nobody looks after it yet."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from legation.proc.exit import Exit, peek
from legation.proc.tree import Tree, release_mark

# The kernel's time to carry out KILL; a process stuck in the kernel takes longer.
KILL_LIMIT: Final = 5.0
_KILL_PAUSE: Final = 0.002


@dataclass(frozen=True, slots=True)
class Started:
    name: str
    process: subprocess.Popen[bytes]
    tree: Tree
    mark: int | None
    detached: bool
    unregister: Callable[[], None]

    def signal(self, number: signal.Signals) -> None:
        """To the whole process group."""
        if self.process.returncode is not None or peek(self.tree.pid) == Exit(None, None):
            return  # its exit code was taken, by us or another: the number may be another group's by now
        try:
            os.killpg(self.tree.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def kill(self) -> None:
        """The whole tree, without an event loop; blocks, for milliseconds unless something is stuck."""
        self.tree.observe()
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + KILL_LIMIT
        while peek(self.tree.pid) is None and time.monotonic() < deadline:
            time.sleep(_KILL_PAUSE)
        self.tree.sweep()

    def discard(self) -> None:
        """Undo the start; blocks."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.forget()

    def forget(self) -> None:
        """After its end: take the exit code and give back what was set aside for it."""
        self.process.poll()
        release_mark(self.mark)
        self.unregister()
