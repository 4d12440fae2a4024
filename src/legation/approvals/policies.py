"""The policies in force: the owner's file or folder, followed as it changes, else the starter `careful`.

INV-P5  There is always a set that was good. An edit that is not keeps the old one in force and is reported once,
        with the words of `load`; so is a file, or a folder's last file, that went away.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeAlias

from legation.approvals.policy.rules import PolicySet
from legation.clock import Clock
from legation.errors import ConfigInvalid

STARTER: Final = "careful"
LET_GO: Final = 500  # rules between two turns of the loop
NEVER: Final = 2**31 - 1
INTERVAL: Final = 1.0  # seconds between looks: the owner's, who waits for two of them after an edit

logger = logging.getLogger("legation.policy")
Signature: TypeAlias = tuple[tuple[str, tuple[int, ...] | None], ...]


class Policies:
    """The set in force; ConfigInvalid where the first one is not good: a server without its rules does not start."""

    def __init__(self, path: Path | None) -> None:
        self._listeners: list[Callable[[PolicySet], None]] = []
        self.problem: str | None = None  # why the newest edit is not in force
        self.source = str(path) if path else f"starter {STARTER}"
        self._watcher = (
            PolicyWatcher(path, on_change=self._on_change, on_problem=self._on_problem) if path else None
        )

    @cached_property
    def current(self) -> PolicySet:
        return (
            self._watcher.current if self._watcher else _starter()
        )  # ours is good: it need not be read to start

    def on_change(self, listener: Callable[[PolicySet], None]) -> None:
        self._listeners.append(listener)

    async def follow(self, clock: Clock) -> None:
        """Follow the files until it is cancelled."""
        if self._watcher is not None:
            await self._watcher.run(clock)

    def poll(self) -> bool:
        """Look now; tell whether the set in force is another than before."""
        return self._watcher is not None and self._watcher.poll()

    def _on_change(self, policies: PolicySet) -> None:
        self.problem, self.current = None, policies
        logger.warning("policies changed: version %s is in force", policies.version[:12])
        for listener in self._listeners:
            listener(policies)

    def _on_problem(self, error: ConfigInvalid) -> None:
        self.problem = error.message
        logger.error("policies stay as they were: %s", error.message)


@cache
def _starter() -> PolicySet:
    # The parser of policies, here and below: a start with the starter alone has no use for it.
    from legation.approvals.policy.load import load_text, starter

    return load_text(starter(STARTER).text, STARTER)


def _load(path: Path) -> PolicySet:
    from legation.approvals.policy.load import load

    return load(path)


class PolicyWatcher:
    """Policies that follow their files; ConfigInvalid where the first set is not good.

    `on_change` gets each new set, and the old one when a broken edit was taken back; `on_problem` gets what is
    wrong. Both are called from `poll`, or by `run` on its loop. A change counts when the files have been the same in two
    looks: half a rulebook may well be a valid one.
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
        self.current = _load(path)

    async def run(self, clock: Clock) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await clock.sleep(INTERVAL)
            found = await asyncio.to_thread(self._look)  # a large set takes its time
            if found is not None:
                old = [rule for policy in self.current.policies for rule in policy.rules]
                self._take(found)
                while old:  # to let go of ten thousand at once takes as long as the loop may
                    del old[-LET_GO:]
                    await asyncio.sleep(0)

    def poll(self) -> bool:
        """Look now; tell whether the set in force is another than before."""
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
            with no_full_collection():
                found = _load(self._path)
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


@contextmanager
def no_full_collection() -> Iterator[None]:
    """Put off looking through everything for garbage: it stops all threads, for half a second beside what is made of ten
    thousand rules while they are read, and there is none in it. Young objects are looked through as ever."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


def signature(path: Path) -> Signature:
    """Make another one whenever a file was written, replaced, linked elsewhere, added or removed."""
    from legation.approvals.policy.document import Problems
    from legation.approvals.policy.load import files_of

    return tuple((str(file), _stat(file)) for file in [path, *files_of(path, Problems())])


def _stat(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode)
