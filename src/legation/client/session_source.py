"""The events of one session, and of one turn in it, followed.

INV-C8  Numbers go up; they have gaps, so that none can be missed by its number: within a connection the server leaves
nothing out, and the next one goes on behind the last number that was given.
"""

from __future__ import annotations

from legation.client.cursor import Broken
from legation.client.follow import Follow
from legation.client.operation import Query, encoded
from legation.client.repeat import PATIENCE, Reconnects
from legation.client.session_event import AnyData, SessionEvent, read_session_event
from legation.client.session_operations import new_message, session_path
from legation.client.sse import Frame
from legation.errors import InvalidParams
from legation.wire.api.sessions import Attachment, NewMessage
from legation.wire.universal.shapes import ItemEvent, SessionEnded, Text, Turn


class SessionEvents:
    body: bytes | None = None
    over = False

    def __init__(self, session: str, after: int, *, raw: bool) -> None:
        if after < 0:
            raise InvalidParams("cannot follow a session from a negative number: 0 is its beginning")
        self.path = f"{session_path(session)}/events/sse"
        self._after = after
        self._raw = raw_query(raw)
        self._connected_before = False

    def begin_after(self, sequence: int) -> None:
        self._after = sequence

    def connect(self) -> tuple[Query, dict[str, str]]:
        after = str(self._after)
        headers = {"Last-Event-ID": after} if self._connected_before else {}
        self._connected_before = True
        return (("offset", after), *self._raw), headers

    def read(self, frame: Frame) -> tuple[SessionEvent, ...]:
        try:
            event = read_session_event(frame.data)
        except (ValueError, RecursionError) as error:
            raise Broken(f"what is no event: {error}") from error
        if event.sequence <= self._after:
            return ()
        self._after = event.sequence
        return (event,)

    def ends(self, frame: Frame) -> bool:  # noqa: ARG002 - whatever it says, it is about this one
        return True


class TurnEvents:
    """The first connection takes the message there; those after it go on in the session's own stream.

    Messages wait for each other, so turns of others may come before: ours is the one that begins with our text."""

    over = False

    def __init__(self, session: str, message: NewMessage, *, raw: bool) -> None:
        self.path = f"{session_path(session)}/messages/stream"
        self.body: bytes | None = encoded(message)
        self._text = Text(message.message)
        self._rest = SessionEvents(session, 0, raw=raw)
        self._query = raw_query(raw)
        self._connected_before = False
        self._begun: SessionEvent | None = None  # a turn of which it is not known yet whether it is ours
        self._ours: str | None = None

    def connect(self) -> tuple[Query, dict[str, str]]:
        if not self._connected_before:
            self._connected_before = True
            return self._query, {}
        self.path, self.body = self._rest.path, None
        return self._rest.connect()

    def read(self, frame: Frame) -> tuple[SessionEvent, ...]:
        if frame.event == "accepted":
            self._rest.begin_after(_number(frame.id))
            return ()
        return tuple(each for event in self._rest.read(frame) for each in self._of_ours(event))

    def ends(self, frame: Frame) -> bool:
        """A turn's own stream may end before the turn does: when the agent asks for something."""
        return self.body is None and self._rest.ends(frame)

    def _of_ours(self, event: SessionEvent) -> tuple[SessionEvent, ...]:
        data = event.data
        if self._ours is not None:
            self.over = _is_end(data, self._ours)
            return (event,)
        if isinstance(data, SessionEnded):
            self.over = data.reason == "terminated"  # else the next message, ours, starts an agent again
            return (event,) if self.over else ()
        if isinstance(data, Turn):
            self._begun = event if data.phase == "started" else None
        elif self._begun is not None and self._says_ours(data):
            begun, self._ours = self._begun, _turn_of(self._begun)
            return (begun, event)
        return ()

    def _says_ours(self, data: AnyData) -> bool:
        return isinstance(data, ItemEvent) and data.item.role == "user" and self._text in data.item.content


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Broken("what is no number of an event")
    return int(text)


def _is_end(data: AnyData, turn: str) -> bool:
    return isinstance(data, SessionEnded) or (
        isinstance(data, Turn) and data.phase == "ended" and (data.turn_id or "") == turn
    )


def _turn_of(begun: SessionEvent) -> str:
    return (begun.data.turn_id or "") if isinstance(begun.data, Turn) else ""


def follow_session(
    session: str, after: int = 0, *, raw: bool = False, patience: float = PATIENCE
) -> Follow[SessionEvent]:
    """Every event above the number `after`: all that happened, then all that happens, until the session is deleted.

    Connections come and go without a gap or a double. `raw`: with what the agent sent.
    `patience`: seconds without a sign of the server."""
    return Follow(SessionEvents(session, after, raw=raw), Reconnects(patience))


def follow_turn(
    session: str,
    text: str,
    attachments: tuple[Attachment | str, ...] = (),
    *,
    raw: bool = False,
    patience: float = PATIENCE,
) -> Follow[SessionEvent]:
    """Sends a message when the iteration begins, and gives the events of its turn, to its end.

    A cut connection is made anew; the message is never sent twice. Who stops iterating does not stop the turn."""
    return Follow(TurnEvents(session, new_message(text, attachments), raw=raw), Reconnects(patience))


def raw_query(raw: bool) -> Query:
    return (("includeRaw", "true"),) if raw else ()
