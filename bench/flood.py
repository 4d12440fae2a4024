"""What all receivers of the flood share: how the agent is started, what is asked of it, how long it may take."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.measure import Sample, Spent
from legation.proc.launcher import child_environment

if TYPE_CHECKING:
    from legation.wire.events import Event

ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("flood_agent.py")))
LIMIT = 120.0  # seconds for one flood: the slowest receiver's time on a loaded machine
WARM_UP = 2000  # events before those that are counted
SMALL_LINE = 200
BIG_LINE = 1_000_000


@contextmanager
def place(scratch: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder to work in, and the environment of an agent there."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        home, tmp = folder / "home", folder / "tmp"
        home.mkdir()
        tmp.mkdir()
        yield folder, child_environment({}, home=home, tmp=tmp)


class Batches(Protocol):
    def batches(self) -> AsyncIterator[list[Event]]: ...


async def take(subscription: Batches, events: int) -> None:
    """The subscriber: sees every event, a batch at a time."""
    seen = 0
    async for batch in subscription.batches():
        seen += len(batch)
        if seen >= events:
            return


def warm_up(size: int) -> int:
    return WARM_UP if size < BIG_LINE else 1


def sample(spent: Spent, events: int, size: int) -> Sample:
    return spent.per_event(events) if size < BIG_LINE else spent.per_megabyte(events * size)
