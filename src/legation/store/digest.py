"""Digests of sessions' logs: what is open in one, by the numbers of the events that began it.

Whoever takes a session up, or comes back to it, needs no more of its past. A digest is kept with the log, as a checkpoint
of a reading, so that the next reads only what came since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal
from zlib import crc32

import msgspec

from legation.store.codec import WantedCheckpoint
from legation.store.stream import GROWTH_EVENTS, Stream
from legation.wire import event_types
from legation.wire.event_types import (
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
)
from legation.wire.events import Event

KIND: Final = "digest"
FORMAT: Final = 1  # to be raised whenever the same log gives another digest
AT_ONCE: Final = 500  # events that are looked at before others have their turn

Opened = Literal["turn", "permission", "question"]
_ENDS: Final = frozenset(
    each.event_type()
    for each in (
        PermissionAsked,
        QuestionAsked,
        PromptStarted,
        PermissionAnswered,
        QuestionAnswered,
        PromptFinished,
    )
)


class OpenEnd(msgspec.Struct, frozen=True, array_like=True):
    """Something that was begun and has not ended, and the event that began it."""

    kind: Opened
    seq: int


class LogDigest(msgspec.Struct):
    """`open` has them by name, in the order in which they were begun."""

    open: dict[str, OpenEnd] = {}

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in _ENDS:
                self._look_at(event)

    def _look_at(self, event: Event) -> None:
        match event_types.decode(event):
            case PromptStarted(turn=name):
                self.open[name] = OpenEnd("turn", event.seq)
            case PermissionAsked(id=name):
                self.open[name] = OpenEnd("permission", event.seq)
            case QuestionAsked(id=name):
                self.open[name] = OpenEnd("question", event.seq)
            case PromptFinished(turn=name) | PermissionAnswered(id=name) | QuestionAnswered(id=name):
                self.open.pop(name, None)
            case _:
                pass


async def digest(stream: Stream) -> LogDigest:
    """Read the digest of what the stream shows now: from the last that was kept on. One that took a while is kept."""
    floor, upto = stream.floor, stream.visible
    found, start = LogDigest(), floor - 1
    kept = await stream.checkpoint(WantedCheckpoint(KIND, FORMAT, floor, upto))
    if kept is not None and (earlier := _decoded(kept.body)) is not None:
        found, start = earlier, kept.seq
    async for batch in stream.subscribe(start, follow=False).batches():
        for at in range(0, len(batch), AT_ONCE):
            found.take([event for event in batch[at : at + AT_ONCE] if event.seq <= upto])
            await asyncio.sleep(0)
    if stream.floor != floor:  # another generation is shown by now
        return await digest(stream)
    if upto - start >= GROWTH_EVENTS:
        with suppress(UnicodeEncodeError):  # a name that is half a character
            stream.keep_checkpoint(KIND, FORMAT, floor, upto, _encoded(found), only=True)
    return found


def _encoded(found: LogDigest) -> bytes:
    text = msgspec.json.encode(found)
    return crc32(text).to_bytes(4) + text


def _decoded(body: bytes) -> LogDigest | None:
    """None where it is damaged: then it is made anew."""
    if crc32(body[4:]).to_bytes(4) != body[:4]:
        return None
    try:
        return msgspec.json.decode(body[4:], type=LogDigest)
    except msgspec.MsgspecError:
        return None
