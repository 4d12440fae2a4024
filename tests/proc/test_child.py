from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from legation.errors import TimedOut, TransportClosed
from legation.proc import Child, Command, Exit, Pipes, ProcessLauncher
from legation.proc import child as child_module
from legation.proc.child import StartedChild

Python = Callable[..., Command]
LIMIT = 20.0  # a loaded machine's time for one short program

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


async def start(command: Command, pipes: Pipes | None = None) -> Child:
    return await ProcessLauncher().spawn(command, pipes)


async def all_lines(child: Child) -> list[bytes]:
    async with asyncio.timeout(LIMIT):
        return [line async for lines in child.lines() for line in lines]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_what_is_written_comes_back(python: Python) -> None:
    async with await start(python(ECHO)) as child:
        child.write(b'{"a":1}\nunfinished')
        await child.drain()
        child.close_stdin()
        assert await all_lines(child) == [b'{"a":1}', b"unfinished"]
        assert await child.wait() == Exit(0, None)


async def test_a_flood_on_stderr_does_not_block_the_child(python: Python) -> None:
    source = "import sys; sys.stderr.write('e' * 99 + '\\n'); sys.stderr.write('x' * 3_000_000 + 'END'); print('done')"
    async with await start(python(source)) as child:
        assert await all_lines(child) == [b"done"]
        await child.wait()
        tail = child.stderr_tail()
    assert tail.endswith("xEND")
    assert len(tail) == 64 * 1024


async def test_stderr_is_redacted_and_its_lines_are_reported(python: Python) -> None:
    seen: list[bytes] = []
    source = "import sys; sys.stderr.write('key hunter2\\nbad \\udcff', ); sys.stderr.flush()"
    command = python(f"import sys; sys.stderr.reconfigure(errors='surrogateescape'); {source}")
    pipes = Pipes(redact=lambda block: block.replace(b"hunter2", b"[redacted]"), on_stderr=seen.extend)
    async with await start(command, pipes) as child:
        await child.wait()
        assert child.stderr_tail() == "key [redacted]\nbad \ufffd"
    assert seen == [b"key [redacted]", b"bad \xff"]


async def test_a_line_of_ten_megabytes_arrives_whole(python: Python) -> None:
    async with await start(python("print('y' * 10_000_000); print('z')")) as child:
        lines = await all_lines(child)
    assert [len(line) for line in lines] == [10_000_000, 1]


async def test_a_line_beyond_the_cap_is_reported_and_the_next_ones_arrive(python: Python) -> None:
    dropped: list[int] = []
    pipes = Pipes(max_line=1_000_000, on_line_too_long=dropped.append)
    async with await start(python("print('a'); print('y' * 5_000_000); print('z')"), pipes) as child:
        assert await all_lines(child) == [b"a", b"z"]
    assert dropped == [5_000_000]


@pytest.mark.heavy
async def test_a_flood_with_a_slow_reader_stays_within_the_buffer(python: Python) -> None:
    limit, one_read = 100_000, 256 * 1024
    source = "import itertools\nfor n in itertools.count(): print(f'{n:099d}')"
    async with await start(python(source), Pipes(buffer_limit=limit)) as child, asyncio.timeout(LIMIT):
        numbers: list[int] = []
        for _ in range(5):
            while child.buffered <= limit:
                await asyncio.sleep(0)
            for _ in range(50):  # the reader is busy with other things, and the loop would go on reading
                await asyncio.sleep(0.001)
            assert limit < child.buffered <= limit + one_read
            numbers += map(int, await anext(child.lines()))
        await child.stop(grace=0)
    assert numbers == list(range(len(numbers)))


async def test_what_was_written_before_the_exit_arrives_though_nobody_was_reading(python: Python) -> None:
    source = "print('x' * 99 + '\\n' * 2, end=''); print('y' * 500_000)"
    child = await start(python(source), Pipes(buffer_limit=10))
    async with asyncio.timeout(LIMIT):
        await child.wait()
    assert [len(line) for line in await all_lines(child)] == [99, 0, 500_000]


async def test_exit_code_and_signal_are_told_to_everyone_who_waits(python: Python) -> None:
    failed = await start(python("raise SystemExit(3)"))
    killed = await start(python("import os; os.kill(os.getpid(), 15)"))
    async with asyncio.timeout(LIMIT):
        assert await asyncio.gather(*(failed.wait() for _ in range(5))) == [Exit(3, None)] * 5
        assert await killed.wait() == Exit(None, signal.SIGTERM)
        assert await killed.stop() == Exit(None, signal.SIGTERM)


async def test_writing_to_a_child_that_is_gone_is_refused(python: Python) -> None:
    child = await start(python(""))
    async with asyncio.timeout(LIMIT):
        await child.wait()
        with pytest.raises(TransportClosed, match="cannot write to 'test'"):
            child.write(b"x")
        with pytest.raises(TransportClosed):
            await child.drain()


async def test_a_child_that_dies_while_we_write_ends_the_drain(python: Python) -> None:
    async with await start(python("import sys; sys.stdin.buffer.read(10)")) as child:
        child.write(b"x" * 8_000_000)
        with pytest.raises(TransportClosed):
            await child.drain(LIMIT)


async def test_a_child_that_does_not_read_makes_drain_run_out(python: Python) -> None:
    async with await start(python("import signal; signal.pause()")) as child:
        child.write(b"x" * 8_000_000)
        with pytest.raises(TimedOut, match="cannot write to 'test'"):
            await child.drain(0.05)
        assert (await child.stop(grace=0)).signal == signal.SIGTERM


async def test_a_process_that_escaped_with_the_pipe_does_not_hold_up_the_reader(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process escapes the sweep here, so we hold the pipe open ourselves."""
    monkeypatch.setattr(child_module, "LINGER", 0.2)
    child = await start(python("import os; print('pid', os.getpid(), flush=True); input()"))
    async with asyncio.timeout(LIMIT):
        await anext(child.lines())
        held = os.open(f"/proc/{child.pid}/fd/1", os.O_WRONLY)
        try:
            child.write(b"\n")
            assert await child.wait() == Exit(0, None)
            assert await all_lines(child) == []
        finally:
            os.close(held)


async def test_stop_asks_before_it_forces(python: Python) -> None:
    async with await start(
        python("import sys; print('up', flush=True); sys.stdin.read(); sys.exit(7)")
    ) as child:
        await anext(child.lines())
        assert await child.stop(grace=LIMIT) == Exit(7, None)


async def test_stop_is_one_ladder_however_often_it_is_called(python: Python) -> None:
    child = await start(python("import signal; print('up', flush=True); signal.pause()"))
    await anext(child.lines())
    async with asyncio.timeout(LIMIT):
        exits = await asyncio.gather(*(child.stop(grace=0) for _ in range(3)))
    assert {*exits, await child.stop(), await child.wait()} == {Exit(None, signal.SIGTERM)}


STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
FOR_EVER = 3600.0  # as long as nobody is in a hurry


@pytest.mark.parametrize("when", ["before", "in the grace", "after TERM", "before its start"])
@pytest.mark.heavy
async def test_one_whose_owner_is_ending_is_not_waited_for(
    python: Python, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Told, asked and killed all the same, in that order."""
    monkeypatch.setattr(child_module, "TERM_GRACE", FOR_EVER)
    launcher = ProcessLauncher()
    if when == "before its start":
        launcher.hurry()
    child = await launcher.spawn(python(STUBBORN))
    await anext(child.lines())
    if when == "before":
        launcher.hurry()
    signals: list[int] = []
    real, seen = type(child._own).signal, asyncio.Event()

    def signalled(own: StartedChild, number: signal.Signals) -> None:
        signals.append(number)
        seen.set()
        real(own, number)

    monkeypatch.setattr(type(child._own), "signal", signalled)
    stopping = asyncio.create_task(child.stop(grace=0 if when == "after TERM" else FOR_EVER))
    async with asyncio.timeout(LIMIT):
        if when == "in the grace":
            while child._ladder is None:
                await asyncio.sleep(0)
            launcher.hurry()
        elif when == "after TERM":
            await seen.wait()
            launcher.hurry()
        assert await stopping == Exit(None, signal.SIGKILL)
    assert signals[:2] == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.heavy
async def test_fifty_children_leak_no_descriptor(python: Python) -> None:
    async def one() -> None:
        async with await start(python("print('x' * 100)")) as child:
            await child.wait()

    await one()  # the spawner and the loop have theirs open from now on
    before = open_descriptors()
    for _ in range(5):
        await asyncio.gather(*(one() for _ in range(10)))
    assert open_descriptors() == before


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_child_lives_and_dies_on_every_loop(python: Python, kind: str) -> None:
    async def scenario() -> tuple[list[bytes], Exit, str]:
        command = python(f"import sys; sys.stderr.write('e' * 500_000)\n{ECHO}")
        async with await start(command) as child:
            child.write(b"x" * 2_000_000 + b"\n")
            await child.drain(LIMIT)
            line = await anext(child.lines())
            ended = await child.stop(grace=LIMIT)
            return line, ended, child.stderr_tail()

    missing = f"{kind} is not installed; get it with: .venv/bin/python -m pip install {kind}"
    factory = pytest.importorskip(kind, reason=missing).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        lines, ended, tail = runner.run(asyncio.wait_for(scenario(), LIMIT))
    assert ([len(line) for line in lines], ended, len(tail)) == ([2_000_000], Exit(0, None), 65536)
