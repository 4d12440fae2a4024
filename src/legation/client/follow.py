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
from typing import Final, Generic, NamedTuple, TypeVar

from legation.client.cursor import Broken
from legation.client.failure import Failure, refused, told
from legation.client.operation import Method, Query
from legation.client.repeat import Reconnects
from legation.client.source import Source
from legation.client.sse import Frame, Parser
from legation.errors import InternalError, LegationError, Unauthenticated, Unavailable

T = TypeVar("T")

# A connection that cannot be right, right after another: no accident of the network any more.
MAX_BROKEN: Final = 3


class StreamRequest(NamedTuple):
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes | None = None

    @property
    def method(self) -> Method:
        return "GET" if self.body is None else "POST"


class Follow(Generic[T]):
    def __init__(self, source: Source[T], reconnects: Reconnects) -> None:
        self.ended = False
        self.hung_up = False  # nothing more is to be read from this connection
        self.is_open = False  # this connection is a stream
        self._source = source
        self._reconnects = reconnects
        self._parser = Parser()
        self._broken = 0
        self._was_open = False
        self._failure: Failure | None = None
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
        """Why this connection never was a stream."""
        return self._failure.error if self._failure is not None and not self.is_open else None

    def failed(self, failure: Failure) -> None:
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
        nameless = Failure(
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
        self.failed(Failure(error, passing=True))

    def _break_off(self, fault: Broken) -> None:
        self._broken += 1
        error = InternalError(
            f"cannot follow the stream: the server sent {fault}; read its events by pages instead"
        )
        if self._broken >= MAX_BROKEN:
            raise error
        self.failed(Failure(error, passing=True))


def _unsure(failure: Failure) -> LegationError:
    if failure.unsent:
        return failure.error
    why = failure.error.message.partition(";")[0]
    return Unavailable(
        f"{why}; whether it got there is not known: read the session's events before you send it again"
    )
