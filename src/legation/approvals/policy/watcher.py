"""Policies that follow their files.

INV-P5  There is always a set that was good. An edit that is not keeps the old one in force and is reported once,
        with the words of `load`; so is a file, or a folder's last file, that went away.

A change counts when the files have been the same in two looks: half a rulebook may well be a valid one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from legation.approvals.policy.load import files_of, load
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.problems import Problems
from legation.clock import Clock
from legation.errors import ConfigInvalid

INTERVAL: Final = 1.0  # seconds between looks: the owner's, who waits for two of them after an edit

Signature = tuple[tuple[str, tuple[int, ...] | None], ...]


class Watcher:
    """Raises ConfigInvalid where the first set is not good.

    `on_change` gets each new set, and the old one when a broken edit was taken back; `on_problem` gets what is
    wrong. Both are called from `poll`, or by `run` on its loop.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_change: Callable[[PolicySet], None] = lambda _: None,
        on_problem: Callable[[ConfigInvalid], None] = lambda _: None,
    ) -> None:
        self._path, self._on_change, self._on_problem = path, on_change, on_problem
        self._seen = signature(path)
        self._settling: Signature | None = None
        self._is_broken = False
        self.current = load(path)

    async def run(self, clock: Clock) -> None:
        """Until it is cancelled."""
        while True:
            await clock.sleep(INTERVAL)
            found = await asyncio.to_thread(self._look)  # a large set takes its time
            self._take(found)

    def poll(self) -> bool:
        """Look now; whether the set in force is another than before."""
        before = self.current
        self._take(self._look())
        return self.current is not before

    def _look(self) -> PolicySet | ConfigInvalid | None:
        now = signature(self._path)
        if now == self._seen:
            self._settling = None
            return None
        if now != self._settling:
            self._settling = now
            return None
        found: PolicySet | ConfigInvalid
        try:
            found = load(self._path)
        except ConfigInvalid as error:
            found = error
        if (after := signature(self._path)) != now:
            self._settling = after  # it was written to meanwhile
            return None
        self._seen = now
        return found

    def _take(self, found: PolicySet | ConfigInvalid | None) -> None:
        if isinstance(found, ConfigInvalid):
            self._is_broken = True
            self._on_problem(found)
        elif found is not None and (self._is_broken or found.version != self.current.version):
            self._is_broken = False
            self.current = found
            self._on_change(found)


def signature(path: Path) -> Signature:
    """Another one whenever a file was written, replaced, linked elsewhere, added or removed."""
    return tuple((str(file), _stat(file)) for file in [path, *files_of(path, Problems())])


def _stat(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode)
