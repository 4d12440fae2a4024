import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from legation.tasks import Groups, TaskSet, finish, in_thread

LIMIT = 20.0  # seconds: of a test that would otherwise hang


async def test_work_that_was_started_runs_and_is_forgotten_at_its_end() -> None:
    tasks = TaskSet("work")
    done = asyncio.Event()

    async def work() -> str:
        await done.wait()
        return "result"

    task = tasks.start(work())
    assert len(tasks) == 1
    assert task.get_name() == "work"
    done.set()
    assert await asyncio.wait_for(task, LIMIT) == "result"
    await asyncio.wait_for(tasks.settle(), LIMIT)
    assert len(tasks) == 0


async def test_closing_cancels_what_is_left_and_waits_for_its_end() -> None:
    tasks = TaskSet("work")
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    tasks.start(work())
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.close(), LIMIT)
    assert steps == ["begun", "ended"]
    assert len(tasks) == 0


async def test_closing_waits_for_what_a_cancelled_task_starts_too() -> None:
    tasks = TaskSet("work")
    steps: list[str] = []

    async def last() -> None:
        await asyncio.sleep(0)
        steps.append("last")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start(last())

    tasks.start(work())
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.close(), LIMIT)
    assert steps == ["last"]


async def test_nothing_is_left_to_settle_or_to_close_in_an_empty_set() -> None:
    tasks = TaskSet("none")
    await tasks.settle()
    await tasks.close()


async def test_a_caller_of_run_gets_the_result_or_the_error() -> None:
    tasks = TaskSet("work")

    async def fail() -> None:
        raise ValueError("no")

    assert await tasks.run(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(ValueError, match="no"):
        await tasks.run(fail())


async def test_a_caller_of_run_that_is_cancelled_leaves_at_once_and_the_work_goes_on() -> None:
    tasks = TaskSet("work")
    go = asyncio.Event()
    steps: list[str] = []

    async def work() -> None:
        await go.wait()
        steps.append("ended")

    caller = asyncio.create_task(tasks.run(work()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, LIMIT)
    assert steps == []
    go.set()
    await asyncio.wait_for(tasks.settle(), LIMIT)
    assert steps == ["ended"]


@pytest.mark.parametrize("closes", [False, True])
async def test_an_error_whose_caller_has_gone_is_no_complaint_at_the_end(closes: bool) -> None:
    tasks, complaints = TaskSet("work"), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def work() -> None:
        try:
            await asyncio.sleep(0.01)
        finally:
            raise ValueError("nobody hears of it, and nothing is logged")

    caller = asyncio.create_task(tasks.run(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    await asyncio.wait_for(tasks.close() if closes else tasks.settle(), LIMIT)
    gc.collect()
    assert complaints == []


async def test_what_is_finished_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert await finish(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(ValueError, match="no"):
        await finish(fail())


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_that_is_cancelled_twice_waits_for_the_end_and_hears_of_it_then(fails: bool) -> None:
    go = asyncio.Event()
    steps: list[str] = []

    async def work() -> None:
        await go.wait()
        steps.append("ended")
        if fails:
            raise ValueError("nobody hears of it, and nothing is logged")

    caller = asyncio.create_task(finish(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, LIMIT)
    assert steps == ["ended"]


async def test_a_bound_around_what_is_finished_is_told_as_such_at_its_end() -> None:
    go = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, go.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await finish(go.wait())
    assert go.is_set()


async def test_a_thread_is_waited_for_by_a_caller_that_is_cancelled() -> None:
    begun, go = asyncio.Event(), threading.Event()
    steps: list[str] = []
    loop = asyncio.get_running_loop()

    def work(step: str, *, last: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(LIMIT)
        steps.extend((step, last))

    caller = asyncio.create_task(in_thread(work, "first", last="last"))
    await asyncio.wait_for(begun.wait(), LIMIT)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, LIMIT)
    assert steps == ["first", "last"]


async def test_a_thread_gives_its_result_or_its_error() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


def evens(
    groups: list[list[int]], go: asyncio.Event
) -> Callable[[str, list[int]], Awaitable[list[int | Exception]]]:
    """Serve what is even, when it may, and note the groups."""

    async def serve(_key: str, values: list[int]) -> list[int | Exception]:
        groups.append(values)
        await go.wait()
        return [ValueError("odd") if value % 2 else value * 10 for value in values]

    return serve


async def test_what_comes_while_a_group_is_under_way_is_the_next_group() -> None:
    groups, go = list[list[int]](), asyncio.Event()
    together = Groups("test", evens(groups, go), most=3)
    adding = [asyncio.create_task(together.add("k", number)) for number in range(4)]
    async with asyncio.timeout(LIMIT):
        while not groups:
            await asyncio.sleep(0)
        adding += [asyncio.create_task(together.add("k", number)) for number in range(4, 6)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(together.add("k", 6))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(TimeoutError):
            await together.add("k", 8, limit=0)
        go.set()
        found = await asyncio.gather(*adding, return_exceptions=True)
    assert groups == [[0, 1, 2], [3, 4, 5]]  # nobody who has gone or given up is in one
    assert [str(each) for each in found] == ["0", "odd", "20", "odd", "40", "odd"]


async def test_a_full_group_does_not_wait_for_the_one_before_it() -> None:
    begun: list[list[int]] = []
    go = asyncio.Event()

    async def serve(_key: str, values: list[int]) -> list[int]:
        begun.append(values)
        await go.wait()
        return values

    together = Groups("test", serve, most=2, at_once=2)
    adding = [asyncio.create_task(together.add("k", 0))]
    for number in range(1, 6):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        adding.append(asyncio.create_task(together.add("k", number)))
    async with asyncio.timeout(LIMIT):
        while len(begun) < 2:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        # The second began when it was full; what is behind it waits, though a group of it would be full.
        assert begun == [[0], [1, 2]]
        go.set()
        assert await asyncio.gather(*adding) == [0, 1, 2, 3, 4, 5]
        assert await together.add("k", 6) == 6
    assert begun == [[0], [1, 2], [3, 4], [5], [6]]


async def test_many_added_at_once_have_their_own_results_and_a_caller_that_has_gone_is_in_no_group() -> None:
    groups, go = list[list[int]](), asyncio.Event()
    together = Groups("test", evens(groups, go), most=2)
    assert await together.add_each("k", []) == []
    first = asyncio.create_task(together.add_each("k", [0, 1, 2]))
    gone = asyncio.create_task(together.add_each("k", [4, 5]))
    last = asyncio.create_task(together.add("k", 6))
    async with asyncio.timeout(LIMIT):
        while not groups:
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        go.set()
        assert [str(each) for each in await first] == ["0", "odd", "20"]
        assert await last == 60
    assert groups == [[0, 1], [2, 6]]


async def test_one_whose_time_is_up_when_it_is_cancelled_is_no_complaint() -> None:
    complaints, go = list[dict[str, Any]](), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def serve(_key: str, values: list[int]) -> list[int]:
        await go.wait()
        return values

    together = Groups("test", serve, most=1)
    first = asyncio.create_task(together.add("k", 1))
    second = asyncio.create_task(together.add("k", 2, limit=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.cancel()  # its time is up in this very step of the loop, right behind it
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(second, LIMIT)
    go.set()
    assert await asyncio.wait_for(first, LIMIT) == 1
    assert complaints == []


async def test_an_error_of_a_group_is_told_to_each_and_the_next_is_served() -> None:
    calls = 0

    async def serve(_key: str, values: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("gone")
        return values

    together = Groups("test", serve, most=10)
    found = await asyncio.gather(*(together.add("k", number) for number in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [OSError] * 3
    assert await together.add("k", 7) == 7
