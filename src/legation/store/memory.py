"""Nothing is stored: the log keeps every event of a memory stream itself, for as long as the stream lives."""

from collections.abc import Sequence

from legation.store.backend import Op, Report, StreamInfo
from legation.wire.events import Event


class MemoryBackend:
    durable = False
    keeps_parts = False

    def open(self, report: Report) -> None:
        del report

    def commit(self, ops: Sequence[Op]) -> None:
        del ops

    def lookup(self, stream: str) -> StreamInfo | None:
        del stream
        return None

    def streams(self) -> list[StreamInfo]:
        return []

    def deleted(self) -> list[StreamInfo]:
        return []

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        del stream, after, up_to_bytes
        return []

    def close(self) -> None: ...
