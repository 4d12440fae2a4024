"""What a server that was killed left in its sessions: a turn without its end, a message that no agent has seen.

INV-M1  A message that was accepted is in the log as a prompt, or waits to be: never both, never neither.
"""

from __future__ import annotations

from msgspec.structs import replace

from legation.server.sessions.details import Begun
from legation.server.sessions.record import Record
from legation.server.sessions.records import Records
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire import codec
from legation.wire.lifecycle import PromptStarted, SessionStatus

WHY = "stopped: the server ended before the turn did"


async def mend(records: Records, log: EventLog) -> None:
    for record in records:
        if record.details.begun is not None and not record.ended:
            await _mend(records, record, await log.stream(record.id, record.workspace))


async def _mend(records: Records, record: Record, stream: Stream) -> None:
    from legation.host.leftover import left_open

    begun, queue = record.details.begun, record.details.queue
    assert begun is not None
    if not await _was_prompted(stream, begun):
        queue = (begun.message, *queue)
    if ends := await left_open(stream, begun.after):
        status = SessionStatus(status="disconnected", reason=WHY)
        await stream.append([codec.draft(payload) for payload in (*ends, status)])
    record.note_head(stream.head)
    await records.save(record, replace(record.details, begun=None, queue=queue))


async def _was_prompted(stream: Stream, begun: Begun) -> bool:
    """Others may have prompted it too: clients of ACP."""
    async for event in stream.subscribe(begun.after, follow=False):
        if event.type == PromptStarted.event_type():
            payload = codec.decode(event)
            if isinstance(payload, PromptStarted) and payload.message == (begun.message.id or None):
                return True
    return False
