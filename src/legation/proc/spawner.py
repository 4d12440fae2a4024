"""One thread that starts every child and never ends.

The kernel delivers "your parent has died" (PR_SET_PDEATHSIG, which jails rely on) when the *thread* that started the
child ends: a worker thread of a pool would take its children along. The event loop, for its part, must not wait for
a fork.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[], None]


class Spawner:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="legation-spawner", daemon=True).start()

    def submit(self, start: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = start()
            except BaseException as error:  # noqa: BLE001  the task boundary: it is raised where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while True:
            self._jobs.get()()


_lock = threading.Lock()
_spawner: Spawner | None = None


def spawner() -> Spawner:
    global _spawner
    with _lock:
        if _spawner is None:
            _spawner = Spawner()
        return _spawner


def _forget() -> None:
    # A forked copy of this process has no such thread, and perhaps a lock that nobody will release.
    global _spawner, _lock
    _spawner = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
