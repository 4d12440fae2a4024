"""The processes of one workspace, running and ended, and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from legation.errors import Conflict, NotFound
from legation.server.processes.process import Process
from legation.wire.api.processes import ProcessConfig

KEPT_ENDED: Final = 64  # whose logs can still be read; the oldest goes first


class Shelf:
    def __init__(self) -> None:
        self.config = ProcessConfig()
        self._things: dict[str, Process] = {}
        self._promised = 0  # places of those that are starting, and of one-off runs

    def __iter__(self) -> Iterator[Process]:
        """Those that were started first come first."""
        return iter([self._things[key] for key in sorted(self._things)])

    @property
    def busy(self) -> int:
        return self._promised + sum(each.running for each in self._things.values())

    @contextmanager
    def place(self) -> Iterator[None]:
        most = self.config.max_concurrent_processes
        if self.busy >= most:
            raise Conflict(f"cannot start another process: {most} run already; stop one", {"limit": most})
        self._promised += 1
        try:
            yield
        finally:
            self._promised -= 1

    def add(self, process: Process) -> None:
        self._things[process.id] = process
        ended = [each for each in self if each.ended is not None]
        for each in ended[: max(0, len(ended) - KEPT_ENDED)]:
            del self._things[each.id]

    def find(self, process_id: str) -> Process:
        found = self._things.get(process_id)
        if found is None:
            raise NotFound("cannot find this process; list them with GET /v1/processes")
        return found

    def remove(self, process_id: str) -> None:
        if self.find(process_id).running:
            raise Conflict("cannot delete this process: it still runs; stop or kill it first")
        del self._things[process_id]
