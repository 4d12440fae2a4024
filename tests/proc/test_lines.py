from __future__ import annotations

import asyncio
import itertools
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.proc.lines import LONG_BLOCK, LineReader, LineSplitter, hand_over

LIMIT = 10.0  # our own time for one read


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def run(splitter: LineSplitter, chunks: list[bytes]) -> list[bytes]:
    blocks = []
    for chunk in chunks:
        splitter.feed(chunk)
        blocks += splitter.take()
    return [line for block in (*blocks, *splitter.finish()) for line in block.split(b"\n")]


texts = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"{}", b"\xff\x00", b"xyz" * 20])).map(
    b"".join
)


@given(texts, st.lists(st.integers(min_value=0)))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(data: bytes, places: list[int]) -> None:
    *ended, last = data.split(b"\n")
    expected = [line.removesuffix(b"\r") for line in ended] + ([last] if last else [])
    assert run(LineSplitter(), cut(data, places)) == expected


@given(texts, st.lists(st.integers(min_value=0)), st.integers(min_value=1, max_value=70))
def test_lines_beyond_the_cap_are_dropped_and_reported_and_no_others(
    data: bytes, places: list[int], cap: int
) -> None:
    dropped: list[int] = []
    splitter = LineSplitter(max_line=cap, on_line_too_long=dropped.append)
    *ended, last = data.split(b"\n")
    kept = [line.removesuffix(b"\r") for line in ended if len(line) <= cap]
    kept += [last] if 0 < len(last) <= cap else []
    assert run(splitter, cut(data, places)) == kept
    assert dropped == [len(line) for line in [*ended, last] if len(line) > cap]


def test_a_line_beyond_the_cap_is_not_kept_in_memory() -> None:
    dropped: list[int] = []
    splitter = LineSplitter(max_line=1000, on_line_too_long=dropped.append)
    highest = 0
    for _ in range(100):
        splitter.feed(b"x" * 300)
        highest = max(highest, splitter.held)
    splitter.feed(b"\nnext\n")
    assert (highest, dropped, splitter.take()) == (900, [30_000], [b"next"])


def test_redaction_sees_whole_lines_however_they_arrive() -> None:
    splitter = LineSplitter(redact=lambda block: block.replace(b"hunter2", b"[redacted]"))
    lines = run(splitter, [b"a hun", b"ter2 b\nc hunt", b"er2", b"\nhun", b"ter2"])
    assert lines == [b"a [redacted] b", b"c [redacted]", b"[redacted]"]


async def reader_of(*, limit: int) -> tuple[LineReader, int]:
    reading, writing = os.pipe()
    reader = LineReader(LineSplitter(), limit)
    await hand_over(os.fdopen(reading, "rb", 0), reader)
    return reader, writing


async def test_a_cancelled_read_loses_nothing() -> None:
    reader, writing = await reader_of(limit=100)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    os.write(writing, b"one\n")
    os.close(writing)
    async with asyncio.timeout(LIMIT):
        assert [line async for lines in reader for line in lines] == [b"one"]


async def test_a_second_reader_at_the_same_time_is_refused() -> None:
    reader, writing = await reader_of(limit=100)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await anext(reader)
    os.write(writing, b"one\n")
    async with asyncio.timeout(LIMIT):
        assert await first == [b"one"]
    os.close(writing)
    reader.close()
    await reader.closed


async def test_a_long_line_is_redacted_off_the_loop_and_keeps_its_place() -> None:
    """A step of the redaction of a line of megabytes is long by itself."""
    loop, seen = threading.get_ident(), dict[int, bool]()

    def redact(block: bytes) -> bytes:
        seen[len(block)] = threading.get_ident() == loop
        return block.replace(b"hunter2", b"[redacted]")

    reading, writing = os.pipe()
    reader = LineReader(LineSplitter(redact=redact), 100)
    await hand_over(os.fdopen(reading, "rb", 0), reader)
    long = b"x" * (2 * LONG_BLOCK) + b"hunter2"
    said = b"first\n" + long + b"\r\nlast\n" + long
    writer = threading.Thread(target=write_all, args=(writing, said))
    writer.start()
    async with asyncio.timeout(LIMIT):
        first = [line async for lines in reader for line in lines]
    writer.join()
    hidden = b"x" * (2 * LONG_BLOCK) + b"[redacted]"
    assert first == [b"first", hidden, b"last", hidden]
    assert not any(on_loop for size, on_loop in seen.items() if size > LONG_BLOCK)


async def test_a_read_that_is_cancelled_while_a_long_line_is_redacted_loses_nothing() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def redact(block: bytes) -> bytes:
        begun.set()
        assert go_on.wait(LIMIT)
        return block

    reading, writing = os.pipe()
    reader = LineReader(LineSplitter(redact=redact), 100)
    await hand_over(os.fdopen(reading, "rb", 0), reader)
    long = b"x" * (2 * LONG_BLOCK)
    writer = threading.Thread(target=write_all, args=(writing, long + b"\nlast\n"))
    writer.start()
    first = asyncio.ensure_future(anext(reader))
    assert await asyncio.to_thread(begun.wait, LIMIT)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    async with asyncio.timeout(LIMIT):
        assert [line async for lines in reader for line in lines] == [long, b"last"]
    writer.join()


def write_all(writing: int, data: bytes) -> None:
    with os.fdopen(writing, "wb") as file:
        file.write(data)
