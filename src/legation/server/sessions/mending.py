"""What a server that was killed left in its sessions: a turn without its end, a message that no agent has seen.

INV-M1  A message that was accepted is in the log as a prompt, or waits to be: never both, never neither.
INV-M2  A turn that a server's end cut off is ended in the log, with that reason, before the next server is reached; what its
        agent had asked is withdrawn, and the session says that it was cut until its next turn begins.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from legation.server.sessions.details import Begun, Cut
from legation.server.sessions.record import Record
from legation.server.sessions.records import Records
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire import codec
from legation.wire.lifecycle import PromptFinished, PromptStarted, SessionStatus

WHY: Final = "stopped: the server ended before the turn did"


def cut_words(how: Literal["stopped", "restarted"]) -> tuple[str, str]:
    """Of a turn, and of what its agent asked. A server without sessions loads no host for that."""
    return (
        f"cannot finish the turn: the server was {how} while it ran; see what was done, then send the next message",
        f"the server was {how} while it waited for an answer",
    )


async def mend(records: Records, log: EventLog) -> None:
    for record in records:
        details = record.details
        if (details.begun is not None or details.prompted is not None) and not record.ended:
            await _mend(records, record, await log.stream(record.id, record.workspace))


async def _mend(records: Records, record: Record, stream: Stream) -> None:
    from legation.host.leftover import left_open
    from legation.host.turn import CutWords

    details, queue = record.details, record.details.queue
    begun = details.begun
    if begun is not None and not await _was_prompted(stream, begun):
        queue = (begun.message, *queue)
    heads = (begun.after if begun is not None else None, details.prompted)
    after = min(number for number in heads if number is not None)
    if ends := await left_open(stream, after, CutWords(*cut_words("restarted"))):
        status = SessionStatus(status="disconnected", reason=WHY)
        await stream.append([codec.draft(payload) for payload in (*ends, status)])
    record.note_head(stream.head)
    cut = await _cut(stream, after) or details.cut
    await records.save(record, replace(details, begun=None, prompted=None, queue=queue, cut=cut))


async def _was_prompted(stream: Stream, begun: Begun) -> bool:
    """Others may have prompted it too: clients of ACP."""
    async for event in stream.subscribe(begun.after, follow=False):
        if event.type == PromptStarted.event_type():
            payload = codec.decode(event)
            if isinstance(payload, PromptStarted) and payload.message == (begun.message.id or None):
                return True
    return False


async def _cut(stream: Stream, after: int) -> Cut | None:
    """The last turn, where its end says that it was; also a server that was stopped says so in it."""
    found: Cut | None = None
    async for event in stream.subscribe(after, follow=False):
        if event.type == PromptFinished.event_type():
            payload = codec.decode(event)
            why = payload.cut_by if isinstance(payload, PromptFinished) else None
            found = Cut(at=event.at, reason=why) if why is not None else None
    return found
