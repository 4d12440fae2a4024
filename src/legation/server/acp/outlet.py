"""What a client is told: one ordered stream of the log for each server id, so that nothing is lost on the way.

An entry is a line of ours, or a reference to an event of a session, which is stored once, there: its line is made of it
whenever it is read (see `source`).

INV-O1  A message has its number for ever: whoever comes back with the last one it saw gets exactly what follows,
        also after a restart of the server.
INV-O2  After the end of a connection nothing of it is said any more, whoever has the name by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from legation.errors import Conflict, LegationError
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream
from legation.wire.events import Draft

PREFIX: Final = "acp:"  # no session's name has a colon
MESSAGE: Final = "acp-message"
OPENED: Final = "acp-opened"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the client's: its id as it was written, and the number after which its answer stands."""

    id: str
    after: int


class Kept(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is kept of a connection, to take it up after a restart. No secret is in it."""

    acp: int = 1  # of this shape; what has no such member is another's
    agent: str
    created_at_ms: int
    since: int = 0  # the number before its client's first message: what came earlier is of another client
    client_capabilities: dict[str, object] = {}
    taken: tuple[Taken, ...] = ()  # requests that have no answer yet, or had none when the last one came
    # Where no request of its own runs: what it was asked last, in turns that others began, stands above that number.
    asks: int | None = None


def stream_name(server_id: str) -> str:
    return f"{PREFIX}{server_id}"


def read_kept(meta: bytes) -> Kept | None:
    try:
        return msgspec.json.decode(meta, type=Kept)
    except msgspec.MsgspecError:
        return None


class Outlet:
    def __init__(self, log: EventLog, stream: Stream) -> None:
        self.stream = stream
        self._log = log
        self._closed = False

    def say(self, *lines: bytes) -> Receipt | None:
        """None where nothing is said any more."""
        return self.append([Draft(MESSAGE, line) for line in lines])

    def append(self, entries: Sequence[Draft]) -> Receipt | None:
        """Lines, and references."""
        if self._closed or not entries:
            return None
        with suppress(Conflict):  # the log is closing, and with it the server
            return self.stream.append(entries)
        return None

    async def say_durably(self, line: bytes) -> None:
        receipt = self.say(line)
        if receipt is not None:
            with suppress(LegationError):  # a failing disk keeps no answer from its client
                await receipt

    async def keep(self, kept: Kept) -> None:
        if not self._closed:
            await self.stream.set_meta(msgspec.json.encode(kept))

    async def room(self) -> None:
        """Returns when the disk has caught up."""
        await self._log.room()

    def shut(self) -> None:
        self._closed = True
