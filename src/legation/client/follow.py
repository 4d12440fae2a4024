"""Following a stream over as many connections as it takes, sans I/O.

INV-C5  Whatever the connections do, the items given are the exact suffix of the stream after the number asked
for: each once, in order, none missing; and it ends only when the server says `end`, an error that another try
cannot mend is met, or patience runs out.
INV-C6  What is sent along with the first request is sent once: a connection that is lost before anything came back may
have delivered it or not, and that is an error.

A driver (sync or async) does, until `ended`:
    connect with `request()`, tell `opened` the answer, `take` each chunk until `hung_up`,
    then sleep for `pause()` seconds; `unreached` says why there was no answer.
An `accepted` frame says that what was sent along is taken, and by its id where to go on from. An `error` frame is the
problem that came too late for a status: it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from legation.client.decode import Frame, Parser, read_event, read_stream_name, read_tagged
from legation.client.request import HttpMethod, Query, Reconnects, RequestFailure, refused, segment, told
from legation.errors import InternalError, InvalidParams, LegationError, Unauthenticated, Unavailable
from legation.wire.events import Event

T = TypeVar("T")

# A connection that cannot be right, right after another: no accident of the network any more.
MAX_BROKEN: Final = 3


class StreamRequest(NamedTuple):
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes | None = None

    @property
    def method(self) -> HttpMethod:
        return "GET" if self.body is None else "POST"


class Follow(Generic[T]):
    def __init__(self, source: FollowSource[T], reconnects: Reconnects) -> None:
        self.ended = False
        self.hung_up = False  # nothing more is to be read from this connection
        self.is_open = False  # this connection is a stream
        self._source = source
        self._reconnects = reconnects
        self._parser = Parser()
        self._broken = 0
        self._was_open = False
        self._failure: RequestFailure | None = None
        self._sent = False  # this connection takes something there, and nothing came back yet

    def request(self) -> StreamRequest:
        self.hung_up = self.is_open = False
        self._failure = None
        self._parser = Parser()
        self._reconnects.opened()
        query, headers = self._source.connect()
        self._sent = self._source.body is not None
        return StreamRequest(
            self._source.path, query, {**headers, "Accept": "text/event-stream"}, self._source.body
        )

    def opened(self, what: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The head of the answer, with its body where it is not 200. Raises what another try cannot mend."""
        if status == 200:
            if not headers.get("content-type", "").lower().startswith("text/event-stream"):
                self._not_a_stream(what)
            else:
                self.is_open = True
            return
        failure = refused(what, status, headers, body)
        if self._sent or (not failure.passing and status < 500 and status not in (408, 425)):
            raise failure.error
        self.failed(failure)

    @property
    def unreached(self) -> LegationError | None:
        """The reason why this connection never was a stream."""
        return self._failure.error if self._failure is not None and not self.is_open else None

    def failed(self, failure: RequestFailure) -> None:
        """The connection could not be made or was lost. Raises what another try cannot mend."""
        if not failure.passing and isinstance(failure.error, Unauthenticated):
            raise failure.error
        self._failure = failure
        self.hung_up = True

    def take(self, chunk: bytes) -> list[T]:
        """The new items in a chunk of the body."""
        self._reconnects.heard()
        self._was_open = True
        items: list[T] = []
        fault: Broken | None = None
        try:
            for frame in self._parser.feed(chunk):
                items += self._frame(frame)
                if self.hung_up:
                    break
        except Broken as broken:
            fault = broken
        if items:
            self._broken = 0
            self._reconnects.progressed()
        if self._parser.retry is not None:
            self._reconnects.base = self._parser.retry
        if fault is not None:
            self._break_off(fault)
        return items

    def pause(self) -> float:
        """Seconds to wait before the next connection. Raises when there is to be none."""
        nameless = RequestFailure(
            Unavailable("cannot follow the stream: its connections keep closing; try later"), True
        )
        failure = self._failure or nameless
        if self._sent:
            raise _unsure(failure)
        return self._reconnects.pause_after(failure)

    def _frame(self, frame: Frame) -> tuple[T, ...]:
        if frame.event in ("", "message") or (frame.event == "accepted" and self._sent):
            found = self._source.read(frame)
            self._sent = False
            self.ended = self.hung_up = self._source.over
            return found
        if frame.event == "end" and self._source.ends(frame):
            self.ended = self.hung_up = True
        elif frame.event == "bye":
            self.hung_up = True
        elif frame.event == "error" and self._sent:
            raise told(frame.data)
        return ()  # what a later version adds is not for us

    def _not_a_stream(self, what: str) -> None:
        error = Unavailable(f"cannot {what}: what answered is not Legation; see what stands at that address")
        if not self._was_open:  # a wrong address; later it is some proxy's page, which passes
            raise error
        self.failed(RequestFailure(error, passing=True))

    def _break_off(self, fault: Broken) -> None:
        self._broken += 1
        error = InternalError(
            f"cannot follow the stream: the server sent {fault}; read its events by pages instead"
        )
        if self._broken >= MAX_BROKEN:
            raise error
        self.failed(RequestFailure(error, passing=True))


def _unsure(failure: RequestFailure) -> LegationError:
    if failure.unsent:
        return failure.error
    why = failure.error.message.partition(";")[0]
    return Unavailable(
        f"{why}; whether it got there is not known: read the session's events before you send it again"
    )


# How far each followed stream was read.
#
# INV-C4  A number is given at most once and in order. Within one connection numbers are dense: a number that was
# given is dropped, a jump means that something was lost on the way, and the connection with it. Only the first
# number of a connection may lie further on than asked: what was between was replaced (`first_seq` moved).


class Broken(Exception):
    """An item that cannot be right came over this connection; what came before it can. Connect again."""


class Cursors:
    def __init__(self, after: Mapping[str, int]) -> None:
        self._after = dict(after)
        self._expected: dict[str, int] = {}  # the next number of this connection, once its first was seen

    def __getitem__(self, stream: str) -> int:
        return self._after[stream]

    def connect(self) -> None:
        self._expected.clear()

    def take(self, stream: str, seq: int) -> bool:
        """Whether this event is new; raises Broken when one before it is missing."""
        if stream not in self._after:
            raise Broken(f"an event of stream {stream!r}, which was not asked for")
        expected = self._expected.get(stream, seq)
        if seq > expected:
            raise Broken(f"event {seq} of {stream!r} where {expected} was next")
        self._expected[stream] = max(expected, seq + 1)
        if seq <= self._after[stream]:
            return False
        self._after[stream] = seq
        return True


class FollowSource(Generic[T]):
    """A stream to follow: how it is asked for, and how its frames are read.

    The attributes hold for the connection that `connect` was called for last."""

    path: str
    body: bytes | None = None  # sent by POST, which is never done twice; None: a GET
    over = False  # what was read last is the end of it, whatever the stream goes on to say
    _connected_before = False

    def connect(self) -> tuple[Query, dict[str, str]]:
        """Give the query and headers that ask for what is not here yet."""
        raise NotImplementedError

    def read(self, frame: Frame) -> tuple[T, ...]:
        """Read what is new in a frame; raises Broken on what cannot be right."""
        raise NotImplementedError

    def ends(self, frame: Frame) -> bool:  # noqa: ARG002 - whatever it says, it is about this one
        """Tell whether an `end` frame leaves nothing more to come."""
        return True

    def _again(self, position: str) -> dict[str, str]:
        """Make the header by which the server knows that we come again: one that was deleted since ends alone."""
        headers = {"Last-Event-ID": position} if self._connected_before else {}
        self._connected_before = True
        return headers


class OneStream(FollowSource[Event]):
    def __init__(self, stream: str, after: int, generation: int | Literal["all"] | None = None) -> None:
        self.path = f"/v1/streams/{segment(stream)}/sse"
        self._generation = generation
        self._stream = stream
        self._cursors = Cursors({stream: _checked(after)})

    def connect(self) -> tuple[Query, dict[str, str]]:
        self._cursors.connect()
        after = str(self._cursors[self._stream])
        chosen = () if self._generation is None else (("generation", str(self._generation)),)
        return (("after", after), *chosen), self._again(after)

    def read(self, frame: Frame) -> tuple[Event, ...]:
        try:
            event = read_event(frame.data)
        except ValueError as error:
            raise Broken(f"what is no event: {error}") from error
        return (event,) if self._cursors.take(self._stream, event.seq) else ()


class ManyStreams(FollowSource[tuple[str, Event]]):
    path = "/v1/stream"

    def __init__(self, after: Mapping[str, int]) -> None:
        if not after:
            raise InvalidParams("cannot follow no streams: name at least one")
        self._cursors = Cursors({name: _checked(seq) for name, seq in after.items()})
        self._open = dict.fromkeys(after)

    def connect(self) -> tuple[Query, dict[str, str]]:
        self._cursors.connect()
        positions = [str(self._cursors[name]) for name in self._open]
        wanted = [f"{segment(name)}@{seq}" for name, seq in zip(self._open, positions, strict=True)]
        return (("streams", ",".join(wanted)),), self._again(".".join(positions))

    def read(self, frame: Frame) -> tuple[tuple[str, Event], ...]:
        try:
            stream, event = read_tagged(frame.data)
        except ValueError as error:
            raise Broken(f"what is no event: {error}") from error
        return ((stream, event),) if self._cursors.take(stream, event.seq) else ()

    def ends(self, frame: Frame) -> bool:
        """Tell whether it is the end of all: one of them may be named."""
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
