"""Many streams in one body, for a browser tab: browsers open six connections to a server and no more.

INV-M1  The id of a frame holds the position in every stream, in the order of the request: a browser that comes
        again with its `Last-Event-ID` goes on exactly, in all of them.
INV-M2  No stream waits for more than one chunk of each of the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Self
from urllib.parse import unquote

import msgspec

from legation.errors import InvalidParams, NotFound
from legation.server.streaming import sse
from legation.server.streaming.hub import (
    Credential,
    EndingSource,
    Hub,
    LiveReader,
    StreamChannel,
    StreamSource,
    check_position,
)
from legation.server.streaming.sse import CHUNK_BYTES, Frames

MOST_STREAMS: Final = 100
_NUMBER: Final = re.compile("[0-9]{1,18}")


class WantedStream(msgspec.Struct, frozen=True):
    name: str
    after: int
    given: str  # as it stood in the request


def read_wanted(streams: str, last_event_id: str | None) -> list[WantedStream]:
    """Read `a@12,b`, with percent-encoded names. The positions of a `Last-Event-ID` win."""
    wanted = [_read_one(given) for given in streams.split(",") if given]
    if not 0 < len(wanted) <= MOST_STREAMS:
        raise InvalidParams(f"cannot read {len(wanted)} streams at once; name 1 to {MOST_STREAMS}")
    names = [each.name for each in wanted]
    for name in names:
        if names.count(name) > 1:
            raise InvalidParams(f"cannot read stream {name} twice in one body; name it once")
    if not last_event_id:
        return wanted
    positions = last_event_id.split(".")
    if len(positions) != len(wanted):
        raise InvalidParams(
            f"cannot go on: the Last-Event-ID holds {len(positions)} positions for {len(wanted)} streams;"
            " name the same streams in the same order"
        )
    return [
        WantedStream(each.name, read_position(position, "Last-Event-ID"), each.given)
        for each, position in zip(wanted, positions, strict=True)
    ]


def _read_one(given: str) -> WantedStream:
    name, at, position = given.partition("@")
    return WantedStream(unquote(name), read_position(position, given[:80]) if at else 0, name)


def read_position(text: str, where: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidParams(f"cannot read the position in {where}; give the number of an event, or 0")
    return int(text)


async def open_streams(
    hub: Hub,
    workspace: str,
    streams: str,
    last_event_id: str | None,
    credential: Credential | None = None,
) -> MultiplexReader:
    members = [await _open(hub, workspace, each) for each in read_wanted(streams, last_event_id)]
    missing = next((each for each in members if each.source is None), None)
    # A browser asks for what it asked for before: that one of many has been deleted must not end it all.
    if missing and (not last_event_id or all(each.source is None for each in members)):
        raise NotFound(f"cannot find stream {missing.given}; check its name")
    return MultiplexReader(hub, members, credential)


async def _open(hub: Hub, workspace: str, wanted: WantedStream) -> MultiplexedStream:
    try:
        source = await hub.source(wanted.name, workspace)
    except NotFound:
        return MultiplexedStream(wanted.name, wanted.given, None, wanted.after)
    check_position(source, wanted.after)
    return MultiplexedStream(wanted.name, wanted.given, source, wanted.after)


class MultiplexedStream:
    """One stream of the body and the position in it."""

    def __init__(self, name: str, given: str, source: StreamSource | None, seq: int) -> None:
        self.given = given
        self.name = name
        self.source = source
        self.seq = seq
        self.channel: StreamChannel | None = None
        self.ended = False
        self.opening = b'\ndata: {"stream":%b,"event":' % msgspec.json.encode(name)


class MultiplexReader(LiveReader):
    def __init__(self, hub: Hub, members: Sequence[MultiplexedStream], credential: Credential | None) -> None:
        super().__init__(hub, credential)
        self._members = members
        self._turn = 0

    def __enter__(self) -> Self:
        for member in self._members:
            if member.source is not None:
                member.channel = self._hub.subscribe(member.source, self)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for member in self._members:
            if member.channel is not None:
                self._hub.unsubscribe(member.channel, self)

    async def _ready(self) -> bytes:
        """Take one chunk of every stream in turn, as many as fit into one write; the next write goes on from there."""
        parts: list[bytes] = []
        size = 0
        for _ in self._members:
            index = self._turn
            self._turn = (index + 1) % len(self._members)
            part = await self._part(index)
            parts.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                break
        if size >= CHUNK_BYTES // 2:
            await asyncio.sleep(0)  # as for one stream: who catches up takes turns with the others
        if all(member.ended for member in self._members):
            self._finish(b"")
        return b"".join(parts)

    async def _part(self, index: int) -> bytes:
        member = self._members[index]
        if member.ended:
            return b""
        if member.channel is None:
            return self._end(member)
        found = member.channel.frames(member.seq)
        if found is None:
            found = await member.channel.older(member.seq)
        if found.events:
            return self._wrapped(index, found)
        source = member.channel.source
        if not source.ended:
            return b""
        if isinstance(source, EndingSource):  # a run has ended: the others go on
            return self._end(member, source.end_reason)
        if source.deleted:
            return self._end(member)
        self.dismiss("shutdown")
        return b""

    def _end(self, member: MultiplexedStream, reason: str = "deleted") -> bytes:
        member.ended = True
        return sse.end(reason, member.name)

    def _wrapped(self, index: int, frames: Frames) -> bytes:
        """Put the name around each event of the stream's own frames, and every position in its id."""
        member = self._members[index]
        before = b"".join([b"%d." % each.seq for each in self._members[:index]])
        behind = b"".join([b".%d" % each.seq for each in self._members[index + 1 :]])
        opening = behind + member.opening
        wrapped: list[bytes] = []
        for frame in frames.data.split(b"\n\n")[:-1]:
            number, _, event = frame.partition(b"\ndata: ")
            wrapped += (b"id: ", before, number[4:], opening, event, b"}\n\n")
        member.seq = frames.upto
        self._hub.delivered += frames.events
        return b"".join(wrapped)
