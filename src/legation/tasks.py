"""Tasks that have an owner, work that a cancelled caller still waits for, and work that goes in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_K = TypeVar("_K")
_V = TypeVar("_V")
_T = TypeVar("_T")


class TaskSet:
    """Coroutines that run beside their owner; `close` cancels and awaits those that are left."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work, name=self._name)
        self._running.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._running.discard)
        return task

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await the work. A caller that is cancelled goes at once; the work goes on, and `close` or `settle` finds it."""
        return await asyncio.shield(self.start(work))

    async def settle(self) -> None:
        """Wait until nothing runs any more. Errors are their callers' to hear."""
        while self._running:  # what ends may have started more
            ended, _ = await asyncio.wait(self._running)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # retrieved, or asyncio complains where a caller has gone

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await self.settle()


class _WaitingLine(list[tuple[_V, "asyncio.Future[_T]"]], Generic[_V, _T]):
    """Values of a key that wait for a group."""

    serving = 0  # groups of it that are under way
    beginning = 0  # of these, those that take their values in a moment


class Groups(Generic[_K, _V, _T]):
    """Work that goes together: whatever comes for a key while its last group is under way is the next group.

    `serve` is given the values of a group in their order, at most `most`, and returns the result or the error of each; what it
    raises is the error of all. A caller that is cancelled before its group has begun is not in it. A full group need not wait for the
    last one: up to `at_once` of a key are under way together."""

    def __init__(
        self,
        name: str,
        serve: Callable[[_K, list[_V]], Awaitable[Sequence[_T | Exception]]],
        most: int,
        at_once: int = 1,
    ) -> None:
        self._serve = serve
        self._most = most
        self._at_once = at_once
        self._lines: dict[_K, _WaitingLine[_V, _T]] = {}  # of those that are being served
        self._tasks = TaskSet(name)

    async def add(self, key: _K, value: _V, limit: float | None = None) -> _T:
        """Wait for its result. TimeoutError where its group has not begun within the limit, in seconds."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        mine = value, done
        line = self._line_with(key, [mine])
        # A timer and no more: to wait by `asyncio.wait` costs as much as everything else here.
        late = None if limit is None else loop.call_later(limit, self._give_up, line, mine)
        try:
            return await done
        except asyncio.CancelledError:
            if mine in line:
                line.remove(mine)
            raise
        finally:
            if late is not None:
                late.cancel()

    async def add_each(self, key: _K, values: Sequence[_V]) -> list[_T | Exception]:
        """Wait for all of them: the result or the error of each."""
        if not values:
            return []
        loop = asyncio.get_running_loop()
        mine: list[tuple[_V, asyncio.Future[_T]]] = [(value, loop.create_future()) for value in values]
        line = self._line_with(key, mine)
        try:
            for _, done in mine:
                # One by one: most are done when it is their turn, and to wait for all at once costs more than all else here.
                if not done.done():
                    await asyncio.wait([done])
        except asyncio.CancelledError:
            for _, done in mine:
                done.cancel()
            line[:] = [each for each in line if not each[1].cancelled()]
            raise
        # None is raised here: an error that is kept, and keeps this frame, would keep all the values until garbage is looked for.
        return [cast(Exception | None, done.exception()) or done.result() for _, done in mine]

    def _line_with(self, key: _K, more: list[tuple[_V, asyncio.Future[_T]]]) -> _WaitingLine[_V, _T]:
        line = self._lines.setdefault(key, _WaitingLine())
        line += more
        while line.serving == 0 or (
            line.serving < self._at_once and len(line) >= (line.beginning + 1) * self._most
        ):
            line.serving += 1
            line.beginning += 1
            self._tasks.start(self._run(key, line))
        return line

    @staticmethod
    def _give_up(line: list[tuple[_V, asyncio.Future[_T]]], mine: tuple[_V, asyncio.Future[_T]]) -> None:
        if mine in line and not mine[1].done():  # else whoever asked was cancelled just now, and takes it out
            line.remove(mine)
            mine[1].set_exception(TimeoutError())

    async def _run(self, key: _K, line: _WaitingLine[_V, _T]) -> None:
        line.beginning -= 1
        while line:
            group, line[:] = line[: self._most], line[self._most :]
            results: Sequence[_T | Exception]
            try:
                results = await self._serve(key, [value for value, _ in group])
            except Exception as error:  # noqa: BLE001 - told to whoever waits for it
                results = [error] * len(group)
            for (_, done), result in zip(group, results, strict=True):
                if done.done():  # whoever has gone does not ask for it
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        line.serving -= 1
        if not line.serving:
            del self._lines[key]


class UnderWay:
    """Count of what is under way: each is done `with` it, and whoever waits until it is `over` waits for the last."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def over(self, limit: float) -> bool:
        """Wait until nothing is; False where the time was up first."""
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


async def finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Await the work to its end; a caller that is cancelled meanwhile hears of it then."""
    task, cut = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cut = error
    if cut is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio complains; the cancellation is what is told
    raise cut


async def in_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run it in a thread and to the end: it may use a descriptor that the caller closes next."""
    return await finish(asyncio.to_thread(work, *args, **kwargs))
