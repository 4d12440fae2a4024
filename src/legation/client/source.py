"""What is followed: one stream, or several over one connection. How it is asked for, how its frames are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeVar

from legation.client.cursor import Broken, Cursors
from legation.client.eventline import read_event, read_stream_name, read_tagged
from legation.client.operation import Query
from legation.client.sse import Frame
from legation.client.target import segment
from legation.errors import InvalidParams
from legation.wire.events import Event

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """`read` gives nothing for what was given before, and raises Broken on what cannot be right.

    The attributes hold for the connection that `connect` was called for last."""

    path: str
    body: bytes | None  # sent by POST, which is never done twice; None: a GET
    over: bool  # what was read last is the end of it, whatever the stream goes on to say

    def connect(self) -> tuple[Query, dict[str, str]]:
        """The query and headers that ask for what is not here yet."""

    def read(self, frame: Frame) -> tuple[T_co, ...]: ...

    def ends(self, frame: Frame) -> bool:
        """Whether an `end` frame leaves nothing more to come."""


class OneStream:
    body: bytes | None = None
    over = False

    def __init__(self, stream: str, after: int, generation: int | Literal["all"] | None = None) -> None:
        self.path = f"/v1/streams/{segment(stream)}/sse"
        self._generation = generation
        self._stream = stream
        self._cursors = Cursors({stream: _checked(after)})
        self._connected_before = False

    def connect(self) -> tuple[Query, dict[str, str]]:
        self._cursors.connect()
        after = str(self._cursors[self._stream])
        headers = {"Last-Event-ID": after} if self._connected_before else {}
        self._connected_before = True
        chosen = () if self._generation is None else (("generation", str(self._generation)),)
        return (("after", after), *chosen), headers

    def read(self, frame: Frame) -> tuple[Event, ...]:
        try:
            event = read_event(frame.data)
        except ValueError as error:
            raise Broken(f"what is no event: {error}") from error
        return (event,) if self._cursors.take(self._stream, event.seq) else ()

    def ends(self, frame: Frame) -> bool:  # noqa: ARG002 - whatever it says, it is about this one
        return True


class ManyStreams:
    path = "/v1/stream"
    body: bytes | None = None
    over = False

    def __init__(self, after: Mapping[str, int]) -> None:
        if not after:
            raise InvalidParams("cannot follow no streams: name at least one")
        self._cursors = Cursors({name: _checked(seq) for name, seq in after.items()})
        self._open = dict.fromkeys(after)
        self._connected_before = False

    def connect(self) -> tuple[Query, dict[str, str]]:
        """With a `Last-Event-ID` the server knows that we come again: one that was deleted since ends alone."""
        self._cursors.connect()
        positions = [str(self._cursors[name]) for name in self._open]
        wanted = [f"{segment(name)}@{seq}" for name, seq in zip(self._open, positions, strict=True)]
        headers = {"Last-Event-ID": ".".join(positions)} if self._connected_before else {}
        self._connected_before = True
        return (("streams", ",".join(wanted)),), headers

    def read(self, frame: Frame) -> tuple[tuple[str, Event], ...]:
        try:
            stream, event = read_tagged(frame.data)
        except ValueError as error:
            raise Broken(f"what is no event: {error}") from error
        return ((stream, event),) if self._cursors.take(stream, event.seq) else ()

    def ends(self, frame: Frame) -> bool:
        """One of them, where it is named; else all."""
        ended = read_stream_name(frame.data)
        if ended is None:
            self._open.clear()
        else:
            self._open.pop(ended, None)
        return not self._open


def _checked(after: int) -> int:
    if after < 0:
        raise InvalidParams("cannot follow a stream from a negative number: 0 is its beginning")
    return after
