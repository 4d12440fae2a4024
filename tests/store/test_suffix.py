"""INV-2 as a property: wherever and whenever one subscribes, the exact suffix comes, while others append."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.backends import ALL, make_backend

from legation.store import stream as stream_module
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.events import Draft

pytestmark = pytest.mark.heavy

BOUND = 20.0  # seconds until a subscriber that hangs is a failure

batch_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)
subscribers = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 300)), min_size=1, max_size=6)


async def read_to(stream: Stream, after: int, last: int) -> list[int]:
    seen: list[int] = []
    if after >= last:
        return seen
    async with asyncio.timeout(BOUND):
        async for event in stream.subscribe(after):
            seen.append(event.seq)
            assert event.raw == b"%d" % event.seq
            if event.seq >= last:
                return seen
    return seen


async def scenario(kind: str, folder: Path, sizes: list[int], joins: list[tuple[int, int]]) -> None:
    """Subscriber i joins before batch number `joins[i][0]`, asking for what is after `joins[i][1]`."""
    last = sum(sizes)
    async with EventLog(make_backend(kind, folder)) as log:
        stream = await log.stream("ses_a")
        readers: list[tuple[int, asyncio.Task[list[int]]]] = []
        head = 0
        for index, size in enumerate([*sizes, 0]):
            for when, after in joins:
                if when == index or (when > len(sizes) and index == len(sizes)):
                    readers.append((after, asyncio.create_task(read_to(stream, after, last))))
            receipt = stream.append(
                [Draft("x", b"%d" % number) for number in range(head + 1, head + size + 1)]
            )
            head += size
            if index % 3 == 0:
                await receipt
            else:
                await asyncio.sleep(0)
        for after, reader in readers:
            assert await reader == list(range(after + 1, last + 1))


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=60, deadline=None)
@given(sizes=batch_sizes, joins=subscribers, tail=st.integers(4, 64))
def test_subscribing_at_any_point_gives_the_exact_suffix(
    kind: str, sizes: list[int], joins: list[tuple[int, int]], tail: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(stream_module, "TAIL_EVENTS", tail)  # so that most subscribers also read from the store
        asyncio.run(scenario(kind, Path(folder), sizes, joins))
