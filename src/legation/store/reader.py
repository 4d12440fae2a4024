"""Reading a JSONL stream that another process may be writing: owns nothing, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from legation.errors import NotFound
from legation.store import linefile
from legation.store.backend import StreamInfo
from legation.store.jsonl import events_path, read_side, side_path, stream_info
from legation.store.lock import owner_alive
from legation.wire.events import Event

READ_BYTES = 512 * 1024
POLL = 0.1  # seconds between looks at a file that somebody else writes


class StreamReader:
    def __init__(self, folder: Path, stream: str) -> None:
        self._folder = folder
        self._stream = stream

    def exists(self) -> bool:
        return side_path(self._folder, self._stream).exists()

    def info(self) -> StreamInfo:
        return stream_info(self._folder, self._stream)

    def being_written(self) -> bool:
        """Whether its owner lives and has not closed it."""
        state = read_side(side_path(self._folder, self._stream)).state
        return state == "open" and owner_alive(self._folder / "lock")

    def range_of(self, generation: int | None) -> tuple[int, int | None]:
        """The first number of a generation, counted from 1, and the last; the newest has none, and is the default."""
        info = self.info()
        starts = (*info.earlier, info.first_seq)
        number = len(starts) if generation is None else generation
        if not 0 < number <= len(starts):
            raise NotFound(
                f"cannot find generation {number} of session {self._stream}: the last is {len(starts)}; give one of these"
            )
        return starts[number - 1], starts[number] - 1 if number < len(starts) else None

    def read(self, after: int, on_malformed: Callable[[bytes], None]) -> list[Event]:
        return linefile.read_events(events_path(self._folder, self._stream), after, READ_BYTES, on_malformed)

    def batches(
        self, after: int, on_malformed: Callable[[bytes], None], *, follow: bool = False
    ) -> Iterator[list[Event]]:
        """What is above `after`; with `follow`, also what comes until the stream is closed or its owner ends."""
        while True:
            more_to_come = follow and self.being_written()  # asked first: what is written before that is read
            events = self.read(after, on_malformed)
            if events:
                after = events[-1].seq
                yield events
            elif more_to_come:
                time.sleep(POLL)
            else:
                return
