"""One thread that starts every child, looks at all processes for whoever asks, and never ends.

The kernel delivers "your parent has died" (PR_SET_PDEATHSIG, which jails rely on) when the *thread* that started the
child ends: a worker thread of a pool would take its children along. The event loop, for its part, must not wait for
a fork, nor for a look at hundreds of processes. Looks that are asked for while one is under way are the next one,
together: who stops a hundred children at once looks a few times, not a hundred.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from legation.proc.kernel import Process
from legation.proc.tree import Look, Tree, strike

T = TypeVar("T")
Job = Callable[[], None]


class Spawner:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="legation-spawner", daemon=True).start()

        self._asked_lock = threading.Lock()
        self._asked: list[tuple[Tree, bool, Future[list[Process]]]] = []

    def observe(self, tree: Tree) -> Future[list[Process]]:
        """Have the tree remember who belongs to it now."""
        return self._ask(tree, kill=False)

    def kill(self, tree: Tree) -> Future[list[Process]]:
        """One round of `Tree.kill`."""
        return self._ask(tree, kill=True)

    def _ask(self, tree: Tree, *, kill: bool) -> Future[list[Process]]:
        future: Future[list[Process]] = Future()
        with self._asked_lock:
            self._asked.append((tree, kill, future))
            first = len(self._asked) == 1
        if first:
            self._jobs.put(self._look)
        return future

    def _look(self) -> None:
        with self._asked_lock:
            asked, self._asked = self._asked, []
        wanted = [each for each in asked if each[2].set_running_or_notify_cancel()]
        try:
            look = Look()
            strike([tree for tree, kill, _ in wanted if kill], look)
            for tree, kill, future in wanted:
                if kill:
                    future.set_result(tree.kill(look))
                else:
                    tree.observe(look)
                    future.set_result([])
        except BaseException as error:  # noqa: BLE001  the task boundary: it is raised where it is awaited
            for _, _, future in wanted:
                if not future.done():
                    future.set_exception(error)

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
