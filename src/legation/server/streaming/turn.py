"""The body of one turn: what a session's log gets from a message on, up to the turn's end or the first question.

INV-T1  Nothing from before the message is sent, and nothing from after the end.
INV-T2  The end is the same in every schema: it is read from the events of sandbox-agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Self, cast

from legation.server.streaming import sse
from legation.server.streaming.hub import Credential, Hub, LiveReader, StreamChannel, farewell
from legation.server.streaming.projection import ProjectedSource, frames
from legation.wire.events import Event
from legation.wire.universal.output import ProjectedRow

# Whoever reads a turn answers what it asks, and then reads the session's events. An error, and what cannot be parsed,
# ends nothing here: if the turn or the session ends of it, that is told.
ENDS: Final = frozenset(("turn.ended", "session.ended", "permission.requested", "question.requested"))
# In a `session.ended`, and in no text that stands in one: there these quotes are escaped.
_TERMINATED: Final = b'"data":{"reason":"terminated"'


# The message is taken: whoever is cut off goes on from here, and does not send it again.
ACCEPTED: Final = b"event: accepted\nid: %d\n\n"


class TurnCursor:
    """A place in one projection."""

    def __init__(self, source: ProjectedSource, after: int) -> None:
        self.source = source
        self.after = after
        self.channel: StreamChannel | None = None

    async def take(self) -> list[ProjectedRow]:
        assert self.channel is not None, "not entered"
        source = self.channel.source  # another reader's, if there is one
        found = source.since(self.after)
        if found is None:
            found = await source.read_older(self.after)
        taken = sse.first_chunk(found)
        if taken:
            self.after = taken[-1].seq
        return [cast(ProjectedRow, each) for each in taken]


class TurnReader(LiveReader):
    """`boundary` is the last event of the log before the message. A message that waits for others has a turn later:
    `begins` is the boundary then, and until it is known only the session's end is of interest. The end of an agent in
    another's turn is none of that: the next agent takes the message."""

    def __init__(
        self,
        hub: Hub,
        shown: TurnCursor,
        judged: TurnCursor,
        boundary: int,
        begins: asyncio.Future[int] | None,
        credential: Credential,
    ) -> None:
        super().__init__(hub, credential)
        self._greeted = False
        self._shown = shown
        self._judged = judged  # the same one, unless another schema is shown
        self._accepted = self._boundary = boundary
        self._begins = begins
        self._judged_upto = 0
        self._begun = False
        self._last: int | None = None  # the event of the log that ends it

    def __enter__(self) -> Self:
        for cursor in {self._shown, self._judged}:
            cursor.channel = self._hub.subscribe(cursor.source, self, frames)
        if self._begins is not None:
            self._begins.add_done_callback(self._wake)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for cursor in {self._shown, self._judged}:
            if cursor.channel is not None:
                self._hub.unsubscribe(cursor.channel, self)
        if self._begins is not None:
            self._begins.remove_done_callback(self._wake)

    def _wake(self, _: asyncio.Future[int]) -> None:
        self.wakeup.set()

    async def _ready(self) -> bytes:
        if not self._greeted:
            self._greeted = True
            self.wakeup.set()
            return ACCEPTED % self._shown.after
        known = self._last is not None
        rows = await self._shown.take()
        if self._shown is self._judged:
            self._judge(rows)
        else:
            await self._judge_up_to(rows[-1].cause if rows else None)
        sent: list[Event] = [each for each in rows if self._belongs(each)]
        if self._is_over_with(rows, known):
            self._finish(b"")
        elif not rows and self._last is not None:
            self.wakeup.set()  # it ended after we had looked for what to show
        elif not rows and self._shown.source.ended:
            self._finish(farewell(self._shown.source))
        elif rows and not sent:
            self.wakeup.set()  # there may be more behind what was skipped
        self._hub.delivered += len(sent)
        return frames(sent).data if sent else b""

    def _waits(self) -> bool:
        # Asked when rows are there: the turn is known to begin before the log has any of it.
        begins = self._begins
        if begins is None or not begins.done():
            return begins is not None
        self._begins = None
        if not begins.cancelled():
            self._boundary = max(self._boundary, begins.result())
        return False

    def _is_over_with(self, rows: Sequence[ProjectedRow], known: bool) -> bool:
        """Say whether these rows are the last. `known`: they were taken when the end was there."""
        # What ends it is the last row of its cause; in another schema that cause may have more, behind this chunk.
        if self._last is None:
            return False
        return self._shown is self._judged or (rows[-1].cause > self._last if rows else known)

    def _belongs(self, row: ProjectedRow) -> bool:
        if row.cause == self._last:
            return True
        if self._begins is not None:
            return False  # of a turn before
        return row.cause > self._boundary and (self._last is None or row.cause < self._last)

    async def _judge_up_to(self, cause: int | None) -> None:
        """Judge up to what is shown, so that all of it has been judged; without anything to show, all there is."""
        while self._last is None and (cause is None or self._judged_upto < cause):
            rows = await self._judged.take()
            if not rows:
                return
            self._judge(rows)

    def _judge(self, rows: Sequence[ProjectedRow]) -> None:
        waits = self._waits()
        for each in rows:
            if self._last is None and self._is_end(each, waits):
                self._last = each.cause
            self._judged_upto = each.cause

    def _is_end(self, row: ProjectedRow, waits: bool) -> bool:
        # Where its session is closed just before the turn, that is said to begin behind the end, and nothing follows.
        if row.type == "session.ended" and _TERMINATED in row.raw and row.cause > self._accepted:
            return True
        if row.cause <= self._boundary:
            return False
        self._begun |= not waits and row.type == "turn.started"
        if row.type == "session.ended" and not self._begun:
            self._boundary = row.cause
            return False
        return row.type == "session.ended" or (not waits and row.type in ENDS)
