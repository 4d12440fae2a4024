"""The SSE body of a connection, as sandbox-agent has it: `event: message`, `id`, the message as one line of data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Self

from legation.server.acp.outlet import MESSAGE
from legation.server.streaming.channel import Farewell
from legation.server.streaming.hub import Credential, Hub, Reader
from legation.server.streaming.sse import CHUNK_BYTES, as_text, first_chunk
from legation.store.stream import Stream
from legation.wire.events import Event


class MessageReader(Reader):
    """From `after` on, then what comes. Its end is a plain one: clients come back with the last number they saw."""

    def __init__(
        self,
        hub: Hub,
        stream: Stream,
        after: int,
        credential: Credential | None,
        reading: AbstractContextManager[None],
    ) -> None:
        """`reading` is entered for as long as there is somebody who reads."""
        super().__init__(hub, credential)
        self._reading = reading
        self._stream = stream
        self._older: list[
            Event
        ] = []  # read from the store and not yet sent: one read's, and never read twice
        self.seq = after

    def __enter__(self) -> Self:
        self._channel = self._hub.join(self._stream, self)
        self._reading.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._reading.__exit__(None, None, None)
        self._hub.part(self._channel, self)

    def dismiss(self, reason: Farewell) -> None:  # noqa: ARG002 - sandbox-agent's clients know no farewells
        self._finish(b"")

    async def _ready(self) -> bytes:
        found = self._older or self._stream.since(self.seq)
        if found is None:
            found = self._older = await self._stream.read_older(self.seq)
        if not found:
            if self._stream.ended or self._stream.info().state != "open":
                self._finish(b"")
            return b""
        events = first_chunk(found)
        self._older = self._older[len(events) :]
        self.seq = events[-1].seq
        data = frames(events)
        if len(data) >= CHUNK_BYTES // 2:
            await asyncio.sleep(0)  # one that catches up takes turns with the others
        return data or await self._ready()


def frames(events: Sequence[Event]) -> bytes:
    told = [event for event in events if event.type == MESSAGE]
    parts = [b"\n\n"] * (3 * len(told))
    parts[::3] = [b"event: message\nid: %d\ndata: " % event.seq for event in told]
    parts[1::3] = [event.raw for event in told]
    return as_text(b"".join(parts))
