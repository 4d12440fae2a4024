"""Group commit: one thread that commits whatever waits, as one unit, again and again.

There is no linger: the time a commit takes is the time in which the next group gathers. When a commit fails,
a strict operation in it is refused and the appends are kept, in order, and tried again with what came since;
each op is reported exactly once, as committed, postponed (and later committed), or refused.

A group ends with its strict operation: a store that commits file by file cannot take it back when something
behind it fails.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from legation.errors import StorageFailed
from legation.store.backend import Append, Backend, Create, Op

MAX_GROUP = 512  # ops in one transaction
RETRY_FIRST = 0.05  # seconds to the next try after a failed commit: the disk's time, not the agent's
RETRY_MOST = 2.0
CLOSE_TRIES = 3  # how often a closing log tries to save what is left

_log = logging.getLogger(__name__)


class Owner(Protocol):
    def settled(self, ops: Sequence[Op], error: StorageFailed | None = None) -> None: ...
    def postponed(self, ops: Sequence[Op], error: StorageFailed) -> None: ...


class Writer:
    """`tell` takes what is said to the owner over to its thread. What is put into the `queue` is committed."""

    def __init__(
        self,
        backend: Backend,
        owner: Owner,
        tell: Callable[..., None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._tell = tell
        self._sleep = sleep
        self.queue: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._unsaved: list[Op] = []
        self._retry = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="legation-log-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Save what waits, as far as the store lets us, and end. Blocks; call it off the loop."""
        self.queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            fresh = self._gather()
            if fresh or self._unsaved:
                self._save(fresh)
        self._save_the_rest()

    def _gather(self) -> list[Op]:
        """What waits, up to a strict one; sleeps until there is something, or until it is time to try again."""
        fresh: list[Op] = []
        try:
            op = self.queue.get(timeout=self._retry if self._unsaved else None)
            while op is not None:
                fresh.append(op)
                if len(fresh) >= MAX_GROUP or not isinstance(op, Append | Create):
                    return fresh
                op = self.queue.get_nowait()
            self._closing = True
        except queue.Empty:
            pass
        return fresh

    def _save(self, fresh: list[Op]) -> None:
        group = self._unsaved + fresh
        try:
            self._backend.commit(group)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: dead, it would leave everybody waiting
            self._keep(fresh, _failure(error))
            self._retry = min(RETRY_MOST, self._retry * 2) if self._retry else RETRY_FIRST
        else:
            self._unsaved, self._retry = [], 0.0
            self._tell(self._owner.settled, group)

    def _keep(self, fresh: list[Op], error: StorageFailed) -> None:
        patient = [op for op in fresh if isinstance(op, Append | Create)]
        strict = [op for op in fresh if not isinstance(op, Append | Create)]
        self._unsaved += patient
        if strict:
            self._tell(self._owner.settled, strict, error)
        if patient:
            self._tell(self._owner.postponed, patient, error)

    def _save_the_rest(self) -> None:
        for _ in range(CLOSE_TRIES):
            if not self._unsaved:
                return
            self._sleep(self._retry)
            self._save([])
        if self._unsaved:
            lost = StorageFailed("cannot save the last events: the store still fails; free some space")
            self._tell(self._owner.settled, self._unsaved, lost)


def _failure(error: Exception) -> StorageFailed:
    if isinstance(error, StorageFailed):
        return error
    _log.error("cannot commit to the store", exc_info=error)
    return StorageFailed(f"cannot commit to the store: {type(error).__name__}; see the log of Legation")
