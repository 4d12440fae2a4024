"""INV-F1 of `legation.proc.lines`: on every loop, whatever becomes of a pipe, its descriptor is closed once."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from legation.errors import Unavailable
from legation.proc import Command, ProcessLauncher
from legation.proc.lines import hand_over

Python = Callable[..., Command]
LIMIT = 30.0  # a loaded machine's time for a few rounds of a loop


class _Duplicate:
    """As uvloop will see the file once it gives libuv a descriptor of its own: libuv's is another than the file's."""

    def __init__(self, pipe: Any) -> None:
        self._descriptor = os.dup(pipe.fileno())
        self.close = pipe.close

    def fileno(self) -> int:
        return self._descriptor


class DuplicatingLoop(uvloop.Loop):
    """uvloop with the mending that is proposed there (MagicStack/uvloop#764)."""

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        return await super().connect_read_pipe(protocol_factory, _Duplicate(pipe))

    async def connect_write_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        return await super().connect_write_pipe(protocol_factory, _Duplicate(pipe))


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop, "duplicating": DuplicatingLoop}
every_loop = pytest.mark.parametrize("loop", LOOPS)


class Held(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lost.set_result(None)


Way = Callable[[io.FileIO, io.FileIO], Awaitable[object]]


async def closed_by_us(given: io.FileIO, _other: io.FileIO) -> None:
    held = Held()
    await hand_over(given, held)
    held.transport.close()
    await held.lost


async def ended_by_the_other(given: io.FileIO, other: io.FileIO) -> None:
    held = Held()
    await hand_over(given, held)
    other.close()
    await held.lost


async def ended_before(given: io.FileIO, other: io.FileIO) -> None:
    other.close()
    held = Held()
    await hand_over(given, held)
    await held.lost


async def cancelled(given: io.FileIO, _other: io.FileIO) -> None:
    task = asyncio.create_task(hand_over(given, Held()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WAYS = [closed_by_us, ended_by_the_other, ended_before, cancelled]


@contextmanager
def every_close_is_of(pipe: io.FileIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our own calls of `close` are for the pipe and for no other file."""
    mine, close, wrong = os.fstat(pipe.fileno()), os.close, list[str]()

    def watched(number: int) -> None:
        try:
            if not os.path.samestat(os.fstat(number), mine):
                wrong.append(f"{number} is another's")
        except OSError as error:
            wrong.append(f"{number}: {error.strerror}")
        close(number)

    with monkeypatch.context() as patched:
        patched.setattr("legation.proc.lines.os.close", watched)
        yield
    assert wrong == []


def numbers() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/fd").iterdir()}


@contextmanager
def every_free_number_taken() -> Iterator[None]:
    """From now on whoever closes a number that is not theirs takes it from us."""
    base = os.open(os.devnull, os.O_RDONLY)
    held = [os.dup(base) for _ in range(max(numbers()) + 10)]
    yield
    mine, now = os.fstat(base), numbers()
    lost = [number for number in held if number not in now or not os.path.samestat(os.fstat(number), mine)]
    for number in {base, *held} - set(lost):
        os.close(number)
    assert lost == []


@every_loop
@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_pipe_that_was_handed_over_is_closed_once(
    loop: str, direction: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        for _ in range(2):  # the first time the loop opens what it needs for itself
            before = numbers()
            reading, writing = (io.FileIO(number, mode) for number, mode in zip(os.pipe(), "rw", strict=True))
            given, other = (reading, writing) if direction == "read" else (writing, reading)
            with every_close_is_of(given, monkeypatch):
                await way(given, other)
            await rounds()
            other.close()
            assert numbers() - before <= numbers_of_loop()
            with every_free_number_taken():
                del given, other, reading, writing
                gc.collect()
                await rounds()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(scenario(), LIMIT))


def numbers_of_loop() -> set[int]:
    """Of the kernel's things that a loop makes for itself, none of them a pipe."""
    return {each for each in numbers() if not _target(each).startswith("pipe:")}


def _target(number: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink())
    except OSError:
        return ""


async def rounds() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@every_loop
def test_a_pipe_that_was_left_to_the_loop_ends_with_it(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = (io.FileIO(number, mode) for number, mode in zip(os.pipe(), "rw", strict=True))

    async def scenario() -> Held:
        held = Held()
        await hand_over(reading, held)
        return held

    def forgotten() -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(scenario())
        gc.collect()

    with every_close_is_of(writing, monkeypatch), pytest.warns(ResourceWarning):
        forgotten()
    assert reading.closed
    with every_free_number_taken():
        gc.collect()
    with pytest.raises(BrokenPipeError):
        writing.write(b"x")
    writing.close()


async def test_what_the_loop_refuses_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no pipe")
    before = numbers()
    file = (tmp_path / "file").open("rb", buffering=0)
    with every_close_is_of(file, monkeypatch), pytest.raises(ValueError, match="pipes"):
        await hand_over(file, Held())
    assert file.closed
    assert numbers() == before


class Watched(io.FileIO):
    """Says whether the number is still its own when it is closed."""

    twice: list[str]

    def close(self) -> None:
        if not self.closed:
            try:
                os.fstat(self.fileno())
            except OSError as error:
                self.twice.append(f"{self.fileno()}: {error.strerror}")
        super().close()


@every_loop
@pytest.mark.parametrize("source", ["", "import sys; sys.stdin.read()"], ids=["ends at once", "is ended"])
def test_no_descriptor_of_a_child_is_closed_twice(
    python: Python, loop: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Watched.twice = []

    class WatchedPopen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.stdin, self.stdout, self.stderr = map(_watched, (self.stdin, self.stdout, self.stderr))

    monkeypatch.setattr("legation.proc.launcher.subprocess.Popen", WatchedPopen)

    async def scenario() -> None:
        before = numbers()
        async with await ProcessLauncher().spawn(python(source)) as child:
            if not source:
                await child.wait()
        assert {each for each in numbers() - before if _target(each).startswith("pipe:")} == set()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(scenario(), LIMIT))
    gc.collect()
    assert Watched.twice == []


def _watched(file: Any) -> Watched:
    with file:
        return Watched(os.dup(file.fileno()), file.mode)


async def test_a_child_for_whose_pipes_no_descriptor_is_left_is_refused_and_gone(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_number: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("legation.proc.lines.os.dup", none_left)
    before = numbers()
    with pytest.raises(Unavailable, match="cannot start 'test': Too many open files; end other programs"):
        await ProcessLauncher().spawn(python("import signal; signal.pause()"))
    assert {each for each in numbers() - before if _target(each).startswith("pipe:")} == set()
